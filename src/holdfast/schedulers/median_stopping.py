"""The median stopping rule: a trial ends if its best is worse than what half of the others were on average by then.

Owns what each trial has reported so far. Must never compare a trial with itself.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.retention import DEFAULT_METRIC, lookup
from holdfast.errors import InvalidInputError
from holdfast.schedulers.base import TrialScheduler, check_numbers, number

if TYPE_CHECKING:
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView


class Career:
    """What a trial has reported: scores are turned so that larger is better."""

    __slots__ = ("best", "last", "means", "times", "yielded")

    def __init__(self) -> None:
        self.last = -math.inf  # the time of its last report
        self.best: float | None = None  # of all scores
        self.times = array("d")  # of reports that count for its average
        self.means = array("d")  # its average at each of them
        self.yielded = -math.inf  # when it last made room for others

    def add(self, time: float, score: float | None, counts: bool) -> None:
        self.last = time
        if score is None:
            return
        self.best = score if self.best is None else max(self.best, score)
        if counts:
            mean = self.means[-1] if self.means else score
            # Step by step rather than from a sum, so that the average of equal scores is that score exactly.
            if math.isfinite(mean):
                mean += (score - mean) / (len(self.means) + 1)
            self.times.append(time)
            self.means.append(mean)

    def mean_at(self, time: float) -> float | None:
        """The average of its scores until then; None if none counts."""
        count = bisect_right(self.times, time)
        return self.means[count - 1] if count else None


class MedianStoppingRule(TrialScheduler):
    """Ends trials whose best score is worse than the median of the others' running averages at the same time.

    Trials start in the order in which they were created.

    Args:
        time_attr: What time is measured by; a result's key that grows.
        metric: What trials are compared by; None takes the experiment's.
        mode: "min" or "max".
        grace_period: Trials continue at least until this time, and results before it do not count for averages.
        min_samples_required: Decide nothing before so many other trials have come as far. Until then, trials make room
            for others that wait.
        min_time_slice: How long a trial continues before it makes room again.
        hard_stop: Whether the worse trials end. If not, they are paused, and continue undisturbed when there is room.

    Raises:
        InvalidInputError: ``mode`` is neither "min" nor "max", or another argument is no number.

    Example:
        >>> MedianStoppingRule(time_attr="training_iteration", grace_period=5, metric="loss", mode="min").metric
        'loss'
    """

    _needs_metric = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
    ) -> None:
        if mode is not None and mode not in ("min", "max"):
            raise InvalidInputError(f"`mode` must be one of ['min', 'max'], got {mode!r}.")
        check_numbers(
            grace_period=grace_period, min_samples_required=min_samples_required, min_time_slice=min_time_slice
        )
        self._time_attr = time_attr
        self._metric = metric
        self._mode = mode
        self._grace_period = grace_period
        self._min_samples_required = min_samples_required
        self._min_time_slice = min_time_slice
        self._hard_stop = hard_stop
        self._careers: dict[int, Career] = {}
        self._worse: set[int] = set()  # trials that were found to be worse than the median
        self._order: list[tuple[float, int]] = []  # (time of the last report, trial), sorted
        # Averages at a time that many trials report at, sorted. They follow from the careers and are not stored.
        self._columns: dict[float, list[float]] = {}
        self._column_times: list[float] = []  # sorted

    # --- what it is told

    def on_trial_add(self, view: ExperimentView, trial: TrialView) -> None:
        self._worse.discard(trial.n)  # the user lets an ended trial run again: it gets another chance

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        n, time = trial.n, self._time_of(result)
        value = number(lookup(result, self._metric or DEFAULT_METRIC))
        if time is None or value is None or n in self._worse:
            self.warn_without_time(self._time_attr, result)
            return self.CONTINUE
        if not trial.record.rows:
            self._start_over(n)
        career = self._record(n, time, self.score_of(result))
        time = career.last
        if time < self._grace_period:
            return self.CONTINUE
        averages, own = self._averages(n, time)
        samples = len(averages) - (own is not None)
        if samples < max(1, self._min_samples_required):
            if view.waits_for_slots and time - career.yielded > self._min_time_slice:
                career.yielded = time
                view.reason = "makes room for others"
                return self.PAUSE
            return self.CONTINUE
        if career.best is not None and not career.best < median_without(averages, own):
            return self.CONTINUE
        self._worse.add(n)
        view.reason = f"its best is worse than the median of {samples} others at {self._time_attr}={time:g}"
        return self.STOP if self._hard_stop else self.PAUSE

    def on_trial_complete(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> None:
        """Its last result may not have been judged, because it ended for another reason."""
        time, career = self._time_of(result), self._careers.get(trial.n)
        if time is not None and trial.n not in self._worse and (career is None or time > career.last):
            if number(lookup(result, self._metric or DEFAULT_METRIC)) is not None:
                self._record(trial.n, time, self.score_of(result))

    def _time_of(self, result: dict[str, Any]) -> float | None:
        time = number(lookup(result, self._time_attr))
        return None if time is None or math.isnan(time) else time

    # --- averages

    def _record(self, n: int, time: float, score: float | None) -> Career:
        career = self._careers.setdefault(n, Career())
        before, mean = career.last, career.mean_at(career.last)
        # A trial that had to repeat some steps may have been faster this time. Its clock stands still then.
        time = max(time, before)
        career.add(time, score, time >= self._grace_period)
        place = bisect_left(self._order, (before, n))
        if self._order[place : place + 1] == [(before, n)]:
            del self._order[place]
        insort(self._order, (time, n))
        if time == before:
            self._forget_columns(time)
        first, end = bisect_right(self._column_times, before), bisect_right(self._column_times, time)
        for passed in self._column_times[first:end]:
            now = career.mean_at(time) if passed == time else mean
            if now is not None:
                insort(self._columns[passed], now)
        return career

    def _start_over(self, n: int) -> None:
        """What the trial reported in another life does not count."""
        old = self._careers.pop(n, None)
        if old is not None:
            self._order.remove((old.last, n))
            self._forget_columns(-math.inf)

    def _forget_columns(self, since: float) -> None:
        first = bisect_left(self._column_times, since)
        for time in self._column_times[first:]:
            del self._columns[time]
        del self._column_times[first:]

    def _averages(self, n: int, time: float) -> tuple[Sequence[float], float | None]:
        """Averages at ``time`` of the trials that have come so far, sorted; and which of them is the trial's own."""
        column = self._columns.get(time)
        if column is None:
            beyond = self._order[bisect_left(self._order, (time, -1)) :]
            means = (self._careers[other].mean_at(time) for _, other in beyond)
            column = sorted(mean for mean in means if mean is not None)
            if time.is_integer():  # others will report at the same time, so that it pays to keep this
                self._columns[time] = column
                insort(self._column_times, time)
        return column, self._careers[n].mean_at(time)

    # --- its memory

    def debug_string(self) -> str:
        return f"Using MedianStoppingRule: num_stopped={len(self._worse)}."

    def get_state(self) -> dict[str, Any]:
        careers = [
            [n, career.last, career.best, career.yielded, career.times.tolist(), career.means.tolist()]
            for n, career in self._careers.items()
        ]
        return {"careers": careers, "worse": sorted(self._worse)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._careers, self._worse = {}, set(state["worse"])
        for n, last, best, yielded, times, means in state["careers"]:
            career = self._careers[n] = Career()
            career.last, career.best, career.yielded = last, best, yielded
            career.times, career.means = array("d", times), array("d", means)
        self._order = sorted((career.last, n) for n, career in self._careers.items())
        self._columns, self._column_times = {}, []


def median_without(values: Sequence[float], one: float | None) -> float:
    """The median of sorted values, leaving out one of them."""
    count = len(values) - (one is not None)
    gap = len(values) if one is None else bisect_left(values, one)
    low, high = ((count - 1) // 2, count // 2)
    return (values[low + (low >= gap)] + values[high + (high >= gap)]) / 2
