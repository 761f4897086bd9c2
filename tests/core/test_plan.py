"""What is started and asked for, and what happens when nothing would happen any more."""

from scripted_scheduler import ScriptedScheduler
from world import World, kinds

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.decide import decide_all
from holdfast.core.ending import terminate
from holdfast.core.plan import STOOD_STILL, WAITS_IN_VAIN, finished
from holdfast.core.policies import Policies, Rules, Stop, Verdict
from holdfast.core.state import DriverMemory, State, Status
from holdfast.core.turn import Turn
from holdfast.schedulers.fifo import FirstInFirstOut


def all_paused(trials=2, **settings):
    """Every trial was paused at its first report, and the scheduler starts nothing."""
    scheduler = ScriptedScheduler()
    world = World(scheduler=scheduler, trials=trials, **settings)
    for n in range(trials):
        scheduler.verdicts[n, 1] = Verdict.PAUSE
        world.report(n)
    scheduler.idle = True
    for n in range(trials - 1):
        world.tell(ob.Stopped(n, 1, 1))
    return world, scheduler


def test_when_everything_is_paused_the_scheduler_is_told_and_the_oldest_goes_on():
    world, _ = all_paused()
    turn = world.tell(ob.Stopped(1, 1, 1))
    assert kinds(turn.events) == ["TrialPaused", "StoodStill", "TrialResumed", "TrialStarted"]
    assert turn.events[0].why == "scripted"
    assert (turn.events[2].n, turn.events[2].why) == (0, STOOD_STILL)
    assert world.tell().events == []  # something runs


def test_a_scheduler_that_changes_its_mind_at_a_standstill_is_heard():
    world, scheduler = all_paused()
    scheduler.still = lambda: setattr(scheduler, "idle", False)
    turn = world.tell(ob.Stopped(1, 1, 1))
    assert kinds(turn.events).count("TrialStarted") == 2


def test_a_scheduler_may_end_what_is_paused_at_a_standstill():
    world, scheduler = all_paused()
    scheduler.still = lambda: scheduler.standing.extend([Stop(0, "over"), Stop(1, "over")])
    turn = world.tell(ob.Stopped(1, 1, 1))
    assert kinds(turn.events) == ["TrialPaused", "StoodStill", "TrialTerminated", "TrialTerminated"]
    assert finished(world.state, world.memory)


def test_a_standstill_that_comes_again_is_told_again():
    world, scheduler = all_paused()
    world.tell(ob.Stopped(1, 1, 1))
    scheduler.verdicts[0, 2] = Verdict.PAUSE
    world.report(0)  # it has never saved anything, so that it repeats its first step
    world.report(0)
    turn = world.tell(ob.Stopped(0, 2, 1))
    assert kinds(turn.events) == ["TrialPaused", "StoodStill", "TrialResumed", "TrialStarted"]
    assert turn.events[2].n == 1


def test_what_runs_or_is_being_saved_is_no_standstill():
    world, _ = all_paused()
    assert world.state.running
    assert "StoodStill" not in kinds(world.history)
    scheduler = ScriptedScheduler()
    world = World(scheduler=scheduler)
    scheduler.verdicts[0, 1] = Verdict.PAUSE
    world.report(sealed="a")
    scheduler.idle = True
    assert kinds(world.tell(ob.Stopped(0, 1, 1)).events) == ["TrialPaused"]
    turn = world.commit()
    assert kinds(turn.events) == ["CheckpointCommitted", "StoodStill", "TrialResumed"]
    assert cmd.Verify(0, 0) in turn.commands


def test_a_driver_that_ends_does_not_mind_a_standstill():
    world, _ = all_paused()
    world.tell(ob.Interrupted("SIGINT"))
    assert kinds(world.tell(ob.Stopped(1, 1, 1)).events) == ["TrialPaused"]


def test_a_scheduler_that_starts_no_new_trial_either_does_not_stop_the_experiment():
    scheduler = ScriptedScheduler()
    scheduler.idle = True
    world = World(scheduler=scheduler, trials=2)
    assert kinds(world.history)[-2:] == ["StoodStill", "TrialStarted"]
    assert world.trial(0).status == Status.RUNNING


def test_trials_that_wait_before_they_are_tried_again_are_no_standstill():
    world, _ = all_paused(2)
    world.memory.held_until[0] = 1000.0
    assert kinds(world.tell(ob.Stopped(1, 1, 1)).events) == ["TrialPaused"]
    world.at = 1000.0
    assert kinds(world.tell().events) == ["StoodStill", "TrialResumed", "TrialStarted"]


# --- trials that were chosen, and whose checkpoints are being read


class NewestFirst(FirstInFirstOut):
    """Starts the trial that came back last."""

    def choose(self, state, memory, fits):
        return next((n for n in reversed(state.pending) if fits(n)), None)


def reading():
    """Trial 0 was chosen before trial 2, and its checkpoint is being read."""
    world = World(trials=2, cpus=2, scheduler=NewestFirst(), max_failures=9)
    world.left = 1
    world.save(0)
    world.tell_more(world.tell(), 1)
    world.fail(0)
    assert world.memory.parked == {0}
    return world


def test_nobody_takes_the_place_of_a_trial_whose_checkpoint_is_being_read():
    world = reading()
    assert world.tell().events == []
    turn = world.tell(ob.VerifyEnded(0, 0, ok=True))
    assert turn.events == [ev.TrialStarted(world.at, 0, 2, 1, (0, 0))]
    assert not world.memory.reserved


