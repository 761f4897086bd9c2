"""Bugs on purpose: each takes one safeguard away, so that tests can show that the simulator notices its absence.

``PLANTED`` are mistakes that somebody could make. For those that were made see ``repaired_bugs``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast.controller import lifecycle, loop, opening
from holdfast.core import commands as cmd
from holdfast.core import decide, plan, transitions
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.retention import Retention
from holdfast.core.state import State, Status, Stored
from holdfast.core.turn import Turn
from holdfast.journal.log import Journal
from holdfast.journal.segment_writer import SegmentWriter
from holdfast.schedulers.scheduler_adapter import SchedulerAdapter
from holdfast.search.replayable import ReplayableSearcher, Script
from holdfast.trainable.spool_writer import SpoolOwner
from simulator import fake_driver as sim_driver
from simulator.chaos import Moment
from simulator.fake_world import MemorySpools, World
from simulator.scenario import FaultBudget
from simulator.simulate import Simulation

Patch = pytest.MonkeyPatch


class Bug(NamedTuple):
    """A bug, what notices it, and within how many seeds."""

    plant: Callable[[Patch], None]
    noticed: tuple[str, ...]
    seeds: int

    def story(self, seed: int) -> Simulation:
        """Any story."""
        return Simulation(seed)


class RareBug(NamedTuple):
    """A bug that shows in few stories only, and the kind of story that tells of it.

    Attributes:
        plant: Makes it as it was.
        noticed: Invariants, or types of exceptions.
        seeds: How many stories to tell, from seed 0.
        faults: The only kinds of faults in them.
        settings: What their scenarios have in common.
        moments: When the first drivers are killed and suspended: a (kill, suspend) pair for each.
    """

    plant: Callable[[Patch], None]
    noticed: tuple[str, ...]
    seeds: int
    faults: dict[str, int]
    settings: dict[str, Any]
    moments: Callable[[int], list[tuple[Moment | None, Moment | None]]] = lambda seed: []

    def story(self, seed: int) -> Simulation:
        """A story of the kind in which this bug shows."""
        budget = replace(FaultBudget.none(), **self.faults)
        usual = {"restart": ("skip", "resume", "skip"), "retention": Retention(num_to_keep=1), "durability": "group"}
        simulation = Simulation(seed, budget, lambda scenario: replace(scenario, **{**usual, **self.settings}))
        simulation.chaos.left.update(self.faults)
        moments = self.moments(seed)
        if moments:
            kills, suspensions = map(iter, zip(*moments, strict=True))
            simulation.chaos.kill_at = lambda: next(kills, None)
            simulation.chaos.suspend_at = lambda: next(suspensions, None)
        return simulation


def no_attempt_fence(patch: Patch) -> None:
    """Whatever claims to come from a running trial is believed, whichever attempt sent it."""

    def current(turn: Turn, o: Any) -> Any:
        trial = turn.state.trial(o.n)
        return trial if trial is not None and trial.status == Status.RUNNING else None

    patch.setattr(decide, "_current", current)


def acting_before_journaling(patch: Patch) -> None:
    """Replies and launches leave the process before their events are written."""

    def turn(self: Any, observations: Any) -> None:
        turn = Turn(self.state, self.memory, self.policies, self.edges.clock.now(), self.hooks.watch)
        decide.decide_all(turn, observations)
        self._dispatch(turn.commands)
        self._write(turn.events)
        self._open_gates()

    patch.setattr(loop.Controller, "turn", turn)


def deleting_before_the_intent_is_durable(patch: Patch) -> None:
    """Deletions and commits do not wait for the journal's sync."""
    patch.setattr(cmd, "GATED", ())
    carry_out = loop.Controller._carry_out

    def carry(self: Any, command: Any) -> None:
        if isinstance(command, cmd.Commit | cmd.Delete):
            self.edges.jobs.submit(command)
        else:
            carry_out(self, command)

    patch.setattr(loop.Controller, "_carry_out", carry)


