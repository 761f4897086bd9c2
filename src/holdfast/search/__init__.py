"""Searchers: who decides which configuration is tried next."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_names
from holdfast.search.base import Proposal, Proposer
from holdfast.search.basic_variant import BasicVariantGenerator
from holdfast.search.error_texts import UNDEFINED_METRIC_MODE, UNDEFINED_SEARCH_SPACE, UNRESOLVED_SEARCH_SPACE
from holdfast.search.searcher import Searcher
from holdfast.search.searcher_names import create_searcher

if TYPE_CHECKING:
    from holdfast.search.ax import AxSearch
    from holdfast.search.bayesopt import BayesOptSearch
    from holdfast.search.bohb import TuneBOHB
    from holdfast.search.concurrency_limiter import ConcurrencyLimiter
    from holdfast.search.dehb import DEHBSearch
    from holdfast.search.hebo import HEBOSearch
    from holdfast.search.hyperopt import HyperOptSearch
    from holdfast.search.nevergrad import NevergradSearch
    from holdfast.search.optuna import OptunaSearch
    from holdfast.search.repeater import Repeater
    from holdfast.search.sobol import SobolSearch
    from holdfast.search.zoopt import ZOOptSearch

# Imported when they are first used: most of them need a library of their own.
_MODULES = {
    "AxSearch": "ax",
    "BayesOptSearch": "bayesopt",
    "ConcurrencyLimiter": "concurrency_limiter",
    "DEHBSearch": "dehb",
    "HEBOSearch": "hebo",
    "HyperOptSearch": "hyperopt",
    "NevergradSearch": "nevergrad",
    "OptunaSearch": "optuna",
    "Repeater": "repeater",
    "SobolSearch": "sobol",
    "TuneBOHB": "bohb",
    "ZOOptSearch": "zoopt",
}

__all__ = [
    "AxSearch",
    "BasicVariantGenerator",
    "BayesOptSearch",
    "ConcurrencyLimiter",
    "DEHBSearch",
    "HEBOSearch",
    "HyperOptSearch",
    "NevergradSearch",
    "OptunaSearch",
    "Proposal",
    "Proposer",
    "Repeater",
    "Searcher",
    "SobolSearch",
    "TuneBOHB",
    "UNDEFINED_METRIC_MODE",
    "UNDEFINED_SEARCH_SPACE",
    "UNRESOLVED_SEARCH_SPACE",
    "ZOOptSearch",
    "create_searcher",
]

__getattr__, __dir__ = lazy_names(__name__, __all__, _MODULES)
