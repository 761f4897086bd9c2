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
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from msgspec.structs import replace

from holdfast.core import backlog
from holdfast.core import events as ev
from holdfast.core.retention import lookup
from holdfast.core.state import UNIT, State, Status, Trial
from holdfast.display.experiment_facts import (
    NOT_STARTED,
    Backlog,
    Best,
    DisplayOptions,
    ExperimentFacts,
    FailureGroup,
    ProgressView,
    TableRow,
)
from holdfast.space.value_names import named

MAX_KINDS = 200
"""Kinds of failures that are distinguished; the rest is counted together."""

OTHER_KINDS = ("", "", "")

KEPT_ENDS = 100
"""Latest ends that are remembered."""

BEST_ROWS = 5
"""Rows that the best trials, or the latest ended ones, get while more trials run than fit."""

TREND_POINTS = 32
TREND_TRIALS = 1000
"""Trials whose curves are remembered; those of others are forgotten, the oldest first."""

SHOWN_KINDS = 20

UNSTARTED = "not started"
"""How the reason of a trial begins that ended before it had begun."""

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


def backlog_of(state: State, place: str, at: float) -> Backlog | None:
    """The checkpoints that are on their way to ``place``; None if there are none."""
    oldest = backlog.oldest(state)
    if oldest is None:
        return None
    waits = bool(state.full_since and state.running)
    return Backlog(
        checkpoints=len(state.staged),
        bytes=state.staged_bytes,
        oldest_s=max(0.0, at - oldest),
        place=place,
        limit=state.full_limit if waits else None,
        full_s=max(0.0, at - state.full_since) if waits else 0.0,
    )


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


class Trends:
    """The course of one metric for each trial, in a bounded number of points."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self._curves: dict[int, ObjectiveCurve] = {}

    def add(self, n: int, metrics: Mapping[str, Any]) -> None:
        """Take a trial's next value; what is not a finite number leaves no point."""
        value = lookup(metrics, self.metric)
        if not isinstance(value, int | float) or not math.isfinite(value):
            return
        curve = self._curves.get(n)
        if curve is None:
            curve = self._curves[n] = ObjectiveCurve()
            if len(self._curves) > TREND_TRIALS:
                del self._curves[next(iter(self._curves))]
        curve.add(value)

    def forget(self, n: int) -> None:
        """The trial began again."""
        self._curves.pop(n, None)

    def of(self, n: int) -> tuple[float, ...]:
        """The points of a trial."""
        curve = self._curves.get(n)
        return () if curve is None else tuple(curve.points)