def deleting_before_the_successor_is_committed(patch: Patch) -> None:
    """What a new checkpoint makes obsolete goes when that one is staged, not when it is committed."""
    stage = decide._stage

    def stage_and_drop(turn: Turn, trial: Any, sealed: Any) -> None:
        stage(turn, trial, sealed)
        indexes = tuple(record.index for record in trial.committed())
        if indexes and turn.policies.rules.retention.num_to_keep is not None:
            turn.add(ev.CheckpointsDropped(turn.at, trial.n, indexes))
            turn.commands.extend(cmd.Delete(trial.n, index) for index in indexes)

    patch.setattr(decide, "_stage", stage_and_drop)


def acknowledging_what_waits_for_space(patch: Patch) -> None:
    """A full disk does not keep reports from being answered."""
    patch.setattr(loop.Controller, "_wait_for_space", lambda self, seq: None)


def retention_that_forgets_the_latest(patch: Patch) -> None:
    """Only the best are kept."""

    def obsolete(self: Retention, state: Any, trial: Any) -> tuple[int, ...]:
        if self.num_to_keep is None:
            return ()
        keep = {record.index for record in self.best(trial)}
        return tuple(record.index for record in trial.committed() if record.index not in keep)

    patch.setattr(Retention, "obsolete", obsolete)


def from_scratch_when_the_newest_is_damaged(patch: Patch) -> None:
    """A damaged newest checkpoint means no checkpoint."""
    patch.setattr(plan, "_all_damaged", lambda turn, trial: None)
    start = plan.start

    def start_anyway(turn: Turn, trial: Any) -> None:
        if not trial.staging and any(record.stored == Stored.BAD for record in trial.checkpoints):
            turn.add(ev.TrialStarted(turn.at, trial.n, trial.attempt + 1, 0, None))
            turn.commands.append(cmd.Launch(trial.n, trial.attempt))
        else:
            start(turn, trial)

    patch.setattr(plan, "start", start_anyway)


def starting_from_unverified_checkpoints(patch: Patch) -> None:
    """A checkpoint that was once committed is believed to be good for ever."""
    schedule = plan.schedule

    def schedule_believing(turn: Turn) -> None:
        state = turn.state
        turn.memory.verified |= {(t.n, r.index) for t in state.trials for r in t.committed()}
        schedule(turn)

    patch.setattr(decide, "schedule", schedule_believing)


def counting_a_repeated_report_twice(patch: Patch) -> None:
    """The copy of a report is one more report."""

    def repeat(turn: Turn, trial: Any, o: ob.Report) -> None:
        verdict, why = decide._judge(turn, trial, o)
        turn.add(ev.Reported(turn.at, o.n, o.attempt, o.worker, o.dt, o.metrics, verdict, why))
        decide.answer(turn, trial, o.ordinal)

    patch.setattr(decide, "_repeat_answer", repeat)


def no_epoch_fence(patch: Patch) -> None:
    """A driver that was taken over writes on."""
    patch.setattr(Journal, "_check_fence", lambda self: None)


def a_fence_only_before_the_write(patch: Patch) -> None:
    """A driver that is suspended between its look at the fence and its write does not look again."""
    append, check = Journal.append, Journal._check_fence

    def append_once_checked(self: Journal, payloads: Any) -> int:
        looks = iter([check])
        self._check_fence = lambda: next(looks, lambda journal: None)(self)  # type: ignore[method-assign]
        return append(self, payloads)

    patch.setattr(Journal, "append", append_once_checked)


def a_sync_that_only_pretends(patch: Patch) -> None:
    """The journal calls records durable without fsync."""

    def sync(self: Journal) -> bool:
        ticket = self._writer.begin_sync()
        if ticket is not None:
            self._writer.end_sync(ticket)
        return True

    patch.setattr(Journal, "sync", sync)


