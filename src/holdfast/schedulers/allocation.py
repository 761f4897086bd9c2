"""Functions that say what a trial should have: for ``ResourceChangingScheduler``, which carries that out.

Owns how resources are shared out. Must never remember anything: what they say follows from the experiment as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.config.resources import PlacementGroupFactory, flat_request
from holdfast.core.retention import lookup
from holdfast.core.state import units
from holdfast.errors import InvalidInputError
from holdfast.schedulers.base import number

if TYPE_CHECKING:
    from holdfast.schedulers.resource_changing import ResourceChangingScheduler
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView


class DistributeResources:
    """Gives every trial an equal part of what the machine has, and never less than it began with.

    The trials that run or wait share all resources in whole steps. A trial that reports grows as far as something is
    free, and shrinks when it has more than its part or when others wait for room.

    To share out differently, derive from it and override ``target``, or write a function
    ``(view, trial, result, scheduler)`` that returns a ``PlacementGroupFactory``, a dict such as ``{"cpu": 2}``, or
    None for "leave it as it is".

    Args:
        add_bundles: Put what is added into bundles of its own rather than into the trial's one bundle. By itself this
            makes a step as large as what a trial begins with.
        increase_by: The step, for example ``{"CPU": 2, "GPU": 0.5}``. By itself one GPU if trials use GPUs, else one
            CPU.
        increase_by_times: Most steps that a trial may be given, if ``increase_by`` is; below 1 there is no limit.
        reserve_resources: What is never given to anyone, for example ``{"CPU": 1}``.

    Raises:
        InvalidInputError: ``increase_by`` has no positive amount, or an amount is no number >= 0.
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
    ) -> None:
        self.add_bundles = add_bundles
        self.increase_by = _amounts(increase_by)
        self.increase_by_times = increase_by_times
        self.reserve_resources = _amounts(reserve_resources)
        if increase_by and not self.increase_by:
            raise InvalidInputError(
                f"increase_by={dict(increase_by)!r} adds nothing. Give a positive amount, such as "
                'increase_by={"CPU": 1}, or leave it out.'
            )

    def check_ready(self, scheduler: ResourceChangingScheduler) -> None:
        """Refuse to begin without what it needs."""

    def __call__(
        self, view: ExperimentView, trial: TrialView, result: dict[str, Any], scheduler: ResourceChangingScheduler
    ) -> PlacementGroupFactory | None:
        """What the trial should have; None to leave it as it is."""
        base = scheduler.base_trial_resources
        if base is None:
            return None
        step, begin = units(self._step(base)), units(flat_request(base))
        live = view.get_live_trials()
        total = _less(units(view.capacity), units(self.reserve_resources))
        free = total
        for other in live:
            free = _less(free, units(scheduler.asked_by(view, other)))
        has = max(0, _times(step, _less(units(scheduler.asked_by(view, trial)), begin)))
        room = max(0, _times(step, _less(total, begin, len(live))))
        share = -(-room // len(live))
        steps = self.target(view, trial, result, scheduler, has, _times(step, free), share)
        if self.increase_by and self.increase_by_times >= 1:
            steps = min(steps, self.increase_by_times)
        return self._on_one_machine(view, base, max(0, steps))

    def _on_one_machine(self, view: ExperimentView, base: PlacementGroupFactory, steps: int) -> PlacementGroupFactory:
        """So many steps, or as many as the largest machine of a cluster has."""
        while steps and view.machines and not view.could_hold(flat_request(self._request(base, steps))):
            steps -= 1
        return self._request(base, steps)

    def target(
        self,
        view: ExperimentView,
        trial: TrialView,
        result: dict[str, Any],
        scheduler: ResourceChangingScheduler,
        has: int,
        free: int,
        share: int,
    ) -> int:
        """How many steps above its base the trial should have.

        Args:
            view: The experiment.
            trial: The trial that has reported.
            result: Its report.
            scheduler: Who asks.
            has: Steps that it has.
            free: Steps that nobody has; negative if more was asked for than there is.
            share: Steps for each trial if all had the same, rounded up.
        """
        return min(share, has + free)

    def _step(self, base: PlacementGroupFactory) -> dict[str, float]:
        if self.increase_by:
            return self.increase_by
        if self.add_bundles:
            return base.bundles[-1]
        return {"GPU" if base.required_resources.get("GPU") else "CPU": 1.0}

    def _request(self, base: PlacementGroupFactory, steps: int) -> PlacementGroupFactory:
        step = self._step(base)
        if self.add_bundles:
            return PlacementGroupFactory([*base.bundles, *([step] * steps)])
        bundle = flat_request(base)
        for name, amount in step.items():
            bundle[name] = bundle.get(name, 0.0) + steps * amount
        return PlacementGroupFactory([bundle])


class DistributeResourcesToTopJob(DistributeResources):
    """Gives all that is free to the best of the trials that run or wait.

    Trials that were best before keep what they have, unless others wait for room.

    Args (the others are those of ``DistributeResources``):
        metric: What makes a trial the best; None takes the scheduler's or the experiment's.
        mode: "min" or "max"; None takes the scheduler's or the experiment's.
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
        metric: str | None = None,
        mode: str | None = None,
    ) -> None:
        super().__init__(add_bundles, increase_by, increase_by_times, reserve_resources)
        if mode is not None and mode not in ("min", "max"):
            raise InvalidInputError(f"`mode` must be one of ['min', 'max'], got {mode!r}.")
        self.metric = metric
        self.mode = mode

    def check_ready(self, scheduler: ResourceChangingScheduler) -> None:
        """Refuse to begin without what it needs.

        Raises:
            InvalidInputError: Nobody has said which trial is the best one.
        """
        metric, mode = self.metric or scheduler.metric, self.mode or scheduler.mode
        if not metric or not mode:
            raise InvalidInputError(
                f"DistributeResourcesToTopJob needs a `metric` ({metric!r}) and a `mode` ({mode!r}) to know the best "
                "trial. Pass both to TuneConfig(metric=..., mode='min' or 'max'), or to "
                "DistributeResourcesToTopJob(...)."
            )

    def target(
        self,
        view: ExperimentView,
        trial: TrialView,
        result: dict[str, Any],
        scheduler: ResourceChangingScheduler,
        has: int,
        free: int,
        share: int,
    ) -> int:
        """All that is free for the best one; the others give back what is needed."""
        if free < 0:
            return has + free
        return has + free if self._is_best(view, trial, result, scheduler) else has

    def _is_best(
        self, view: ExperimentView, trial: TrialView, result: dict[str, Any], scheduler: ResourceChangingScheduler
    ) -> bool:
        metric, mode = self.metric or scheduler.metric, self.mode or scheduler.mode

        def goodness(found: Mapping[str, Any]) -> float | None:
            value = number(lookup(found, metric)) if metric else None
            if value is None or value != value:
                return None
            return -value if mode == "min" else value

        mine = goodness(result)
        if mine is None:
            return False
        for other in view.get_live_trials():
            theirs = None if other.n == trial.n else goodness(other.last_result)
            if theirs is not None and (theirs, -other.n) > (mine, -trial.n):
                return False
        return True


def _amounts(resources: Mapping[str, float] | None) -> dict[str, float]:
    """Resources with their usual names, amounts of zero dropped."""
    given = {name: amount for name, amount in (resources or {}).items() if amount}
    return PlacementGroupFactory([given]).required_resources if given else {}


def _less(amounts: Mapping[str, int], others: Mapping[str, int], times: int = 1) -> dict[str, int]:
    return {name: amounts.get(name, 0) - times * others.get(name, 0) for name in {**amounts, **others}}


def _times(step: Mapping[str, int], amounts: Mapping[str, int]) -> int:
    """How often the step is in the amounts; below zero, how often it is missing."""
    return min(amounts.get(name, 0) // amount for name, amount in step.items())


EQUAL_PARTS = DistributeResources(add_bundles=False)
"""What ``ResourceChangingScheduler`` does by itself."""
