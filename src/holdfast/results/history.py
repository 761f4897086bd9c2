"""An experiment as a reader sees it: the folded state, and the rows of those trials that somebody asks for.

Owns opening an experiment to look at it, and the truth about trials whose driver is gone: what the journal last said is
RUNNING is shown as what a restore makes of it, never as running. Must never write, lock or need the user's code, so it
works on a read-only mount and beside a live driver.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.controller.changes import put_over_spec
from holdfast.controller.evidence import (
    Known,
    is_only_in_store,
    records_lost,
    still_unknown,
    unknown_checkpoints,
    unknown_in_store,
)
from holdfast.controller.lost_reports import lost_reports, reports_lost, still_lost
from holdfast.controller.opening import Opened, Progress, collector_paused, open_state
from holdfast.controller.remote_experiment import mirror_root, open_root
from holdfast.controller.spec import Spec, read_spec
from holdfast.core.retention import Retention
from holdfast.core.state import CheckpointRecord, State, Trial
from holdfast.errors import FencedError, JournalDamagedError
from holdfast.journal.epoch import Holder, holder
from holdfast.journal.reader import Position
from holdfast.journal.records import Events, read_events
from holdfast.journal.trial_index import TrialIndex
from holdfast.results.settlement import Settlement
from holdfast.space.objects import known_objects
from holdfast.storage.address import LOCAL, parse, type_of
from holdfast.storage.layout import Root
from holdfast.storage.remote_root import Remote, remote_of
from holdfast.views.results import ResultBuilder, RowFolder
from holdfast.views.trial_rows import PartialState, TrialRows
from holdfast.views.trials import ExperimentInfo, TrialView, place_of, shown_root, trial_dirname, trial_name

if TYPE_CHECKING:
    from holdfast.shipping.restore_mirror import RestoredMirror

MAX_OPEN_TRIES = 5

MAX_KEPT_ROWS = 20_000
MAX_KEPT_TRIALS = 64
"""How many rows, and of how many trials, are kept for whoever asks again. Those of the last trial always are."""


class History:
    """The state of an experiment and the way to its rows.

    Args:
        state: What the events add up to.
        info: The experiment as views and loggers know it.
        spec: The experiment's facts as stored; None reads them when they are needed.
        position: Where the journal continues behind ``state``; None means behind all that its last driver wrote.
        owner: The newest driver and whether it is alive; None if there never was one, or nobody looked.
        restored: How the mirror compares with the store; None if the experiment is not in one, or nobody looked.
        damage: What is wrong with the journal: ``state`` is what stands before it. None if nothing is.

    Attributes:
        unasked: Why this is what a mirror says and not its store; "" if it is not.
        early_damage: What is wrong with records that ``state`` did not need, because a snapshot stands for them; None
            if nothing is, or nobody has read them.
        lost: Trials that were running when their driver died.
    """

    def __init__(
        self,
        state: State,
        info: ExperimentInfo,
        *,
        spec: Spec | None = None,
        position: Position | None = None,
        owner: Holder | None = None,
        restored: RestoredMirror | None = None,
        damage: JournalDamagedError | None = None,
    ) -> None:
        self.damage = damage
        self.state = state
        self.info = replace(info, load_rows=self.rows)
        self.builder = ResultBuilder(info)
        self.position = position
        self.owner = owner
        self.lost: frozenset[int] = frozenset()
        self.restored = restored
        self.unasked = ""
        self.early_damage: JournalDamagedError | None = None
        self._spec = spec
        self._folded: dict[int, RowFolder] = {}
        self._index: TrialIndex | None = None
        self._rows: TrialRows | None = None
        self._settled: Settlement | None = None

    @property
    def known_damage(self) -> JournalDamagedError | None:
        """What is wrong with the journal, wherever it is; None if nothing is known to be."""
        return self.damage or self.early_damage

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

        The first call looks at every record of the journal, to learn where those of each trial are. From then on a
        trial costs what it has reported. The rows of few trials are kept in memory.
        """
        return self._fold(n).rows.get(n, [])

    def copies(self, n: int) -> list[tuple[int, str]]:
        """Where trial ``n`` continued as a copy of another: before which of its rows, and the other's id."""
        return self._fold(n).copies.get(n, [])

    def _fold(self, n: int) -> RowFolder:
        folded = self._folded.pop(n, None)
        if folded is None:
            with collector_paused():
                folded = self._reader.fold(n)
        self._folded[n] = folded  # the newest stands last
        surplus = sum(len(each.rows.get(m, ())) for m, each in self._folded.items()) - MAX_KEPT_ROWS
        for m in list(self._folded)[:-1]:
            if surplus <= 0 and len(self._folded) <= MAX_KEPT_TRIALS:
                break
            surplus -= len(self._folded.pop(m).rows.get(m, ()))
        return folded

    @property
    def _reader(self) -> TrialRows:
        if self._rows is None:
            self._rows = TrialRows(self.index(), self.builder, self.retention)
        return self._rows

    @contextmanager
    def partial_state(self) -> Iterator[PartialState]:
        """A state for the fold of one trial; one at a time, because they share the list that stands for all trials."""
        part = self._reader.partial_state()
        try:
            yield part
        finally:
            part.clear()

    def index(self) -> TrialIndex:
        """Where the records of each trial are, as far as this state knows; made by the first call, which reads all."""
        if self._index is None:
            self._index = TrialIndex(self.root, end=self.position, epoch=self.state.epoch)
        return self._index

    def advanced(self, position: Position, changed: Iterable[int]) -> None:
        """The state was brought up to ``position``, and these trials are not what they were.

        Raises:
            FencedError: The place of the index is not part of the journal any more.
        """
        self.position = position
        for n in changed:
            self._folded.pop(n, None)
        if self._index is not None:
            self._index.advance(position, self.state.epoch)
        if self._rows is not None:
            self._rows.advanced()

    def settle(self) -> frozenset[int]:
        """The driver is gone: show its running trials as a restore will find them. Returns their numbers."""
        if self._settled is None:
            self._settled = Settlement(self.state, self.retention)
            self.lost = self._settled.lost
        return self.lost

    def unsettle(self) -> frozenset[int]:
        """Take that back, before anything is folded in or because the driver is alive. Returns their numbers."""
        settled, self._settled, self.lost = self._settled, None, frozenset()
        if settled is None:
            return frozenset()
        settled.undo(self.state)
        return settled.lost

    def moved(self, root: Path) -> None:
        """The same journal is at another place on this machine, as it is if a store has continued."""
        self.info = replace(self.info, root=root)
        self._index = self._rows = None

    def take_settings(self) -> None:
        """Let what is shown follow from the settings that hold now."""
        put_over_spec(self.spec, self.state.settings)
        spec = self.spec
        self.info = replace(self.info, metric=spec.metric, mode=spec.mode, total_samples=spec.total)

    def events(self) -> Events:
        """Everything that has happened, from the first event, as far as this state knows."""
        return read_events(self.root, end=self.position)

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
        config: dict[str, Any] = known_objects(trial.config, self.info.objects)
        return config

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


