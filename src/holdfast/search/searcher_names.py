"""Searchers by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holdfast.config.arguments import accepted
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
    """The searcher of this name; arguments that it does not have are left out.

    Raises:
        InvalidInputError: There is no searcher of this name.
        ImportError: The library behind it is not installed; the message says how to install it.
    """
    name = str(search_alg).lower()
    if name not in SEARCHERS:
        known = ", ".join(sorted(SEARCHERS))
        hint = f" Instead of {name}, which is not maintained any more, use {GONE[name]}." if name in GONE else ""
        raise InvalidInputError(f"The `search_alg` argument must be one of {known}; got {search_alg!r}.{hint}")
    module, kind = SEARCHERS[name]
    made = getattr(import_module(f"holdfast.search.{module}"), kind)
    return made(**accepted(made, kwargs))
