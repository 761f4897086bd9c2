"""``tune.track``: reporting as the oldest scripts wrote it."""

from __future__ import annotations

from typing import Any

from holdfast.messages.warn import warn_user
from holdfast.trainable import api
from holdfast.trainable.context import TuneContext

__all__ = ["init", "log", "shutdown", "trial_dir", "trial_id", "trial_name"]


def log(**metrics: Any) -> None:
    """``tune.report({...})``."""
    warn_user("track.log(...) still works, but is now written tune.report({...}).", DeprecationWarning)
    api.report(metrics)


def init(*args: Any, **kwargs: Any) -> None:
    """Nothing: a trial can always report."""


def shutdown() -> None:
    """Nothing."""


def trial_dir() -> str | None:
    """``tune.get_context().get_trial_dir()``."""
    return _context().get_trial_dir()


def trial_id() -> str | None:
    """``tune.get_context().get_trial_id()``."""
    return _context().get_trial_id()


def trial_name() -> str | None:
    """``tune.get_context().get_trial_name()``."""
    return _context().get_trial_name()


def _context() -> TuneContext:
    return api.get_context()
