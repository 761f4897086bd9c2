"""Search spaces: domains, grids, and the variants that follow from them."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_names

if TYPE_CHECKING:
    from holdfast.errors import RecursiveDependencyError
    from holdfast.space.domains import (
        Categorical,
        Domain,
        Float,
        Function,
        Integer,
        LogUniform,
        Normal,
        Quantized,
        Sampler,
        Uniform,
    )
    from holdfast.space.nested import find_variables, flatten_dict, unflatten_dict
    from holdfast.space.objects import extract_objects, is_marker, restore_objects
    from holdfast.space.primitives import (
        choice,
        grid_search,
        lograndint,
        loguniform,
        qlograndint,
        qloguniform,
        qrandint,
        qrandn,
        quniform,
        randint,
        randn,
        sample_from,
        uniform,
    )
    from holdfast.space.rng import Rng
    from holdfast.space.variants import Mark, Variant, VariantPlan

# Imported when first used: those who read experiments need the names of trials and nothing that draws.
_NAMES_OF = {
    "holdfast.errors": ("RecursiveDependencyError",),
    "holdfast.space.domains": (
        "Categorical",
        "Domain",
        "Float",
        "Function",
        "Integer",
        "LogUniform",
        "Normal",
        "Quantized",
        "Sampler",
        "Uniform",
    ),
    "holdfast.space.objects": ("extract_objects", "is_marker", "restore_objects"),
    "holdfast.space.primitives": (
        "choice",
        "grid_search",
        "lograndint",
        "loguniform",
        "qlograndint",
        "qloguniform",
        "qrandint",
        "qrandn",
        "quniform",
        "randint",
        "randn",
        "sample_from",
        "uniform",
    ),
    "holdfast.space.rng": ("Rng",),
    "holdfast.space.nested": ("find_variables", "flatten_dict", "unflatten_dict"),
    "holdfast.space.variants": ("Mark", "Variant", "VariantPlan"),
}
_MODULES = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = [
    "Categorical",
    "Domain",
    "Float",
    "Function",
    "Integer",
    "LogUniform",
    "Mark",
    "Normal",
    "Quantized",
    "RecursiveDependencyError",
    "Rng",
    "Sampler",
    "Uniform",
    "Variant",
    "VariantPlan",
    "choice",
    "extract_objects",
    "find_variables",
    "flatten_dict",
    "grid_search",
    "is_marker",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "restore_objects",
    "sample_from",
    "unflatten_dict",
    "uniform",
]

__getattr__, __dir__ = lazy_names(__name__, __all__, _MODULES)
