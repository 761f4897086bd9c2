"""Changing the resources of trials while they run.

Owns ``ResourceChangingScheduler``, which wraps the scheduler that judges the trials. Must never judge a trial by
itself, or ask for anything while the past is told again: what became of it then is part of history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.config.arguments import accepted
from holdfast.config.resources import PlacementGroupFactory, flat_request, request_from_dict
from holdfast.core.policies import Reconfigure, Resize, Stop
from holdfast.core.state import Status, units
from holdfast.errors import InvalidInputError, InvalidTypeError, UnequalResourcesError
from holdfast.messages.warn import warn_user
from holdfast.schedulers.allocation import EQUAL_PARTS, DistributeResources, DistributeResourcesToTopJob
from holdfast.schedulers.base import CORRECT_IT, TrialScheduler
from holdfast.schedulers.fifo import FIFOScheduler

if TYPE_CHECKING:
    from holdfast.config import TuneConfig
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView

Request = PlacementGroupFactory | Mapping[str, Any] | None
Allocate = Callable[["ExperimentView", "TrialView", dict[str, Any], "ResourceChangingScheduler"], Request]

__all__ = ["DistributeResources", "DistributeResourcesToTopJob", "ResourceChangingScheduler"]


class ResourceChangingScheduler(TrialScheduler):
    """Lets another scheduler judge the trials, and changes the resources of those that continue.

    After the base scheduler has let a trial continue, the allocation function is asked what the trial should have. If
    that is something else than it has, the trial is paused, and continues with its new resources from its checkpoint as
    soon as they are free. In the trial, ``tune.get_context().get_trial_resources()`` tells what it has been given, as
    one bundle.

    A function trainable is left alone until it has a checkpoint, because it would have to begin again. What is more
    than the machine has is not given, nor what no machine of a cluster has alone. A trial whose resources were enlarged
    on a machine that was larger than the one on which the experiment continues gets back what it began with.

    Durability: sizes that were granted are events. If the driver dies before one was granted, the trial continues as it
    was and its next report is asked about again.

    Args:
        base_scheduler: Judges the trials; None runs them first in, first out.
        resources_allocation_function: ``(view, trial, result, scheduler)`` -> ``PlacementGroupFactory``, dict or None.
            None changes nothing, with a warning.

    Raises:
        InvalidTypeError: One of them is something else.

    Example:
        >>> from holdfast.schedulers.scheduler_names import create_scheduler
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
        self._going: dict[int, None] = {}  # the base scheduler has let them continue at their last report
        self._resizing: dict[int, None] = {}  # and yet they were paused
        self._warned = False

    # --- the scheduler behind it

    @property
    def trials_ahead(self) -> int:
        """What the base scheduler wants."""
        return self._base.trials_ahead

    @property
    def base_scheduler(self) -> TrialScheduler:
        """Who judges the trials."""
        return self._base

    @property
    def metric(self) -> str | None:
        """The base scheduler's metric; the experiment's if it has none."""
        return self._base.metric or self._metric

    @property
    def mode(self) -> str | None:
        """The base scheduler's mode; the experiment's if it has none."""
        return self._base.mode or self._mode

    @property
    def works_with_searchers(self) -> bool:
        """Whether the base scheduler leaves configurations to a searcher."""
        return self._base.works_with_searchers

    @property
    def needed_searcher(self) -> str:
        """The searcher that the base scheduler needs."""
        return self._base.needed_searcher

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Hand them on."""
        self._metric, self._mode, self._seed = metric, mode, spec.get("seed", self._seed)
        take = self._base.set_search_properties
        return take(metric, mode, **accepted(take, spec))

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
        self._base.check_compatible(tune_config)

    # --- resources

    @property
    def base_trial_resources(self) -> PlacementGroupFactory | None:
        """What each trial begins with, as one bundle; None before there is a trial."""
        return None if self._base_request is None else PlacementGroupFactory([self._base_request])

    def asked_by(self, view: ExperimentView, trial: TrialView) -> dict[str, float]:
        """What the trial has, or will have once a change that was decided has been made."""
        wanted = view.requests.get((trial.n, Resize.__name__))
        if isinstance(wanted, Resize):
            return wanted.request or {"CPU": 1.0}
        return trial.record.request or {"CPU": 1.0}

    def _new_request(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> dict[str, float] | None:
        """What the trial should have from now on; None if that is what it has."""
        if self._allocate is None or not view.capacity:
            return None
        if not trial.info.is_class and not view.can_be_copied(trial):
            return None  # it would begin again
        wanted = self._asked(self._allocate, view, trial, result)
        if wanted is None:
            return None
        if isinstance(wanted, Mapping):
            wanted = request_from_dict(wanted)
        if not isinstance(wanted, PlacementGroupFactory):
            raise InvalidTypeError(
                f"The resources_allocation_function returned {wanted!r} for trial {trial.trial_id}; it must return a "
                f'PlacementGroupFactory, a dict such as {{"cpu": 2}}, or None. {CORRECT_IT}'
            )
        request = flat_request(wanted)
        if units(request) == units(self.asked_by(view, trial)):
            return None
        if not view.could_hold(request):
            self._warn_too_much(trial, request, view)
            return None
        return request

    def _asked(self, allocate: Allocate, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> Request:
        try:
            return allocate(view, trial, result, self)
        except Exception as error:
            name = getattr(allocate, "__qualname__", type(allocate).__name__)
            raise InvalidInputError(
                f"The resources_allocation_function {name} raised {type(error).__name__} for trial {trial.trial_id}: "
                f"{error}. {CORRECT_IT}"
            ) from error

    def _warn_too_much(self, trial: TrialView, request: dict[str, float], view: ExperimentView) -> None:
        if not self._warned:
            self._warned = True
            largest = max(view.machines, key=lambda size: sum(size.get(name, 0.0) for name in request), default=None)
            known = {name: amount for name, amount in (largest or view.capacity).items() if name in request}
            warn_user(
                f"The resources_allocation_function wants {request} for trial {trial.trial_id}, and there is {known}. "
                "The trial keeps what it has; further requests of this kind are ignored without a warning."
            )

    # --- what it is told

    def on_trial_add(self, view: ExperimentView, trial: TrialView) -> None:
        """Hand it on.

        Raises:
            UnequalResourcesError: The trial asks for something else than those before it.
        """
        request = trial.record.request or {"CPU": 1.0}
        if self._base_request is None:
            self._base_request = request
        elif not trial.attempt and units(request) != units(self._base_request):
            raise UnequalResourcesError(
                f"ResourceChangingScheduler needs trials that start with equal resources: trial {trial.trial_id} asks "
                f"for {request}, the first one for {self._base_request}. Let tune.with_resources(...) not depend on "
                "the config, or use another scheduler."
            )
        self._base.on_trial_add(view, trial)

    def on_trial_start(self, view: ExperimentView, trial: TrialView) -> None:
        self._resizing.pop(trial.n, None)
        self._base.on_trial_start(view, trial)

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        """The base scheduler's verdict; PAUSE if the trial continues with other resources."""
        verdict = self._base.on_trial_result(view, trial, result)
        self._going.pop(trial.n, None)
        asked_for = any((trial.n, kind.__name__) in view.requests for kind in (Stop, Reconfigure))
        if verdict != self.CONTINUE or trial.n in view.pauses or asked_for:
            return verdict
        self._going[trial.n] = None
        request = self._new_request(view, trial, result)
        if request is None:
            return verdict
        view.resize_trial(trial, request, "allocated anew at its last report")
        view.reason = f"continues with {', '.join(f'{amount:g} {name}' for name, amount in request.items())}"
        return self.PAUSE

    def on_trial_pause(self, view: ExperimentView, trial: TrialView) -> None:
        """Hand it on. If the base scheduler had let the trial continue, the pause was ours and so is its end."""
        if trial.n in self._going:
            self._resizing[trial.n] = None
        self._base.on_trial_pause(view, trial)

    def on_trial_save(self, view: ExperimentView, trial: TrialView) -> None:
        self._base.on_trial_save(view, trial)

    def on_trial_complete(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> None:
        self._forget(trial)
        self._base.on_trial_complete(view, trial, result)

    def on_trial_error(self, view: ExperimentView, trial: TrialView) -> None:
        self._forget(trial)
        self._base.on_trial_error(view, trial)

    def on_trial_remove(self, view: ExperimentView, trial: TrialView) -> None:
        self._forget(trial)
        self._base.on_trial_remove(view, trial)

    def on_standstill(self, view: ExperimentView) -> None:
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

        Being asked must not change anything, and this does not change any answer: it leaves requests, which say the
        same however often they are left and depend on the state and the machine alone. Nobody else is called when an
        experiment is opened on a smaller machine and nothing can start.
        """
        base = self._base_request
        if base is None or not view.could_hold(base):
            return
        for trial in (*view.pending, *view.paused):
            if not view.could_hold(self.asked_by(view, trial)):
                view.resize_trial(trial, base, "this machine is too small for what it had")

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
