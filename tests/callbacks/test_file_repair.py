"""Files show exactly the surviving rows, whatever a crash or a retry has left of them (I6)."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest
from callback_world import (
    Loggers,
    World,
    csv_rows,
    event_file,
    json_rows,
    shown_iterations,
    shown_values,
    tensorboard_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import events as ev

FILES = ("result.json", "progress.csv", "events")


def everywhere(values: list[Any]) -> dict[str, list[Any]]:
    return {"json": values, "csv": values, "tensorboard": values}


def file_of(world: World, name: str) -> Path:
    directory = world.trials[0].path
    return event_file(directory) if name == "events" else Path(directory, name)


def three_rows(tmp_path: Path) -> World:
    """A trial with three rows, a checkpoint of the second, and a driver that shut down gracefully."""
    world = World(tmp_path)
    world.create()
    loggers = Loggers(world)
    loggers.start()
    loggers.report(loss=1, text='a "quoted"\nline')
    loggers.report(loss=2, save=True)
    loggers.report(loss=3)
    loggers.close()
    return world


def repair(world: World) -> None:
    """A new driver opens the experiment and brings the files in line."""
    world.begin()
    loggers = Loggers(world)
    loggers.sync()
    loggers.close()


def resumed(world: World, *losses: float, index: int | None = 0) -> None:
    """A new driver continues with the trial from its checkpoint."""
    world.begin()
    world.cut()
    loggers = Loggers(world)
    loggers.start(index=index)
    for loss in losses:
        loggers.report(loss=loss)
    loggers.close()


def test_a_retry_in_the_same_driver_takes_back_the_rows_after_the_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create()
    loggers = Loggers(world)
    loggers.start()
    loggers.report(loss=1, save=True)
    index = 0
    loggers.report(loss=2)
    loggers.report(loss=3)
    assert loggers.writer.flush()
    world.cut()
    loggers.start(index=index)
    loggers.report(loss=4)
    world.cut()
    loggers.start()
    assert loggers.writer.flush()
    assert shown_iterations(world.trials[0].path) == everywhere([])
    loggers.report(loss=5)
    loggers.report(loss=6)
    loggers.close()
    assert shown_values(world.trials[0].path, "loss") == everywhere([5, 6])
    assert world.loads == 0


def test_a_new_driver_continues_the_files_without_reading_the_journal(tmp_path: Path) -> None:
    world = three_rows(tmp_path)
    resumed(world, 30, 40)
    assert shown_values(world.trials[0].path, "loss") == everywhere([1, 2, 30, 40])
    assert world.loads == 0


def test_a_trial_that_starts_from_scratch_loses_all_rows(tmp_path: Path) -> None:
    world = three_rows(tmp_path)
    resumed(world, 10, index=None)
    assert shown_values(world.trials[0].path, "loss") == everywhere([10])


def test_a_report_from_a_spool_leaves_no_gap_in_a_file_that_is_behind(tmp_path: Path) -> None:
    """A driver dies before it has written a row, and the next one finds a later report in the trial's spool.

    The trial then starts again from its checkpoint. Had the later row been appended, the file would have as many rows
    as survive, and nobody would notice that one of them is wrong.
    """
    world = World(tmp_path)
    world.create()
    loggers = Loggers(world)
    loggers.start()
    loggers.report(loss=1)
    assert loggers.writer.flush()
    loggers.report(loss=2, save=True)
    loggers.crash()
    world.begin()
    loggers = Loggers(world)
    loggers.report(loss=3)  # from the spool
    world.cut()
    loggers.start(index=0)
    loggers.report(loss=30)
    loggers.close()
    assert shown_values(world.trials[0].path, "loss") == everywhere([1, 2, 30])


def test_a_trial_that_ends_with_a_report_from_a_spool_has_all_its_rows(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create()
    loggers = Loggers(world)
    loggers.start()
    loggers.report(loss=1)
    loggers.crash()
    world.begin()
    loggers = Loggers(world)
    loggers.report(loss=2)  # from the spool
    world.end()
    loggers.sync()
    loggers.close()
    assert shown_values(world.trials[0].path, "loss") == everywhere([1, 2])


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_at_any_byte_is_made_whole(tmp_path: Path, name: str) -> None:
    world = three_rows(tmp_path)
    path = file_of(world, name)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:size])
        repair(world)
        assert path.read_bytes() == whole, size


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data + b"\0" * 64,
        lambda data: data + data[-40:-1],
        lambda data: data[: len(data) // 2] + b"\0" * (len(data) - len(data) // 2),
        lambda data: b"\0" * len(data),
        lambda data: data + struct.pack("<Q", 1 << 60) + b"garbage and more of it",
        lambda data: b"",
    ],
)
def test_what_a_power_cut_leaves_is_replaced(tmp_path: Path, name: str, damage: Any) -> None:
    world = three_rows(tmp_path)
    path = file_of(world, name)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    repair(world)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_written_anew(tmp_path: Path, name: str) -> None:
    world = three_rows(tmp_path)
    path = file_of(world, name)
    whole = path.read_bytes()
    path.unlink()
    repair(world)
    assert path.read_bytes() == whole


def test_files_that_match_are_left_alone_and_the_journal_is_not_read(tmp_path: Path) -> None:
    world = three_rows(tmp_path)
    world.end()
    before = {name: file_of(world, name).stat().st_mtime_ns for name in FILES}
    loggers = Loggers(world)
    loggers.sync()
    assert loggers.writer.unwritten == 0
    loggers.close()
    assert before == {name: file_of(world, name).stat().st_mtime_ns for name in FILES}
    assert world.loads == 0


def test_as_many_rows_of_an_attempt_that_was_given_up_are_not_taken_for_the_right_ones(tmp_path: Path) -> None:
    """The second driver's rows are in the journal, but it died before any of its changes to the files."""
    world = three_rows(tmp_path)
    world.begin()
    world.cut()
    lost = Loggers(world)
    lost.start(index=0)
    lost.report(loss=33)
    lost.crash()
    assert shown_values(world.trials[0].path, "loss") == everywhere([1, 2, 3])
    world.end()
    repair(world)
    assert shown_values(world.trials[0].path, "loss") == everywhere([1, 2, 33])


