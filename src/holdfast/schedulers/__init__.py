"""Schedulers: pure policies that judge running trials and pick the next one to run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.schedulers.base import TrialScheduler
from holdfast.schedulers.create import create_scheduler
from holdfast.schedulers.fifo import FIFOScheduler

if TYPE_CHECKING:
    from holdfast.schedulers.view import ExperimentView

# Imported when they are first used: nobody needs all of them.
_HOME_OF = {
    "ExperimentView": "view",
}

__all__ = [
    "ExperimentView",
    "FIFOScheduler",
    "TrialScheduler",
    "create_scheduler",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
