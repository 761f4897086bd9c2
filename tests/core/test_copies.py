"""Trials that continue from another trial's checkpoint: what is held for them, where they start, what is judged."""

from scripted_scheduler import ScriptedScheduler
from world import World, kinds

from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.policies import Verdict
from holdfast.core.retention import Retention
from holdfast.core.state import Status

ONE = Retention(num_to_keep=1)


def started_copy(**settings):
    """Trial 1 has two rows, and runs as a copy of trial 0, whose checkpoint is of row 1."""
    world = World(trials=2, max_failures=9, **settings)
    world.save(0, "a")
    world.report(1)
    world.report(1)
    world.copy(0, into=1)
    world.fail(1)
    world.tell(ob.VerifyEnded(0, 0, ok=True))
    return world


def same_when_replayed(world):
    replayed = world.replayed()
    assert replayed.holds == world.state.holds
    assert replayed.trials[1] == world.trial(1)


def test_a_copy_keeps_its_own_rows_and_continues_the_donors_counters():
    world = started_copy()
    trial = world.trial(1)
    assert world.history[-1] == ev.TrialStarted(world.at, 1, 2, 2, (0, 0))
    assert (trial.rows, trial.iteration, trial.metrics) == (2, 1, {"loss": 1.0})
    world.report(1)
    assert (trial.rows, trial.iteration) == (3, 2)
    same_when_replayed(world)


def test_a_donors_checkpoint_stays_until_the_copy_has_one_of_its_own():
    world = started_copy(retention=ONE)
    world.save(0, "b")
    assert world.state.holds == {(0, 0): 1}
    assert [record.index for record in world.trial(0).committed()] == [0, 1]
    world.report(1, sealed="mine")
    turn = world.commit(1)
    assert kinds(turn.events) == ["CheckpointCommitted", "CheckpointsDropped"]
    assert turn.events[1] == ev.CheckpointsDropped(world.at, 0, (0,))
    assert not world.state.holds
    same_when_replayed(world)


def test_a_checkpoint_that_the_copy_made_before_it_became_one_releases_nothing():
    world = World(trials=2, max_failures=9, retention=ONE)
    world.save(0, "a")
    world.report(1, sealed="old")
    world.copy(0, into=1)
    world.commit(1)
    assert world.state.holds == {(0, 0): 1}
    world.fail(1)
    world.tell(ob.VerifyEnded(0, 0, ok=True))
    assert world.trial(1).source == (0, 0)


def test_a_donors_checkpoint_is_dropped_when_its_copy_has_ended():
    world = started_copy(retention=ONE)
    world.save(0, "b")
    turn = world.tell(ob.Returned(1, 2, 1))
    assert kinds(turn.events) == ["TrialTerminated", "CheckpointsDropped"]
    assert not world.state.holds


def test_a_copy_that_failed_for_good_may_be_resumed_and_its_origin_stays():
    world = World(trials=2, retention=ONE)
    world.save(0, "a")
    world.copy(0, into=1)
    world.fail(1)
    assert world.trial(1).status == Status.ERROR
    world.save(0, "b")
    assert world.state.holds == {(0, 0): 1}


def test_an_ended_copy_that_runs_again_holds_its_origin_again_if_that_is_still_there():
    world = started_copy()
    world.tell(ob.Returned(1, 2, 1))
    assert not world.state.holds
    world.tell(ob.Resumed(finished="resume"))
    assert world.state.holds == {(0, 0): 1}
    same_when_replayed(world)


def test_a_copy_whose_own_checkpoint_is_damaged_falls_back_to_its_origin_and_holds_it():
    world = started_copy()
    world.save(1, "mine")
    assert not world.state.holds
    world.fail(1)
    world.tell(ob.VerifyEnded(1, 0, ok=False, damaged=True, message="rotten"))
    assert world.state.holds == {(0, 0): 1}
    world.tell(ob.VerifyEnded(0, 0, ok=True))
    assert world.history[-1] == ev.TrialStarted(world.at, 1, 3, 2, (0, 0))
    same_when_replayed(world)


