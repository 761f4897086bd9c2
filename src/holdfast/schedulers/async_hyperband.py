"""ASHA: trials that fall behind at a rung are stopped, without waiting for the others.

Owns rungs that stop, and what its relatives share: where rungs are, which bracket a trial is in, percentiles.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidInputError
from holdfast.messages.warn import warn_user
from holdfast.schedulers.base import TrialScheduler, check_numbers, number

if TYPE_CHECKING:
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView


class AsyncHyperBandScheduler(TrialScheduler):
    """Stops a trial that is not in the best ``1 / reduction_factor`` of those that came to the same rung before it.

    Rungs are at ``grace_period``, ``grace_period * reduction_factor``, ``grace_period * reduction_factor ** 2``, ... up
    to ``max_t``. A trial that comes to a rung first always passes. What a trial reports between rungs does not matter.

    Args:
        time_attr: What in a result says how far a trial is: any number that grows.
        metric: What to compare trials by; None: the experiment's.
        mode: "min" or "max"; None: the experiment's.
        max_t: Where trials are stopped, in units of ``time_attr``.
        grace_period: No trial is stopped before.
        reduction_factor: Of how many trials one passes a rung.
        brackets: Bracket 1 has its first rung where bracket 0 has its second, and so on. A trial is put in one of them
            at random; those with more rungs are likelier. One without a rung stops nobody before ``max_t``: a
            warning says so.
        stop_last_trials: Whether trials end at ``max_t``, or may continue by themselves.

    Durability: all rungs are part of the experiment's snapshot. After a crash it decides as if there had been none.

    Example:
        >>> scheduler = AsyncHyperBandScheduler(metric="loss", mode="min", max_t=10, reduction_factor=2)
        >>> [rung.milestone for rung in scheduler.rungs[0]]
        [8, 4, 2, 1]
    """

    _needs_metric = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        check_arguments(mode, max_t, grace_period, reduction_factor, brackets)
        self._time_attr = time_attr
        self._metric = metric
        self._mode = mode
        self._max_t = max_t
        self._reduction_factor = reduction_factor
        self._stop_last_trials = stop_last_trials
        self._stopped = 0
        self.rungs = [
            [Rung(milestone) for milestone in reversed(milestones(max_t, grace_period, reduction_factor, s))]
            for s in range(brackets)
        ]
        """Of each bracket, from the highest down."""
        self._draw = BracketDraw([len(rungs) for rungs in self.rungs])

    def on_trial_start(self, view: ExperimentView, trial: TrialView) -> None:
        if not trial.record.judged:
            # The user lets it begin again from nothing: what it reported before is not what it will be compared by.
            for rung in self.rungs[self._bracket(trial.n)]:
                rung.forget(trial.n)

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        time = number(result.get(self._time_attr))
        if time is None or self._metric not in result:
            self.warn_without_time(self._time_attr, result)
            return self.CONTINUE
        if time >= self._max_t and self._stop_last_trials:
            view.reason = "reached max_t"
        else:
            rung = self._fell_behind(trial.n, time, self.score_of(result))
            if rung is None:
                return self.CONTINUE
            view.reason = f"behind at rung {rung.milestone:g}"
        self._stopped += 1
        return self.STOP

    def on_trial_complete(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> None:
        """What it last reported counts for others, also if nobody was asked about it."""
        time = number(result.get(self._time_attr))
        if time is not None and self._metric in result:
            self._fell_behind(trial.n, time, self.score_of(result))

    def _fell_behind(self, n: int, time: float, score: float | None) -> Rung | None:
        """Compare the trial with those before it at one rung: the highest that it reached and was not seen at yet.

        Returns:
            The rung, if the trial is too bad for it. Without a score it passes.
        """
        for rung in self.rungs[self._bracket(n)]:
            if rung.milestone <= time and n not in rung.seen:
                cutoff = self._cutoff(rung)
                rung.record(n, score)
                return rung if score is not None and cutoff is not None and score < cutoff else None
        return None

    def _cutoff(self, rung: Rung) -> float | None:
        return percentile(rung.scores, (1 - 1 / self._reduction_factor) * 100)

    def _bracket(self, n: int) -> int:
        return self._draw.of(n, self)

    def debug_string(self) -> str:
        lines = [f"Using {type(self).__name__}: num_stopped={self._stopped}"]
        for rungs in self.rungs:
            cutoffs = [f"Iter {rung.milestone:.3f}: {self._cutoff(rung)}" for rung in rungs]
            lines.append(f"Bracket: {' | '.join(cutoffs)}")
        return "\n".join(lines)

    def get_state(self) -> dict[str, Any]:
        return {"stopped": self._stopped, "rungs": [[list(rung.seen.items()) for rung in b] for b in self.rungs]}

    def set_state(self, state: dict[str, Any]) -> None:
        self._stopped = state["stopped"]
        for rungs, stored in zip(self.rungs, state["rungs"], strict=True):
            for rung, seen in zip(rungs, stored, strict=True):
                rung.restore(seen)


ASHAScheduler = AsyncHyperBandScheduler


class Rung:
    """Who came by, and with which scores."""

    def __init__(self, milestone: float) -> None:
        self.milestone = milestone
        self.seen: dict[int, float | None] = {}
        """Trial -> score; None if it had none that can be compared."""
        self.scores: list[float] = []
        """In ascending order."""

    def record(self, n: int, score: float | None) -> None:
        self.seen[n] = score
        if score is not None:
            insort(self.scores, score)

    def forget(self, n: int) -> None:
        score = self.seen.pop(n, None)
        if score is not None:
            del self.scores[bisect_left(self.scores, score)]

    def restore(self, seen: Iterable[tuple[int, float | None]]) -> None:
        self.seen = dict(seen)
        self.scores = sorted(score for score in self.seen.values() if score is not None)


class BracketDraw:
    """Which bracket a trial is in: always the same for the same seed and trial, so that it need not be remembered.

    Args:
        sizes: The number of rungs of each bracket. The chances are their softmax.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        weights = [math.exp(size - max(sizes)) for size in sizes]
        self._chances = [weight / sum(weights) for weight in weights]
        self._drawn: dict[int, int] = {}

    def of(self, n: int, scheduler: TrialScheduler) -> int:
        if len(self._chances) == 1:
            return 0
        if n not in self._drawn:
            self._drawn[n] = self.at(scheduler.rng(n).random())
        return self._drawn[n]

    def at(self, chance: float) -> int:
        """The bracket for a number in [0, 1)."""
        for bracket, width in enumerate(self._chances):
            chance -= width
            if chance < 0:
                return bracket
        return len(self._chances) - 1  # the widths may add up to a little less than 1


