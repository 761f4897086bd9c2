"""Who ran what, when and where, and what went wrong: attempts, workers, drivers, incidents and copies, in few bytes.

One fold of all events beside `Curves`, which it asks for the times of rows before they are cut. An attempt is a row of
some arrays, about 40 bytes. Owns the judgement how many seconds an incident has cost: ``repeated_s`` is work of trials
that was done again, because it was newer than the checkpoint that the trial continued from; ``down_s`` is time in which
no driver lived, or trials had to wait for storage. Must never read a file.

    chronicle = follower.chronicle             # complete once ``follower.load()`` has returned None
    chronicle.attempts()                       # Attempt(n, attempt, start, end, worker, outcome, cause), by start
    chronicle.workers                          # number -> WorkerFacts(host, ip, pid)
    chronicle.drivers                          # [DriverSpan(epoch, host, pid, at, until, reason)]
    chronicle.incidents                        # [Incident(...)], in the order of their beginning
    chronicle.copies                           # [Copy(...)] of population-based training
    chronicle.configs(n)                       # [(at, iteration, config)] of a trial that was reconfigured, or []
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from holdfast.checkpoints.names import checkpoint_name
from holdfast.core import events as ev
from holdfast.core.state import WorkerFacts
from holdfast.display.words import plural, size_text
from holdfast.errors import IllegalTransitionError
from holdfast.results.curves import NAN, Curves
from holdfast.results.story import driver_words, failure_words

RUNNING, FINISHED, PAUSED, FAILED, ERRORED, INTERRUPTED = range(6)
OUTCOMES = ("running", "finished", "paused", "failed", "errored", "interrupted")

MAX_INCIDENTS = 10_000
"""Later ones are counted only."""

MAX_FIRST_CONFIGS = 20_000
"""Trials whose first config is kept, because a scheduler may change it: no population is that large."""

_OF_THE_DRIVER = frozenset({ev.Cause.DRIVER_LOST, ev.Cause.DRIVER_STOPPED})


class Attempt(NamedTuple):
    """One execution of a trial. ``end`` is NaN while it runs; ``worker`` 0 if nobody knows it."""

    n: int
    attempt: int
    start: float
    end: float
    worker: int
    outcome: str
    cause: str


class Copy(NamedTuple):
    """A trial that continues as a copy of another: ``donor`` made the checkpoint, ``parent`` is who was copied."""

    at: float
    n: int
    parent: int
    donor: int
    checkpoint: int
    iteration: int


class DriverSpan(msgspec.Struct):
    """One driver. ``until`` is the time of its last record, ``reason`` why it shut down ("" if it did not)."""

    epoch: int
    host: str
    pid: int
    at: float
    until: float
    reason: str = ""


class Incident(msgspec.Struct):
    """Something that cost time, or could have.

    Attributes:
        at: When it began.
        until: When it was over; NaN if it is not.
        kind: "killed" (a driver exited without shutting down, or was taken over), "takeover" (the next driver after
            that came), "resumed" (a driver shut down gracefully, and another came), "retry", "error" (a trial failed
            for good), "interrupted", "rewind" (a trial continued before its last report), "rejected", "backlog",
            "storage".
        n: The trial, or -1 for the experiment.
        text: What happened, in one sentence.
        down_s: Seconds of waiting.
        repeated_s: Seconds of training that were done again.
        trials: How many trials it has set back.
        is_consequence: Its seconds are also those of the incident that caused it.
    """

    at: float
    until: float
    kind: str
    n: int
    text: str
    down_s: float = 0.0
    repeated_s: float = 0.0
    trials: int = 0
    is_consequence: bool = False


class Chronicle:
    """Takes every event before `Curves` does; of the reports it needs the first of each attempt only."""

    def __init__(self, curves: Curves) -> None:
        self.workers: dict[int, WorkerFacts] = {}
        self.drivers: list[DriverSpan] = []
        self.incidents: list[Incident] = []
        self.copies: list[Copy] = []
        self.more_incidents = 0
        self.awaited: set[int] = set()  # trials of whose attempt the worker is not known yet
        self._last_at = 0.0
        self._curves = curves
        self._n = array("I")
        self._attempt = array("I")
        self._start = array("d")
        self._end = array("d")
        self._worker = array("i")
        self._outcome = array("B")
        self._cause = array("B")
        self._causes = [""]
        self._before = array("i")  # the attempt of the same trial before it, or -1
        self._last = array("i")  # of each trial: its newest attempt, or -1
        self._running: dict[int, None] = {}
        self._broken: dict[int, Incident] = {}  # trials that will start again, and what ended their last attempt
        self._waiting: Incident | None = None
        self._outage: Incident | None = None
        self._first: dict[int, bytes] = {}
        self._configs: dict[int, list[tuple[float, int, dict[Any, Any]]]] = {}

    @property
    def last_at(self) -> float:
        """When the newest record was written."""
        return max(self._last_at, self._curves.last_at)

    def attempts(self) -> Iterator[Attempt]:
        """All attempts, in the order in which they started."""
        for row in range(len(self._n)):
            yield self._made(row)

    def attempts_of(self, n: int) -> list[Attempt]:
        """The attempts of one trial."""
        rows, row = [], self._last[n] if n < len(self._last) else -1
        while row >= 0:
            rows.append(row)
            row = self._before[row]
        return [self._made(row) for row in reversed(rows)]

    def configs(self, n: int) -> list[tuple[float, int, dict[Any, Any]]]:
        """The configs of a trial whose config was changed: since when, from which iteration on."""
        return self._configs.get(n, [])

    @property
    def reconfigured(self) -> list[int]:
        """Trials whose config was changed."""
        return sorted(self._configs)

    def _made(self, row: int) -> Attempt:
        return Attempt(
            self._n[row],
            self._attempt[row],
            self._start[row],
            self._end[row],
            self._worker[row],
            OUTCOMES[self._outcome[row]],
            self._causes[self._cause[row]],
        )

    # --- folding

    def feed(self, event: ev.AnyEvent) -> None:
        """Take one event."""
        fold = _FOLDS.get(type(event))
        if fold is not None:
            fold(self, event)
        self._last_at = event.at

    def _reported(self, event: ev.Reported) -> None:
        self.awaited.discard(event.n)
        self._worker[self._last[event.n]] = event.worker

    def _tell(self, incident: Incident) -> Incident:
        if len(self.incidents) < MAX_INCIDENTS:
            self.incidents.append(incident)
        else:
            self.more_incidents += 1
        return incident

    def _epoch(self, event: ev.EpochStarted) -> None:
        before = self.drivers[-1] if self.drivers else None
        if before is not None:
            before.until = self.last_at
            kind = "resumed" if before.reason else "killed"
            how = f"stopped ({before.reason})" if before.reason else "exited without shutting down, or was taken over"
            text = f"Driver {before.epoch} (pid {before.pid} on {before.host}) {how}. {driver_words(event)}."
            found = self._tell(Incident(self.last_at, event.at, kind, -1, text))
            if kind == "killed":  # whoever stops an experiment has not lost the time until it is resumed
                found.down_s = max(0.0, event.at - self.last_at)
                self._tell(Incident(event.at, event.at, "takeover", -1, f"{driver_words(event)}."))
            for n in self._running:
                self._end[self._last[n]] = self.last_at
                self._broken[n] = found
        self._close_waiting(self.last_at)
        self._close_outage(self.last_at)
        self.drivers.append(DriverSpan(event.epoch, event.host, event.pid, event.at, event.at))

    def _bye(self, event: ev.DriverStopped) -> None:
        if self.drivers:
            self.drivers[-1].reason, self.drivers[-1].until = event.reason, event.at

    def _joined(self, event: ev.WorkerJoined) -> None:
        self.workers[event.worker] = WorkerFacts(event.host, event.ip, event.pid)

    def _created(self, event: ev.TrialCreated) -> None:
        self._last.append(-1)
        if event.n < MAX_FIRST_CONFIGS:
            self._first[event.n] = msgspec.msgpack.encode(event.config)

    def _started(self, event: ev.TrialStarted) -> None:
        n = event.n
        before = self._last[n]
        if before >= 0:
            self._set_back(event, self._broken.pop(n, None))
        self._before.append(before)
        self._last[n] = len(self._n)
        self._n.append(n)
        self._attempt.append(event.attempt)
        self._start.append(event.at)
        self._end.append(NAN)
        self._worker.append(0)
        self._outcome.append(RUNNING)
        self._cause.append(0)
        self._running[n] = None
        self.awaited.add(n)

    def _set_back(self, event: ev.TrialStarted, broken: Incident | None) -> None:
        """What the attempt before did after the checkpoint that this one begins with is done again."""
        n, row = event.n, self._last[event.n]
        rewound = self._curves.count(n) - event.rows
        if broken is None and rewound <= 0:
            return
        since = max(self._start[row], self._curves.row_time(n, event.rows))
        lost = max(0.0, self._end[row] - since)
        if broken is not None:
            broken.repeated_s += lost
            broken.trials += 1
            if broken.n >= 0:
                broken.until = event.at
        if rewound > 0:
            origin = "the beginning" if event.source is None else checkpoint_name(event.source[1])
            do = "does" if rewound == 1 else "do"
            text = f"Attempt {event.attempt} started from {origin}: {plural(rewound, 'later report')} {do} not count."
            found = self._tell(Incident(event.at, event.at, "rewind", n, text, repeated_s=lost, trials=1))
            found.is_consequence = broken is not None

    def _ended(self, event: Any, outcome: int, cause: str = "") -> None:
        row = self._last[event.n]
        if event.n not in self._running or row < 0:
            return
        del self._running[event.n]
        self.awaited.discard(event.n)
        if self._end[row] != self._end[row]:
            self._end[row] = event.at
        self._outcome[row] = outcome
        if cause:
            self._cause[row] = self._cause_code(cause)
        worker = getattr(event, "worker", 0)
        if worker and not self._worker[row]:
            self._worker[row] = worker

    def _cause_code(self, cause: str) -> int:
        if cause not in self._causes:
            if len(self._causes) > 254:
                return 0
            self._causes.append(cause)
        return self._causes.index(cause)

    def _failed(self, event: ev.AttemptFailed) -> None:
        self._ended(event, FAILED, event.cause)
        text = f"Attempt {event.attempt} failed and is retried: {failure_words(event.cause, event.error)}."
        self._broken[event.n] = self._tell(Incident(event.at, NAN, "retry", event.n, text))

    def _errored(self, event: ev.TrialErrored) -> None:
        self._ended(event, ERRORED, event.cause)
        text = f"Attempt {event.attempt} failed with no retry left: {failure_words(event.cause, event.error)}."
        self._broken.pop(event.n, None)
        self._tell(Incident(event.at, event.at, "error", event.n, text))

    def _cut(self, event: ev.AttemptInterrupted) -> None:
        self._ended(event, INTERRUPTED, event.cause)
        if event.cause in _OF_THE_DRIVER:
            return  # one incident for all its trials
        detail = f": {event.detail}" if event.detail else ""
        text = f"Attempt {event.attempt} was interrupted ({event.cause.replace('_', ' ')}{detail})."
        self._broken[event.n] = self._tell(Incident(event.at, NAN, "interrupted", event.n, text))

    def _terminated(self, event: ev.TrialTerminated) -> None:
        self._ended(event, FINISHED)
        self._broken.pop(event.n, None)

    def _paused(self, event: ev.TrialPaused) -> None:
        self._ended(event, PAUSED)

    def _rejected(self, event: ev.CheckpointRejected) -> None:
        text = f"checkpoint_{event.index:06d} was rejected: {event.reason}."
        found = self._tell(Incident(event.at, event.at, "rejected", event.n, text))
        before = self._broken.get(event.n)
        if before is None or before.n < 0:
            self._broken.setdefault(event.n, found)

    def _reconfigured(self, event: ev.TrialReconfigured) -> None:
        iteration = self._curves.iteration(event.n)
        known = self._configs.get(event.n)
        if known is None:
            first = self._first.pop(event.n, b"\x80")
            known = self._configs[event.n] = [(0.0, 0, msgspec.msgpack.decode(first))]
        known.append((event.at, iteration, event.config))
        if event.donor is not None:
            donor, index = event.donor
            parent = event.parent if event.parent >= 0 else donor
            if max(parent, donor) >= len(self._last):
                raise IllegalTransitionError(f"trial {event.n} is a copy of one that does not exist")
            self.copies.append(Copy(event.at, event.n, parent, donor, index, iteration))

    def _filled(self, event: ev.BacklogFilled) -> None:
        text = f"Trials that save waited: {size_text(event.bytes)} of checkpoints were not in storage yet."
        self._waiting = self._tell(Incident(event.at, NAN, "backlog", -1, text))

    def _eased(self, event: ev.BacklogEased) -> None:
        self._close_waiting(event.at)

    def _lagged(self, event: ev.StorageLagged) -> None:
        why = f": {event.detail}" if event.detail else ""
        text = f"Storage fell behind, records waited to be durable{why}."
        self._outage = self._tell(Incident(event.since, NAN, "storage", -1, text))

    def _caught_up(self, event: ev.StorageCaughtUp) -> None:
        self._close_outage(event.at)

    def _close_waiting(self, at: float) -> None:
        _close(self._waiting, at)
        self._waiting = None

    def _close_outage(self, at: float) -> None:
        _close(self._outage, at)
        self._outage = None


def _close(incident: Incident | None, at: float) -> None:
    if incident is not None:
        incident.until, incident.down_s = at, max(0.0, at - incident.at)


_FOLDS: dict[type, Callable[[Chronicle, Any], None]] = {
    ev.EpochStarted: Chronicle._epoch,
    ev.DriverStopped: Chronicle._bye,
    ev.WorkerJoined: Chronicle._joined,
    ev.TrialCreated: Chronicle._created,
    ev.TrialStarted: Chronicle._started,
    ev.Reported: Chronicle._reported,
    ev.AttemptFailed: Chronicle._failed,
    ev.AttemptInterrupted: Chronicle._cut,
    ev.TrialErrored: Chronicle._errored,
    ev.TrialTerminated: Chronicle._terminated,
    ev.TrialPaused: Chronicle._paused,
    ev.CheckpointRejected: Chronicle._rejected,
    ev.TrialReconfigured: Chronicle._reconfigured,
    ev.BacklogFilled: Chronicle._filled,
    ev.BacklogEased: Chronicle._eased,
    ev.StorageLagged: Chronicle._lagged,
    ev.StorageCaughtUp: Chronicle._caught_up,
}