def test_the_rows_of_a_trial_that_ended_just_before_a_crash_are_completed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create()
    loggers = Loggers(world)
    loggers.start()
    loggers.report(loss=1)
    loggers.end()
    loggers.crash()
    assert os.listdir(tmp_path) == []
    repair(world)
    directory = world.trials[0].path
    assert shown_values(directory, "loss") == everywhere([1])
    assert Path(directory, "params.json").exists()


def test_a_trial_without_rows_gets_no_file_from_a_repair(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create()
    repair(world)
    assert os.listdir(tmp_path) == []


def test_a_waiting_trial_that_is_repaired_and_then_starts_has_its_old_rows_taken_back(tmp_path: Path) -> None:
    world = three_rows(tmp_path)
    world.begin()
    world.cut()
    loggers = Loggers(world)
    loggers.sync()
    loggers.start()
    loggers.report(loss=9)
    loggers.close()
    assert shown_values(world.trials[0].path, "loss") == everywhere([9])


def test_without_access_to_the_journal_what_the_file_has_is_kept(tmp_path: Path) -> None:
    world = three_rows(tmp_path)
    world.info.load_rows = None
    path = file_of(world, "result.json")
    path.write_bytes(path.read_bytes()[:-5])
    resumed(world, 30)
    assert shown_values(world.trials[0].path, "loss") == everywhere([1, 2, 30])


def test_a_trial_that_is_run_again_after_its_end_continues_its_files(tmp_path: Path) -> None:
    world = three_rows(tmp_path)
    world.end()
    world.begin()
    world.add(ev.TrialRequeued, 0, "resume")
    loggers = Loggers(world)
    loggers.start(index=0)
    loggers.report(loss=5)
    loggers.close()
    assert shown_values(world.trials[0].path, "loss") == everywhere([1, 2, 5])


def test_a_repaired_csv_has_all_columns(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create()
    loggers = Loggers(world)
    loggers.start()
    loggers.report(a=1)
    loggers.report(a=2, b=3)
    loggers.crash()
    repair(world)
    rows = csv_rows(world.trials[0].path)
    assert [(row["a"], row["b"]) for row in rows] == [("1", ""), ("2", "3")]


steps = st.lists(
    st.sampled_from(["report", "report", "report", "save", "new key", "retry", "flush", "crash", "torn crash"]),
    min_size=3,
    max_size=25,
)


@settings(max_examples=50, deadline=None)
@given(steps)
def test_after_any_history_the_files_show_the_surviving_rows(tmp_path_factory: Any, history: list[str]) -> None:
    """Reports, checkpoints, retries and crashes in any order; dt is constant, so that rows are hard to distinguish."""
    world = World(tmp_path_factory.mktemp("world"))
    world.create()
    loggers = Loggers(world)
    loggers.start()
    for number, step in enumerate(history):
        latest = world.trial().latest()
        index = None if latest is None else latest.index
        if step == "report":
            loggers.report(loss=number)
        elif step == "new key":
            loggers.report(loss=number, **{f"k{number}": {"x": 1}})
        elif step == "save":
            loggers.report(loss=number, save=True)
        elif step == "flush":
            assert loggers.writer.flush()
        elif step == "retry":
            world.cut()
            loggers.start(index=index)
        else:
            loggers.crash()
            if step == "torn crash":
                tear(Path(world.trials[0].path))
            world.begin()
            world.cut()
            loggers = Loggers(world)
            loggers.start(index=index)
    loggers.close()
    rows = world.load_rows(0)
    directory = world.trials[0].path
    if not rows:
        return
    assert json_rows(directory) == rows
    assert [int(row["loss"]) for row in csv_rows(directory)] == [row["loss"] for row in rows]
    assert [values["ray/tune/loss"] for _, values in tensorboard_rows(directory)] == [row["loss"] for row in rows]


def tear(directory: Path) -> None:
    """Take some bytes off the end of each file of rows."""
    for path in directory.glob("*") if directory.exists() else ():
        if not path.name.startswith("params"):
            path.write_bytes(path.read_bytes()[:-3])


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5), st.just(10**400)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
keys = st.text(max_size=3).filter(lambda key: key not in ("n", "dt")) | st.sampled_from(
    ["training_iteration", "timestamp", "time_total_s", "timesteps_total", "done", "config", "pid", "date", "trial_id"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(keys, values, max_size=5), min_size=1, max_size=4))
def test_whatever_is_reported_no_logger_raises_and_every_row_is_shown(
    tmp_path_factory: Any, reports: list[dict[str, Any]]
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    world.create()
    loggers = Loggers(world)
    loggers.start()
    for metrics in reports:
        row = world.report(0, 0.125, "", **metrics)
        loggers.list.on_trial_result(1, world.trials, world.trials[0], row)
    assert loggers.writer.flush()
    directory = world.trials[0].path
    for rows in (json_rows(directory), csv_rows(directory), tensorboard_rows(directory)):
        assert len(rows) == len(reports)
    loggers.close()
    before = world.loads
    repair(world)
    assert world.loads == before  # a file that is right is seen to be right
