"""The scheduler's part of DEHB: each trial ends when it has used up the budget that it was suggested with.

Which configuration is tried on which budget is the searcher's affair (``search.dehb``). Nothing is remembered here: a
trial's budget is in its config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidInputError
from holdfast.schedulers.base import TrialScheduler, number

if TYPE_CHECKING:
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView

BUDGET_KEY = "dehb_budget"
"""Where a trial finds its budget in its config."""


class DEHBScheduler(TrialScheduler):
    """Ends each trial at the budget that ``DEHBSearch`` has suggested it with.

    The two belong together; the searcher knows the budgets::

        TuneConfig(metric="loss", mode="min", search_alg=DEHBSearch(max_t=81), scheduler=DEHBScheduler())

    ``scheduler="dehb"`` is the same. A trial without a budget in its config runs to its end.

    Args:
        time_attr: What budgets are counted in: a key of results that grows, such as "time_total_s".
        metric: Not needed: the searcher compares trials.
        mode: Not needed.

    Raises:
        InvalidInputError: ``mode`` is neither "min" nor "max".
    """

    def __init__(
        self, time_attr: str = "training_iteration", metric: str | None = None, mode: str | None = None
    ) -> None:
        if mode is not None and mode not in ("min", "max"):
            raise InvalidInputError(f"`mode` must be one of ['min', 'max'], got {mode!r}.")
        self._time_attr = time_attr
        self._metric = metric
        self._mode = mode

    @property
    def needed_searcher(self) -> str:
        """Nobody else gives trials a budget."""
        return "DEHBSearch"

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        """STOP when the budget is used up."""
        budget, used = number(trial.config.get(BUDGET_KEY)), number(result.get(self._time_attr))
        if budget is None or used is None or not used >= budget:  # NaN is no time at all
            self.warn_without_time(self._time_attr, result)
            return self.CONTINUE
        view.reason = f"used up its budget of {budget:g}"
        return self.STOP

    def get_state(self) -> dict[str, Any]:
        """Nothing to remember."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass
