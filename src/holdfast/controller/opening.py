"""Open an experiment: fold the journal, from a snapshot if there is a good one. Reads only.

Starting, resuming after a crash, resuming on another machine and inspecting an interrupted experiment all use this
code.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from holdfast.core import events as ev
from holdfast.core.changed_settings import ChangedSettings
from holdfast.core.retention import Retention
from holdfast.core.state import State, Status, Stored, Trial, UserNote, WorkerFacts, units
from holdfast.core.transitions import CHANGES_ITS_TRIAL, apply, check_known
from holdfast.errors import JournalDamagedError
from holdfast.journal.frames import FRAME_OVERHEAD
from holdfast.journal.reader import JournalContents, bytes_behind, check_chain, no_contents
from holdfast.journal.records import check_config, check_stage_name, check_trial_names, read_events
from holdfast.journal.snapshot import Snapshot, SnapshotStore
from holdfast.storage.local import REAL_DISK, Disk


class SnapshotRecord(msgspec.Struct, array_like=True):
    """The state without its settled trials, which stand in the archive; only ever extended at the end."""

    live: list[Trial]
    pending: list[int]
    paused: list[int]
    overall: list[tuple[float, int, int]]  # empty: follows from the trials
    workers: dict[int, WorkerFacts]  # those that no trial remembers
    search_ended: str
    stopping: str
    mark: list[int] | None
    total_failures: int
    reports: int
    any_checkpoint: bool
    epoch: int
    epoch_at: float
    last_at: float
    lived_s: float
    stopped: str
    policies: dict[str, bytes] = {}
    asks: int = 0
    full_since: float = 0.0
    full_limit: int = 0
    objects: dict[str, str] = {}
    settings: ChangedSettings = ChangedSettings()
    reopened: str = ""
    requests: list[str] = []
    tags: tuple[str, ...] = ()
    notes: tuple[UserNote, ...] = ()
    needs_change: str = ""


_trial_decoder = msgspec.msgpack.Decoder(Trial)
_trial_encoder = msgspec.msgpack.Encoder()
_snapshot_decoder = msgspec.msgpack.Decoder(SnapshotRecord)
_log = logging.getLogger("holdfast.journal")

Progress: TypeAlias = Callable[[int, int], None]
"""Is told how many bytes of snapshot and journal were read, and of how many."""

TELL_EVERY = 1 << 20
"""Bytes between two calls of it."""


class Opened(msgspec.Struct):
    """A folded journal: the state, where the journal ends, and what is worth knowing about how it was read."""

    state: State
    contents: JournalContents
    snapshot_seq: int = -1
    damage: JournalDamagedError | None = None
    changed: set[int] = set()
    """Trials that the events after the snapshot have changed."""

    @property
    def is_vouched(self) -> bool:
        """Whether the last driver itself has said how far its history reaches; it had looked at the checkpoints too."""
        return bool(self.contents.vouched_by) and self.contents.vouched_by == self.state.epoch


MANY_OBJECTS = 2_000
"""So many new ones are worth being counted among the old objects."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without the cyclic collector: what is decoded stays, and would be walked through again and again as it grows.

    Whoever has turned it off already keeps it off.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Asked in this order: the second question walks through everything that is frozen, millions of objects in a
        # server, and little was decoded in most cases.
        if gc.get_count()[0] > MANY_OBJECTS and not gc.get_freeze_count():
            # Counts what was decoded among the old objects. Otherwise it is new, and walked through at once.
            gc.freeze()
            gc.unfreeze()
        gc.enable()


class Listener(Protocol):
    """What follows the events while they are folded, from the snapshot or from the first one."""

    def accepts(self, policies: dict[str, bytes], state: State) -> bool:
        """Whether the snapshot, with what policies stored in it, is enough to begin with; else everything is read."""

    def before(self, state: State, event: ev.AnyEvent) -> None:
        """``event`` is about to be applied."""

    def after(self, state: State, event: ev.AnyEvent) -> None:
        """``event`` has been applied."""


