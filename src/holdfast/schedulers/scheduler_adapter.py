"""Between the core and a scheduler: tells it what happened, in the order of the journal, and keeps its requests.

Live and after a crash the same calls are made from the same events, so the scheduler and its requests are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any, Union

import msgspec

from holdfast.core import events as ev
from holdfast.core.policies import Reconfigure, Resize, SchedulerRequest, Stop, Verdict
from holdfast.core.retention import lookup
from holdfast.core.state import DriverMemory, State, Status, Trial
from holdfast.core.user_facts import STOPPED_BY_USER
from holdfast.errors import InvalidInputError
from holdfast.schedulers.base import CORRECT_IT, TrialScheduler
from holdfast.schedulers.view import ExperimentView
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo

VERDICTS = {
    TrialScheduler.CONTINUE: Verdict.CONTINUE,
    TrialScheduler.NOOP: Verdict.CONTINUE,
    TrialScheduler.PAUSE: Verdict.PAUSE,
    TrialScheduler.STOP: Verdict.STOP,
}
NOT_THE_SCHEDULERS = frozenset({"done", "stop criterion", STOPPED_BY_USER})
"""Reasons of verdicts that others gave; the scheduler was not asked about those reports."""


class AdapterRecord(msgspec.Struct, array_like=True):
    """What a snapshot holds of a scheduler."""

    scheduler: Any
    requests: list[Union[Stop, Reconfigure, Resize]]  # in the order in which they were made
    pauses: list[int]


_record = msgspec.msgpack.Decoder(AdapterRecord)

_NOTHING = DriverMemory()
"""What is known of the machine while past events are replayed."""


class SchedulerAdapter:
    """Adapts a ``TrialScheduler`` to the questions that the core asks."""

    name = "scheduler"

    def __init__(
        self, scheduler: TrialScheduler, info: ExperimentInfo, results: ResultBuilder, relearned: int = 0
    ) -> None:
        """Make a adapter for a scheduler that knows nothing yet.

        Args:
            scheduler: It belongs to this adapter from now on.
            info: The experiment.
            results: Makes full results.
            relearned: How often, by now, another metric came to count. Until the last time is told, the scheduler
                hears of reports that others have judged, by another metric.
        """
        self.scheduler = scheduler
        self._before = relearned  # changes of the metric that are still to come
        self._info = info
        self._results = results
        self._view = self._new_view(State())

    def _new_view(self, state: State) -> ExperimentView:
        return ExperimentView(state, self._info, self._results, type(self.scheduler).__name__)

    def _see(self, state: State, memory: DriverMemory) -> ExperimentView:
        if self._view._state is not state:
            view = self._new_view(state)
            view.requests, view.saves, view.pauses = self._view.requests, self._view.saves, self._view.pauses
            self._view = view
        self._view._memory = memory
        return self._view

    # --- questions

    def judge(
        self, state: State, memory: DriverMemory, trial: Trial, result: Callable[[], dict[str, Any]]
    ) -> tuple[str, str]:
        view = self._see(state, memory)
        view.reason = ""
        answer = self.scheduler.on_trial_result(view, view.trials[trial.n], _flat(result()))
        verdict = VERDICTS.get(answer)
        if verdict is None:
            raise InvalidInputError(
                f"{type(self.scheduler).__name__}.on_trial_result returned {answer!r} for trial {trial.id}; it must "
                f"return TrialScheduler.CONTINUE, PAUSE or STOP. {CORRECT_IT}"
            )
        wanted = view.requests.get((trial.n, Stop.__name__))
        if isinstance(wanted, Stop):
            verdict = Verdict.STOP
            if wanted.why not in NOT_THE_SCHEDULERS:
                return verdict, wanted.why
        if not verdict and trial.n in view.pauses:
            verdict = Verdict.PAUSE
        if not verdict:
            return verdict, ""
        return verdict, view.cause(view.reason)

    def requests(self, state: State) -> Iterable[SchedulerRequest]:
        return self._view.requests.values()

    def wants_save(self, n: int) -> bool:
        saves = self._view.saves
        if n in saves:
            saves.discard(n)
            return True
        return False

    def choose(self, state: State, memory: DriverMemory, fits: Callable[[int], bool]) -> int | None:
        if not _anything_fits(state, memory, fits):
            return None
        view = self._see(state, memory)
        view._fits = fits
        try:
            chosen = self.scheduler.choose_trial_to_run(view)
        finally:
            view._fits = None
        if chosen is None or chosen.status not in (Status.PENDING, Status.PAUSED) or not fits(chosen.n):
            return None
        return chosen.n

    # --- facts

    def before(self, state: State, event: ev.AnyEvent) -> None:
        """While the past is told again: judge what was judged then. The recorded verdict stands."""
        if type(event) is not ev.Reported or state.stopping or event.why in NOT_THE_SCHEDULERS:
            return
        trial = state.trials[event.n]
        if trial.rows < trial.judged:
            return
        result = partial(self._results, state, trial, event.metrics, event.dt, event.at, event.worker)
        metric = self.scheduler.metric
        if self._before and metric is not None and lookup(result(), metric) is None:
            return  # nobody had asked for this metric then
        self.judge(state, _NOTHING, trial, result)

    def after(self, state: State, event: ev.AnyEvent) -> None:
        """While the past is told again. Whoever was to save then has got an answer, or is gone."""
        self.tell(state, _NOTHING, event)
        self._view.saves.clear()

    def tell(self, state: State, memory: DriverMemory, event: ev.AnyEvent) -> None:
        hear = _HEARD.get(type(event))
        if hear is not None:
            hear(self, self._see(state, memory), event)

    def _created(self, view: ExperimentView, event: ev.TrialCreated) -> None:
        self.scheduler.on_trial_add(view, view.trials[event.n])

    def _started(self, view: ExperimentView, event: ev.TrialStarted) -> None:
        self.scheduler.on_trial_start(view, view.trials[event.n])

    def _paused(self, view: ExperimentView, event: ev.TrialPaused) -> None:
        view.pauses.discard(event.n)
        self.scheduler.on_trial_pause(view, view.trials[event.n])

    def _committed(self, view: ExperimentView, event: ev.CheckpointCommitted) -> None:
        self.scheduler.on_trial_save(view, view.trials[event.n])

    def _reconfigured(self, view: ExperimentView, event: ev.TrialReconfigured) -> None:
        view.requests.pop((event.n, Reconfigure.__name__), None)

    def _resized(self, view: ExperimentView, event: ev.TrialResized) -> None:
        view.requests.pop((event.n, Resize.__name__), None)

    def _terminated(self, view: ExperimentView, event: ev.TrialTerminated) -> None:
        trial = view.trials[event.n]
        waited = view._state.came_from != Status.RUNNING
        self._forget(view, event.n)
        if waited:
            self.scheduler.on_trial_remove(view, trial)
        else:
            self.scheduler.on_trial_complete(view, trial, _flat(trial.last_result))

    def _errored(self, view: ExperimentView, event: ev.TrialErrored) -> None:
        self._forget(view, event.n)
        if view._state.came_from != Status.TERMINATED:  # it had ended, and a callback of the user's failed afterwards
            self.scheduler.on_trial_error(view, view.trials[event.n])

    def _requeued(self, view: ExperimentView, event: ev.TrialRequeued) -> None:
        if event.mode == "restart":
            self._forget(view, event.n)  # what it asked for was another life
        if view._state.came_from in Status.FINAL:
            self.scheduler.on_trial_add(view, view.trials[event.n])

    def _stood_still(self, view: ExperimentView, _: ev.StoodStill) -> None:
        self.scheduler.on_standstill(view)

    def _changed(self, view: ExperimentView, event: ev.SettingsChanged) -> None:
        if not event.relearned:
            return
        self._before -= 1
        # What it would have done with the other metric is not done now: a copy of what was best then, a pause there.
        copies = [key for key, wanted in view.requests.items() if isinstance(wanted, Reconfigure) and wanted.donor]
        for key in copies:
            del view.requests[key]
        view.pauses.clear()

    @staticmethod
    def _forget(view: ExperimentView, n: int) -> None:
        for kind in (Stop, Reconfigure, Resize):
            view.requests.pop((n, kind.__name__), None)
        view.pauses.discard(n)
        view.saves.discard(n)

    # --- memory

    def get_state(self) -> bytes | None:
        """The scheduler's memory and its requests, or None if it has to be told everything again."""
        memory = self.scheduler.get_state()
        if memory is None:
            return None
        record = AdapterRecord(memory, list(self._view.requests.values()), sorted(self._view.pauses))
        return msgspec.msgpack.encode(record)

    def set_state(self, state: bytes) -> bool:
        """Remember what ``get_state`` returned."""
        record = _record.decode(state)
        self._before = 0
        self.scheduler.set_state(record.scheduler)
        self._view.requests = {(wanted.n, type(wanted).__name__): wanted for wanted in record.requests}
        self._view.pauses = set(record.pauses)
        return True


