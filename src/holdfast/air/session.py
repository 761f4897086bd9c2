"""The running trial under its older name: ``session.report`` is ``tune.report``.

Every function works, and says once how it is written today.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.messages.warn import warn_user
from holdfast.trainable import api as trial

if TYPE_CHECKING:
    from holdfast.checkpoints.checkpoint import Checkpoint
    from holdfast.config.resources import PlacementGroupFactory

_told: set[str] = set()


def report(metrics: dict[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """``tune.report(metrics, checkpoint=...)``."""
    _tell("report", "tune.report(...)")
    trial.report(metrics, checkpoint=checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """``tune.get_checkpoint()``."""
    _tell("get_checkpoint", "tune.get_checkpoint()")
    return trial.get_checkpoint()


def get_experiment_name() -> str | None:
    """``tune.get_context().get_experiment_name()``."""
    _tell_of_context("get_experiment_name")
    return trial.get_context().get_experiment_name()


def get_trial_name() -> str | None:
    """``tune.get_context().get_trial_name()``."""
    _tell_of_context("get_trial_name")
    return trial.get_context().get_trial_name()


def get_trial_id() -> str | None:
    """``tune.get_context().get_trial_id()``."""
    _tell_of_context("get_trial_id")
    return trial.get_context().get_trial_id()


def get_trial_resources() -> PlacementGroupFactory | None:
    """``tune.get_context().get_trial_resources()``."""
    _tell_of_context("get_trial_resources")
    return trial.get_context().get_trial_resources()


def get_trial_dir() -> str | None:
    """``tune.get_context().get_trial_dir()``."""
    _tell_of_context("get_trial_dir")
    return trial.get_context().get_trial_dir()


def get_world_size() -> int:
    """1: a trial is one process."""
    return trial.get_context().get_world_size()


def get_world_rank() -> int:
    """0: a trial is one process."""
    return trial.get_context().get_world_rank()


def get_local_world_size() -> int:
    """1: a trial is one process."""
    return trial.get_context().get_local_world_size()


def get_local_rank() -> int:
    """0: a trial is one process."""
    return trial.get_context().get_local_rank()


def get_node_rank() -> int:
    """0: a trial is one process."""
    return trial.get_context().get_node_rank()


def _tell_of_context(name: str) -> None:
    _tell(name, f"tune.get_context().{name}()")


def _tell(name: str, today: str) -> None:
    if name not in _told:
        _told.add(name)
        warn_user(f"session.{name}() still works, but is now written {today}.", DeprecationWarning)