def check_arguments(
    mode: str | None, max_t: float, grace_period: float, reduction_factor: float, brackets: int = 1
) -> None:
    """Refuse what makes no rungs, and warn of brackets without one.

    Raises:
        InvalidInputError: It says which argument, and what it must be.
    """
    if mode is not None and mode not in ("min", "max"):
        raise InvalidInputError(f"mode={mode!r} must be one of ['min', 'max'], or None for the experiment's.")
    check_numbers(max_t=max_t, grace_period=grace_period, reduction_factor=reduction_factor)
    if not 0 < max_t < math.inf:
        raise InvalidInputError(
            f"max_t={max_t!r} must be positive and finite: it is where trials end. Give for example 100."
        )
    if not 0 < grace_period <= max_t:
        raise InvalidInputError(
            f"grace_period={grace_period!r} must be positive and at most max_t={max_t!r}: it is the first rung. "
            "Give a smaller grace_period or a larger max_t."
        )
    if not reduction_factor > 1:
        raise InvalidInputError(
            f"reduction_factor={reduction_factor!r} must be above 1: one of so many trials passes a rung. Give for "
            "example 4."
        )
    if not isinstance(brackets, int) or not brackets > 0:
        raise InvalidInputError(f"brackets={brackets!r} must be a whole number of at least 1.")
    most = len(milestones(max_t, grace_period, reduction_factor))  # each bracket has one rung less than the one before
    if brackets > most:
        warn_user(
            f"brackets={brackets}: with max_t={max_t!r}, grace_period={grace_period!r} and "
            f"reduction_factor={reduction_factor!r} only {most} brackets have a rung. Trials in the others are stopped "
            f"at max_t at the earliest. Give brackets={most} or less, or a larger max_t."
        )


def milestones(max_t: float, grace_period: float, reduction_factor: float, bracket: int = 0) -> list[float]:
    """Where the rungs of a bracket are, from the lowest up.

    Example:
        >>> milestones(81, 1, 3, bracket=1)
        [3, 9, 27, 81]
    """
    found: list[float] = []
    # Multiplied rather than counted by logarithms, which lose the last rung of, for example, 3 ** 5.
    while (milestone := grace_period * reduction_factor ** (bracket + len(found))) <= max_t:
        found.append(milestone)
    return found


def percentile(ordered: Sequence[float], q: float) -> float | None:
    """The ``q``-th percentile of numbers in ascending order, between neighbours as NumPy does; None if there are none.

    Example:
        >>> percentile([1, 2, 4], 75)
        3.0
    """
    if not ordered:
        return None
    place = q / 100 * (len(ordered) - 1)
    below = min(int(place), len(ordered) - 1)
    low, high, part = ordered[below], ordered[min(below + 1, len(ordered) - 1)], place - below
    gap = high - low
    if not math.isfinite(gap):  # there is nothing between a number and infinity
        return low
    return high - gap * (1 - part) if part >= 0.5 else low + gap * part