def trusting_what_a_dead_driver_may_not_have_synced(patch: Patch) -> None:
    """A sync of the dead driver's segment that succeeds is believed, although that driver's own may have failed."""
    known = SegmentWriter._known_durable

    def believed(self: Any, head: Any, found: Any) -> Any:
        size = head.header.carried + found.offset
        return known(self, head._replace(header=msgspec.structs.replace(head.header, carried=size)), found)

    patch.setattr(SegmentWriter, "_known_durable", believed)


def counting_preemption(patch: Patch) -> None:
    """A machine that is taken away counts as a failure of the trial."""
    patch.setattr(ev.Cause, "COUNTED", ev.Cause.COUNTED | {ev.Cause.PREEMPTED})


def one_failure_too_many(patch: Patch) -> None:
    """The budget is off by one."""
    fail = decide._fail

    def lenient(turn: Turn, trial: Any, cause: str, error: Any, retry: bool = True, worker: int = 0) -> None:
        if retry and trial.failures == turn.policies.rules.max_failures:
            turn.add(ev.AttemptFailed(turn.at, trial.n, trial.attempt, cause, error))
        else:
            fail(turn, trial, cause, error, retry, worker)

    patch.setattr(decide, "_fail", lenient)


def a_stop_rule_that_forgets(patch: Patch) -> None:
    """What a stop rule knew is not told to it again after a restart."""
    patch.setattr(sim_driver.UserStopRule, "has_memory", False)


def a_stop_rule_that_is_not_rewound(patch: Patch) -> None:
    """A stop rule counts the rows of abandoned attempts."""
    patch.setattr(sim_driver.UserStopRule, "rewind", lambda self, trial: None)


def a_snapshot_that_forgets_what_is_staged(patch: Patch) -> None:
    """A state from a snapshot does not know which commits are still to be finished."""
    index = opening._index

    def index_without_stages(state: Any) -> None:
        index(state)
        state.staged.clear()

    patch.setattr(opening, "_index", index_without_stages)


def leaving_before_the_commit(patch: Patch) -> None:
    """Finished means that all trials ended, whatever is still staged."""

    def finished(state: Any, memory: Any) -> bool:
        waiting = state.pending or state.paused or state.running
        return bool(state.search_ended) and not waiting

    patch.setattr(loop, "finished", finished)


def chatting(patch: Patch) -> None:
    """Every turn of the loop leaves a note."""
    schedule = plan.schedule

    def schedule_and_note(turn: Turn) -> None:
        schedule(turn)
        turn.add(ev.Noted(turn.at, -1, "still here"))

    patch.setattr(decide, "schedule", schedule_and_note)


# --- schedulers, copies and searchers


def requests_forgotten_at_restart(patch: Patch) -> None:
    """A scheduler's memory is stored, and its open requests are not."""
    set_state = SchedulerAdapter.set_state

    def forget(self: Any, state: bytes) -> None:
        set_state(self, state)
        self._view.requests.clear()

    patch.setattr(SchedulerAdapter, "set_state", forget)


def a_scheduler_that_starts_anew(patch: Patch) -> None:
    """What a scheduler knew is not told to it again after a restart."""
    patch.setattr(SchedulerAdapter, "before", lambda self, state, event: None)


def a_scheduler_that_is_told_twice(patch: Patch) -> None:
    """Trials that have ended are told once more when the experiment is opened."""
    after = SchedulerAdapter.after

    def twice(self: Any, state: Any, event: Any) -> None:
        after(self, state, event)
        if isinstance(event, ev.TrialTerminated):
            after(self, state, event)

    patch.setattr(SchedulerAdapter, "after", twice)


def a_step_that_is_judged_again(patch: Patch) -> None:
    """What an attempt repeats after a crash is judged like anything else."""
    judge = decide._judge

    def always(turn: Turn, trial: Any, o: Any) -> tuple[str, str]:
        judged, trial.judged = trial.judged, 0
        try:
            return judge(turn, trial, o)
        finally:
            trial.judged = judged

    patch.setattr(decide, "_judge", always)


