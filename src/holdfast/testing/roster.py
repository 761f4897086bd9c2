"""Schedulers that stories are told with: each with settings that make it decide something within a few steps.

To put a scheduler into the simulator, add a line here. Stories draw one by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.callbacks.trial_view import TrialView
from holdfast.schedulers.base import TrialScheduler
from holdfast.schedulers.view import ExperimentView
from holdfast.space.rng import Rng


class CopyingScheduler(TrialScheduler):
    """Pauses trials now and then, and lets some of them go on as copies of others; ends some that wait.

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
        dice = self.rng(trial.n, self._decisions)
        chance = dice.random()
        if chance < 0.1:
            return self.STOP
        if chance < 0.4:
            others = [other for other in view.get_live_trials() if other != trial and view.can_be_copied(other)]
            if others and dice.random() < 0.6:
                donor = others[dice.integers(0, len(others))]
                view.reconfigure_trial(trial, {**view.plain_config(donor), "lr": dice.random()}, copy_of=donor)
            return self.PAUSE
        if chance < 0.5 and view.paused:
            view.stop_trial(view.paused[-1], "a copying scheduler ended it")
        if chance < 0.6:
            view.save_trial(trial)
        return self.CONTINUE

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


ROSTER: dict[str, Callable[[Rng], TrialScheduler]] = {
    "copying": lambda rng: CopyingScheduler(rng.integers(0, 1 << 30), remembers=True),
    "copying, told again": lambda rng: CopyingScheduler(rng.integers(0, 1 << 30), remembers=False),
}