@collector_paused()
def open_state(
    root: Path,
    retention: Retention,
    *,
    store: SnapshotStore | None = None,
    listener: Listener | None = None,
    tolerant: bool = False,
    disk: Disk = REAL_DISK,
    progress: Progress | None = None,
) -> Opened:
    """Fold everything that happened so far into a ``State``.

    Args:
        root: The experiment's root.
        retention: The user's rule; the ranking of checkpoints is part of the state.
        store: Where snapshots are looked for; a driver passes the one that it will continue writing to.
        listener: Sees the state before and after each event that was read, and may refuse the snapshot.
        tolerant: Fold what stands before damage, and say what that is, instead of raising it.
        disk: Where the root is.
        progress: Is told how far it got.

    Raises:
        JournalDamagedError: A record is damaged or missing, or says what no driver writes.
    """
    state, position, seq = State(), None, -1
    snapshot = (store or SnapshotStore(root, disk=disk)).load()
    meter = None if progress is None else _Meter(progress, root, snapshot)
    found = None if snapshot is None else _unpack(root, snapshot, retention, meter)
    if snapshot is not None and found is not None and (listener is None or listener.accepts(found[1], found[0])):
        state, position, seq = found[0], snapshot.position, snapshot.seq
    before = None if position is None else _damage_before(root, disk)
    if before is not None and not tolerant:
        raise before
    try:
        events = read_events(root, after=position, disk=disk, through=None if meter is None else meter.records)
    except JournalDamagedError as damage:
        if not tolerant:
            raise
        return Opened(state, no_contents(root, disk), seq, before or damage)
    check, fold = check_known, apply
    changed: set[int] = set()
    try:
        with events.folding():
            for event in events:
                if listener is not None:
                    check(state, event)
                    listener.before(state, event)
                fold(state, event, retention)
                if type(event) in CHANGES_ITS_TRIAL and event.n >= 0:  # type: ignore[union-attr]
                    changed.add(event.n)  # type: ignore[union-attr]
                if listener is not None:
                    listener.after(state, event)
    except JournalDamagedError as damage:
        if not tolerant:
            raise
        return Opened(state, events.contents, seq, before or damage, changed)
    return Opened(state, events.contents, seq, before, changed)


def _damage_before(root: Path, disk: Disk) -> JournalDamagedError | None:
    """What is wrong with the segments before a snapshot, which are not read: their rows are missing in every table."""
    try:
        check_chain(root, disk)
    except JournalDamagedError as damage:
        return damage
    return None