def an_origin_that_nobody_holds(patch: Patch) -> None:
    """The checkpoint that a copy continues from may be dropped at any time."""
    patch.setattr(transitions, "_hold_origin", lambda state, trial, needed=True: None)


def a_copy_that_goes_on_from_its_own_checkpoint(patch: Patch) -> None:
    """The config is the donor's, the training state is not."""

    def own(self: State, trial: Any) -> Any:
        record = trial.latest()
        return None if record is None else ((trial.n, record.index), record.row)

    patch.setattr(State, "start_point", own)


def a_standstill_that_nobody_notices(patch: Patch) -> None:
    """If a scheduler starts none of the trials that wait, nothing happens any more."""
    patch.setattr(plan, "_stands_still", lambda turn: False)


def a_searcher_that_hears_of_repeated_steps(patch: Patch) -> None:
    """What an attempt repeats after a crash is told to the searcher like anything else."""
    item = Script.item

    def every(self: Any, state: Any, event: Any) -> Any:
        if isinstance(event, ev.Reported):
            state.trials[event.n].again = False
        return item(self, state, event)

    patch.setattr(Script, "item", every)


def a_searcher_that_is_told_twice(patch: Patch) -> None:
    """What came after a searcher's memory was stored is told to it once too often."""
    set_state = ReplayableSearcher.set_state

    def twice(self: Any, state: bytes, created: int, later: list[Any]) -> None:
        set_state(self, state, created, [*later, *later])

    patch.setattr(ReplayableSearcher, "set_state", twice)


def a_searcher_that_is_not_told(patch: Patch) -> None:
    """What came after a searcher's memory was stored is forgotten."""
    set_state = ReplayableSearcher.set_state
    patch.setattr(
        ReplayableSearcher, "set_state", lambda self, state, created, later: set_state(self, state, created, [])
    )


def a_driver_that_does_not_hear_what_ran_ahead(patch: Patch) -> None:
    patch.setattr(lifecycle, "hear_spools", lambda *_: None)


def forgetting_what_ran_ahead_before_it_is_journaled(patch: Patch) -> None:
    read = MemorySpools.read

    def read_and_forget(self: MemorySpools, owner: SpoolOwner, after: int) -> list[ob.Report]:
        found = read(self, owner, after)
        self.forget([owner])
        return found

    patch.setattr(MemorySpools, "read", read_and_forget)


def workers_that_outlive_their_driver(patch: Patch) -> None:
    """They continue reporting ahead when the next driver has read what they left."""
    patch.setattr(World, "end_all_but", lambda self, engine: None)


PLENTY = {"samples": 5, "steps": (9, 12), "checkpoint_every": 1, "max_failures": 3, "fail_fast": False, "cpus": 2.0}
COPYING = {**PLENTY, "scheduler": "copying", "pause_at": 0, "max_concurrent": 0}
SELDOM_SAVED = {"checkpoint_every": 5, "save_chance": 0.0}
LEARNING = {**PLENTY, "searcher": "learning", "lookahead": 1}
"""Settings under which schedulers and searchers have something to do."""

PASSING = {
    "scheduler": "",
    "searcher": "",
    "is_class": False,
    "at_end": False,
    "pause_at": 0,
    "save_chance": 0.0,
    "stop_at": 0,
    "stop_after_good": 0,
    "stop_all_after": 0,
    "time_budget_s": None,
    "steps": (12,),
    "samples": 3,
}
"""Settings under which nothing can tell a trial to stop, and it reports ahead of the answers."""