def open_history(
    path: str | os.PathLike[str],
    info: ExperimentInfo | None = None,
    filesystem: Any = None,
    *,
    tolerant: bool = False,
    progress: Progress | None = None,
) -> History:
    """Read the experiment at ``path``, whatever has become of its driver.

    Args:
        path: The experiment's root, a path or a URI.
        info: Its facts if they are known already, with the objects that its configs refer to. Its root may be another
            mirror than the one that is read.
        filesystem: The pyarrow or fsspec file system in which ``path`` is a path.
        tolerant: Of a journal that has become shorter, return what is left, with ``damage``.
        progress: Is told how many bytes were read, and of how many, again and again.

    Raises:
        ExperimentNotFoundError: There is no experiment exactly there.
        NewerFormatError: It was written by a newer holdfast.
        JournalDamagedError: Its journal is damaged, or has lost records.
    """
    return _fold(*open_place(path, filesystem), info, tolerant, progress=progress)


def has_local_driver(path: str | os.PathLike[str]) -> bool:
    """Whether this machine has the mirror of an experiment in a store, and a live driver of it."""
    remote = remote_of(path)
    owner = None if remote is None else holder(mirror_root(remote).path)
    return owner is not None and owner.alive


def open_mirror(path: str | os.PathLike[str], *, why: str) -> History | None:
    """What this machine knows of an experiment in a store, without asking the store; None if it has no mirror of it.

    It may know more than the store does, if its driver is here, or less, if another machine has continued.

    Args:
        path: The experiment's address.
        why: Why the store is not asked.
    """
    remote = remote_of(path)
    root = None if remote is None else mirror_root(remote)
    if root is None or not root.has_spec():
        return None
    from holdfast.shipping.progress_file import Shipped, read_note
    from holdfast.shipping.restore_mirror import RestoredMirror

    shipped = read_note(str(root.path)) or Shipped()
    found = _fold(root, RestoredMirror(str(root.path), "equal", shipped, None), None, ask=False)
    found.unasked = why
    return found


def _fold(
    root: Root,
    restored: RestoredMirror | None,
    info: ExperimentInfo | None,
    tolerant: bool = False,
    *,
    ask: bool = True,
    progress: Progress | None = None,
) -> History:
    """Fold what is at ``root``; ``ask`` allows to look into its store."""
    spec = read_spec(root)
    opened, owner = _open(root, spec.retention, tolerant, progress)
    if opened.damage is None:
        opened, damage = _compare_with_checkpoints(root, spec, opened, tolerant)
        if damage is None and root.remote is None and not opened.is_vouched:
            opened, damage = _compare_with_result_files(root, spec, opened, tolerant)
        if damage is None and ask:
            damage = _compare_with_store(root, restored, spec, opened.state)
        if damage is not None and not tolerant:
            raise damage
        opened.damage = damage
    owner = heard_of(owner, restored)
    state = opened.state
    put_over_spec(spec, state.settings)
    history = History(
        state,
        info_from(root, spec) if info is None else replace(info, root=root.path),
        spec=spec,
        position=opened.contents.position,
        owner=owner,
        restored=restored,
        damage=opened.damage,
    )
    if owner is None or not owner.alive:
        history.settle()
    return history


