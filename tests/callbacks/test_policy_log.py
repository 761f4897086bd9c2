"""Files about who copied whom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from world import World

from holdfast.callbacks.file_writer import FileWriter
from holdfast.callbacks.policy_log import GLOBAL_FILE, PolicyLog, policy_file
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State
from holdfast.core.transitions import apply


@pytest.fixture
def world() -> World:
    """Trial 0 becomes a copy of 1, 2 one of 0, and then 0 one of 3, which nobody gave anything."""
    world = World(cpus=4, trials=4)
    for n in range(4):
        for _ in range(n + 1):
            world.save(n, name=f"s{n}")
    world.copy(1, into=0)
    world.copy(0, into=2)
    world.copy(3, into=0)
    return world


FIRST = ["0_x=0", "1_x=1", 1, 2, {"x": 1}, {"x": -1}]
SECOND = ["2_x=2", "0_x=0", 3, 2, {"x": -1}, {"x": -1}]
THIRD = ["0_x=0", "3_x=3", 1, 4, {"x": 3}, {"x": -1}]


def live(root: Path, history: list[ev.AnyEvent]) -> None:
    """Tell a log what happens, as the loop does."""
    writer = FileWriter()
    log, state = PolicyLog(root, writer), State()
    for event in history:
        apply(state, event, Retention())
        log.watch(state, event)
        log.write()
    assert writer.close()


def files(root: Path) -> dict[str, list[object]]:
    return {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in root.glob("pbt_*")}


EXPECTED = {
    GLOBAL_FILE: [FIRST, SECOND, THIRD],
    policy_file("t0"): [THIRD],
    policy_file("t2"): [FIRST, SECOND],
}


def test_lines_tell_who_copied_whom_when_and_with_which_config(world, tmp_path):
    live(tmp_path, world.history)
    assert files(tmp_path) == EXPECTED


def test_nothing_is_written_before_the_event_is_in_the_journal(world, tmp_path):
    writer = FileWriter()
    log, state = PolicyLog(tmp_path, writer), State()
    for event in world.history:
        apply(state, event, Retention())
        log.watch(state, event)
    assert writer.flush()
    assert files(tmp_path) == {}
    log.write()
    assert writer.close()
    assert files(tmp_path) == EXPECTED


def test_an_experiment_without_copies_has_no_such_files(tmp_path):
    world, writer = World(trials=2), FileWriter()
    world.save(0)
    live(tmp_path, world.history)
    log = PolicyLog(tmp_path, writer)
    assert not log.is_needed(world.state)
    log.repair(world.history)
    assert writer.close()
    assert files(tmp_path) == {}


@pytest.mark.parametrize("told", [None, 0, 3])
def test_whatever_a_killed_driver_left_is_put_right(world, tmp_path, told):
    """Lines that are missing, there twice, torn, or of events that a power cut has taken back."""
    if told is not None:
        live(tmp_path, world.history[: len(world.history) - told])
        with open(tmp_path / GLOBAL_FILE, "a") as file:
            file.write(json.dumps(FIRST) + "\n" + '["torn')
        (tmp_path / policy_file("t2")).write_text(json.dumps(THIRD) + "\n")
        (tmp_path / policy_file("t3")).write_text(json.dumps(THIRD) + "\n")
    writer = FileWriter()
    log = PolicyLog(tmp_path, writer)
    assert log.is_needed(world.state)
    log.repair(world.history)
    assert writer.close()
    expected = EXPECTED if told is None else {**EXPECTED, policy_file("t3"): []}
    assert files(tmp_path) == expected


def test_a_repaired_log_goes_on_where_it_was(world, tmp_path):
    for cut in range(len(world.history)):
        root, writer = tmp_path / str(cut), FileWriter()
        log = PolicyLog(root, writer)
        log.repair(world.history[:cut])
        state = State()
        for number, event in enumerate(world.history):
            apply(state, event, Retention())
            if number >= cut:
                log.watch(state, event)
                log.write()
        assert writer.close()
        assert files(root) == EXPECTED


def test_a_trial_that_begins_anew_has_no_ancestors(world, tmp_path):
    lost, again = ev.AttemptInterrupted(world.at, 2, 1, ev.Cause.DRIVER_LOST), ev.TrialRequeued(world.at, 2, "restart")
    live(tmp_path, [*world.history, lost, again])
    assert files(tmp_path) == {**EXPECTED, policy_file("t2"): []}
