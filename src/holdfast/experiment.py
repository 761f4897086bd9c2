"""``Trial``, as callbacks and stoppers are given it, and ``Experiment``, under the name that others import them by."""

from importlib import import_module
from typing import Any

from holdfast.views.trials import TrialView as Trial

__all__ = ["Trial"]


def __getattr__(name: str) -> Any:
    if name == "Experiment":
        return import_module("holdfast.compat.tune_run").Experiment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
