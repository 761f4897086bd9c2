"""What a scheduler requests for other trials becomes a fact when it can, and stands until then."""

from scripted_scheduler import ScriptedScheduler
from world import World, kinds

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.policies import Reconfigure, Resize, Stop, Verdict
from holdfast.core.retention import Retention
from holdfast.core.state import Status, units


def paused(scheduler, n=0, **settings):
    """A world whose trial ``n`` was paused at its first report, and which starts nothing more."""
    world = World(scheduler=scheduler, **settings)
    scheduler.verdicts[n, 1] = Verdict.PAUSE
    world.report(n)
    scheduler.idle = True
    world.tell(ob.Stopped(n, 1, 1))
    return world


def test_a_trial_that_waits_is_ended_at_once():
    scheduler = ScriptedScheduler()
    world = paused(scheduler, trials=2)
    scheduler.standing.append(Stop(0, "not good enough"))
    assert world.tell().events == [ev.TrialTerminated(world.at, 0, 1, "not good enough")]
    assert not scheduler.standing


def test_a_request_to_stop_a_running_trial_stands_until_that_trial_waits():
    scheduler = ScriptedScheduler()
    world = World(scheduler=scheduler, max_failures=1)
    scheduler.standing.append(Stop(0, "not good enough"))
    assert world.tell().events == []
    turn = world.fail()
    assert kinds(turn.events) == ["AttemptFailed", "TrialTerminated"]


def test_a_parked_trial_can_be_ended_and_what_it_waited_for_does_not_bring_it_back():
    scheduler = ScriptedScheduler()
    world = World(scheduler=scheduler, max_failures=1)
    world.save()
    world.fail()
    assert world.memory.parked == {0}
    scheduler.standing.append(Stop(0, "enough"))
    world.tell()
    assert world.trial().status == Status.TERMINATED
    assert world.tell(ob.VerifyEnded(0, 0, ok=True)).events == []


def test_a_trial_that_was_told_to_pause_becomes_a_copy_before_it_has_left():
    scheduler = ScriptedScheduler()
    world = World(scheduler=scheduler, trials=2)
    world.save(0)
    scheduler.verdicts[1, 1] = Verdict.PAUSE
    scheduler.standing.append(Reconfigure(1, {"x": 9}, "x=9", (0, 0), 0))
    assert world.tell().events == []  # it runs, and has not reported
    turn = world.report(1)
    assert kinds(turn.events) == ["Reported", "TrialReconfigured"]
    assert world.trial(1).config == {"x": 9}
    assert world.trial(1).origin == (0, 0)
    assert world.state.holds == {(0, 0): 1}


def test_a_copy_to_be_does_not_save_what_nobody_would_load():
    scheduler = ScriptedScheduler()
    world = World(scheduler=scheduler, trials=2, is_class=True)
    world.save(0)
    scheduler.verdicts[1, 1] = scheduler.verdicts[0, 2] = Verdict.PAUSE
    scheduler.standing.append(Reconfigure(1, {"x": 9}, donor=(0, 0), parent=0))
    (copy,) = [c for c in world.report(1).commands if isinstance(c, cmd.Reply)]
    (other,) = [c for c in world.report(0).commands if isinstance(c, cmd.Reply)]
    assert (copy.go, copy.save) == ("pause", False)
    assert (other.go, other.save) == ("pause", True)


def test_a_request_for_a_checkpoint_that_is_gone_is_not_applied():
    scheduler = ScriptedScheduler()
    world = paused(scheduler, 1, trials=2)
    world.save(0)
    scheduler.standing.append(Reconfigure(1, {"x": 9}, donor=(0, 7), parent=0))
    assert world.tell().events == []
    assert world.trial(1).config == {"x": 1}


def test_a_config_can_change_without_a_donor():
    scheduler = ScriptedScheduler()
    world = paused(scheduler, trials=2)
    scheduler.standing.append(Reconfigure(0, {"x": 5}, "x=5", params=("x", "y"), why="it was bad"))
    (event,) = world.tell().events
    assert isinstance(event, ev.TrialReconfigured)
    assert event.why == "it was bad"
    trial = world.trial()
    assert (trial.config, trial.shown_tag, trial.params, trial.origin) == ({"x": 5}, "x=5", ("x", "y"), None)


def test_a_trial_gets_other_resources_when_it_next_starts():
    scheduler = ScriptedScheduler()
    world = World(scheduler=scheduler, cpus=4)
    scheduler.standing.append(Resize(0, {"CPU": 3.0}, "more is free"))
    assert world.tell().events == []  # it runs
    scheduler.verdicts[0, 1] = Verdict.PAUSE
    world.report()
    turn = world.tell(ob.Stopped(0, 1, 1))
    assert kinds(turn.events) == ["TrialPaused", "TrialResized", "TrialResumed", "TrialStarted"]
    assert turn.events[1] == ev.TrialResized(world.at, 0, {"CPU": 3.0}, why="more is free")
    assert world.state.used == units({"CPU": 3.0})
    assert not world.state.uniform


def test_requests_are_applied_before_a_new_driver_drops_anything():
    """A crash came between the report and the copy that it led to; the donor has a newer checkpoint meanwhile."""
    scheduler = ScriptedScheduler()
    world = World(scheduler=scheduler, trials=2)
    world.save(0)
    scheduler.verdicts[1, 1] = Verdict.PAUSE
    world.report(1)
    scheduler.standing.append(Reconfigure(1, {"x": 9}, donor=(0, 0), parent=0))
    turn = world.tell(ob.Resumed(lost="it was killed"))
    assert kinds(turn.events)[:3] == ["TrialReconfigured", "AttemptInterrupted", "TrialPaused"]


def test_what_a_copy_no_longer_needs_is_dropped_when_it_copies_another():
    scheduler = ScriptedScheduler()
    world = paused(scheduler, 2, trials=3, cpus=3, retention=Retention(num_to_keep=1))
    world.save(0, "a")
    world.save(1, "b")
    scheduler.standing.append(Reconfigure(2, {"x": 7}, donor=(0, 0), parent=0))
    world.tell()
    world.save(0, "c")
    assert [record.index for record in world.trial(0).committed()] == [0, 1]
    scheduler.standing.append(Reconfigure(2, {"x": 8}, donor=(1, 0), parent=1))
    turn = world.tell()
    assert kinds(turn.events) == ["TrialReconfigured", "CheckpointsDropped"]
    assert turn.events[1] == ev.CheckpointsDropped(world.at, 0, (0,))
    assert world.state.holds == {(1, 0): 1}
