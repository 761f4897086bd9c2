"""Search spaces: domains, grids, and the variants that follow from them."""

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
from holdfast.space.tree import find_variables, flatten_dict, unflatten_dict
from holdfast.space.variants import Mark, Variant, VariantPlan

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
