"""An experiment as a reader sees it: the folded state, and the rows of all trials once somebody asks for one.

Owns opening an experiment to look at it, and the truth about trials whose driver is gone: what the journal last said is
RUNNING is shown as what a restore makes of it, never as running. Must never write, lock or need the user's code, so it
works on a read-only mount and beside a live driver.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.callbacks.rows import ResultBuilder, known_objects, rows_from_events
from holdfast.callbacks.trial_view import ExperimentInfo, TrialView, place_of, shown_root, trial_dirname, trial_name
from holdfast.controller.opening import Opened, open_state
from holdfast.controller.remote import mirror_root, open_root, remote_of
from holdfast.controller.spec import Root, Spec, read_spec
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import CheckpointRecord, State, Trial
from holdfast.core.transitions import apply
from holdfast.errors import FencedError
from holdfast.journal.epoch import Holder, holder
from holdfast.journal.reader import Position, read_journal
from holdfast.space.tree import copy_tree
from holdfast.storage.address import LOCAL, parse, type_of

if TYPE_CHECKING:
    from holdfast.journal.hydrate import Hydrated

MAX_OPEN_TRIES = 5


class History:
    """The state of an experiment and the way to its rows.

    Args:
        state: What the events add up to.
        info: The experiment as views and loggers know it.
        spec: The experiment's facts as stored; None reads them when they are needed.
        position: Where the journal goes on behind ``state``; None means behind all that its last driver wrote.
        owner: The newest driver and whether it is alive; None if there never was one, or nobody looked.
        lost: Trials that were running when their driver died.
        hydrated: How the mirror compares with the store; None if the experiment is not in one, or nobody looked.
    """

    def __init__(
        self,
        state: State,
        info: ExperimentInfo,
        *,
        spec: Spec | None = None,
        position: Position | None = None,
        owner: Holder | None = None,
        lost: frozenset[int] = frozenset(),
        hydrated: Hydrated | None = None,
    ) -> None:
        self.state = state
        self.info = replace(info, load_rows=self.rows)
        self.builder = ResultBuilder(info)
        self.position = position
        self.owner = owner
        self.lost = lost
        self.hydrated = hydrated
        self._spec = spec
        self._rows: dict[int, list[dict[str, Any]]] | None = None

    @property
    def root(self) -> Path:
        """The experiment's directory on this machine."""
        return self.info.root

    @property
    def shown(self) -> str:
        """Where the experiment is, for people and for a later restore."""
        return shown_root(self.info)

    @property
    def spec(self) -> Spec:
        """The experiment's facts as stored."""
        if self._spec is None:
            self._spec = read_spec(Root(self.root))
        return self._spec

    @property
    def retention(self) -> Retention:
        """The user's rule for keeping checkpoints."""
        return self.spec.retention

    def rows(self, n: int) -> list[dict[str, Any]]:
        """The surviving result rows of trial ``n``: each step once, however often the trial was restarted.

        The first call reads the whole journal, for all trials at once.
        """
        if self._rows is None:
            self._rows = rows_from_events(self._events(), None, self.builder, self.retention)
        return self._rows.get(n, [])

    def _events(self) -> Iterator[ev.AnyEvent]:
        for event in read_events(self.root, self.position):
            if type(event) is ev.EpochStarted and event.epoch > self.state.epoch:
                return  # a later driver went on; this state does not know what it did
            yield event

    def view(self, trial: Trial) -> TrialView:
        """The trial as callbacks see it."""
        return TrialView(self.state, trial, self.info, self.builder)

    def name(self, trial: Trial) -> str:
        """How the trial is shown."""
        return trial_name(self.info, trial)

    def directory(self, trial: Trial) -> str:
        """The trial's directory on this machine."""
        return os.path.join(self.root, trial_dirname(self.info, trial))

    def place(self, trial: Trial) -> str:
        """Where the trial's files are, for people: in a store, if the experiment is."""
        return place_of(self.info, trial_dirname(self.info, trial))

    def config(self, trial: Trial) -> dict[str, Any]:
        """The trial's parameters, a copy."""
        if self.info.objects:
            found: dict[str, Any] = known_objects(trial.config, self.info.objects)
            return found
        plain: dict[str, Any] = copy_tree(trial.config)
        return plain

    def last(self, trial: Trial) -> dict[str, Any]:
        """The full result of the trial's last row that counts."""
        return self.builder.last(self.state, trial)

    def checkpoint_metrics(self, trial: Trial, record: CheckpointRecord) -> dict[str, Any]:
        """The result that came with a checkpoint, as far as the checkpoint remembers it."""
        known = {
            **record.metrics,
            "training_iteration": record.metrics.get("training_iteration", record.iteration),
            "time_total_s": record.time_total,
            "timestamp": record.metrics.get("timestamp", int(record.at)),
            "trial_id": trial.id,
            "config": self.config(trial),
            "experiment_tag": trial.shown_tag or trial.tag,
        }
        if record.timesteps_total:
            known["timesteps_total"] = record.timesteps_total
        if not self.info.is_class:
            known["checkpoint_dir_name"] = f"checkpoint_{record.index:06d}"
        return known


