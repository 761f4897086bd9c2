"""Checkpoints that wait to be committed: trials train on until too many bytes do, and each may always have one."""

from __future__ import annotations

import pytest
from world import World, kinds

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.decide import SUPERSEDED
from holdfast.core.policies import NO_LIMIT
from holdfast.core.retention import Retention

SIZE = 10  # of a checkpoint in this world


def world_with(limit: int | None, **more: object) -> World:
    return World(**{"max_uncommitted": NO_LIMIT, "max_backlog_bytes": limit, **more})


def answered(turn) -> list[int]:
    return [command.n for command in turn.commands if isinstance(command, cmd.Reply)]


def fill(world: World, count: int, n: int = 0) -> None:
    for _ in range(count):
        assert answered(world.report(n, sealed=f"s{n}-{world.trial(n).next_index}")) == [n]


def commit(world: World, n: int, index: int):
    return world.tell(ob.CommitEnded(n, index, f"digest{index}", SIZE))


def test_many_checkpoints_may_wait_as_long_as_their_bytes_fit():
    world = world_with(50 * SIZE)
    fill(world, 50)
    assert world.state.staged_bytes == 50 * SIZE
    assert "BacklogFilled" not in kinds(world.history)


def test_a_trial_that_saves_into_a_full_backlog_waits_until_there_is_room():
    world = world_with(4 * SIZE)
    fill(world, 4)
    turn = world.report(sealed="one too many")
    assert answered(turn) == []
    assert turn.events[-1] == ev.BacklogFilled(world.at, 5, 5 * SIZE, 4 * SIZE)
    assert (world.state.full_since, world.state.full_limit) == (world.at, 4 * SIZE)
    turn = commit(world, 0, 0)
    assert answered(turn) == [0]
    assert "BacklogEased" not in kinds(turn.events), "it is almost full, and will be again at once"
    for index in (1, 2):
        turn = commit(world, 0, index)
    assert turn.events[-1] == ev.BacklogEased(world.at, 2, 2 * SIZE)
    assert world.state.full_since == 0.0


def test_reports_without_a_checkpoint_do_not_wait():
    world = world_with(2 * SIZE, trials=2)
    fill(world, 2)
    world.report(0, sealed="waits")
    assert answered(world.report(1)) == [1]
    fill(world, 1, n=1)
    assert answered(world.report(1, sealed="second")) == []
    commit(world, 1, 0)
    assert answered(world.report(1)) == [1]
    assert world.state.staged_bytes > 2 * SIZE


def test_whatever_the_others_have_each_trial_may_have_one_and_is_answered_when_that_is_committed():
    world = world_with(0, trials=2)
    fill(world, 1, n=0)
    fill(world, 1, n=1)
    assert answered(world.report(0, sealed="a")) == []
    assert answered(world.report(1, sealed="b")) == []
    assert answered(commit(world, 1, 0)) == [1]
    assert answered(commit(world, 0, 0)) == [0]


def test_room_is_given_to_whoever_has_waited_longest_first():
    world = world_with(3 * SIZE, trials=3, cpus=3)
    fill(world, 2, n=2)
    fill(world, 1, n=1)
    order = [2, 1, 0]
    assert answered(world.report(2, sealed="2")) == []
    assert answered(world.report(1, sealed="1")) == []
    fill(world, 1, n=0)
    assert answered(world.report(0, sealed="0")) == []
    freed: list[int] = []
    for n, index in list(world.state.staged):
        freed += answered(commit(world, n, index))
    assert freed == order


def test_by_default_a_quarter_of_what_would_be_free_may_wait():
    world = world_with(None)
    fill(world, 3)
    world.tell(ob.FreeSpace(4 * 4 * SIZE - 3 * SIZE))
    fill(world, 1)
    assert answered(world.report(sealed="one too many")) == []
    assert answered(world.tell(ob.FreeSpace(100 * SIZE))) == [0], "somebody has made room on the disk"


def test_a_full_disk_leaves_each_trial_one():
    world = world_with(None)
    world.tell(ob.FreeSpace(0))
    fill(world, 1)
    assert answered(world.report(sealed="second")) == []
    assert answered(commit(world, 0, 0)) == [0]


def test_a_trial_that_was_told_to_stop_does_not_wait_for_room():
    world = world_with(0)
    fill(world, 1)
    turn = world.report(sealed="last", done=True)
    assert cmd.Reply(0, 1, 2, "stop") in turn.commands


def test_a_driver_that_ends_lets_go_of_trials_that_wait_for_room():
    world = world_with(0)
    fill(world, 1)
    assert answered(world.report(sealed="second")) == []
    turn = world.tell(ob.Interrupted("SIGINT"))
    assert cmd.Reply(0, 1, 2, "stop") in turn.commands
    assert not world.memory.owed
    assert not world.memory.crowded


def test_while_a_driver_ends_nobody_waits_for_room():
    world = world_with(0)
    fill(world, 1)
    world.tell(ob.Interrupted("SIGINT"))
    assert cmd.Reply(0, 1, 2, "stop") in world.report(sealed="last").commands


def test_no_trial_starts_while_those_that_ended_have_more_than_the_limit():
    """Otherwise trials that save once at their end would fill the disk one after the other."""
    world = world_with(SIZE, trials=4, cpus=1)
    for n in range(2):
        fill(world, 1, n=n)
        world.tell(ob.Returned(n, 1, 1))
    assert list(world.state.running) == []
    commit(world, 0, 0)
    assert list(world.state.running) == [2]


def test_what_running_trials_have_keeps_no_other_from_starting():
    """They are allowed to have one at any time, so that the other would never start."""
    world = world_with(0, trials=3, cpus=2)
    fill(world, 1, n=1)
    world.tell(ob.Returned(0, 1, 1))
    assert list(world.state.running) == [1, 2]


@pytest.mark.parametrize("end", ["committed", "damaged", "superseded"])
def test_however_a_commit_ends_its_bytes_wait_no_more(end):
    world = world_with(100 * SIZE, retention=Retention(num_to_keep=1))
    fill(world, 3)
    flags = {} if end == "committed" else {end: True}
    world.tell(ob.CommitEnded(0, 0, "digest", 7, **flags))
    assert world.state.staged_bytes == 2 * SIZE
    assert world.replayed().staged_bytes == 2 * SIZE
    dropped = [event.why for event in world.history if isinstance(event, ev.CheckpointsDropped)]
    assert dropped == ([SUPERSEDED] if end == "superseded" else [])


def test_a_reader_of_the_journal_knows_that_trials_wait_and_the_next_driver_begins_anew():
    world = world_with(0)
    fill(world, 1)
    world.report(sealed="second")
    assert world.replayed().full_since == world.at
    world.history.append(ev.EpochStarted(world.at, 2, "w", "h", 1))
    assert world.replayed().full_since == 0.0
    assert world.replayed().staged_bytes == 2 * SIZE


def test_a_trial_that_dies_while_it_waits_is_not_waited_for():
    world = world_with(0, max_failures=3)
    fill(world, 1)
    world.report(sealed="second")
    world.tell(ob.Died(0, 1, ev.Cause.SIGNAL, "killed"))
    assert not world.memory.crowded
    commit(world, 0, 0)
    turn = commit(world, 0, 1)
    assert kinds(turn.events)[-1] == "BacklogEased"
