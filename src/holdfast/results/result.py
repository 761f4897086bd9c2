"""``Result``: what one trial found."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.retention import lookup
from holdfast.errors import NoResultError, TrialError
from holdfast.messages.visible import visible
from holdfast.results.best import best_of, check_mode, number
from holdfast.results.dataframes import frame_of
from holdfast.results.history import History, open_history, remote_filesystem
from holdfast.results.sources import FoldedTrial, RemoteTrialFiles, TrialFiles, TrialSource
from holdfast.storage.address import parse
from holdfast.storage.layout import Root
from holdfast.storage.remote_root import Remote, remote_of

if TYPE_CHECKING:
    from holdfast.checkpoints.checkpoint import Checkpoint

MAX_SHOWN = 6

FILLED_IN = frozenset(
    [
        "training_iteration",
        "time_this_iter_s",
        "time_total_s",
        "timestamp",
        "date",
        "trial_id",
        "hostname",
        "node_ip",
        "pid",
        "config",
        "done",
        "time_since_restore",
        "iterations_since_restore",
        "timesteps_since_restore",
        "timesteps_total",
        "episodes_total",
        "experiment_tag",
        "checkpoint_dir_name",
        "should_checkpoint",
    ]
)
"""Keys of a result that holdfast fills in."""


class Result:
    """What one trial found. Everything is read when it is asked for and kept.

    Made by ``Tuner.fit()`` and ``ResultGrid``; ``Result.from_path`` opens one trial's directory.
    """

    def __init__(self, source: TrialSource) -> None:
        self._source = source

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> Result:
        """The result of the trial whose directory is ``path``.

        Read from the experiment above it; if the directory was taken out of one, from its ``result.json`` or else
        ``progress.csv``.

        Args:
            path: The trial's directory, a path or a URI.
            storage_filesystem: The pyarrow or fsspec file system in which ``path`` is a path.

        Raises:
            NoResultError: (a RuntimeError) There is no such directory, or it is not one of a trial.
        """
        filesystem = remote_filesystem(os.path.dirname(os.fspath(path).rstrip("/")), storage_filesystem)
        remote = remote_of(path, filesystem)
        if remote is not None:
            parent = _above(remote)
            if parent is not None and parent.has_spec():
                source = _find(open_history(parent.url, filesystem=parent.filesystem), remote.name)
                if source is not None:
                    return cls(source)
            return cls(RemoteTrialFiles(remote))
        directory = Path(parse(path).path)
        if Root(directory.parent).has_spec():
            source = _find(open_history(directory.parent), directory.name)
            if source is not None:
                return cls(source)
        return cls(TrialFiles(directory))

    @property
    def trial_id(self) -> str:
        """The trial's id, unique within the experiment."""
        return self._source.trial_id

    @property
    def status(self) -> str:
        """PENDING, RUNNING, PAUSED, TERMINATED or ERROR.

        A trial that was interrupted is PENDING (or PAUSED): it has not ended, and a restore continues it. RUNNING is
        said only while its driver is alive.
        """
        return self._source.status

    @property
    def path(self) -> str:
        """The trial's directory. It exists if something has been written into it."""
        return self._source.path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The trial's parameters, also if it never reported."""
        return self._source.config()

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The trial's last result with all keys that were filled in; before the first report those alone."""
        return self._source.metrics()

    @property
    def metrics_history(self) -> list[dict[str, Any]]:
        """All results of the trial in order, each step once: rows that a restart superseded are not among them.

        A trial that continued as a copy of another (population based training) keeps its own rows, and repeats the
        steps that it has trained again from the other's checkpoint; ``metrics_dataframe`` tells which these are.
        """
        return list(self._source.rows())

    @cached_property
    def metrics_dataframe(self) -> Any:
        """``metrics_history`` as a pandas DataFrame; nested keys are joined by "/".

        If the trial continued as a copy of others, the column ``lineage`` counts the copies (each step is there once
        for each), and ``copied_from`` has the id of the trial that was copied; before the first, 0 and None.
        """
        return frame_of(self._source.rows(), self._source.copies())

    @cached_property
    def error(self) -> TrialError | None:
        """Why the trial ended in ERROR; None for every other status."""
        return self._source.error()

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The trial's latest checkpoint, or None."""
        return self._source.checkpoint()

    @property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The checkpoints that ``CheckpointConfig`` keeps, with what was reported with them, worst to best."""
        return self._source.checkpoints()

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint:
        """The kept checkpoint with the best value of ``metric``; NaN and infinity win only where there is nothing else.

        Args:
            metric: A reported key; ``a/b`` is looked up in nested results.
            mode: "min" or "max".

        Raises:
            NoResultError: (a RuntimeError) The trial has no checkpoint, or none with this metric.
        """
        check_mode(mode)
        kept = self.best_checkpoints
        if not kept:
            raise NoResultError(f"No checkpoint exists in the trial {self.trial_id}.")
        pairs = [(number(lookup(metrics, metric)), checkpoint) for checkpoint, metrics in kept]
        best = best_of(pairs, mode, finite=True) or best_of(pairs, mode)
        if best is None:
            known = sorted({key for _, metrics in kept for key in metrics if key not in FILLED_IN})
            raise NoResultError(
                f"Invalid metric name {metric!r}: no checkpoint of trial {self.trial_id} came with a number of that "
                f"name. Reported with its checkpoints: {', '.join(map(repr, known)) or 'nothing'}."
            )
        return best

    @property
    def tags(self) -> list[str]:
        """The trial's tags, as users gave them (``holdfast tag``)."""
        return list(self._source.said()[0])

    @property
    def notes(self) -> list[str]:
        """What users have noted about the trial (``holdfast note``), oldest first."""
        return [note.text for note in self._source.said()[1]]

    @property
    def filesystem(self) -> Any:
        """The ``pyarrow.fs.FileSystem`` of the trial; without pyarrow None, or what stands for its store."""
        return self._source.filesystem

    def __repr__(self) -> str:
        from holdfast.display.tracker import is_unstarted

        parts = [f"{self.trial_id!r}", self.status, f"metrics={{{_shown(self.metrics)}}}"]
        if isinstance(self._source, FoldedTrial) and is_unstarted(self._source.trial):
            parts.insert(2, "not started")
        if self.error is not None:
            parts.append(f"error={str(self.error).splitlines()[0][:160]!r}")
        if self.checkpoint is not None:
            parts.append(f"checkpoint={os.path.basename(self.checkpoint.path.partition('?')[0])!r}")
        parts.append(f"path={self.path!r}")
        return f"Result({', '.join(parts)})"


def _shown(metrics: Mapping[str, Any]) -> str:
    """The user's own metrics in short."""
    own = [(key, value) for key, value in metrics.items() if key not in FILLED_IN]
    shown = [
        f"{key!r}: {visible(str(value)[:40]) if isinstance(value, str) else value!r:.40}"
        for key, value in own[:MAX_SHOWN]
    ]
    return ", ".join(shown + [".."] if len(own) > MAX_SHOWN else shown)


def _above(remote: Remote) -> Remote | None:
    """The place above this one; None above a bucket."""
    if not remote.address.path:
        return None
    above = remote.address.path.rpartition("/")[0]
    return Remote(msgspec.structs.replace(remote.address, path=above), remote.filesystem)


def _find(history: History, name: str) -> FoldedTrial | None:
    """The trial whose directory has this name."""
    for trial in history.state.trials:
        # A directory's name holds the trial's id unless the user chose it: most are distinguished without spelling the
        # whole name.
        if (trial.dirname or trial.id in name) and os.path.basename(history.directory(trial)) == name:
            return FoldedTrial(history, trial)
    return None