def open_history(path: str | os.PathLike[str], info: ExperimentInfo | None = None, filesystem: Any = None) -> History:
    """Read the experiment at ``path``, whatever has become of its driver.

    Args:
        path: The experiment's root, a path or a URI.
        info: Its facts if they are known already, with the objects that its configs refer to.
        filesystem: The pyarrow or fsspec file system in which ``path`` is a path.

    Raises:
        ExperimentNotFoundError: There is no experiment exactly there.
        NewerFormatError: It was written by a newer holdfast.
        JournalDamagedError: Its journal is damaged.
    """
    root, hydrated = open_place(path, filesystem)
    spec = read_spec(root)
    opened, owner = _open(root, spec.retention)
    owner = _heard_of(owner, hydrated)
    state = opened.state
    alive = owner is not None and owner.alive
    lost = frozenset() if alive else settle(state, spec.retention)
    return History(
        state,
        info or info_from(root, spec),
        spec=spec,
        position=opened.contents.position,
        owner=owner,
        lost=lost,
        hydrated=hydrated,
    )


def open_place(path: str | os.PathLike[str], filesystem: Any = None) -> tuple[Root, Hydrated | None]:
    """The local root of the experiment at ``path``, for somebody who looks; and how it compares with the store.

    Raises:
        ExperimentNotFoundError: The store has no experiment exactly there.
        StorageError: The store refuses or does not answer.
    """
    remote = remote_of(path, far_filesystem(path, filesystem))
    if remote is None:
        return Root(parse(path).path), None
    if not remote.exists():
        return open_root(path, filesystem, read_only=True), None  # which says what there is instead
    from holdfast.journal.hydrate import hydrate

    hydrated = hydrate(remote.store, mirror_root(remote).path, read_only=True)
    return Root(hydrated.root, remote=remote), hydrated


def far_filesystem(path: str | os.PathLike[str], filesystem: Any) -> Any:
    """The file system object, unless it stands for this machine's own and ``path`` is an ordinary root in it."""
    if filesystem is None or type_of(filesystem) != LOCAL:
        return filesystem
    return filesystem if (Path(path) / ".holdfast" / "parts").is_dir() else None


def _heard_of(owner: Holder | None, hydrated: Hydrated | None) -> Holder | None:
    """The same driver as the store knows it: a mirror that is left as it is says nothing of newer heartbeats."""
    there = None if hydrated is None else hydrated.holder
    if owner is None or owner.released or there is None or there.claim.writer != owner.claim.writer:
        return owner
    return there


def _open(root: Root, retention: Retention) -> tuple[Opened, Holder | None]:
    for _ in range(MAX_OPEN_TRIES - 1):
        # The owner first: if it dies while we read, what we read is still no younger than "alive".
        owner = holder(root.path)
        try:
            return open_state(root.path, retention), owner
        except FencedError:
            continue  # a new driver sealed the journal between our two looks at it
    return open_state(root.path, retention), holder(root.path)


def settle(state: State, retention: Retention) -> frozenset[int]:
    """Let running trials of a driver that is gone be what the next driver will make of them.

    Changes nothing but ``state``: the journal learns of it when somebody resumes.

    Returns:
        The trials concerned.
    """
    lost = frozenset(state.running)
    at, stopped = state.last_at, state.stopped
    for n in sorted(lost):
        trial = state.trials[n]
        event: ev.AnyEvent
        if trial.verdict == "stop" or state.stopping:
            event = ev.TrialTerminated(at, n, trial.attempt, trial.why or state.stopping)
        elif trial.verdict == "pause":
            event = ev.TrialPaused(at, n, trial.attempt)
        else:
            event = ev.AttemptInterrupted(at, n, trial.attempt, ev.Cause.DRIVER_LOST, stopped)
        apply(state, event, retention)
    return lost


def read_events(root: str | os.PathLike[str], end: Position | None = None) -> Iterator[ev.AnyEvent]:
    """All events of an experiment in order, up to ``end``."""
    for seq, payload in read_journal(root):
        if end is not None and seq >= end.next_seq:
            return
        yield ev.decode(payload)


def info_from(root: Root, spec: Spec) -> ExperimentInfo:
    """What is known about an experiment without loading any object of the user."""
    return ExperimentInfo(
        root=root.path,
        url="" if root.remote is None else root.remote.url,
        filesystem=None if root.remote is None else root.remote.filesystem,
        name=root.name,
        trainable_name=spec.trainable,
        is_class=spec.is_class,
        metric=spec.metric,
        mode=spec.mode,
        total_samples=spec.total,
        max_identifier_len=spec.max_identifier_len,
        utc_offset_s=spec.utc_offset_s,
    )
