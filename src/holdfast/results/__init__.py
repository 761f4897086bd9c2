"""Results: what an experiment found, read from its journal; works for a live, a dead and a moved one alike."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_names

if TYPE_CHECKING:
    from holdfast.errors import NoResultError
    from holdfast.results.analysis import ExperimentAnalysis
    from holdfast.results.grid import ResultGrid
    from holdfast.results.result import Result

# Imported when first used: the command line opens experiments without any of these, and must answer at once.
_MODULES = {
    "ExperimentAnalysis": "holdfast.results.analysis",
    "NoResultError": "holdfast.errors",
    "Result": "holdfast.results.result",
    "ResultGrid": "holdfast.results.grid",
}

__all__ = ["ExperimentAnalysis", "NoResultError", "Result", "ResultGrid"]

__getattr__, __dir__ = lazy_names(__name__, __all__, _MODULES)
