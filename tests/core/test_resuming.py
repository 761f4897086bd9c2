"""What becomes of trials that a stop rule had cut off when the user gives another rule or a larger budget."""

from __future__ import annotations

from typing import Any

import pytest
from world import StopAt, World, kinds

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.plan import finished
from holdfast.core.resuming import REOPENED, RESTARTED
from holdfast.core.state import Status
from holdfast.core.turn import Turn

BUDGET = "time budget of 5 s used up"
NEW_BUDGET = ev.SettingsChanged(0.0, time_budget_s=100.0)


def change(world: World, event: ev.SettingsChanged = NEW_BUDGET) -> None:
    """What a driver records before it says what becomes of the trials."""
    turn = Turn(world.state, world.memory, world.policies, world.at)
    turn.add(event)
    world.history += turn.events


def requeued(events: list[Any]) -> list[int]:
    return [event.n for event in events if isinstance(event, ev.TrialRequeued)]


def stopped_world(**rules: Any) -> World:
    """One trial ended by itself, one was cut with a checkpoint, two had not started when the budget was used up."""
    world = World(cpus=2, trials=4, **rules)
    world.save(1)
    world.memory.capacity = {}  # nothing takes the place of the one that ends
    world.tell(ob.Returned(0, 1, 1))
    world.tell(ob.StopAll(BUDGET))
    world.report(1)
    world.tell(ob.Stopped(1, 1, 1))
    assert world.state.counts[Status.TERMINATED] == 4
    assert finished(world.state, world.memory)
    world.tell(ob.Capacity({"CPU": 2}))
    return world


@pytest.mark.parametrize("event", [NEW_BUDGET, ev.SettingsChanged(0.0, objects={"stop": "key"})])
def test_trials_that_the_old_rule_had_cut_off_or_not_started_run_after_all(event: ev.SettingsChanged) -> None:
    world = stopped_world()
    change(world, event)
    turn = world.tell(ob.Resumed())
    assert requeued(turn.events) == [1, 2, 3]
    assert cmd.Verify(1, 0) in turn.commands  # it continues from its checkpoint
    world.tell(ob.VerifyEnded(1, 0, ok=True))
    assert world.trial(1).source == (1, 0)
    assert [trial.status for trial in world.state.trials] == ["TERMINATED", "RUNNING", "RUNNING", "PENDING"]
    assert world.trial(0).reason == "returned"
    assert world.replayed().trials == world.state.trials


def test_a_restore_without_another_rule_leaves_them_ended() -> None:
    world = stopped_world()
    assert requeued(world.tell(ob.Resumed()).events) == []
    change(world, ev.SettingsChanged(0.0, num_samples=9))
    assert requeued(world.tell(ob.Resumed()).events) == []


def test_trials_that_ended_for_reasons_of_their_own_stay_ended() -> None:
    world = World(cpus=3, trials=3, stop=StopAt(1))
    world.report(0)
    world.tell(ob.Stopped(0, 1, 1))
    world.tell(ob.StopAll(BUDGET))
    world.fail(1)
    world.tell(ob.Report(2, 1, 1, 1, 0.5, {"loss": 1.0}, final=True), ob.Returned(2, 1, 1))
    assert [trial.reason for trial in world.state.trials] == ["enough", "", "returned"]
    change(world)
    assert requeued(world.tell(ob.Resumed()).events) == []
    assert [trial.status for trial in world.state.trials] == ["TERMINATED", "ERROR", "TERMINATED"]


def test_a_trial_that_was_told_to_stop_when_the_driver_was_lost_continues_too() -> None:
    world = World()
    world.save()
    world.tell(ob.StopAll(BUDGET))
    world.report()
    change(world)
    turn = world.tell(ob.Resumed(lost="it was killed"))
    assert kinds(turn.events)[:3] == ["TrialTerminated", "TrialRequeued", "BudgetRenewed"]


def test_a_driver_that_is_lost_after_the_change_leaves_it_to_the_next_one() -> None:
    world = stopped_world()
    change(world)
    world.state = world.replayed()
    change(world, ev.SettingsChanged(0.0, max_concurrent=3))
    world.tell(ob.Capacity({"CPU": 2}))
    assert requeued(world.tell(ob.Resumed()).events) == [1, 2, 3]
    assert requeued(world.tell(ob.Resumed()).events) == []  # once


@pytest.mark.parametrize(("unfinished", "modes"), [("skip", []), ("restart", ["resume", "restart"])])
def test_they_are_unfinished_trials_and_treated_as_such(unfinished: str, modes: list[str]) -> None:
    world = stopped_world()
    change(world)
    events = world.tell(ob.Resumed(unfinished=unfinished)).events
    again = [event for event in events if isinstance(event, ev.TrialRequeued) and event.n == 1]
    assert [event.mode for event in again] == modes
    assert [event.why for event in again] == [REOPENED, "the user restarted unfinished trials"][: len(modes)]
    dropped = [event.why for event in events if isinstance(event, ev.CheckpointsDropped)]
    assert dropped == ([RESTARTED] if unfinished == "restart" else [])


def test_if_the_new_budget_is_used_up_as_well_nothing_starts_and_nothing_is_forgotten() -> None:
    world = stopped_world()
    change(world)
    turn = world.tell(ob.Resumed(spent="time budget of 6 s used up"))
    assert "TrialStarted" not in kinds(turn.events)
    assert finished(world.state, world.memory)
    assert world.trial(3).reason == world.state.stopping == "time budget of 6 s used up"
    change(world)
    assert requeued(world.tell(ob.Resumed()).events) == [1, 2, 3]
