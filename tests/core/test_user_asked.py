"""What users ask a live driver for: each request becomes one fact, is followed once, or is refused in words."""

from __future__ import annotations

import msgspec
import pytest
from world import StopAt, World, kinds

from holdfast.controller.opening import SnapshotRecord, snapshot_payload, state_from
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.changed_settings import KEPT_REQUESTS
from holdfast.core.events import Action
from holdfast.core.state import State, Status, UserNote
from holdfast.core.transitions import apply
from holdfast.core.user_asked import MAX_NOTES, MAX_TAGS, STOPPED_ALL
from holdfast.core.user_facts import STOPPED_BY_USER
from holdfast.errors import IllegalTransitionError


def stop(trial: str = "", request: str = "r1", **facts) -> ob.UserAsked:
    return ob.UserAsked(request, Action.STOP, trial, by="ann@box", **facts)


def refusal(turn) -> str:
    (event,) = [event for event in turn.events if isinstance(event, ev.UserRequested)]
    assert event.refused
    return event.refused


def restored(world: World, **rules) -> World:
    """The experiment as a new driver finds it, after the journal alone was read."""
    other = World(trials=0, **rules)
    other.state = world.replayed()
    other.left = 0
    other.tell(ob.Capacity({"CPU": 2}))
    return other


def test_a_running_trial_stops_with_its_next_report():
    world = World(trials=1)
    turn = world.tell(stop("t0"))
    assert kinds(turn.events) == ["UserRequested"]
    assert turn.commands == [cmd.Halt(0, 1, 600.0)]  # time to unwind, but not for ever
    assert world.trial().status == Status.RUNNING
    turn = world.report()
    assert [event.why for event in turn.events if isinstance(event, ev.Reported)] == [STOPPED_BY_USER]
    assert cmd.Reply(0, 1, 1, "stop") in turn.commands
    world.tell(ob.Stopped(0, 1, 1))
    assert (world.trial().status, world.trial().reason) == (Status.TERMINATED, STOPPED_BY_USER)
    assert not world.state.user_stops


def test_a_stop_rule_is_not_asked_about_a_trial_that_a_user_stops():
    world = World(trials=1, stop=StopAt(1))
    world.tell(stop("t0"))
    world.report()
    assert world.trial().why == STOPPED_BY_USER


def test_a_trial_that_waits_ends_at_once():
    world = World(cpus=1, trials=2)
    turn = world.tell(stop("t1"))
    assert kinds(turn.events)[:2] == ["UserRequested", "TrialTerminated"]
    assert world.trial(1).status == Status.TERMINATED
    assert world.trial(0).status == Status.RUNNING


def test_a_trial_that_waits_for_storage_is_answered():
    world = World(trials=1, max_uncommitted=0)
    turn = world.report(sealed="s")
    assert not [each for each in turn.commands if isinstance(each, cmd.Reply)]
    turn = world.tell(stop("t0"))
    assert cmd.Reply(0, 1, 1, "stop") in turn.commands


def test_a_death_after_the_request_is_the_end_and_no_failure():
    world = World(trials=1)
    world.tell(stop("t0"))
    world.tell(ob.Died(0, 1, ev.Cause.SIGNAL, "killed by SIGKILL"))
    assert (world.trial().status, world.trial().total_failures) == (Status.TERMINATED, 0)


@pytest.mark.parametrize("reports", [0, 2])
def test_the_next_driver_ends_a_trial_whose_driver_was_killed_in_between(reports: int):
    world = World(trials=1)
    for _ in range(reports):
        world.report()
    world.tell(stop("t0"))
    later = restored(world)
    later.tell(ob.Resumed(lost="killed"))
    assert (later.trial().status, later.trial().reason) == (Status.TERMINATED, STOPPED_BY_USER)
    assert later.trial().attempt == 1


def test_the_request_survives_an_attempt_that_a_leaving_driver_cuts():
    world = World(trials=1)
    world.tell(stop("t0"))
    for event in (ev.AttemptInterrupted(9.0, 0, 1, ev.Cause.DRIVER_STOPPED), ev.DriverStopped(9.0, "SIGTERM")):
        apply(world.state, event, world.policies.rules.retention)
        world.history.append(event)
    later = restored(world)
    later.tell(ob.Resumed())
    assert later.trial().status == Status.TERMINATED


def test_a_request_is_followed_once():
    world = World(trials=1)
    note = ob.UserAsked("r1", Action.NOTE, "t0", "look at this")
    world.tell(note)
    assert not world.tell(note).events
    later = restored(world)
    assert not later.tell(note).events
    assert [each.text for each in later.trial().notes] == ["look at this"]


def test_a_trial_that_has_ended_is_not_stopped():
    world = World(trials=1)
    world.tell(ob.Returned(0, 1, 1))
    assert refusal(world.tell(stop("t0"))) == "trial t0 has ended already: TERMINATED (returned)"
    assert "no trial nobody" in refusal(world.tell(stop("nobody", "r2")))


def test_a_second_stop_is_refused():
    world = World(trials=1)
    world.tell(stop("t0"))
    assert "told to stop already" in refusal(world.tell(stop("t0", "r2")))


