"""The experiment's state: what the events so far add up to.

``State`` and ``Trial`` are plain records that only ``transitions.apply`` changes: they are a function of the journal.
``DriverMemory`` stands beside them and holds what one driver knows and forgets (nothing in it may decide what a resumed
experiment would decide differently).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.core.changed_settings import ChangedSettings
from holdfast.core.events import ErrorFacts, TrialCreated


class Status:
    """Public statuses of a trial."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"

    ALL = (PENDING, RUNNING, PAUSED, TERMINATED, ERROR)
    FINAL = frozenset({TERMINATED, ERROR})


class Stored:
    """Where a checkpoint stands."""

    STAGED = "staged"
    COMMITTED = "committed"
    DROPPED = "dropped"
    BAD = "bad"


class CheckpointRecord(msgspec.Struct, array_like=True, gc=False):
    """One checkpoint of a trial, with the counters that a trial resuming from it continues from."""

    index: int
    attempt: int
    sealed: str
    row: int
    iteration: int
    time_total: float
    timesteps_total: int
    episodes_total: int
    metrics: dict[str, Any]
    at: float
    bytes: int
    stored: str = Stored.STAGED
    digest: str = ""
    reason: str = ""


_index_of = attrgetter("index")


class WorkerFacts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where a worker runs."""

    host: str
    ip: str
    pid: int


class UserNote(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a person has noted."""

    at: float
    text: str
    by: str = ""


class Trial(msgspec.Struct, array_like=True):
    """One configuration's life. Encodes to the record that snapshots hold."""

    n: int
    id: str
    config: dict[Any, Any]
    tag: str
    params: tuple[str, ...]
    mark: list[int] | None
    request: dict[str, float] | None
    name: str
    dirname: str
    created_at: float

    status: str = Status.PENDING
    attempt: int = 0
    started_at: float = 0.0
    attempt_at: float = 0.0
    ended_at: float = 0.0

    # the surviving lineage
    rows: int = 0
    ordinal: int = 0  # reports of the current attempt
    iteration: int = 0
    time_total: float = 0.0
    timesteps_total: int = 0
    episodes_total: int = 0
    metrics: dict[str, Any] | None = None
    dt: float = 0.0
    last_at: float = 0.0
    worker: int = 0
    base_row: int = 0  # nobody reads this and the next one; snapshots hold both, and the fold must agree with them
    base_iteration: int = 0
    base_time: float = 0.0
    base_timesteps: int = 0
    source: tuple[int, int] | None = None
    checkpointed: bool = False  # the last row came with a checkpoint

    # a verdict that was given but not yet carried out: "", "stop", "pause"
    verdict: str = ""
    why: str = ""

    failures: int = 0  # since the budget was last renewed
    total_failures: int = 0
    cuts: int = 0  # interruptions since the last report
    load_failures: int = 0
    cause: str = ""
    error: ErrorFacts | None = None
    reason: str = ""

    checkpoints: list[CheckpointRecord] = []
    next_index: int = 0
    uncommitted: int = 0  # staged checkpoints whose commit has not ended
    floor: int = 0  # checkpoints below this index belong to a life that the user ended by "restart"
    where: WorkerFacts | None = None  # of ``worker``, for it may be gone long before the trial's result is read

    # a step is judged once, however often it is repeated after a crash
    judged: int = 0  # rows that the scheduler and the searcher have heard of
    again: bool = False  # the last row was one of those

    # another trial's checkpoint that this one began with when it was last told to exploit
    origin: tuple[int, int] | None = None
    origin_row: int = 0  # its rows then
    origin_attempt: int = 0  # its checkpoints of later attempts only belong to this life
    origin_held: bool = False  # it has saved nothing since, so that checkpoint must stay
    shown_tag: str = ""

    # what people said about it
    user_stop: bool = False  # it is to end, and has not yet
    tags: tuple[str, ...] = ()
    notes: tuple[UserNote, ...] = ()

    @property
    def final(self) -> bool:
        return self.status in Status.FINAL

    def find(self, index: int) -> CheckpointRecord | None:
        """The record of checkpoint ``index``, if it is still known."""
        place = bisect_left(self.checkpoints, index, key=_index_of)  # indexes only ever grow
        found = self.checkpoints[place : place + 1]
        return found[0] if found and found[0].index == index else None

    def committed(self) -> list[CheckpointRecord]:
        """Checkpoints that exist, oldest first."""
        return [record for record in self.checkpoints if record.stored == Stored.COMMITTED]

    def latest(self) -> CheckpointRecord | None:
        """The checkpoint that a new attempt of this trial starts from."""
        for record in reversed(self.checkpoints):
            if record.stored == Stored.COMMITTED and record.index >= self.floor:
                return record
        return None

    def own_latest(self) -> CheckpointRecord | None:
        """The newest checkpoint since the trial last began with another's."""
        record = self.latest()
        return record if record is not None and record.attempt > self.origin_attempt else None

    @property
    def staging(self) -> bool:
        return self.uncommitted > 0