def _compare_with_checkpoints(
    root: Root, spec: Spec, opened: Opened, tolerant: bool
) -> tuple[Opened, JournalDamagedError | None]:
    """Look for checkpoints on this machine that the history does not know.

    If the last driver has said how far its history reaches, finished trials are not looked at: a later driver, whose
    records may all be gone, has added checkpoints to new trials and to those that had not ended.
    """
    found = unknown_checkpoints(root.path, Known(opened.state, spec.uid, finished=not opened.is_vouched))
    if found:
        # A live driver may have committed them since we read; the journal knows them before they are there.
        opened, _ = _open(root, spec.retention, tolerant)
        found = still_unknown(found, Known(opened.state, spec.uid, finished=True))
    in_store = root.remote is not None
    return opened, records_lost(root.shown, found, opened.state, in_store=in_store) if found else None


def _compare_with_result_files(
    root: Root, spec: Spec, opened: Opened, tolerant: bool
) -> tuple[Opened, JournalDamagedError | None]:
    """Look for reports that the history does not have, for which nobody vouches."""
    found = lost_reports(root.path, opened.state, spec.uid, created_at=spec.created_at)
    if found:  # a live driver may have added them since we read
        opened, _ = _open(root, spec.retention, tolerant)
        found = still_lost(found, opened.state)
    return opened, reports_lost(root.shown, found) if found else None


def _compare_with_store(
    root: Root, restored: RestoredMirror | None, spec: Spec, state: State
) -> JournalDamagedError | None:
    """Look for checkpoints in the store that the history does not know: lists all keys there."""
    if root.remote is None or restored is None or not is_only_in_store(root, restored, state):
        return None
    last = restored.holder
    if last is not None and last.alive and last.claim.epoch == state.epoch:
        return None  # it has compared before its first record
    found = unknown_in_store(root.remote.store, Known(state, spec.uid, finished=True))
    if found:  # a driver may have begun since we read
        again, _ = _restored(root.remote)
        state = _open(again, spec.retention)[0].state
        found = still_unknown(found, Known(state, spec.uid, finished=True))
    return records_lost(root.shown, found, state, in_store=True) if found else None


def open_place(path: str | os.PathLike[str], filesystem: Any = None) -> tuple[Root, RestoredMirror | None]:
    """The local root of the experiment at ``path``, for somebody who looks; and how it compares with the store.

    Raises:
        ExperimentNotFoundError: The store has no experiment exactly there.
        StorageError: The store refuses or does not answer.
    """
    remote = remote_of(path, remote_filesystem(path, filesystem))
    if remote is None:
        return Root(parse(path).path), None
    if not remote.exists():
        return open_root(path, filesystem, read_only=True), None  # which says what there is instead
    return _restored(remote)


def _restored(remote: Remote) -> tuple[Root, RestoredMirror]:
    from holdfast.shipping.restore_mirror import restore_mirror

    restored = restore_mirror(remote.store, mirror_root(remote).path, read_only=True)
    return Root(restored.root, remote=remote), restored


def remote_filesystem(path: str | os.PathLike[str], filesystem: Any) -> Any:
    """The file system object, unless it stands for this machine's own and ``path`` is an ordinary root in it."""
    if filesystem is None or type_of(filesystem) != LOCAL:
        return filesystem
    return filesystem if (Path(path) / ".holdfast" / "parts").is_dir() else None


def heard_of(owner: Holder | None, restored: RestoredMirror | None) -> Holder | None:
    """The same driver as the store knows it: a mirror that is left as it is says nothing of newer heartbeats."""
    remote = None if restored is None else restored.holder
    if owner is None or remote is None or remote.claim.writer != owner.claim.writer:
        return owner
    if owner.certain and not owner.alive:  # it has let go, or is known to be gone
        return owner
    return remote


def _open(
    root: Root, retention: Retention, tolerant: bool = False, progress: Progress | None = None
) -> tuple[Opened, Holder | None]:
    for _ in range(MAX_OPEN_TRIES - 1):
        # The owner first: if it dies while we read, what we read is still no younger than "alive".
        owner = holder(root.path)
        try:
            return open_state(root.path, retention, tolerant=tolerant, progress=progress), owner
        except FencedError:
            continue  # a new driver sealed the journal between our two looks at it
    return open_state(root.path, retention, tolerant=tolerant, progress=progress), holder(root.path)


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
        value_names=spec.value_names,
    )
