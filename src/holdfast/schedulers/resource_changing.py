"""Changing the resources of trials while they run.

Owns ``ResourceChangingScheduler``, which wraps the scheduler that judges the trials, and the two functions that share
out what is free. Must never judge a trial by itself, or ask for anything while the past is told again: what became of
it then is part of history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.core.policies import Resize
from holdfast.core.retention import lookup
from holdfast.core.state import Status, units
from holdfast.errors import InvalidInputError, InvalidTypeError, UsageError
from holdfast.resources import PlacementGroupFactory, flat_request, request_from_dict
from holdfast.schedulers.base import TrialScheduler, number
from holdfast.schedulers.fifo import FIFOScheduler
from holdfast.warn import warn_user

if TYPE_CHECKING:
    from holdfast.callbacks.trial_view import TrialView
    from holdfast.config import TuneConfig
    from holdfast.schedulers.view import ExperimentView

Request = PlacementGroupFactory | Mapping[str, Any] | None
Allocate = Callable[["ExperimentView", "TrialView", dict[str, Any], "ResourceChangingScheduler"], Request]


class UnequalResourcesError(UsageError, RuntimeError):
    """Trials ask for different resources where all must begin with the same."""


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
        step = self._step(base)
        live = view.get_live_trials()
        begin = units(flat_request(base))
        total = _minus(units(view.capacity), units(self.reserve_resources))
        free, room = dict(total), dict(total)
        for other in live:
            free = _minus(free, units(scheduler.asked_by(view, other)))
            room = _minus(room, begin)
        has = max(0, _times(step, _minus(units(scheduler.asked_by(view, trial)), begin)))
        share = -(-max(0, _times(step, room)) // len(live))
        steps = self.target(view, trial, result, scheduler, has, _times(step, free), share)
        if self.increase_by and self.increase_by_times >= 1:
            steps = min(steps, self.increase_by_times)
        return self._request(base, max(0, steps))

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

    def _step(self, base: PlacementGroupFactory) -> dict[str, int]:
        if self.increase_by:
            return units(self.increase_by)
        if self.add_bundles:
            return units(base.bundles[-1])
        return units({"GPU" if base.required_resources.get("GPU") else "CPU": 1.0})

    def _request(self, base: PlacementGroupFactory, steps: int) -> PlacementGroupFactory:
        step = PlacementGroupFactory([_floats(self._step(base))]).bundles[0]
        if self.add_bundles:
            return PlacementGroupFactory([*base.bundles, *([step] * steps)])
        request = flat_request(base)
        return PlacementGroupFactory(
            [{name: request.get(name, 0.0) + steps * step.get(name, 0.0) for name in {**request, **step}}]
        )


class DistributeResourcesToTopJob(DistributeResources):
    """Gives all that is free to the best of the trials that run or wait.

    Trials that were best before keep what they have, unless others wait for room.

    Args:
        add_bundles: See ``DistributeResources``.
        increase_by: See ``DistributeResources``.
        increase_by_times: See ``DistributeResources``.
        reserve_resources: See ``DistributeResources``.
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
        others = ((goodness(other.last_result), -other.n) for other in view.get_live_trials() if other.n != trial.n)
        return all((mine, -trial.n) > (theirs, age) for theirs, age in others if theirs is not None)


EQUAL_PARTS = DistributeResources(add_bundles=False)


