"""``ExperimentAnalysis`` under the name that users of other tuners import it by."""

from holdfast.results import ExperimentAnalysis

__all__ = ["ExperimentAnalysis"]
