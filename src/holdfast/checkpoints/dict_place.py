"""Where the files of a dict checkpoint are written: in the running trial's own directory, or in a temporary one.

Owns that choice. A trial's directory is on the experiment's storage, where saving the files is a rename, and the driver
removes what a killed trial has left there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

from holdfast.checkpoints import scratch
from holdfast.checkpoints.tree import storage_error


class RunningTrial(Protocol):
    """The attempt that runs in this process."""

    pid: int

    def new_directory(self) -> str:
        """A stage of this attempt."""
        ...

    def discard(self, path: str) -> None:
        """Remove a stage that will not be reported."""
        ...


class Place(NamedTuple):
    """A new directory, and what removes it."""

    path: str
    remove: Callable[[str], None]


_trial: RunningTrial | None = None


def set_trial(trial: RunningTrial | None) -> None:
    """Say which attempt runs in this process from now on."""
    global _trial
    _trial = trial


def is_in_trial() -> bool:
    """Whether a trial runs in this very process; its forks must not touch its stages."""
    return _trial is not None and _trial.pid == os.getpid()


def make() -> Place:
    """A new directory for the files of a dict.

    Raises:
        StorageError: There can be none; ``StorageFullError`` if there is no space.
    """
    trial = _trial
    if trial is not None and is_in_trial():
        return Place(trial.new_directory(), _Discard(trial))
    try:
        return Place(scratch.make("dict"), scratch.remove)
    except OSError as error:
        raise storage_error(error, "making a temporary directory for Checkpoint.from_dict()") from error


class _Discard:
    """Removes a stage, but not from a fork of the trial."""

    def __init__(self, trial: RunningTrial) -> None:
        self._trial = trial

    def __call__(self, path: str) -> None:
        if self._trial.pid == os.getpid():
            self._trial.discard(path)
