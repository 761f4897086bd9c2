"""PASHA: ASHA that gives no trial more than it takes to tell which trials are best.

Owns the height up to which trials may go, and the estimate of noise that it depends on.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidInputError
from holdfast.schedulers.asha_promotion import ASHAPromotionScheduler, WaitingRung
from holdfast.schedulers.async_hyperband import percentile
from holdfast.schedulers.base import number

if TYPE_CHECKING:
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView

POINTS_PER_RUNG = 16
"""How much of a learning curve between two rungs is remembered."""


class PASHAScheduler(ASHAPromotionScheduler):
    """``ASHAPromotionScheduler`` with a height that grows only while trials still change places (Bohdal et al. 2023).

    At first trials go up to the second rung. Whenever one comes to the highest rung that is open, all trials there are
    put in order twice: by their scores at this rung, and by those that they had one rung below. If the orders differ,
    trials may go one rung higher; the last step is to ``max_t``. If they agree, more training would not tell anything
    new, and the resources go to other trials.

    Orders agree if at each place the two trials that stand there had scores one rung below that differ by no more than
    ``epsilon``. It is estimated: two trials whose learning curves crossed twice or more are as good as each other, so
    how far their scores are apart, where both were seen last, is noise. Of all such pairs at the highest open rung
    ``epsilon`` is a percentile; while there are none it stays what it was, 0 at first. Curves are compared at up to 16
    moments between rungs.

    When no new trials will come and nobody may continue, the trials at the highest open rung have had all they get, and
    are stopped: the best of them is the result.

    Args:
        time_attr: What in a result says how far a trial is: any number that grows.
        metric: What to compare trials by; None: the experiment's.
        mode: "min" or "max"; None: the experiment's.
        max_t: Where trials are stopped at last, in units of ``time_attr``.
        grace_period: The first rung.
        reduction_factor: Of how many trials at a rung one continues; also the ratio of rungs.
        epsilon: Scores that differ by no more are the same; None: it is estimated.
        epsilon_percentile: Which percentile of the differences that are noise.

    Durability: as ``ASHAPromotionScheduler``; the curves that it compares are part of the snapshot.
    """

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        epsilon: float | None = None,
        epsilon_percentile: float = 90.0,
    ) -> None:
        super().__init__(time_attr, metric, mode, max_t, grace_period, reduction_factor)
        if epsilon is not None and not epsilon >= 0:
            raise InvalidInputError(f"epsilon={epsilon!r} must not be negative; None lets PASHA estimate it.")
        if not 0 <= epsilon_percentile <= 100:
            raise InvalidInputError(f"epsilon_percentile={epsilon_percentile!r} must be from 0 to 100, for example 90.")
        self._ladder = self.rungs[0]
        self._top = min(1, len(self._ladder))
        self._estimates = epsilon is None
        self._epsilon_percentile = epsilon_percentile
        self._epsilon = epsilon or 0.0
        self._noise: list[float] = []
        """Differences between trials at the top rung that are as good as each other, in ascending order."""
        self._curves: dict[int, dict[int, float]] = {}
        """Trial -> moment -> score."""

    @property
    def epsilon(self) -> float:
        """Scores that differ by no more are the same."""
        return self._epsilon

    @property
    def current_max_t(self) -> float:
        """How far trials may go for now."""
        return self._ladder[self._top].milestone if self._top < len(self._ladder) else self._max_t

    def _is_open(self, rung: WaitingRung) -> bool:
        return rung.milestone < self.current_max_t

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        time, score = number(result.get(self._time_attr)), self.score_of(result)
        if time is not None and score is not None and time < self._max_t:
            self._curves.setdefault(trial.n, {})[self._moment(time)] = score
        return super().on_trial_result(view, trial, result)

    def _moment(self, time: float) -> int:
        """The part of the way in which ``time`` lies; the last score of a part counts."""
        edges = [0.0, *(rung.milestone for rung in self._ladder), self._max_t]
        after = bisect_left(edges, time)
        if not after:
            return 0
        low, high = edges[after - 1], edges[after]
        return after * POINTS_PER_RUNG + math.ceil((time - low) / (high - low) * POINTS_PER_RUNG)

    def _came_to(self, rung: WaitingRung, n: int) -> None:
        if self._top == len(self._ladder) or rung is not self._ladder[self._top]:
            return
        if self._estimates:
            self._estimate(rung, n)
        if not self._agrees(rung, self._ladder[self._top - 1]):
            self._top += 1
            self._noise = []

    def _estimate(self, rung: WaitingRung, n: int) -> None:
        mine = self._curves.get(n, {})
        for other in rung.keys:
            noise = None if other == n else crossing_distance(mine, self._curves.get(other, {}))
            if noise is not None:
                insort(self._noise, noise)
        estimate = percentile(self._noise, self._epsilon_percentile)
        self._epsilon = self._epsilon if estimate is None else estimate

    def _agrees(self, rung: WaitingRung, below: WaitingRung) -> bool:
        """Is the order of trials in this rung the one that they had a rung below, but for noise?"""
        order = [n for key, n in rung.ordered if math.isfinite(key)]
        before = sorted(order, key=lambda n: (below.keys[n], n))
        return all(
            a == b or abs(below.keys[a] - below.keys[b]) <= self._epsilon for a, b in zip(order, before, strict=True)
        )

    def _end(self, n: int) -> None:
        super()._end(n)
        if self._top == len(self._ladder) or n not in self._ladder[self._top].keys:
            self._curves.pop(n, None)

    def debug_string(self) -> str:
        return f"{super().debug_string()}\nTrials may go up to {self.current_max_t:g} (epsilon {self._epsilon:.4g})"

    def get_state(self) -> dict[str, Any]:
        return {
            **super().get_state(),
            "top": self._top,
            "epsilon": self._epsilon,
            "noise": list(self._noise),
            "curves": [[n, list(curve.items())] for n, curve in self._curves.items()],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._top, self._epsilon, self._noise = state["top"], state["epsilon"], list(state["noise"])
        self._curves = {n: dict(curve) for n, curve in state["curves"]}


def crossing_distance(one: dict[int, float], other: dict[int, float]) -> float | None:
    """How far two learning curves are apart where both were seen last; None if they have not crossed twice.

    Example:
        >>> crossing_distance({1: 1.0, 2: 3.0, 3: 2.0}, {1: 2.0, 2: 2.5, 3: 2.25})
        0.25
    """
    gaps = [one[moment] - other[moment] for moment in sorted(one.keys() & other.keys())]
    sides = [gap > 0 for gap in gaps if gap]
    crossings = sum(side != following for side, following in pairwise(sides))
    return abs(gaps[-1]) if crossings >= 2 and math.isfinite(gaps[-1]) else None
