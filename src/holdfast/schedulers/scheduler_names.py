"""Schedulers by name."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from holdfast.config.arguments import accepted
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
    """The scheduler of this name; arguments that it does not have are left out.

    Raises:
        InvalidInputError: There is no scheduler of this name, or an argument that it needs is missing.

    Example:
        >>> create_scheduler("asha", max_t=10, metric="loss", mode="min").metric
        'loss'
    """
    name = str(scheduler).lower()
    if name not in SCHEDULERS:
        known = ", ".join(sorted(SCHEDULERS))
        raise InvalidInputError(f"The `scheduler` argument must be one of {known}; got {scheduler!r}.")
    module, kind = SCHEDULERS[name]
    made = getattr(import_module(f"holdfast.schedulers.{module}"), kind)
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
    return made(**accepted(made, kwargs))  # type: ignore[no-any-return]
