"""Searchers by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holdfast.config.arguments import accepted_by_name
from holdfast.errors import InvalidInputError

SEARCHERS = {
    "random": ("basic_variant", "BasicVariantGenerator"),
    "variant_generator": ("basic_variant", "BasicVariantGenerator"),
    "sobol": ("sobol", "SobolSearch"),
    "dehb": ("dehb", "DEHBSearch"),
    "optuna": ("optuna", "OptunaSearch"),
    "hyperopt": ("hyperopt", "HyperOptSearch"),
    "ax": ("ax", "AxSearch"),
    "bayesopt": ("bayesopt", "BayesOptSearch"),
    "bohb": ("bohb", "TuneBOHB"),
    "hebo": ("hebo", "HEBOSearch"),
    "nevergrad": ("nevergrad", "NevergradSearch"),
    "zoopt": ("zoopt", "ZOOptSearch"),
}
"""Name -> module of this package, and class."""

GONE = {
    "skopt": "bayesopt or optuna (with a GPSampler)",
    "dragonfly": "optuna (with a GPSampler)",
    "sigopt": "ax or optuna",
    "cfo": "optuna, or nevergrad",
    "blendsearch": "optuna",
    "flaml": "optuna",
}
"""Searchers of other tuners that nobody maintains any more, and what does the same."""


def create_searcher(search_alg: str, **kwargs: Any) -> Any:
    """The searcher of this name; arguments that only other searchers have are left out.

    An argument that no searcher has is left out with a warning.

    Raises:
        InvalidInputError: There is no searcher of this name.
        InvalidTypeError: No searcher has such an argument, and this one has one of nearly that name.
        ImportError: The library behind it is not installed; the message says how to install it.
    """
    name = str(search_alg).lower()
    if name not in SEARCHERS:
        known = ", ".join(sorted(SEARCHERS))
        hint = f" Instead of {name}, which is not maintained any more, use {GONE[name]}." if name in GONE else ""
        raise InvalidInputError(f"The `search_alg` argument must be one of {known}; got {search_alg!r}.{hint}")
    made = _class_of(name)
    return made(**accepted_by_name(f"create_searcher({name!r})", made, kwargs, lambda: map(_class_of, SEARCHERS)))


def _class_of(name: str) -> Any:
    module, kind = SEARCHERS[name]
    return getattr(import_module(f"holdfast.search.{module}"), kind)
