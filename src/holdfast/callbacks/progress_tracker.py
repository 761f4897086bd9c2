"""Running totals of an experiment: what the display needs and the state does not hold.

Owns the best trial per objective, the kinds of failures, the latest ends and the speed. Every event costs the same
however many trials there are (I10): ``feed`` only remembers which trials changed, ``view`` looks those up. The one scan
of all trials happens at the first view, because a resumed experiment may have been read from a snapshot.

Must never: print, or hold anything that the experiment needs.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from holdfast.callbacks.progress_facts import Best, DisplayOptions, ExperimentFacts, FailureGroup, ProgressView, Row
from holdfast.core import events as ev
from holdfast.core.retention import lookup
from holdfast.core.state import UNIT, State, Status, Trial

MAX_KINDS = 200
"""Kinds of failures that are told apart; the rest is counted together."""

OTHER_KINDS = ("", "", "")

KEPT_ENDS = 100
"""Latest ends that are remembered."""

ENDED_ROWS = 5
"""Rows that ended trials get while more trials run than fit."""

SHOWN_KINDS = 20

WINDOW_S = 60.0
SAMPLE_S = 1.0
FEW_ENDS = 3
"""Below so many ends in the window the average since the start says more."""


def metric_value(trial: Trial, metric: str) -> float | None:
    """The trial's last value of ``metric`` if it can be compared; NaN and infinity cannot."""
    value = lookup(trial.metrics, metric) if trial.metrics else None
    if value is None and trial.rows:
        value = {"training_iteration": trial.iteration, "time_total_s": trial.time_total}.get(metric)
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None


class Leaderboard:
    """Trials by the last value of one metric: a heap whose outdated entries are dropped when met."""

    def __init__(self, metric: str, mode: str) -> None:
        self.metric = metric
        self.mode = mode
        self._sign = -1.0 if mode == "max" else 1.0
        self._cost: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def put(self, trial: Trial) -> None:
        """Take notice of the trial's present value."""
        value = metric_value(trial, self.metric)
        if value is None:
            self._cost.pop(trial.n, None)
            return
        cost = self._sign * value
        if self._cost.get(trial.n) == cost:
            return
        self._cost[trial.n] = cost
        heapq.heappush(self._heap, (cost, trial.n))
        if len(self._heap) > 2 * len(self._cost) + 64:
            self._heap = [(cost, n) for n, cost in self._cost.items()]
            heapq.heapify(self._heap)

    def top(self, count: int) -> list[tuple[float, int]]:
        """The best ``count`` as (value, trial number), best first; of equals the older trial."""
        found: list[tuple[float, int]] = []
        while self._heap and len(found) < count:
            entry = heapq.heappop(self._heap)
            current = self._cost.get(entry[1]) == entry[0]
            if current and (not found or entry != found[-1]):
                found.append(entry)
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [(self._sign * cost, n) for cost, n in found]


