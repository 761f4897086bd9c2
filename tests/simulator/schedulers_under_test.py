"""Schedulers that stories are told with: each with settings that make it decide something within a few steps.

To put a scheduler into the simulator, add a line here. Stories draw one by name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.schedulers.asha_promotion import ASHAPromotionScheduler
from holdfast.schedulers.async_hyperband import AsyncHyperBandScheduler
from holdfast.schedulers.base import TrialScheduler
from holdfast.schedulers.hb_bohb import HyperBandForBOHB
from holdfast.schedulers.hb_dehb import DEHBScheduler
from holdfast.schedulers.hyperband import HyperBandScheduler
from holdfast.schedulers.median_stopping import MedianStoppingRule
from holdfast.schedulers.pasha import PASHAScheduler
from holdfast.schedulers.pb2 import PB2
from holdfast.schedulers.pbt import PopulationBasedTraining
from holdfast.schedulers.resource_changing import ResourceChangingScheduler
from holdfast.schedulers.scheduler_adapter import SchedulerAdapter
from holdfast.schedulers.view import ExperimentView
from holdfast.space import uniform
from holdfast.space.rng import Rng
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo, TrialView


class CopyingScheduler(TrialScheduler):
    """Pauses trials now and then, and lets some of them continue as copies of others; ends some that wait.

    Decides by keyed random numbers alone. What it remembers is how often it has decided, so that a scheduler which was
    told something twice, or not at all, decides differently.
    """

    def __init__(self, seed: int, remembers: bool) -> None:
        self._seed = seed
        self._remembers = remembers
        self._decisions = 0
        self._ended: list[int] = []

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return True

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        self._decisions += 1
        rng = self.rng(trial.n, self._decisions)
        chance = rng.random()
        if chance < 0.1:
            return self.STOP
        if chance < 0.4:
            others = [other for other in view.get_live_trials() if other != trial and view.can_be_copied(other)]
            if others and rng.random() < 0.6:
                donor = others[rng.integers(0, len(others))]
                view.reconfigure_trial(trial, {**view.plain_config(donor), "lr": rng.random()}, copy_of=donor)
            return self.PAUSE
        if chance < 0.46 and view.paused:
            view.stop_trial(view.paused[-1], "a copying scheduler ended it")
        elif chance < 0.58:
            self._meddle(view, trial, rng)
        if chance < 0.65:
            view.save_trial(trial)
        return self.CONTINUE

    def _meddle(self, view: ExperimentView, trial: TrialView, rng: Rng) -> None:
        """Request something for another trial, which may have to wait until that one reports or pauses."""
        others = [other for other in view.get_live_trials() if other != trial]
        if not others:
            return
        other, luck = others[rng.integers(0, len(others))], rng.random()
        if luck < 0.2:
            view.stop_trial(other, "a copying scheduler will end it")
        elif luck < 0.5:
            view.pause_trial(other)
        else:
            view.reconfigure_trial(other, {**view.plain_config(trial), "lr": rng.random()}, copy_of=trial)

    def on_trial_complete(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> None:
        self._ended.append(trial.n)
        self._decisions += 1

    def on_trial_error(self, view: ExperimentView, trial: TrialView) -> None:
        self._ended.append(trial.n)
        self._decisions += 1

    def choose_trial_to_run(self, view: ExperimentView) -> TrialView | None:
        """Paused trials wait until enough others have ended; if that never happens, the core must see to it."""
        ready = view.paused if len(self._ended) >= 2 or not view.search_ended else []
        return view.first_that_fits(view.pending) or view.first_that_fits(ready)

    def get_state(self) -> dict[str, Any] | None:
        return {"decisions": self._decisions, "ended": self._ended} if self._remembers else None

    def set_state(self, state: dict[str, Any]) -> None:
        self._decisions, self._ended = state["decisions"], list(state["ended"])


SCHEDULER_STREAM = 77


def make_adapter(name: str, seed: int, results: ResultBuilder) -> SchedulerAdapter | None:
    """A scheduler that knows nothing yet, as a user would choose it; None for none."""
    if not name:
        return None
    scheduler = SCHEDULERS[name](Rng([seed, SCHEDULER_STREAM]))
    scheduler.set_search_properties(None, None, seed=seed)
    scheduler.check_ready()
    return SchedulerAdapter(scheduler, ExperimentInfo(root=Path("/"), name="story", trainable_name="story"), results)


GOAL: dict[str, Any] = {"time_attr": "training_iteration", "metric": "score", "mode": "max"}

SCHEDULERS: dict[str, Callable[[Rng], TrialScheduler]] = {
    "copying": lambda rng: CopyingScheduler(rng.integers(0, 1 << 30), remembers=True),
    "copying, told again": lambda rng: CopyingScheduler(rng.integers(0, 1 << 30), remembers=False),
    "asha": lambda rng: AsyncHyperBandScheduler(
        **GOAL, max_t=9, reduction_factor=2, brackets=rng.integers(1, 3), stop_last_trials=rng.random() < 0.5
    ),
    "asha by promotion": lambda rng: ASHAPromotionScheduler(
        **GOAL, max_t=9, reduction_factor=2, brackets=rng.integers(1, 3), stop_last_trials=rng.random() < 0.5
    ),
    "pasha": lambda rng: PASHAScheduler(**GOAL, max_t=9, reduction_factor=2),
    "hyperband": lambda rng: HyperBandScheduler(
        **GOAL, max_t=9, reduction_factor=rng.integers(2, 4), stop_last_trials=rng.random() < 0.5
    ),
    "hyperband for bohb": lambda rng: HyperBandForBOHB(**GOAL, max_t=9, reduction_factor=2),
    "median": lambda rng: MedianStoppingRule(
        **GOAL, grace_period=1, min_samples_required=2, hard_stop=rng.random() < 0.5
    ),
    "pbt": lambda rng: PopulationBasedTraining(
        **GOAL,
        perturbation_interval=2,
        hyperparam_mutations={"lr": uniform(0, 1), "width": [16, 32, 64]},
        quantile_fraction=0.5,
        require_attrs=False,
        synch=rng.random() < 0.5,
    ),
    "pb2": lambda rng: PB2(
        **GOAL,
        perturbation_interval=2,
        hyperparam_bounds={"lr": [0.0, 1.0]},
        quantile_fraction=0.5,
        require_attrs=False,
        synch=rng.random() < 0.5,
    ),
    "dehb": lambda rng: DEHBScheduler(),
    "changing resources": lambda rng: ResourceChangingScheduler(
        AsyncHyperBandScheduler(**GOAL, max_t=9, reduction_factor=2) if rng.random() < 0.5 else None
    ),
}

NEED_THEIR_SEARCHER = frozenset({"dehb"})
"""Those that need the searcher of the same name."""

NEED_EQUAL_TRIALS = frozenset({"changing resources"})
"""Those that refuse trials which ask for different resources."""
