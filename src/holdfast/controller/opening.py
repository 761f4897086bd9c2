"""Opening an experiment: fold the journal, from a snapshot if there is a good one. Reads only.

Starting, resuming after a crash, resuming elsewhere and looking at a dead experiment all go through here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State, Status, Stored, Trial, WorkerFacts, units
from holdfast.core.transitions import apply
from holdfast.journal.reader import JournalContents, read_journal
from holdfast.journal.snapshot import SnapshotStore
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


_trial_decoder = msgspec.msgpack.Decoder(Trial)
_trial_encoder = msgspec.msgpack.Encoder()
_snapshot_decoder = msgspec.msgpack.Decoder(SnapshotRecord)


class Opened(msgspec.Struct):
    """A folded journal: the state, where the journal ends, and what is worth knowing about how it was read."""

    state: State
    contents: JournalContents
    snapshot_seq: int = -1


def open_state(
    root: Path,
    retention: Retention,
    *,
    store: SnapshotStore | None = None,
    before: Callable[[State, ev.AnyEvent], None] | None = None,
    watch: Callable[[State, ev.AnyEvent], None] | None = None,
    accept: Callable[[dict[str, bytes]], bool] = lambda _: True,
    disk: Disk = REAL_DISK,
) -> Opened:
    """Fold everything that happened so far into a ``State``.

    Args:
        root: The experiment's root.
        retention: The user's rule; the ranking of checkpoints is part of the state.
        store: Where snapshots are looked for; a driver passes the one that it will go on writing to.
        before: Sees the state right before each event that was read is applied.
        watch: Sees the state right after each event that was read.
        accept: Is given what policies stored in the snapshot, before later events are read; if it says no, the whole
            history is read.
        disk: Where the root is.
    """
    state, position, seq = State(), None, -1
    snapshot = (store or SnapshotStore(root, disk=disk)).load()
    if snapshot is not None:
        record = _snapshot_decoder.decode(snapshot.payload)
        if accept(record.policies):
            state = state_from(record, [_trial_decoder.decode(raw) for raw in snapshot.archived], retention)
            position, seq = snapshot.position, snapshot.seq
    contents = read_journal(root, after=position, disk=disk)
    decode, fold = ev.decode, apply
    for _, payload in contents:
        event = decode(payload)
        if before is not None:
            before(state, event)
        fold(state, event, retention)
        if watch is not None:
            watch(state, event)
    return Opened(state, contents, seq)


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
    parked = sorted(state.session.parked)
    record = SnapshotRecord(
        live=live,
        pending=[*parked, *state.pending],
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
    )
    return msgspec.msgpack.encode(record)


def state_from(record: SnapshotRecord, archived: list[Trial], retention: Retention) -> State:
    """The state that ``snapshot_payload`` was made of. Later records of a trial replace earlier ones."""
    state = State()
    state.workers = record.workers
    trials: dict[int, Trial] = {trial.n: trial for trial in archived}
    trials.update((trial.n, trial) for trial in record.live)
    state.trials = [trials[n] for n in range(len(trials))]
    for trial in state.trials:
        _index(state, trial)
    state.pending.extend(record.pending)
    state.paused = dict.fromkeys(record.paused)
    state.unseen = {worker: facts for worker, facts in state.workers.items() if worker not in state.seen_by}
    retention.rank_all(state)
    state.search_ended, state.stopping, state.mark = record.search_ended, record.stopping, record.mark
    state.total_failures, state.reports = record.total_failures, record.reports
    state.any_checkpoint = record.any_checkpoint
    state.epoch, state.epoch_at, state.last_at = record.epoch, record.epoch_at, record.last_at
    state.lived_s, state.stopped = record.lived_s, record.stopped
    state.asks = record.asks
    return state


def _index(state: State, trial: Trial) -> None:
    state.by_id[trial.id] = trial.n
    state.counts[trial.status] += 1
    trial.where = trial.where or state.workers.get(trial.worker)  # older snapshots have all workers in one place
    if trial.where is not None:
        state.workers[trial.worker] = trial.where
        state.seen_by[trial.worker] = state.seen_by.get(trial.worker, 0) + 1
    if trial.request != state.trials[0].request:
        state.uniform = False
    if trial.status == Status.RUNNING:
        state.running[trial.n] = None
        for name, amount in units(trial.request).items():
            state.session.used[name] = state.session.used.get(name, 0) + amount
    for record in trial.checkpoints:
        if record.stored == Stored.STAGED:
            state.staged[trial.n, record.index] = None
        elif record.stored == Stored.DROPPED:
            state.dropping[trial.n, record.index] = None
    if trial.origin is not None and trial.origin_held:
        state.holds[trial.origin] = state.holds.get(trial.origin, 0) + 1
