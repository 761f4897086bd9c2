"""The experiment as a scheduler sees it: frozen, with a adapter to leave requests at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.core.policies import Reconfigure, Resize, SchedulerRequest, Stop
from holdfast.core.state import UNIT, DriverMemory, State, Status, Stored, units
from holdfast.errors import InvalidInputError
from holdfast.schedulers.fifo import FirstInFirstOut
from holdfast.space.exact import children
from holdfast.space.objects import is_marker
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo, TrialList, TrialView

_FIFO = FirstInFirstOut()


class SearchView:
    """The search as a scheduler sees it. The searcher hears of pauses from the journal: nobody need tell it."""

    def __init__(self, state: State, info: ExperimentInfo) -> None:
        self._state = state
        self.metric = info.metric
        self.mode = info.mode

    @property
    def searcher(self) -> SearchView:
        """The searcher, as far as it may be known."""
        return self

    def is_finished(self) -> bool:
        """Will there be no further trials?"""
        return bool(self._state.search_ended)

    def on_pause(self, trial_id: str) -> None:
        """The searcher is told so when the trial has paused."""

    def on_unpause(self, trial_id: str) -> None:
        """The searcher is told so when the trial continues."""


class ExperimentView:
    """What a scheduler may know, and what it may ask for.

    Nothing here changes a trial. Requests are applied in order when the trial waits, or after it was told to pause; a
    running trial hears of a request to stop or pause it when it next reports.
    """

    def __init__(self, state: State, info: ExperimentInfo, results: ResultBuilder, scheduler: str = "") -> None:
        self._state = state
        self._scheduler = scheduler  # its name
        self._memory = DriverMemory()  # of the driver that asks; empty while the past is being told again
        self._info = info
        self.trials = TrialList(state, info, results)
        self.requests: dict[tuple[int, str], SchedulerRequest] = {}
        """Not granted yet, by trial and kind."""
        self.saves: set[int] = set()
        """Trials that must save when their report is answered."""
        self.pauses: set[int] = set()
        """Running trials that must pause at their next report."""
        self.reason = ""
        """Why the report that is being judged gets its verdict, for the trial's story; a scheduler may say so here."""
        self._fits: Callable[[int], bool] | None = None  # while a trial is chosen, and then only

    # --- trials

    def get_trials(self) -> list[TrialView]:
        """All trials, in the order of their creation. Grows with the experiment: prefer the lists below."""
        return list(self.trials)

    def get_live_trials(self) -> list[TrialView]:
        """Trials that are not finished, in the order of their creation."""
        state = self._state
        return self._views(sorted([*state.running, *state.pending, *state.paused]))

    def get_trial(self, trial_id: str) -> TrialView | None:
        """The trial with this id."""
        n = self._state.by_id.get(trial_id)
        return None if n is None else self.trials[n]

    @property
    def running(self) -> list[TrialView]:
        """Running trials, in the order of their creation."""
        return self._views(sorted(self._state.running))

    @property
    def pending(self) -> list[TrialView]:
        """Trials that wait to be started and were not paused, in the order of their creation.

        While a trial is being chosen: only those that could be started now, first come first.
        """
        waiting, parked = self._state.pending, self._memory.parked
        return self._views([n for n in waiting if n not in parked] if self._fits else sorted(waiting))

    @property
    def paused(self) -> list[TrialView]:
        """Paused trials, in the order in which they were paused."""
        return self._views(self._state.paused)

    def _views(self, numbers: Iterable[int]) -> list[TrialView]:
        return [self.trials[n] for n in numbers]

    @property
    def waits_for_slots(self) -> bool:
        """Are there trials that could use the place of one that pauses?"""
        return bool(self._state.pending or self._state.paused)

    @property
    def search_ended(self) -> bool:
        """Will there be no further trials?"""
        return bool(self._state.search_ended)

    def first_waiting(self) -> TrialView | None:
        """The first pending trial that fits, else the first paused one: what a scheduler without a plan starts next."""
        n = _FIFO.choose(self._state, self._memory, self._fits) if self._fits else None
        return None if n is None else self.trials[n]

    # --- resources

    def fits(self, trial: TrialView) -> bool:
        """Are the trial's resources free now? Only known while a trial is being chosen."""
        return self._fits is not None and self._fits(trial.n)

    def is_held_back(self, trial: TrialView) -> bool:
        """Does the trial wait for something else than resources?"""
        return self._memory.holds_back(trial.n)

    def first_that_fits(self, trials: Iterable[TrialView]) -> TrialView | None:
        """The first of these trials whose resources are free."""
        return next((trial for trial in trials if self.fits(trial)), None)

    @property
    def capacity(self) -> dict[str, float]:
        """All resources of the engine. Empty while the past is being told again: then ask for nothing."""
        return {name: amount / UNIT for name, amount in self._memory.capacity.items()}

    @property
    def machines(self) -> list[dict[str, float]]:
        """How large the machines of a cluster are, each size once; empty if there is one machine."""
        return [{name: amount / UNIT for name, amount in size.items()} for size in self._memory.machines]

    def could_hold(self, request: Mapping[str, float]) -> bool:
        """Could a trial be given this, if nothing else ran? On a cluster it must fit on one machine."""
        wanted, memory = units(request), self._memory
        fits = all(amount <= memory.capacity.get(name, 0) for name, amount in wanted.items())
        return fits and memory.could_hold(wanted)

    @property
    def used(self) -> dict[str, float]:
        """Resources of the trials that run."""
        return {name: amount / UNIT for name, amount in self._state.used.items() if amount}

    # --- requests

    def stop_trial(self, trial: TrialView, why: str = "the scheduler ended it") -> None:
        """End the trial: now if it waits, at its next report if it runs."""
        self._want(Stop(trial.n, why))

    def pause_trial(self, trial: TrialView, should_checkpoint: bool = True) -> None:
        """Pause the trial at its next report."""
        if trial.status == Status.RUNNING:
            self.pauses.add(trial.n)

    def save_trial(self, trial: TrialView) -> None:
        """Let a class trainable save right after the report that is being judged."""
        self.saves.add(trial.n)

    # --- as schedulers that were written for a controller ask

    @property
    def search_alg(self) -> SearchView:
        """What a scheduler may know of the search."""
        return SearchView(self._state, self._info)

    def _schedule_trial_save(self, trial: TrialView, storage: Any = None, result: Any = None) -> None:
        """As ``save_trial``; where to and with which result is not for a scheduler to say."""
        self.save_trial(trial)

    def has_resources_for_trial(self, trial: TrialView) -> bool:
        """As ``fits``."""
        return self.fits(trial)

    def can_be_copied(self, trial: TrialView) -> bool:
        """Has the trial a committed checkpoint that another one could continue from?"""
        return self._donor(trial) is not None

    def reconfigure_trial(
        self,
        trial: TrialView,
        config: Mapping[str, Any],
        *,
        copy_of: TrialView | None = None,
        tag: str = "",
        params: Iterable[str] = (),
        why: str = "",
    ) -> bool:
        """Let the trial continue with another config; from ``copy_of``'s latest committed checkpoint, if given.

        Args:
            trial: One that waits, or is told to pause by the answer to the report that is being judged.
            config: All of its new config, as in ``plain_config``, or as in ``trial.config`` with other values.
            copy_of: The trial to copy. Retention keeps its checkpoint for as long as the copy depends on it.
            tag: How the trial is shown from now on.
            params: Paths in ``config`` that were chosen, if there are more than before.
            why: A few words for the trial's story.

        Returns:
            Whether it can be done: False if ``copy_of`` has no committed checkpoint.
        """
        donor = None if copy_of is None else self._donor(copy_of)
        if copy_of is not None and donor is None:
            return False
        parent, packed = -1 if copy_of is None else copy_of.n, self._packed(trial, config, copy_of)
        self._want(Reconfigure(trial.n, packed, tag, donor, parent, tuple(params), self.cause(why)))
        return True

    def _packed(self, trial: TrialView, config: Mapping[str, Any], copy_of: TrialView | None) -> dict[str, Any]:
        """A new config as it is stored: objects that the trials have are markers again."""
        from holdfast.schedulers.explore import plain

        try:
            plainly: dict[str, Any] = plain(dict(config), "")
        except InvalidInputError:
            known: dict[int, Any] = {}
            for source in (trial, copy_of or trial):
                _learn_markers(source.record.config, source.config, known)
            plainly = plain(dict(config), f"The config that the scheduler has for trial {trial.trial_id}", known)
        return plainly

    def resize_trial(self, trial: TrialView, request: Mapping[str, float], why: str = "") -> None:
        """Give the trial these resources when it next starts; pause it for that to happen soon."""
        wanted = dict(request)
        self._want(Resize(trial.n, None if wanted == {"CPU": 1.0} else wanted, self.cause(why)))

    def cause(self, why: str) -> str:
        """``why``, with the scheduler's name: how events and stories name the cause of what it decides."""
        return f"{self._scheduler}: {why}" if why else self._scheduler

    def plain_config(self, trial: TrialView) -> dict[str, Any]:
        """The trial's config as it is stored: objects are markers, which may be copied but not made up."""
        return dict(self._state.trials[trial.n].config)

    def _donor(self, trial: TrialView) -> tuple[int, int] | None:
        point = self._state.start_point(self._state.trials[trial.n])
        if point is None:
            return None
        record = self._state.trials[point[0][0]].find(point[0][1])
        return point[0] if record is not None and record.stored == Stored.COMMITTED else None

    def _want(self, wanted: SchedulerRequest) -> None:
        if not self._state.trials[wanted.n].final:
            self.requests[wanted.n, type(wanted).__name__] = wanted


def _learn_markers(packed: Any, config: Any, known: dict[int, Any]) -> None:
    """Note which marker each object of a trial's config has."""
    if is_marker(packed):
        known[id(config)] = packed
        return
    inside = children(packed)
    if isinstance(inside, dict):
        for key, value in inside.items():
            if key in config:
                _learn_markers(value, config[key], known)
    elif inside is not None:
        for value, real in zip(inside, config, strict=True):
            _learn_markers(value, real, known)