class Speed:
    """Ends and reports per second over the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()
        self._first: tuple[float, int, int] | None = None

    def sample(self, at: float, finished: int, reports: int) -> tuple[float, float]:
        """Note the totals at this moment; returns trials/s and reports/s."""
        now = (at, finished, reports)
        if self._first is None:
            self._first = now
        samples = self._samples
        if not samples or at - samples[-1][0] >= SAMPLE_S:
            samples.append(now)
        # The oldest kept sample may be older than the window: a display that looks seldom still needs one to compare.
        while len(samples) > 2 and at - samples[1][0] >= WINDOW_S:
            samples.popleft()
        then = samples[0]
        since = then if finished - then[1] >= FEW_ENDS else self._first
        return _rate(finished - since[1], at - since[0]), _rate(reports - then[2], at - then[0])


def _rate(count: int, seconds: float) -> float:
    return max(0, count) / seconds if seconds > 0 else 0.0


class ProgressTracker:
    """Fed with every event after it was applied; answers with a view at any time."""

    def __init__(self) -> None:
        self._board: Leaderboard | None = None
        self._changed: set[int] = set()
        self._caught_up = False
        self._ends: deque[int] = deque(maxlen=KEPT_ENDS)
        self._kinds: dict[tuple[str, str, str], FailureGroup] = {}
        self._errored: dict[int, FailureGroup] = {}
        self._speed = Speed()

    def feed(self, event: ev.AnyEvent) -> None:
        """Take one event; the state may already be ahead of it."""
        kind = type(event)
        if kind is ev.Reported:
            self._changed.add(event.n)  # type: ignore[union-attr]
        elif kind in _FED:
            _FED[kind](self, event)

    def _started(self, event: ev.TrialStarted | ev.TrialRequeued) -> None:
        """The trial was rewound to a checkpoint or to nothing: its last value may be another."""
        self._changed.add(event.n)

    def _requeued(self, event: ev.TrialRequeued) -> None:
        self._changed.add(event.n)
        group = self._errored.pop(event.n, None)
        if group is not None:
            group.errored -= 1

    def _terminated(self, event: ev.TrialTerminated) -> None:
        self._ends.append(event.n)

    def _attempt_failed(self, event: ev.AttemptFailed) -> None:
        self._kind(event.n, event.cause, event.error).retried += 1

    def _trial_errored(self, event: ev.TrialErrored) -> None:
        self._ends.append(event.n)
        if event.n not in self._errored:
            self._count_error(event.n, event.cause, event.error)

    def _count_error(self, n: int, cause: str, error: ev.ErrorFacts) -> None:
        group = self._errored[n] = self._kind(n, cause, error)
        group.errored += 1

    def _kind(self, n: int, cause: str, error: ev.ErrorFacts) -> FailureGroup:
        key = failure_key(cause, error)
        group = self._kinds.get(key)
        if group is None:
            if len(self._kinds) >= MAX_KINDS:
                key, cause, error = OTHER_KINDS, "", ev.ErrorFacts(message="other errors")
            group = FailureGroup(cause, error.type, error.message, error.location, n)
            group = self._kinds.setdefault(key, group)
        return group

    def kinds(self, start: int = 0) -> Iterator[FailureGroup]:
        """Kinds of failures in order of their first appearance, from the ``start``-th."""
        return islice(self._kinds.values(), start, None)

    @property
    def kinds_seen(self) -> int:
        """How many kinds of failures there were."""
        return len(self._kinds)

    def kind_of(self, cause: str, error: ev.ErrorFacts) -> FailureGroup | None:
        """The kind that a failure was counted under."""
        return self._kinds.get(failure_key(cause, error)) or self._kinds.get(OTHER_KINDS)

    def failures(self) -> list[FailureGroup]:
        """Kinds of failures that still matter, the most frequent first."""
        present = [group for group in self._kinds.values() if group.errored or group.retried]
        return sorted(present, key=lambda group: (-group.errored, -group.retried))

    def catch_up(self, state: State, objective: tuple[str, str] | None) -> None:
        """Look at what changed since the last time; the first time, or for a new objective, at everything."""
        board = self._board
        if objective is not None and (board is None or (board.metric, board.mode) != objective):
            board = self._board = Leaderboard(*objective)
            self._changed.update(range(len(state.trials)))
        if not self._caught_up:
            self._read_past(state)
            self._caught_up = True
        if board is not None:
            for n in self._changed:
                board.put(state.trials[n])
        self._changed.clear()

    def _read_past(self, state: State) -> None:
        ended = [trial for trial in state.trials if trial.final]
        for trial in ended:
            if trial.status == Status.ERROR and trial.n not in self._errored:
                self._count_error(trial.n, trial.cause, trial.error or ev.ErrorFacts())
        latest = heapq.nlargest(KEPT_ENDS, ended, key=lambda trial: (trial.ended_at, trial.n))
        self._ends = deque((trial.n for trial in reversed(latest)), maxlen=KEPT_ENDS)

    def best(self, count: int) -> list[tuple[float, int]]:
        """The best trials as (value, number), as of the last ``catch_up``."""
        return [] if self._board is None else self._board.top(count)

    def latest_ends(self, state: State) -> Iterator[Trial]:
        """Ended trials, the latest first, each once."""
        seen: set[int] = set()
        for n in reversed(self._ends):
            trial = state.trials[n]
            if n not in seen and trial.final:
                seen.add(n)
                yield trial

    def view(
        self,
        state: State,
        facts: ExperimentFacts,
        options: DisplayOptions,
        at: float,
        lag_s: float = 0.0,
    ) -> ProgressView:
        """What there is to show now: O(running + rows), plus the trials that changed since the last view."""
        objective = options.objective(facts)
        self.catch_up(state, objective)
        counts = dict(state.counts)
        finished = counts[Status.TERMINATED] + counts[Status.ERROR]
        trials_per_s, reports_per_s = self._speed.sample(at, finished, state.reports)
        total = _total(state, facts, options)
        left = None if total is None else total - finished
        ending = state.session.draining or state.stopping
        failures = self.failures()
        rows, hidden = self.rows(state, facts, options, at)
        return ProgressView(
            at=at,
            elapsed_s=max(0.0, at - facts.started_at),
            lived_s=state.lived(at),
            counts=counts,
            total=total,
            finished=finished,
            reports=state.reports,
            trials_per_s=trials_per_s,
            reports_per_s=reports_per_s,
            eta_s=left / trials_per_s if left and trials_per_s and not ending else None,
            best=self._best(state, facts, at),
            failures=tuple(failures[:SHOWN_KINDS]),
            more_failures=max(0, len(failures) - SHOWN_KINDS),
            rows=rows,
            hidden=hidden,
            resources=_resources(state),
            storage_trouble=tuple(islice(state.session.storage_trouble.values(), 3)),
            draining=state.session.draining,
            stopping=state.stopping,
            lag_s=lag_s,
        )

    def _best(self, state: State, facts: ExperimentFacts, at: float) -> Best | None:
        board, top = self._board, self.best(1)
        if board is None or not top:
            return None
        value, n = top[0]
        return Best(board.metric, board.mode, value, make_row(state, state.trials[n], facts, at))

    def rows(
        self, state: State, facts: ExperimentFacts, options: DisplayOptions, at: float
    ) -> tuple[tuple[Row, ...], int]:
        """The trials worth a row as of the last ``catch_up``, and how many running ones are left out."""
        limit = options.max_progress_rows
        if options.sort_by_metric and self._board is not None:
            chosen = [state.trials[n] for _, n in self.best(limit)]
            return tuple(make_row(state, trial, facts, at) for trial in chosen), 0
        running = [state.trials[n] for n in islice(state.running, limit)]
        ended = list(islice(self.latest_ends(state), limit))
        room = max(limit - len(running), min(ENDED_ROWS, len(ended), limit // 3))
        running = running[: limit - min(room, len(ended))]
        shown = running + ended[:room]
        return tuple(make_row(state, trial, facts, at) for trial in shown), len(state.running) - len(running)


_FED: dict[type, Any] = {
    ev.TrialStarted: ProgressTracker._started,
    ev.TrialRequeued: ProgressTracker._requeued,
    ev.TrialTerminated: ProgressTracker._terminated,
    ev.TrialErrored: ProgressTracker._trial_errored,
    ev.AttemptFailed: ProgressTracker._attempt_failed,
}


def failure_key(cause: str, error: ev.ErrorFacts) -> tuple[str, str, str]:
    """What makes two failures the same: the exception and the user's line, or its words if there is no line."""
    return cause, error.type, error.location or error.message


def make_row(state: State, trial: Trial, facts: ExperimentFacts, at: float) -> Row:
    """The facts of one trial that a table shows."""
    running = trial.status == Status.RUNNING
    # A trial that runs but has not reported for a while must not look as if it stood still.
    time_s = max(trial.time_total, trial.base_time + at - trial.attempt_at) if running else trial.time_total
    worker = state.workers.get(trial.worker) if running and trial.ordinal else None
    return Row(
        name=facts.name_of(trial),
        status=trial.status,
        iteration=trial.iteration,
        time_s=time_s,
        config=trial.config,
        params=trial.params,
        metrics=trial.metrics or {},
        place="" if worker is None else f"{worker.ip}:{worker.pid}",
    )


def _total(state: State, facts: ExperimentFacts, options: DisplayOptions) -> int | None:
    known = len(state.trials)
    if state.search_ended:
        return known
    total = facts.total if facts.total is not None else options.total
    return None if total is None else max(total, known)


def _resources(state: State) -> tuple[tuple[str, float, float], ...]:
    used, capacity = state.session.used, state.session.capacity
    return tuple((name, used.get(name, 0) / UNIT, amount / UNIT) for name, amount in capacity.items() if amount)