def new_trial(event: TrialCreated) -> Trial:
    """The trial that an event creates."""
    return Trial(
        n=event.n,
        id=event.id,
        config=event.config,
        tag=event.tag,
        params=event.params,
        mark=event.mark,
        request=event.request,
        name=event.name,
        dirname=event.dirname,
        created_at=event.at,
    )


UNIT = 10_000  # resources are counted in integers, so that 10 x 0.1 is 1


def units(resources: Mapping[str, float] | None) -> dict[str, int]:
    """Resources in exact integer units; None is the default of one CPU."""
    if resources is None:
        return {"CPU": UNIT}
    return {name: round(amount * UNIT) for name, amount in resources.items() if amount}


class DriverMemory:
    """What this driver knows for now: capacity, who is parked and why, what has been asked."""

    def __init__(self) -> None:
        self.capacity: dict[str, int] = {}
        self.machines: list[dict[str, int]] = []  # sizes of those of a cluster; [] if there is one
        self.held_until: dict[int, float] = {}  # trials that wait before they are tried again
        self.parked: set[int] = set()  # PENDING trials that wait for a commit or a verification
        self.reserved: dict[int, dict[str, int]] = {}  # for trials that start once their checkpoint is verified
        self.awaited: dict[tuple[int, int], set[int]] = {}  # checkpoints under verification, and who waits for each
        self.verified: set[tuple[int, int]] = set()
        self.asked: int = 0  # configurations that the searcher owes us
        self.search_waits: bool = False  # and it owes them until it is told more
        self.told: int = 0  # what a searcher that learns was told by this driver
        self.draining: str = ""  # this driver ends; why
        self.grace_over: bool = False  # and it has waited long enough
        self.returning: set[int] = set()  # trials that have reported what their function returned: they end
        self.owed: dict[int, int] = {}  # trials whose report is not answered yet, and its ordinal
        self.crowded: dict[int, None] = {}  # of those, the ones that wait because the backlog is full, longest first
        self.backlog_share: int | None = None  # bytes that may wait to be committed, by the free space of the disk
        self.undeleted: set[tuple[int, int]] = set()  # deletions that this driver gave up
        self.storage_trouble: dict[int, str] = {}
        self.full_disk: dict[int, int] = {}  # how often a full disk has ended a trial since its last checkpoint
        self.untidy: set[int] = set()  # trials whose process died: it may have left half a checkpoint behind
        self.changed: set[int] = set()  # trials changed since the last snapshot, also before this driver

    def could_hold(self, wanted: Mapping[str, int]) -> bool:
        """Is a machine as large as this, of which a trial on a cluster needs one?"""
        if not self.machines:
            return True
        return any(all(amount <= size.get(name, 0) for name, amount in wanted.items()) for size in self.machines)

    def holds_back(self, n: int) -> bool:
        """Does the trial wait for something else than resources?"""
        return n in self.parked or n in self.held_until

    def forget(self, n: int) -> None:
        """The trial has another status now: forget what it waited for, and what it was owed."""
        self.parked.discard(n)
        self.reserved.pop(n, None)
        self.owed.pop(n, None)
        self.crowded.pop(n, None)
        self.returning.discard(n)


