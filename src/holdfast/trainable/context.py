"""What a trial can learn about itself: ``TuneContext``.

Owns the read-only facts of the running trial. Must never talk to the driver.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.messages.warn import warn_user
from holdfast.trainable.worker_messages import Run, Setup

if TYPE_CHECKING:
    from holdfast.config.resources import PlacementGroupFactory

_warned: set[str] = set()


def warn_outside(name: str, instead: str = "does nothing and returns None") -> None:
    """Tell, once per function, that it was called where no trial runs."""
    if name not in _warned:
        _warned.add(name)
        warn_user(
            f"`{name}` was called outside of a trial, where it {instead}. It is meant for the function that is passed "
            "to Tuner(...); this warning is shown once."
        )


@dataclass(frozen=True)
class StorageContext:
    """Where a trial's files are."""

    storage_path: str
    """Directory that holds experiments."""

    experiment_dir_name: str
    """The experiment's directory below it."""

    trial_dir_name: str
    """The trial's directory below that."""

    @property
    def experiment_fs_path(self) -> str:
        """Absolute path of the experiment."""
        return os.path.join(self.storage_path, self.experiment_dir_name)

    @property
    def trial_fs_path(self) -> str:
        """Absolute path of the trial."""
        return os.path.join(self.experiment_fs_path, self.trial_dir_name)


class TuneContext:
    """Facts about the running trial, from ``tune.get_context()``.

    Outside of a trial every method returns None, with one warning.

    Example:
        >>> def train(config):
        ...     print(tune.get_context().get_trial_id())
    """

    def __init__(self, setup: Setup | None = None, run: Run | None = None) -> None:
        self._setup = setup
        self._run = run

    def get_experiment_name(self) -> str | None:
        """The experiment's name."""
        return self._setup.experiment if self._setup else self._absent("get_experiment_name")

    def get_trial_name(self) -> str | None:
        """The trial's name."""
        return self._run.trial_name if self._run else self._absent("get_trial_name")

    def get_trial_id(self) -> str | None:
        """The trial's id."""
        return self._run.trial_id if self._run else self._absent("get_trial_id")

    def get_trial_resources(self) -> PlacementGroupFactory | None:
        """What the trial was given."""
        return request_of(self._run) if self._run else self._absent("get_trial_resources")

    def get_trial_dir(self) -> str | None:
        """Absolute path of the trial's directory in the experiment's storage."""
        if self._setup is None or self._run is None:
            return self._absent("get_trial_dir")
        return os.path.join(self._setup.root, self._run.trial_dir)

    def get_storage(self) -> StorageContext | None:
        """Where the experiment and the trial are stored."""
        if self._setup is None or self._run is None:
            return self._absent("get_storage")
        parent, name = os.path.split(self._setup.root.rstrip(os.sep))
        return StorageContext(parent, name, self._run.trial_dir)

    def get_metadata(self) -> dict[str, Any]:
        """Not available.

        Raises:
            DeprecationWarning: Always.
        """
        raise DeprecationWarning("`get_metadata` is not available in a trial; put what you need into the config.")

    def get_world_size(self) -> int:
        """1: a trial is one process."""
        return self._of_trainers("get_world_size", 1)

    def get_world_rank(self) -> int:
        """0: a trial is one process."""
        return self._of_trainers("get_world_rank", 0)

    def get_local_world_size(self) -> int:
        """1: a trial is one process."""
        return self._of_trainers("get_local_world_size", 1)

    def get_local_rank(self) -> int:
        """0: a trial is one process."""
        return self._of_trainers("get_local_rank", 0)

    def get_node_rank(self) -> int:
        """0: a trial is one process."""
        return self._of_trainers("get_node_rank", 0)

    @staticmethod
    def _of_trainers(name: str, value: int) -> int:
        warn_user(
            f"`{name}` makes sense in distributed trainers only; in a trial it is always {value}.", DeprecationWarning
        )
        return value

    @staticmethod
    def _absent(name: str) -> None:
        warn_outside(name)


def request_of(run: Run) -> PlacementGroupFactory:
    """The resources of an attempt as the user asked for them."""
    from holdfast.config.resources import PlacementGroupFactory

    return PlacementGroupFactory(run.bundles or [run.resources or {"CPU": 1}], run.strategy)
