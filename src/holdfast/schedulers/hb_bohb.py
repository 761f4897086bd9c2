"""HyperBand as BOHB needs it: the widest bracket first, and results that say for which budget they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.schedulers.hyperband import HyperBandScheduler

if TYPE_CHECKING:
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView


class HyperBandForBOHB(HyperBandScheduler):
    """HyperBand for the searcher ``TuneBOHB``.

    Bands begin with the bracket that takes the most trials to the nearest milestone, and brackets run in turn, so that
    the searcher's model has much to learn from soon. A result that reaches a milestone gets ``hyperband_info``: its
    ``budget`` is the milestone. Arguments are those of ``HyperBandScheduler``, whose ``largest_first`` is always true.

    Example:
        >>> HyperBandForBOHB(metric="loss", mode="min", max_t=100, reduction_factor=4).metric
        'loss'
    """

    _reached: tuple[int, float, float] | None = None  # if the last report reached a milestone: trial, time, milestone

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(time_attr, metric, mode, max_t, reduction_factor, stop_last_trials, largest_first=True)

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        bracket, time = self._bracket_of(trial.n), self._time_of(result)
        self._reached = None
        # One that has arrived before, and was made to continue, has told of this milestone already.
        if bracket is not None and time is not None and bracket.coming.get(trial.n, time) < bracket.milestone <= time:
            self._reached = (trial.n, time, bracket.milestone)
        result["hyperband_info"] = self.hyperband_info(trial.n, result)
        return super().on_trial_result(view, trial, result)

    def hyperband_info(self, n: int, result: Mapping[str, Any]) -> dict[str, float]:
        """What the searcher should know about a result of trial ``n`` that has just been judged.

        Returns:
            The ``budget`` that it stands for, if it reached a milestone; else nothing.
        """
        if self._reached is None or self._reached[:2] != (n, self._time_of(result)):
            return {}
        return {"budget": self._reached[2]}

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "reached": None if self._reached is None else list(self._reached)}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        reached = state["reached"]
        self._reached = None if reached is None else (reached[0], reached[1], reached[2])
