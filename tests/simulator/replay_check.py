"""Tells a whole history to policies that know nothing, and compares what they say with what was recorded (I5).

No snapshot is read and nothing is left out or told twice here, so a live policy that depended on either has said
something else at some point. Which reports were judged, and which trials only a scheduler can have ended, comes from
the audit, not from the core.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.core import events as ev
from holdfast.core.plan import WAITS_IN_VAIN
from holdfast.core.policies import Reconfigure, Resize, SchedulerRequest, Stop
from holdfast.core.state import DriverMemory, State, Stored, units
from holdfast.core.transitions import apply
from holdfast.schedulers.scheduler_adapter import SchedulerAdapter
from holdfast.search.replayable import (
    Answer,
    Asked,
    Completed,
    Item,
    NotNow,
    ObjectiveChanged,
    Paused,
    ResultTold,
    Unpaused,
)
from holdfast.views.results import ResultBuilder
from simulator.journal_bytes import Entry
from simulator.ledger import Violation
from simulator.scenario import Scenario
from simulator.schedulers_under_test import make_adapter

WAITING = ("PENDING", "PAUSED")
RESIZED = ": continues with "  # in the reason of a pause for other resources


class Standing(NamedTuple):
    """A request that was not applied yet."""

    wanted: SchedulerRequest
    made_at: float
    since: float  # when it could have been


class LostTrack(Exception):
    """From here on the scheduler of the story may rightly decide otherwise than the one that is told everything once.

    How large the machine is, is not in the journal. A resize that was requested when its driver died is therefore
    requested again later, or not at all, by a driver that is told the past.
    """


class ReplayCheck:
    """One scheduler, told everything once.

    Args:
        scenario: Which scheduler.
        scheduled: Numbers of the records whose verdict or reason is the scheduler's.
    """

    def __init__(self, scenario: Scenario, scheduled: Collection[int]) -> None:
        self._results = ResultBuilder()
        adapter = make_adapter(scenario.scheduler, scenario.seed, self._results)
        assert adapter is not None
        self._adapter: SchedulerAdapter = adapter
        self._scheduled = scheduled
        self._retention = scenario.retention
        self._state = State()
        self._memory = DriverMemory()
        self._memory.capacity = units({"CPU": scenario.cpus})
        self._standing: list[Standing] = []
        self._knows_capacity = scenario.scheduler != "changing resources"
        self._capacity_varies = scenario.capacity_varies

    def check(self, history: Iterable[Entry]) -> None:
        """Go through it once.

        Raises:
            Violation: Something was decided that this scheduler would not have decided, or not at that point.
        """
        with contextlib.suppress(LostTrack):
            self._compare(history)

    def _compare(self, history: Iterable[Entry]) -> None:
        for entry in history:
            event = entry.event
            asked = entry.seq in self._scheduled or isinstance(event, ev.TrialReconfigured | ev.TrialResized)
            if asked:
                _ASKED[type(event)](self, event)
            elif isinstance(event, ev.TrialStarted):
                self._nothing_was_forgotten(event)
            apply(self._state, event, self._retention)
            self._adapter.tell(self._state, self._memory, event)
            self._note_requests(event.at)

    def _judged(self, event: ev.Reported) -> None:
        state, trial = self._state, self._state.trials[event.n]

        def result() -> dict[str, Any]:
            return self._results(state, trial, event.metrics, event.dt, event.at, event.worker)

        said = self._adapter.judge(state, self._memory, trial, result)
        if said != (event.verdict, event.why):
            of_size = RESIZED in event.why or RESIZED in said[1]
            raise self._differs(of_size, f"{event}: a scheduler that was told all this once says {said}")

    def _differs(self, of_size: bool, text: str) -> Exception:
        """Only a difference about the size of a trial has that excuse, and not in the first driver of one machine."""
        excused = of_size and not self._knows_capacity and (self._state.epoch > 1 or self._capacity_varies)
        return LostTrack() if excused else Violation("I5", text)

    def _ended(self, event: ev.TrialTerminated) -> None:
        self._was_requested(event, Stop(event.n, event.reason))

    def _reconfigured(self, event: ev.TrialReconfigured) -> None:
        wanted = Reconfigure(event.n, event.config, event.tag, event.donor, event.parent, event.params, event.why)
        self._was_requested(event, wanted)

    def _resized(self, event: ev.TrialResized) -> None:
        self._was_requested(event, Resize(event.n, event.request, event.why))

    def _was_requested(self, event: ev.AnyEvent, wanted: SchedulerRequest) -> None:
        standing = list(self._adapter.requests(self._state))
        if wanted not in standing:
            of_size = isinstance(wanted, Resize)
            raise self._differs(of_size, f"{event}: a scheduler that was told all this once requests {standing}")

    def _nothing_was_forgotten(self, event: ev.TrialStarted) -> None:
        """Whatever could have been granted in an earlier turn was, before the trial starts."""
        for wanted, made_at, since in self._standing:
            if wanted.n != event.n or since >= event.at:
                continue
            if isinstance(wanted, Resize) and made_at <= self._state.epoch_at:
                # How large the machine is, is not in the journal: a new driver that is told the past does not know.
                self._adapter.tell(self._state, self._memory, ev.TrialResized(event.at, event.n, wanted.request))
            else:
                raise Violation("I5", f"{event}, and {wanted} was not granted though it could have been since {since}")

    def _note_requests(self, at: float) -> None:
        before, self._standing = self._standing, []
        for wanted in self._adapter.requests(self._state):
            known = next((old for old in before if old.wanted == wanted), Standing(wanted, at, math.inf))
            since = min(known.since, at) if self._can_be_granted(wanted) else math.inf
            self._standing.append(known._replace(since=since))

    def _can_be_granted(self, wanted: SchedulerRequest) -> bool:
        trial = self._state.trials[wanted.n]
        if trial.status not in WAITING:
            return False
        if not isinstance(wanted, Reconfigure) or wanted.donor is None:
            return True
        record = self._state.trials[wanted.donor[0]].find(wanted.donor[1])
        return record is not None and record.stored == Stored.COMMITTED


def check_search(scenario: Scenario, history: Iterable[Entry], told: Sequence[tuple[Any, ...]]) -> None:
    """Tell and ask a searcher that knows nothing what was told and asked then.

    Args:
        scenario: Which searcher.
        history: The journal.
        told: What it must hear, worked out by the audit.

    Raises:
        Violation: A trial got another configuration, or something else than that is told.
    """
    search = scenario.learner(ResultBuilder())
    assert search is not None
    state, heard = State(), []
    for entry in history:
        event = entry.event
        apply(state, event, scenario.retention)
        if isinstance(event, ev.TrialCreated):
            suggested = search.adapter.claim(event.n)
            if suggested is None or search.filler.config(suggested.values) != event.config:
                raise Violation("I5", f"{event}: a searcher that was told all this once suggests {suggested}")
        elif (item := search.script.item(state, event)) is not None:
            search.adapter.hear(item)
            heard += _facts(item)
        elif isinstance(event, ev.StoodStill | ev.SearchEnded):
            _check_silence(event, state, search.adapter.unclaimed())
    wanted = [fact for fact in told if search.hears_results or fact[0] != "result"]
    if heard != wanted:
        raise Violation("I5", f"a searcher heard {heard} and should have heard {wanted}")


def _facts(item: Item) -> list[tuple[Any, ...]]:
    """What a searcher hears of an item, as the audit puts it."""
    if isinstance(item, Asked | ObjectiveChanged):
        return []
    n = int(item.trial_id.rpartition("_")[2])
    match item:
        case ResultTold(_, result):
            return [("result", n, result["link"])]
        case Completed(_, last, error):
            return [("end", n, 0 if last is None else last["link"], error)]
        case Paused():
            return [("pause", n)]
        case Unpaused():
            return [("unpause", n)]


def _check_silence(event: ev.StoodStill | ev.SearchEnded, state: State, owed: list[Answer]) -> None:
    """Nobody gives up waiting for a searcher that has an answer."""
    in_vain = isinstance(event, ev.SearchEnded) and event.reason == WAITS_IN_VAIN
    waits = in_vain or (isinstance(event, ev.StoodStill) and not state.search_ended and state.asks > len(state.trials))
    if waits and owed != [NotNow()]:
        raise Violation("I5", f"{event}, and a searcher that was told all this once answers {owed}")


_ASKED: dict[type, Callable[[ReplayCheck, Any], None]] = {
    ev.Reported: ReplayCheck._judged,
    ev.TrialTerminated: ReplayCheck._ended,
    ev.TrialReconfigured: ReplayCheck._reconfigured,
    ev.TrialResized: ReplayCheck._resized,
}
