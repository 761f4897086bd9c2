"""How long trials wait before they are tried again: interruptions without progress, and full disks."""

from world import World, kinds

from holdfast.core import commands as cmd
from holdfast.core import observations as ob
from holdfast.core.state import Status
from holdfast.core.trial_delays import MAX_DOUBTFUL


def test_a_full_disk_is_nobodys_failure():
    world = World(max_failures=0)
    world.fail(storage=True)
    assert world.trial().total_failures == 0
    assert world.trial().status == Status.RUNNING  # tried again at once, the first time


def test_repeated_interruptions_without_progress_wait_longer_each_time():
    world = World()
    world.fail(storage=True)
    world.fail(storage=True)
    assert world.trial().status == Status.PENDING
    world.at += 5
    world.tell()
    assert world.trial().status == Status.RUNNING


def test_the_late_end_of_a_commit_does_not_end_the_waiting_for_space():
    world = World(max_failures=0)
    world.report(sealed="s")
    world.fail(storage=True)
    world.commit()
    world.tell(ob.VerifyEnded(0, 0, ok=True))
    assert world.trial().status == Status.RUNNING
    world.report()
    turn = world.fail(storage=True)
    assert cmd.Verify(0, 0) not in turn.commands  # it was saved before the disk was full
    world.at += 2
    assert cmd.Verify(0, 0) in world.tell().commands


def test_a_checkpoint_that_fits_ends_the_waiting_for_space():
    world = World(max_failures=0)
    world.fail(storage=True)
    world.save()
    assert cmd.Verify(0, 0) in world.fail(storage=True).commands  # to be tried again at once


def test_a_full_disk_that_only_the_trial_sees_counts_as_its_failure_in_the_end():
    world = World(max_failures=0)
    for _ in range(MAX_DOUBTFUL):
        assert kinds(world.fail(storage=True, doubtful=True).events)[0] == "AttemptInterrupted"
        world.at += 100.0
        world.tell()
    assert kinds(world.fail(storage=True, doubtful=True).events) == ["TrialErrored"]


def test_a_full_disk_that_we_see_too_is_waited_for_without_end():
    world = World(max_failures=0)
    for _ in range(3 * MAX_DOUBTFUL):
        assert kinds(world.fail(storage=True).events)[0] == "AttemptInterrupted"
        world.at += 100.0
        world.tell()
