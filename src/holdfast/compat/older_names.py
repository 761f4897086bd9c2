"""Top-level names of earlier generations: what each stands for today."""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast.config import SyncConfig
from holdfast.warn import warn_user

T = TypeVar("T")


def older(name: str) -> Any:
    """What an older top-level name stands for; warns and tells the name of today."""
    if name == "syncConfig":
        warn_user("tune.syncConfig still works, but is now written tune.SyncConfig.", DeprecationWarning)
        return SyncConfig
    return {"durable": durable}[name]


def durable(trainable: T) -> T:
    """Return the trainable as it is: every experiment is durable."""
    warn_user("tune.durable(trainable) is not needed any more: write trainable alone.", DeprecationWarning)
    return trainable
