"""Results: what an experiment found, read from its journal; works for a live, a dead and a moved one alike."""

from holdfast.results.analysis import ExperimentAnalysis
from holdfast.results.grid import ResultGrid
from holdfast.results.history import NoResultError
from holdfast.results.result import Result

__all__ = ["ExperimentAnalysis", "NoResultError", "Result", "ResultGrid"]
