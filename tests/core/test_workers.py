"""Who reported: known for as long as somebody may ask, and no longer."""

from world import World

from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.state import State, WorkerFacts
from holdfast.core.transitions import apply


def epoch(world: World, number: int) -> None:
    world.history.append(ev.EpochStarted(world.at, number, "w", "h", 1))
    apply(world.state, world.history[-1], world.policies.rules.retention)


def facts(worker: int) -> WorkerFacts:
    return WorkerFacts("host", "10.0.0.1", 1000 + worker)


def join(world: World, worker: int) -> None:
    world.tell(ob.Joined(worker, "host", "10.0.0.1", 1000 + worker))


def report(world: World, worker: int, n: int = 0) -> None:
    trial = world.trial(n)
    world.tell(ob.Report(n, trial.attempt, worker, trial.ordinal + 1, 0.5, {"loss": 1.0}))


def fresh_process_per_attempt(world: World, first: int, count: int) -> None:
    for worker in range(first, first + count):
        join(world, worker)
        report(world, worker)
        world.fail()


def test_workers_of_earlier_drivers_are_forgotten_once_no_trial_tells_of_them():
    world = World(max_failures=-1)
    for number in range(1, 5):
        epoch(world, number)
        world.tell(ob.Resumed())
        first = max(world.state.workers, default=0) + 1
        fresh_process_per_attempt(world, first, 20)
        assert first == 20 * (number - 1) + 1  # a number is never used twice
        assert len(world.state.workers) <= 21
    epoch(world, 5)
    assert world.state.workers == {80: facts(80)}
    assert world.trial().where == facts(80)


def test_the_newest_worker_is_remembered_even_if_it_never_reported():
    world = World()
    epoch(world, 1)
    for worker in (1, 2, 3):
        join(world, worker)
    report(world, 1)
    epoch(world, 2)
    assert world.state.workers == {1: facts(1), 3: facts(3)}
    join(world, 4)
    epoch(world, 3)
    assert world.state.workers == {1: facts(1), 4: facts(4)}


def test_a_trial_remembers_where_its_last_row_comes_from():
    world = World(trials=2, max_failures=-1)
    epoch(world, 1)
    for worker in (1, 2):
        join(world, worker)
    report(world, 1, n=0)
    report(world, 1, n=1)
    assert world.trial(0).where == world.trial(1).where == facts(1)
    assert (world.state.seen_by, world.state.unseen) == ({1: 2}, {2: facts(2)})
    report(world, 2, n=0)
    report(world, 2, n=1)
    assert world.trial(0).where == world.trial(1).where == facts(2)
    assert (world.state.seen_by, world.state.unseen) == ({2: 2}, {1: facts(1)})


def test_folding_the_recorded_events_gives_the_same_workers():
    world = World(trials=2, max_failures=-1)
    epoch(world, 1)
    fresh_process_per_attempt(world, 1, 5)
    epoch(world, 2)
    join(world, 6)
    again: State = world.replayed()
    assert (again.workers, again.unseen, again.seen_by) == (
        world.state.workers,
        world.state.unseen,
        world.state.seen_by,
    )


def test_the_end_of_an_attempt_tells_where_a_trial_ran_that_never_reported():
    world = World(trials=4, max_failures=1)
    epoch(world, 1)
    for worker in (1, 2, 3, 4):
        join(world, worker)
    world.tell(ob.Returned(0, 1, 1))
    world.tell(ob.Died(1, 1, "signal", "killed by SIGKILL", worker=2))
    report(world, 3, n=2)
    world.tell(ob.Died(2, 1, "preempted", "the node goes away", worker=4))
    ends = [event.worker for event in world.history if hasattr(event, "worker") and hasattr(event, "attempt")]
    assert ends == [1, 2, 3, 0]
    assert world.trial(0).where == facts(1)
    assert world.trial(1).where == facts(2)
    assert world.trial(2).where == facts(3)  # where its row comes from
    assert world.trial(3).where is None


def test_a_worker_that_died_before_it_joined_leaves_its_number_to_another():
    world = World(max_failures=-1)
    epoch(world, 1)
    world.tell(ob.Died(0, 1, "signal", "killed by SIGKILL", worker=2))
    assert world.trial(0).where is None
    join(world, 2)
    report(world, 2)
    join(world, 3)
    world.fail()
    report(world, 3)
    assert world.trial(0).where == facts(3)


def test_the_end_of_a_later_attempt_tells_its_worker_if_it_never_reported():
    world = World(max_failures=-1)
    epoch(world, 1)
    for worker in (1, 2):
        join(world, worker)
    report(world, 1)
    world.tell(ob.Died(0, 1, "signal", "killed by SIGKILL", worker=1))
    assert world.trial(0).attempt == 2
    world.tell(ob.Died(0, 2, "signal", "killed by SIGKILL", worker=2))
    ends = [event.worker for event in world.history if type(event) is ev.AttemptFailed]
    assert ends == [0, 2]
    assert world.trial(0).where == facts(2)  # its only row was superseded