class State:
    """Everything that the events so far add up to."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.by_id: dict[str, int] = {}
        self.counts: dict[str, int] = dict.fromkeys(Status.ALL, 0)
        self.pending: deque[int] = deque()
        self.paused: dict[int, None] = {}
        self.running: dict[int, None] = {}
        self.used: dict[str, int] = {}  # resources of the running trials
        self.staged: dict[tuple[int, int], None] = {}  # the backlog, oldest first
        self.staged_bytes: int = 0
        self.full_since: float = 0.0  # since when trials wait for the backlog to shrink; 0: they do not
        self.full_limit: int = 0  # and how many bytes it may have
        self.dropping: dict[tuple[int, int], None] = {}
        self.holds: dict[tuple[int, int], int] = {}  # checkpoints that other trials begin with, and how many do
        self.overall: list[tuple[float, int, int]] = []  # best k of the experiment: (goodness, n, index)
        self.workers: dict[int, WorkerFacts] = {}
        self.unseen: dict[int, WorkerFacts] = {}  # those of them from which no trial has its last row
        self.seen_by: dict[int, int] = {}  # of the others, from how many trials
        self.uniform: bool = True  # all trials ask for the same resources
        self.search_ended: str = ""
        self.stopping: str = ""  # a stop rule ended the experiment; why
        self.reopened: str = ""  # why it had been stopped, until trials that were cut by that have been requeued
        self.settings = ChangedSettings()  # what the user has changed since the beginning
        self.requests: dict[str, None] = {}  # ids of the latest requests of users that were answered
        self.user_stops: dict[int, None] = {}  # trials that a user wants to end, and that have not yet
        self.tags: tuple[str, ...] = ()
        self.notes: tuple[UserNote, ...] = ()
        self.mark: list[int] | None = None
        self.asks: int = 0  # configurations that a searcher which learns was asked for
        self.errors: int = 0
        self.total_failures: int = 0
        self.reports: int = 0
        self.any_checkpoint: bool = False
        self.epoch: int = 0
        self.epoch_at: float = 0.0
        self.objects: dict[str, str] = {}  # digests of the stored objects that the last driver ran with, by file name
        self.last_at: float = 0.0
        self.lived_s: float = 0.0  # by drivers before this epoch
        self.stopped: str = ""  # why the last driver shut down gracefully, "" if it did not (yet)
        self.needs_change: str = ""  # the setting without which the error that ended it would end the next one too
        self.came_from: str = ""  # status, before the last event, of the trial that it was about

    def trial(self, n: int) -> Trial | None:
        return self.trials[n] if 0 <= n < len(self.trials) else None

    def start_point(self, trial: Trial) -> tuple[tuple[int, int], int] | None:
        """The checkpoint that a new attempt of ``trial`` starts from, and how many of its rows survive."""
        own = trial.own_latest()
        if own is None and trial.origin is not None:
            donor, index = trial.origin
            record = self.trials[donor].find(index)
            if record is not None and record.stored == Stored.COMMITTED:
                return trial.origin, trial.origin_row
        own = own or trial.latest()
        return None if own is None else ((trial.n, own.index), own.row)

    def unfinished(self) -> Iterator[Trial]:
        """Trials that are neither TERMINATED nor ERROR, in order of creation (a scan: for opening and ending only)."""
        return (trial for trial in self.trials if trial.status not in Status.FINAL)

    def lived(self, at: float) -> float:
        """Seconds that drivers of this experiment have been alive, time between them left out."""
        return self.lived_s + max(0.0, at - self.epoch_at)