PLANTED: dict[str, Bug | RareBug] = {
    bug.plant.__name__: bug
    for bug in (
        Bug(no_attempt_fence, ("I1", "I6", "I7", "I8"), 100),
        Bug(acting_before_journaling, ("I1", "I3"), 100),
        Bug(deleting_before_the_intent_is_durable, ("I3",), 20),
        Bug(deleting_before_the_successor_is_committed, ("I3", "I2"), 20),
        Bug(acknowledging_what_waits_for_space, ("I1", "I3"), 100),
        Bug(retention_that_forgets_the_latest, ("I3",), 20),
        Bug(from_scratch_when_the_newest_is_damaged, ("I2",), 200),
        Bug(starting_from_unverified_checkpoints, ("I2",), 20),
        Bug(counting_a_repeated_report_twice, ("I6",), 50),
        Bug(no_epoch_fence, ("I1", "I3"), 200),
        RareBug(
            a_fence_only_before_the_write,
            ("I1",),
            60,
            {},
            {"step_s": 0.2, "steps": (6,), "samples": 3},
            lambda seed: [(None, Moment(seed % 20, "write"))],
        ),
        Bug(a_sync_that_only_pretends, ("I1", "I3", "I4", "I9"), 20),
        RareBug(
            trusting_what_a_dead_driver_may_not_have_synced,
            ("I4",),
            60,
            {"failed_syncs": 1, "power_cuts": 4},
            {"step_s": 0.2, "steps": (9,), "samples": 4},
            lambda seed: [(Moment(2, "create"), None), (Moment(20 + seed), None)],
        ),
        Bug(counting_preemption, ("I8",), 50),
        Bug(one_failure_too_many, ("I8",), 50),
        Bug(a_stop_rule_that_forgets, ("I5",), 200),
        Bug(a_stop_rule_that_is_not_rewound, ("I5",), 200),
        Bug(a_snapshot_that_forgets_what_is_staged, ("I5",), 100),
        Bug(leaving_before_the_commit, ("I3", "I9"), 50),
        Bug(chatting, ("I10",), 20),
        RareBug(
            requests_forgotten_at_restart,
            ("I5",),
            80,
            {"driver_kills": 6},
            {**COPYING, "snapshot_chance": 0.5, "retention": Retention(), "cpus": 4.0},
        ),
        RareBug(a_scheduler_that_starts_anew, ("I5",), 20, {"driver_kills": 3}, COPYING),
        RareBug(a_scheduler_that_is_told_twice, ("I5",), 40, {"driver_kills": 6}, COPYING),
        RareBug(a_step_that_is_judged_again, ("I5",), 20, {"worker_deaths": 4}, {**COPYING, **SELDOM_SAVED}),
        RareBug(an_origin_that_nobody_holds, ("I2", "I3"), 40, {}, COPYING),
        RareBug(a_copy_that_goes_on_from_its_own_checkpoint, ("I2",), 20, {}, COPYING),
        RareBug(a_standstill_that_nobody_notices, ("liveness",), 20, {}, COPYING),
        RareBug(
            a_searcher_that_hears_of_repeated_steps, ("I5",), 20, {"worker_deaths": 4}, {**LEARNING, **SELDOM_SAVED}
        ),
        RareBug(a_searcher_that_is_told_twice, ("I5",), 60, {"driver_kills": 6}, {**LEARNING, "snapshot_chance": 0.3}),
        RareBug(a_searcher_that_is_not_told, ("I5",), 60, {"driver_kills": 6}, {**LEARNING, "snapshot_chance": 0.3}),
        RareBug(
            a_driver_that_does_not_hear_what_ran_ahead,
            ("I1",),
            40,
            {},
            PASSING,
            lambda seed: [(Moment(40 + seed), None)],
        ),
        RareBug(
            forgetting_what_ran_ahead_before_it_is_journaled,
            ("I1",),
            40,
            {},
            PASSING,
            lambda seed: [(Moment(40 + seed), None), (Moment(1, "write"), None)],
        ),
        RareBug(workers_that_outlive_their_driver, ("I1",), 60, {"driver_kills": 6}, PASSING),
    )
}