class ObjectiveCurve:
    """Values at even distances: whenever there are too many, every other one goes. The latest is always there."""

    def __init__(self) -> None:
        self.points: list[float] = []
        self._stride = 1
        self._count = 0

    def add(self, value: float) -> None:
        """Take the next value."""
        if self.points and (self._count - 1) % self._stride:
            self.points[-1] = value  # between two points: only the latest stands for itself
        else:
            self.points.append(value)
        self._count += 1
        if len(self.points) > TREND_POINTS:
            self.points = self.points[::2]
            self._stride *= 2


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
        self._trends: Trends | None = None
        self._not_started: set[int] = set()
        self._newly_ended: set[int] = set()

    def feed(self, event: ev.AnyEvent) -> None:
        """Take one event; the state may already be ahead of it."""
        kind = type(event)
        if kind is ev.Reported:
            self._changed.add(event.n)  # type: ignore[union-attr]
            if self._trends is not None:
                self._trends.add(event.n, event.metrics)  # type: ignore[union-attr]
        elif kind in _FED:
            _FED[kind](self, event)

    def _started(self, event: ev.TrialStarted) -> None:
        """The trial was rewound to a checkpoint or to nothing: its last value may be another."""
        self._changed.add(event.n)
        if self._trends is not None and event.source is None:
            self._trends.forget(event.n)

    def _requeued(self, event: ev.TrialRequeued) -> None:
        self._changed.add(event.n)
        self._newly_ended.discard(event.n)
        self._not_started.discard(event.n)
        group = self._errored.pop(event.n, None)
        if group is not None:
            group.errored -= 1

    def _terminated(self, event: ev.TrialTerminated) -> None:
        self._ends.append(event.n)
        if not event.attempt:
            self._newly_ended.add(event.n)

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

    @property
    def unstarted(self) -> int:
        """How many trials ended before they had begun, as of the last ``catch_up``."""
        return len(self._not_started)

    def errored(self) -> Iterator[tuple[int, FailureGroup]]:
        """The trials that ended in ERROR, and the kind of failure of each, as of the last ``catch_up``."""
        return iter(self._errored.items())

    def failures(self) -> list[FailureGroup]:
        """Kinds of failures that still matter, the most frequent first."""
        present = [group for group in self._kinds.values() if group.errored or group.retried]
        return sorted(present, key=lambda group: (-group.errored, -group.retried))

    def catch_up(self, state: State, objective: tuple[str, str] | None) -> None:
        """Look at what changed since the last time; the first time, or for a new objective, at everything."""
        board = self._board
        if objective is not None and (board is None or (board.metric, board.mode) != objective):
            board = self._board = Leaderboard(*objective)
            self._trends = Trends(objective[0])
            self._changed.update(range(len(state.trials)))
        if not self._caught_up:
            self._read_past(state)
            self._caught_up = True
        if board is not None:
            for n in self._changed:
                board.put(state.trials[n])
        self._changed.clear()
        self._not_started |= self._newly_ended
        self._newly_ended.clear()

    def _read_past(self, state: State) -> None:
        ended = [trial for trial in state.trials if trial.final]
        for trial in ended:
            if trial.status == Status.ERROR and trial.n not in self._errored:
                self._count_error(trial.n, trial.cause, trial.error or ev.ErrorFacts())
        self._newly_ended.update(trial.n for trial in ended if is_unstarted(trial))
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
        total = _total(state, facts, options)
        counts = honest_counts(state, total, len(self._not_started))
        finished = counts[Status.TERMINATED] + counts[Status.ERROR]
        trials_per_s, reports_per_s = self._speed.sample(at, finished, state.reports)
        left = None if total is None else total - finished - counts[NOT_STARTED]
        ending = facts.memory.draining or state.stopping
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
            resources=_resources(state, facts),
            storage_trouble=tuple(islice(facts.memory.storage_trouble.values(), 3)),
            draining=facts.memory.draining,
            stopping=state.stopping,
            lag_s=lag_s,
            backlog=backlog_of(state, facts.root, at),
        )

    def _best(self, state: State, facts: ExperimentFacts, at: float) -> Best | None:
        board, top = self._board, self.best(1)
        if board is None or not top:
            return None
        value, n = top[0]
        return Best(board.metric, board.mode, value, make_row(state, state.trials[n], facts, at))

    def rows(
        self, state: State, facts: ExperimentFacts, options: DisplayOptions, at: float
    ) -> tuple[tuple[TableRow, ...], int]:
        """The trials worth a row as of the last ``catch_up``, and how many running ones are left out."""
        limit = options.row_limit
        best = [state.trials[n] for _, n in self.best(limit if options.sort_by_metric else BEST_ROWS)]
        ranks = {trial.n: i for i, trial in enumerate(best, 1)}
        if options.sort_by_metric and self._board is not None:
            return tuple(self._row(state, trial, facts, at, ranks) for trial in best), 0
        running = [state.trials[n] for n in islice(state.running, limit)]
        # Below the running trials stand the best; without an objective, and where there is room, the latest ended.
        others = [trial for trial in best if trial.status != Status.RUNNING]
        known = {trial.n for trial in others}
        others += [trial for trial in islice(self.latest_ends(state), limit) if trial.n not in known]
        room = max(limit - len(running), min(BEST_ROWS, len(others), limit // 3))
        running = running[: limit - min(room, len(others))]
        shown = running + others[:room]
        rows = tuple(self._row(state, trial, facts, at, ranks) for trial in shown)
        return rows, len(state.running) - len(running)

    def _row(self, state: State, trial: Trial, facts: ExperimentFacts, at: float, ranks: dict[int, int]) -> TableRow:
        trend = self._trends.of(trial.n) if self._trends is not None else ()
        return replace(make_row(state, trial, facts, at), rank=ranks.get(trial.n, 0), trend=trend)


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


def make_row(state: State, trial: Trial, facts: ExperimentFacts, at: float) -> TableRow:
    """The facts of one trial that a table shows."""
    running = trial.status == Status.RUNNING
    # A trial that runs but has not reported for a while must not look as if it stood still.
    time_s = max(trial.time_total, trial.base_time + at - trial.attempt_at) if running else trial.time_total
    worker = state.workers.get(trial.worker) if running and trial.ordinal else None
    names = facts.info.value_names if facts.info is not None else None
    return TableRow(
        name=facts.name_of(trial),
        status=trial.status,
        iteration=trial.iteration,
        time_s=time_s,
        config=named(trial.config, names) if names else trial.config,
        params=trial.params,
        metrics=trial.metrics or {},
        place="" if worker is None else f"{worker.ip}:{worker.pid}",
        ended=ended_reason(trial),
        tags=",".join(trial.tags),
        note=trial.notes[-1].text if trial.notes else "",
    )


def is_unstarted(trial: Trial) -> bool:
    """Whether it ended with the experiment before it had begun."""
    return trial.status == Status.TERMINATED and not trial.attempt


def ended_reason(trial: Trial) -> str:
    """Why a trial is TERMINATED, and whether it had started at all; "" if it is not."""
    if trial.status != Status.TERMINATED:
        return ""
    return f"{UNSTARTED}: {trial.reason}" if is_unstarted(trial) else trial.reason


def existing_counts(state: State) -> dict[str, int]:
    """The trials that exist by status; those that never started are not among the TERMINATED ones."""
    return honest_counts(state, None, sum(map(is_unstarted, state.trials)))


def honest_counts(state: State, total: int | None, unstarted: int) -> dict[str, int]:
    """Trials by status so that they add up to the total.

    Args:
        state: The experiment.
        total: Trials that there will be, if that is known.
        unstarted: Trials that ended before they had begun; they are not done.
    """
    counts = {**state.counts, NOT_STARTED: unstarted}
    counts[Status.TERMINATED] -= unstarted
    to_come = 0 if total is None else total - len(state.trials)
    # After a stop rule has ended the search nothing more will come.
    counts[NOT_STARTED if state.search_ended else Status.PENDING] += to_come
    return counts


def total_trials(state: State, wanted: int | None) -> int | None:
    """Trials that there are in the end; None if nobody knows. A searcher may run out of suggestions before."""
    known = len(state.trials)
    if state.search_ended and not state.stopping:
        return known
    return (known if state.search_ended else None) if wanted is None else max(wanted, known)


def _total(state: State, facts: ExperimentFacts, options: DisplayOptions) -> int | None:
    wanted = facts.total if state.settings.num_samples is None else state.settings.total
    return total_trials(state, options.total if wanted is None else wanted)


def _resources(state: State, facts: ExperimentFacts) -> tuple[tuple[str, float, float], ...]:
    used, capacity = state.used, facts.memory.capacity
    return tuple((name, used.get(name, 0) / UNIT, amount / UNIT) for name, amount in capacity.items() if amount)