def test_a_driver_that_ends_in_the_same_turn_starts_nothing():
    world = reading()
    assert world.tell(ob.VerifyEnded(0, 0, ok=True), ob.Interrupted("SIGINT")).events == []


def test_an_experiment_that_is_stopped_in_the_same_turn_starts_nothing():
    world = reading()
    turn = world.tell(ob.VerifyEnded(0, 0, ok=True), ob.StopAll("enough"))
    assert "TrialStarted" not in kinds(turn.events)
    assert world.trial(0).status == Status.TERMINATED
    assert not world.memory.reserved


def test_the_place_of_a_trial_that_is_ended_while_its_checkpoint_is_read_is_free():
    world = reading()
    terminate(Turn(world.state, world.memory, world.policies, world.at), world.trial(0), "over")
    assert not world.memory.reserved
    assert kinds(world.tell().events) == ["TrialStarted"]


# --- searchers that learn


class Listener:
    """A searcher's edge that counts what it is told."""

    def __init__(self):
        self.told = 0

    def __call__(self, state, event):
        if not isinstance(event, ev.SearchAsked | ev.TrialTerminated | ev.Reported):
            return False
        self.told += 1
        return True


class Asking:
    """The core with a searcher that learns, and answers when the test says so."""

    def __init__(self, state=None, **rules):
        self.listener = Listener()
        self.state = state or State()
        self.memory = DriverMemory()
        stop = World().policies.stop
        rules = Rules(searcher_learns=True, lookahead=1, **rules)
        self.policies = Policies(rules, FirstInFirstOut(), stop, lambda *args: {}, self.listener)
        self.at = 0.0

    def tell(self, *observations):
        self.at += 1.0
        return decide_all(Turn(self.state, self.memory, self.policies, self.at), observations)

    def begin(self):
        return self.tell(ob.Capacity({"CPU": 2}))

    def propose(self):
        n = len(self.state.trials)
        return self.tell(ob.Proposed(f"t{n}", {"x": n}, f"{n}", ("x",), None, None))


def test_asking_a_searcher_that_learns_is_a_fact_and_happens_once():
    asking = Asking()
    turn = asking.begin()
    assert turn.events == [ev.SearchAsked(1.0, 1)]
    assert cmd.Propose(1) in turn.commands
    assert asking.tell().events == []
    assert kinds(asking.propose().events) == ["TrialCreated", "TrialStarted", "SearchAsked"]


def test_a_searcher_that_does_not_learn_is_asked_without_a_record():
    assert "SearchAsked" not in kinds(World(trials=2).history)


def test_the_next_driver_does_not_ask_for_what_is_still_owed():
    """The first one died before there was any trial."""
    state = Asking().begin().state
    after = Asking(state)
    assert after.begin().events == []
    assert after.memory.asked == 1
    assert kinds(after.propose().events) == ["TrialCreated", "TrialStarted", "SearchAsked"]


def test_a_searcher_that_waits_for_results_which_cannot_come_ends_the_search():
    asking = Asking()
    asking.begin()
    assert asking.tell(ob.NotYet(asking.listener.told)).events == [ev.SearchEnded(2.0, WAITS_IN_VAIN)]
    assert finished(asking.state, asking.memory)


def test_a_searcher_may_wait_as_long_as_there_is_a_trial():
    asking = Asking()
    asking.begin()
    asking.propose()
    assert asking.tell(ob.NotYet(asking.listener.told)).events == []
    assert asking.memory.search_waits


def test_a_not_now_that_crosses_with_news_is_not_the_last_word():
    asking = Asking()
    asking.begin()
    asking.propose()
    before = asking.listener.told
    asking.tell(ob.Returned(0, 1, 1))
    assert asking.tell(ob.NotYet(before)).events == []
    assert not asking.memory.search_waits
    assert asking.tell(ob.NotYet(asking.listener.told)).events == [ev.SearchEnded(asking.at, WAITS_IN_VAIN)]


def test_news_in_the_same_turn_take_a_not_now_back():
    asking = Asking()
    asking.begin()
    asking.propose()
    asking.tell(ob.NotYet(asking.listener.told))
    turn = asking.tell(ob.Returned(0, 1, 1))
    assert kinds(turn.events) == ["TrialTerminated"]
    assert not asking.memory.search_waits


def wide(world, cpus):
    """A trial of so many CPUs is proposed; what follows."""
    world.memory.asked = 1
    n = len(world.state.trials)
    return world.tell(ob.Proposed(f"w{n}", {"x": n}, f"{n}", ("x",), None, {"CPU": cpus}))


def test_on_a_cluster_a_trial_waits_for_a_machine_of_its_size():
    """It would occupy what others could use, and wait for ever in the engine."""
    world = World(trials=0, lookahead=1)
    world.tell(ob.Capacity({"CPU": 4.0}, ({"CPU": 2.0},)))
    assert kinds(wide(world, 3.0).events) == ["TrialCreated"]
    assert "TrialStarted" in kinds(wide(world, 2.0).events)
    assert world.trial(0).status == Status.PENDING
    turn = world.tell(ob.Capacity({"CPU": 8.0}, ({"CPU": 2.0}, {"CPU": 4.0})))
    assert cmd.Launch(0, 1) in turn.commands


def test_bundles_may_be_on_several_machines():
    world = World(trials=0, lookahead=1, spans_machines=True)
    world.tell(ob.Capacity({"CPU": 4.0}, ({"CPU": 2.0},)))
    assert "TrialStarted" in kinds(wide(world, 3.0).events)