def test_stopping_all_is_an_interruption_that_can_be_resumed():
    world = World(cpus=1, trials=2)
    world.save()
    turn = world.tell(stop())
    assert world.memory.draining == STOPPED_ALL
    assert cmd.SaveSoon(0, 1) in turn.commands
    assert "shutting down already" in refusal(world.tell(stop("", "r2")))
    world.tell(ob.Stopped(0, 1, 1))
    assert [trial.status for trial in world.state.trials] == [Status.PENDING, Status.PENDING]
    later = restored(world)
    later.tell(ob.Resumed())
    later.tell(ob.VerifyEnded(0, 0, ok=True))
    assert later.trial().status == Status.RUNNING  # what the dead driver was asked for is done


def test_notes_and_tags_of_trials_and_of_the_experiment():
    world = World(trials=1)
    world.tell(
        ob.UserAsked("a", Action.NOTE, "t0", "first", by="ann@box"),
        ob.UserAsked("b", Action.NOTE, "", "for all"),
        ob.UserAsked("c", Action.TAG, "t0", tags=("good", "again")),
        ob.UserAsked("d", Action.TAG, "t0", tags=("good", "more")),
        ob.UserAsked("e", Action.UNTAG, "t0", tags=("again",)),
        ob.UserAsked("f", Action.TAG, "", tags=("paper",)),
    )
    assert world.trial().notes == (UserNote(world.at, "first", "ann@box"),)
    assert world.trial().tags == ("good", "more")
    assert (world.state.tags, [each.text for each in world.state.notes]) == (("paper",), ["for all"])


def test_there_is_a_most_of_notes_and_tags():
    world = World(trials=1)
    world.tell(*(ob.UserAsked(f"n{i}", Action.NOTE, "t0", "x") for i in range(MAX_NOTES)))
    assert "notes already" in refusal(world.tell(ob.UserAsked("more", Action.NOTE, "t0", "x")))
    tags = tuple(f"tag{i}" for i in range(MAX_TAGS + 1))
    assert "is the most" in refusal(world.tell(ob.UserAsked("tags", Action.TAG, "t0", tags=tags)))


def samples(number: int, request: str = "r1") -> ob.UserAsked:
    return ob.UserAsked(request, Action.SAMPLES, num_samples=number, total=number, by="ann@box")


def test_more_samples_reopen_a_search_that_has_made_all_its_trials():
    world = World(trials=1, num_samples=1)
    assert world.state.search_ended
    turn = world.tell(samples(3))
    (change,) = [event for event in turn.events if isinstance(event, ev.SettingsChanged)]
    assert (change.num_samples, change.request, change.words) == (3, "r1", ("num_samples 1 -> 3",))
    assert world.state.requests == {"r1": None}
    assert (world.state.settings.num_samples, world.state.settings.total) == (3, 3)
    assert not world.tell(samples(3)).events  # the same request again


def test_the_number_of_samples_may_only_grow():
    world = World(trials=1, num_samples=4)
    assert "smaller" in refusal(world.tell(samples(3)))
    assert "4 already" in refusal(world.tell(samples(4, "r2")))
    world.tell(samples(-1, "r3"))
    assert "no limit" in refusal(world.tell(samples(9, "r4")))


def test_no_samples_are_added_to_what_is_being_stopped():
    world = World(trials=1, num_samples=1)
    world.tell(ob.StopAll("time is up"))
    assert "time is up" in refusal(world.tell(samples(3)))


def test_the_fold_remembers_the_latest_requests_only():
    world = World(trials=1)
    for i in range(KEPT_REQUESTS + 5):
        world.tell(stop("nobody", f"r{i}"))
    assert len(world.state.requests) == KEPT_REQUESTS
    assert f"r{KEPT_REQUESTS + 4}" in world.state.requests


def test_a_snapshot_holds_what_users_said():
    world = World(cpus=1, trials=2)
    world.tell(
        stop("t0"),
        ob.UserAsked("a", Action.NOTE, "t1", "one"),
        ob.UserAsked("b", Action.TAG, "", tags=("paper",)),
        ob.UserAsked("c", Action.NOTE, "", "all"),
    )
    payload = snapshot_payload(world.state, world.state.trials, {})
    record = msgspec.msgpack.decode(payload, type=SnapshotRecord)
    state = state_from(record, [], world.policies.rules.retention)
    assert (state.requests, state.tags, state.notes) == (world.state.requests, ("paper",), world.state.notes)
    assert state.user_stops == {0: None}
    assert state.trials[1].notes == world.trial(1).notes


def test_older_records_of_trials_and_snapshots_are_read():
    world = World(trials=1)
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(world.trial()))[:-3]
    trial = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=type(world.trial()))
    assert (trial.user_stop, trial.tags, trial.notes) == (False, (), ())
    payload = msgspec.msgpack.decode(snapshot_payload(world.state, world.state.trials, {}))[:-3]
    record = msgspec.msgpack.decode(msgspec.msgpack.encode(payload), type=SnapshotRecord)
    assert (record.requests, record.tags, record.notes) == ([], (), ())


@pytest.mark.parametrize(
    "event",
    [
        ev.UserRequested(1.0, 7, "r", Action.NOTE, "of nobody"),
        ev.UserRequested(1.0, -1, "r", "dance"),
    ],
)
def test_a_record_that_no_driver_writes_does_not_fit(event: ev.UserRequested):
    with pytest.raises(IllegalTransitionError):
        apply(State(), event, World().policies.rules.retention)