def _anything_fits(state: State, memory: DriverMemory, fits: Callable[[int], bool]) -> bool:
    """May any trial be started now? Schedulers need not be asked after each report while all slots are taken."""
    waiting = bool(state.pending or state.paused)
    if not waiting or not state.uniform:
        return waiting
    some = next((n for n in chain(state.pending, state.paused) if not memory.holds_back(n)), None)
    return some is None or fits(some)


def _flat(result: dict[str, Any]) -> dict[str, Any]:
    """Nested metrics joined into one level; the config stays as it is."""
    if not any(type(value) is dict for key, value in result.items() if key != "config"):
        return result
    from holdfast.views.results import flatten_result

    config = result.pop("config", {})
    return {**flatten_result(result), "config": config}


_HEARD: dict[type, Callable[[SchedulerAdapter, ExperimentView, Any], None]] = {
    ev.TrialCreated: SchedulerAdapter._created,
    ev.TrialStarted: SchedulerAdapter._started,
    ev.TrialPaused: SchedulerAdapter._paused,
    ev.CheckpointCommitted: SchedulerAdapter._committed,
    ev.TrialReconfigured: SchedulerAdapter._reconfigured,
    ev.TrialResized: SchedulerAdapter._resized,
    ev.TrialTerminated: SchedulerAdapter._terminated,
    ev.TrialErrored: SchedulerAdapter._errored,
    ev.TrialRequeued: SchedulerAdapter._requeued,
    ev.StoodStill: SchedulerAdapter._stood_still,
    ev.SettingsChanged: SchedulerAdapter._changed,
}
