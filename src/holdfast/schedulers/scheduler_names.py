"""Schedulers by name."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from holdfast.config.arguments import accepted_by_name
from holdfast.errors import InvalidInputError
from holdfast.schedulers.base import TrialScheduler

SCHEDULERS = {
    "fifo": ("fifo", "FIFOScheduler"),
    "async_hyperband": ("async_hyperband", "AsyncHyperBandScheduler"),
    "asynchyperband": ("async_hyperband", "AsyncHyperBandScheduler"),
    "asha": ("async_hyperband", "ASHAScheduler"),
    "asha_promotion": ("asha_promotion", "ASHAPromotionScheduler"),
    "pasha": ("pasha", "PASHAScheduler"),
    "dehb": ("hb_dehb", "DEHBScheduler"),
    "median_stopping_rule": ("median_stopping", "MedianStoppingRule"),
    "medianstopping": ("median_stopping", "MedianStoppingRule"),
    "hyperband": ("hyperband", "HyperBandScheduler"),
    "hb_bohb": ("hb_bohb", "HyperBandForBOHB"),
    "pbt": ("pbt", "PopulationBasedTraining"),
    "pbt_replay": ("pbt_replay", "PopulationBasedTrainingReplay"),
    "pb2": ("pb2", "PB2"),
    "resource_changing": ("resource_changing", "ResourceChangingScheduler"),
}
"""Name -> module of this package, and class."""


def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:
    """The scheduler of this name; arguments that only other schedulers have are left out.

    An argument that no scheduler has is left out with a warning.

    Raises:
        InvalidInputError: There is no scheduler of this name, or an argument that it needs is missing.
        InvalidTypeError: No scheduler has such an argument, and this one has one of nearly that name.

    Example:
        >>> create_scheduler("asha", max_t=10, metric="loss", mode="min").metric
        'loss'
    """
    name = str(scheduler).lower()
    if name not in SCHEDULERS:
        known = ", ".join(sorted(SCHEDULERS))
        raise InvalidInputError(f"The `scheduler` argument must be one of {known}; got {scheduler!r}.")
    made = _class_of(name)
    missing = [
        f"{parameter.name}=..."
        for parameter in inspect.signature(made).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name not in kwargs
    ]
    if missing:
        needed = ", ".join(missing)
        raise InvalidInputError(f"{name!r} needs more than its name: create_scheduler({name!r}, {needed}).")
    taken = accepted_by_name(f"create_scheduler({name!r})", made, kwargs, lambda: map(_class_of, SCHEDULERS))
    return made(**taken)  # type: ignore[no-any-return]


def _class_of(name: str) -> Any:
    module, kind = SCHEDULERS[name]
    return getattr(import_module(f"holdfast.schedulers.{module}"), kind)