class ResourceChangingScheduler(TrialScheduler):
    """Lets another scheduler judge the trials, and changes the resources of those that go on.

    After the base scheduler has let a trial go on, the allocation function is asked what the trial should have. If that
    is something else than it has, the trial is paused, and goes on with its new resources from its checkpoint as soon
    as they are free. In the trial, ``tune.get_context().get_trial_resources()`` tells what it has been given, as one
    bundle.

    A function trainable is left alone until it has a checkpoint, because it would have to begin again. What is more
    than the machine has is not given. A trial whose resources were enlarged on a machine that was larger than the one
    on which the experiment goes on gets back what it began with.

    Durability: sizes that were granted are events. If the driver dies before one was granted, the trial goes on as it
    was and its next report is asked about again.

    Args:
        base_scheduler: Judges the trials; None runs them first in, first out.
        resources_allocation_function: ``(view, trial, result, scheduler)`` -> ``PlacementGroupFactory``, dict or None.
            None changes nothing, with a warning.

    Raises:
        InvalidTypeError: One of them is something else.

    Example:
        >>> from holdfast.schedulers.create import create_scheduler
        >>> asha = create_scheduler("asha", max_t=16)
        >>> scheduler = ResourceChangingScheduler(asha, DistributeResources(reserve_resources={"CPU": 1}))
    """

    def __init__(
        self,
        base_scheduler: TrialScheduler | None = None,
        resources_allocation_function: Allocate | None = EQUAL_PARTS,
    ) -> None:
        if base_scheduler is not None and not isinstance(base_scheduler, TrialScheduler):
            raise InvalidTypeError(
                f"base_scheduler must be a scheduler such as tune.schedulers.FIFOScheduler(), got {base_scheduler!r}."
            )
        if resources_allocation_function is None:
            warn_user(
                "resources_allocation_function is None, so no trial's resources will ever change. Leave it out for "
                "equal parts, or pass a function."
            )
        elif not callable(resources_allocation_function):
            raise InvalidTypeError(
                "resources_allocation_function must be a function of (view, trial, result, scheduler) such as "
                f"DistributeResources(), got {resources_allocation_function!r}."
            )
        self._base = base_scheduler or FIFOScheduler()
        self._allocate = resources_allocation_function
        self._base_request: dict[str, float] | None = None
        self._going: dict[int, None] = {}
        self._resizing: dict[int, None] = {}
        self._warned = False

    # --- the scheduler behind it

    @property
    def base_scheduler(self) -> TrialScheduler:
        """Who judges the trials."""
        return self._base

    @property
    def metric(self) -> str | None:
        """The base scheduler's metric."""
        return self._base.metric

    @property
    def mode(self) -> str | None:
        """The base scheduler's mode."""
        return self._base.mode

    @property
    def works_with_searchers(self) -> bool:
        """Whether the base scheduler leaves configurations to a searcher."""
        return bool(getattr(self._base, "works_with_searchers", True))

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Hand them on."""
        self._seed = spec.get("seed", self._seed)
        return self._base.set_search_properties(metric, mode, **spec)

    def check_ready(self) -> None:
        """Refuse to begin without what the base scheduler or the allocation function needs."""
        self._base.check_ready()
        if isinstance(self._allocate, DistributeResources):
            self._allocate.check_ready(self)

    def check_compatible(self, tune_config: TuneConfig) -> None:
        """Refuse settings that it cannot work with.

        Raises:
            InvalidInputError: Workers are to be used again for trials of other resources.
        """
        if tune_config.reuse_actors:
            raise InvalidInputError(
                "ResourceChangingScheduler cannot be used with TuneConfig(reuse_actors=True): a trainable that is "
                "used again would keep the resources it was made with. Set reuse_actors=False."
            )
        check = getattr(self._base, "check_compatible", None)
        if check is not None:
            check(tune_config)

    # --- resources

    @property
    def base_trial_resources(self) -> PlacementGroupFactory | None:
        """What each trial begins with, as one bundle; None before there is a trial."""
        return None if self._base_request is None else PlacementGroupFactory([self._base_request])

    def asked_by(self, view: ExperimentView, trial: TrialView) -> dict[str, float]:
        """What the trial has, or will have once a change that was decided has been made."""
        wish = view.wishes.get((trial.n, Resize.__name__))
        if isinstance(wish, Resize):
            return wish.request or {"CPU": 1.0}
        return flat_request(trial.placement_group_factory)

    def _new_request(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> dict[str, float] | None:
        """What the trial should have from now on; None if that is what it has."""
        if self._allocate is None or not view.capacity:
            return None
        if not trial.info.is_class and not view.can_be_copied(trial):
            return None  # it would begin again
        wanted = self._allocate(view, trial, result, self)
        if wanted is None:
            return None
        if isinstance(wanted, Mapping):
            wanted = request_from_dict(wanted)
        if not isinstance(wanted, PlacementGroupFactory):
            raise InvalidTypeError(
                f"The resources_allocation_function returned {wanted!r} for trial {trial.trial_id}; it must return a "
                'PlacementGroupFactory, a dict such as {"cpu": 2}, or None. Nothing was lost: fix it, then restore the '
                "experiment."
            )
        request = flat_request(wanted)
        if units(request) == units(self.asked_by(view, trial)):
            return None
        if not _within(request, view.capacity):
            self._warn_too_much(trial, request, view.capacity)
            return None
        return request

    def _warn_too_much(self, trial: TrialView, request: dict[str, float], capacity: dict[str, float]) -> None:
        if not self._warned:
            self._warned = True
            known = {name: amount for name, amount in capacity.items() if name in request}
            warn_user(
                f"The resources_allocation_function wants {request} for trial {trial.trial_id}, and there is {known}. "
                "The trial keeps what it has; further requests of this kind are passed over in silence."
            )

    # --- what it is told

    def on_trial_add(self, view: ExperimentView, trial: TrialView) -> None:
        """Hand it on.

        Raises:
            UnequalResourcesError: The trial asks for something else than those before it.
        """
        request = flat_request(trial.placement_group_factory)
        if self._base_request is None:
            self._base_request = request
        elif not trial.attempt and units(request) != units(self._base_request):
            raise UnequalResourcesError(
                f"ResourceChangingScheduler needs trials that begin with equal resources: trial {trial.trial_id} asks "
                f"for {request}, the first one for {self._base_request}. Let tune.with_resources(...) not depend on "
                "the config, or use another scheduler."
            )
        self._base.on_trial_add(view, trial)

    def on_trial_start(self, view: ExperimentView, trial: TrialView) -> None:
        """Hand it on."""
        self._resizing.pop(trial.n, None)
        self._base.on_trial_start(view, trial)

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        """The base scheduler's verdict; PAUSE if the trial goes on with other resources."""
        verdict = self._base.on_trial_result(view, trial, result)
        self._going.pop(trial.n, None)
        wished = any((trial.n, kind) in view.wishes for kind in ("Stop", "Reconfigure"))
        if verdict != self.CONTINUE or trial.n in view.pauses or wished:
            return verdict
        self._going[trial.n] = None
        request = self._new_request(view, trial, result)
        if request is None:
            return verdict
        view.resize_trial(trial, request)
        return self.PAUSE

    def on_trial_pause(self, view: ExperimentView, trial: TrialView) -> None:
        """Hand it on. If the base scheduler had let the trial go on, the pause was ours and so is its end."""
        if trial.n in self._going:
            self._resizing[trial.n] = None
        self._base.on_trial_pause(view, trial)

    def on_trial_save(self, view: ExperimentView, trial: TrialView) -> None:
        """Hand it on."""
        self._base.on_trial_save(view, trial)

    def on_trial_complete(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> None:
        """Hand it on."""
        self._forget(trial)
        self._base.on_trial_complete(view, trial, result)

    def on_trial_error(self, view: ExperimentView, trial: TrialView) -> None:
        """Hand it on."""
        self._forget(trial)
        self._base.on_trial_error(view, trial)

    def on_trial_remove(self, view: ExperimentView, trial: TrialView) -> None:
        """Hand it on."""
        self._forget(trial)
        self._base.on_trial_remove(view, trial)

    def on_standstill(self, view: ExperimentView) -> None:
        """Hand it on."""
        self._base.on_standstill(view)

    def _forget(self, trial: TrialView) -> None:
        self._going.pop(trial.n, None)
        self._resizing.pop(trial.n, None)

    # --- what it is asked

    def choose_trial_to_run(self, view: ExperimentView) -> TrialView | None:
        """First a trial that was paused for its new resources, if they are free; else the base scheduler's choice."""
        ours = (view.trials[n] for n in self._resizing)
        chosen = view.first_that_fits(trial for trial in ours if trial.status == Status.PAUSED)
        chosen = chosen or self._base.choose_trial_to_run(view)
        if chosen is None and view.capacity and not view.running:
            self._give_back(view)
        return chosen

    def _give_back(self, view: ExperimentView) -> None:
        """Trials that grew on a larger machine could never start here: they begin again with what all began with.

        Being asked must not change anything, and this does not change any answer: it leaves wishes, which say the same
        however often they are left and depend on the state and the machine alone. Nobody else is called when an
        experiment is opened on a smaller machine and nothing can start.
        """
        base = self._base_request
        if base is None or not _within(base, view.capacity):
            return
        for trial in (*view.pending, *view.paused):
            if not _within(self.asked_by(view, trial), view.capacity):
                view.resize_trial(trial, base)

    def debug_string(self) -> str:
        """The base scheduler's line."""
        return f"Changing resources. {self._base.debug_string()}"

    # --- its memory

    def get_state(self) -> dict[str, Any] | None:
        """The base scheduler's memory and which trials are being resized; None if the base scheduler has none."""
        base = self._base.get_state()
        if base is None:
            return None
        return {
            "base": base,
            "request": self._base_request,
            "going": list(self._going),
            "resizing": list(self._resizing),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._base.set_state(state["base"])
        self._base_request = state["request"]
        self._going = dict.fromkeys(state["going"])
        self._resizing = dict.fromkeys(state["resizing"])


def _amounts(resources: Mapping[str, float] | None) -> dict[str, float]:
    """Resources with their usual names, amounts of zero dropped."""
    given = {name: amount for name, amount in (resources or {}).items() if amount or amount is None}
    given = {name: amount for name, amount in given.items() if amount is not None}
    return PlacementGroupFactory([given]).required_resources if given else {}


def _floats(amounts: Mapping[str, int]) -> dict[str, float]:
    from holdfast.core.state import UNIT

    return {name: amount / UNIT for name, amount in amounts.items()}


def _minus(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) - right.get(name, 0) for name in {**left, **right}}


def _times(step: Mapping[str, int], amounts: Mapping[str, int]) -> int:
    """How often the step is in the amounts; how many are missing, below zero."""
    return min(amounts.get(name, 0) // amount for name, amount in step.items())


def _within(request: Mapping[str, float], capacity: Mapping[str, float]) -> bool:
    there = units(capacity)
    return all(amount <= there.get(name, 0) for name, amount in units(request).items())
