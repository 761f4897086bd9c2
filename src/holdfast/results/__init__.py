"""Results: what an experiment found, read from its journal; works for a live, a dead and a moved one alike."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.errors import NoResultError
    from holdfast.results.analysis import ExperimentAnalysis
    from holdfast.results.grid import ResultGrid
    from holdfast.results.result import Result

# Imported when first used: the command line opens experiments without any of these, and must answer at once.
_HOMES = {
    "ExperimentAnalysis": "holdfast.results.analysis",
    "NoResultError": "holdfast.errors",
    "Result": "holdfast.results.result",
    "ResultGrid": "holdfast.results.grid",
}

__all__ = ["ExperimentAnalysis", "NoResultError", "Result", "ResultGrid"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