def test_a_copy_whose_origin_is_damaged_falls_back_to_what_it_saved_before():
    world = World(trials=2, max_failures=9)
    world.save(0, "a")
    world.save(1, "old")
    world.report(1)
    world.copy(0, into=1)
    world.fail(1)
    world.tell(ob.VerifyEnded(0, 0, ok=False, damaged=True, message="rotten"))
    world.tell(ob.VerifyEnded(1, 0, ok=True))
    assert world.history[-1] == ev.TrialStarted(world.at, 1, 2, 1, (1, 0))


def test_a_copy_that_has_nothing_left_says_so_before_it_begins_anew():
    world = started_copy()
    world.fail(1)
    turn = world.tell(ob.VerifyEnded(0, 0, ok=False, damaged=True, message="rotten"))
    assert kinds(turn.events) == ["CheckpointRejected", "Noted", "TrialStarted"]
    assert "checkpoint_000000 of trial t0" in turn.events[1].text
    assert "from the beginning" in turn.events[1].text


def test_a_trial_that_the_user_restarts_is_no_copy_any_more():
    world = started_copy(retention=ONE)
    world.save(0, "b")
    turn = world.tell(ob.Resumed(unfinished="restart"))
    assert world.trial(1).origin is None
    assert not world.state.holds
    assert ev.CheckpointsDropped(world.at, 0, (0,)) in turn.events
    assert world.trial(1).source is None
    same_when_replayed(world)


def test_a_copy_of_a_copy_refers_to_the_checkpoint_that_is_really_there():
    world = World(trials=3, max_failures=9, cpus=3)
    world.save(0, "a")
    world.copy(0, into=1)
    assert world.state.start_point(world.trial(1)) == ((0, 0), 0)
    world.copy(1, into=2)
    assert world.trial(2).origin == (0, 0)
    assert world.state.holds == {(0, 0): 2}


def test_a_step_is_judged_once_however_often_it_is_repeated():
    scheduler = ScriptedScheduler()
    world = World(scheduler=scheduler, max_failures=9)
    world.save()
    world.report()
    world.report()
    world.fail()
    world.tell(ob.VerifyEnded(0, 0, ok=True))
    scheduler.verdicts[0, 3] = Verdict.STOP
    for _ in range(3):
        world.report()
    assert scheduler.judged == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert [e.verdict for e in world.history if isinstance(e, ev.Reported)] == [""] * 6


def test_repeated_rows_are_marked_for_whoever_has_heard_of_them():
    world = World(max_failures=9)
    world.save()
    world.report()
    world.fail()
    world.tell(ob.VerifyEnded(0, 0, ok=True))
    assert world.trial().judged == 2
    world.report()
    assert world.trial().again
    world.report()
    assert not world.trial().again
    assert world.trial().judged == 3


def test_steps_of_a_copy_are_judged_also_if_it_had_got_further_before():
    """It had three rows, repeated the second one, and became a copy then."""
    scheduler = ScriptedScheduler()
    world = World(trials=2, scheduler=scheduler, max_failures=9)
    world.save(0, "a")
    world.save(1, "b")
    world.report(1)
    world.report(1)
    world.fail(1)
    world.tell(ob.VerifyEnded(1, 0, ok=True))
    world.report(1)
    world.copy(0, into=1)
    world.fail(1)
    world.tell(ob.VerifyEnded(0, 0, ok=True))
    assert (world.trial(1).rows, world.trial(1).judged) == (2, 2)
    scheduler.judged.clear()
    world.report(1)
    assert scheduler.judged == [(1, 3)]


def test_a_restarted_trial_is_judged_from_its_first_step():
    scheduler = ScriptedScheduler()
    world = World(scheduler=scheduler)
    world.report()
    world.tell(ob.Resumed(unfinished="restart"))
    world.report()
    assert scheduler.judged == [(0, 1), (0, 1)]