class _Meter:
    """Tells how far an opening got: what passes through it is counted."""

    def __init__(self, tell: Progress, root: Path, snapshot: Snapshot | None) -> None:
        self._tell = tell
        self._read = self._told = 0
        archived = 0 if snapshot is None else sum(map(len, snapshot.archived))
        self._total = archived + bytes_behind(root, None if snapshot is None else snapshot.position)
        tell(0, self._total)

    def payloads(self, payloads: Iterable[bytes]) -> Iterator[bytes]:
        for payload in payloads:
            self._count(len(payload))
            yield payload

    def records(self, records: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        for record in records:
            self._count(len(record[1]) + FRAME_OVERHEAD)
            yield record

    def _count(self, size: int) -> None:
        self._read += size
        if self._read - self._told >= TELL_EVERY:
            self._told = self._read
            self._tell(self._read, max(self._total, self._read))


def _unpack(
    root: Path, snapshot: Snapshot, retention: Retention, meter: _Meter | None = None
) -> tuple[State, dict[str, bytes]] | None:
    """The state in a snapshot and what policies stored there; None if no driver can have written it.

    Its checksums are right, so somebody has made it so, or there is a fault: the journal knows better.
    """
    try:
        record = _snapshot_decoder.decode(snapshot.payload)
        archived = snapshot.archived if meter is None else meter.payloads(snapshot.archived)
        state = state_from(record, list(map(_archived_trial, archived)), retention)
        _check_trials(state)
        for trial in record.live:
            check_config(trial.config, snapshot.payload)
        return state, record.policies
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        _log.warning(
            "snapshot %s of %s is not used (%s): the journal is read from the start", snapshot.seq, root, error
        )
        return None


def _archived_trial(payload: bytes) -> Trial:
    trial = _trial_decoder.decode(payload)
    check_config(trial.config, payload)
    return trial


def _check_trials(state: State) -> None:
    """Refuse names that lead out of the root, and trials that refer to others which do not exist."""
    count = len(state.trials)
    for trial in state.trials:
        check_trial_names(trial.id, trial.name, trial.tag, trial.dirname)
        for record in trial.checkpoints:
            check_stage_name(record.sealed)
        if trial.source is None and trial.origin is None:
            continue
        others = [other[0] for other in (trial.source, trial.origin) if other is not None]
        if not 0 <= min(others) <= max(others) < count:
            raise ValueError(f"trial {trial.id} refers to one of {count} trials that does not exist")
    known = range(count)
    if not all(n in known for n in (*state.pending, *state.paused)):
        raise ValueError("it lists trials that do not exist")


def read_snapshot(root: Path, retention: Retention, *, disk: Disk = REAL_DISK) -> State | None:
    """The newest snapshot's state, also if the journal does not reach as far any more; None if there is none."""
    snapshot = SnapshotStore(root, disk=disk).load_any()
    found = None if snapshot is None else _unpack(root, snapshot, retention)
    return None if found is None else found[0]


def archive_record(trial: Trial) -> bytes:
    """A settled trial as it stands in the archive."""
    return _trial_encoder.encode(trial)


def is_settled(trial: Trial) -> bool:
    """Nothing more is expected to happen to this trial."""
    return (
        trial.final
        and not trial.staging
        and all(record.stored in (Stored.COMMITTED, Stored.BAD) for record in trial.checkpoints)
    )


def snapshot_payload(state: State, live: list[Trial], policies: dict[str, bytes]) -> bytes:
    """The state as a snapshot; ``live`` are the trials that the archive does not hold up to date."""
    record = SnapshotRecord(
        live=live,
        pending=list(state.pending),
        paused=list(state.paused),
        overall=[],
        workers=state.unseen,
        search_ended=state.search_ended,
        stopping=state.stopping,
        mark=state.mark,
        total_failures=state.total_failures,
        reports=state.reports,
        any_checkpoint=state.any_checkpoint,
        epoch=state.epoch,
        epoch_at=state.epoch_at,
        last_at=state.last_at,
        lived_s=state.lived_s,
        stopped=state.stopped,
        policies=policies,
        asks=state.asks,
        full_since=state.full_since,
        full_limit=state.full_limit,
        objects=state.objects,
        settings=state.settings,
        reopened=state.reopened,
        requests=list(state.requests),
        tags=state.tags,
        notes=state.notes,
        needs_change=state.needs_change,
    )
    return msgspec.msgpack.encode(record)


def state_from(record: SnapshotRecord, archived: list[Trial], retention: Retention) -> State:
    """The state that ``snapshot_payload`` was made of. Later records of a trial replace earlier ones."""
    state = State()
    state.workers = record.workers
    trials: dict[int, Trial] = {trial.n: trial for trial in archived}
    trials.update((trial.n, trial) for trial in record.live)
    state.trials = [trials[n] for n in range(len(trials))]
    _index(state)
    state.pending.extend(record.pending)
    state.paused = dict.fromkeys(record.paused)
    state.unseen = {worker: facts for worker, facts in state.workers.items() if worker not in state.seen_by}
    retention.rank_all(state)
    state.search_ended, state.stopping, state.mark = record.search_ended, record.stopping, record.mark
    state.total_failures, state.reports = record.total_failures, record.reports
    state.any_checkpoint = record.any_checkpoint
    state.epoch, state.epoch_at, state.last_at = record.epoch, record.epoch_at, record.last_at
    state.lived_s, state.stopped = record.lived_s, record.stopped
    state.asks, state.objects, state.settings = record.asks, record.objects, record.settings
    state.reopened = record.reopened
    state.requests, state.tags, state.notes = dict.fromkeys(record.requests), record.tags, record.notes
    state.needs_change = record.needs_change
    state.full_since, state.full_limit = record.full_since, record.full_limit
    _oldest_first(state)
    return state


def _index(state: State) -> None:
    by_id, counts, workers, seen_by = state.by_id, state.counts, state.workers, state.seen_by
    for trial in state.trials:
        by_id[trial.id] = trial.n
        counts[trial.status] += 1
        worker = trial.worker
        where = trial.where = trial.where or workers.get(worker)  # older snapshots have all workers in one place
        if where is not None:
            workers[worker] = where
            seen_by[worker] = seen_by.get(worker, 0) + 1
        if trial.user_stop:
            state.user_stops[trial.n] = None
        if trial.checkpoints or trial.origin is not None or trial.status == Status.RUNNING:
            _index_live(state, trial)
    state.uniform = all(trial.request == state.trials[0].request for trial in state.trials)


def _index_live(state: State, trial: Trial) -> None:
    if trial.status == Status.RUNNING:
        state.running[trial.n] = None
        for name, amount in units(trial.request).items():
            state.used[name] = state.used.get(name, 0) + amount
    for record in trial.checkpoints:
        if record.stored == Stored.STAGED:
            state.staged[trial.n, record.index] = None
            state.staged_bytes += record.bytes
        elif record.stored == Stored.DROPPED:
            state.dropping[trial.n, record.index] = None
    if trial.origin is not None and trial.origin_held:
        state.holds[trial.origin] = state.holds.get(trial.origin, 0) + 1


def _oldest_first(state: State) -> None:
    """The backlog is told oldest first, and trials are read one after the other."""
    at = {(n, index): (record.at, n, index) for n, index in state.staged if (record := state.trials[n].find(index))}
    state.staged = dict.fromkeys(sorted(state.staged, key=at.__getitem__))
