"""Which rows a tracker may be shown: those that no ordinary retry can rewind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from file_tracker import FileTracker, read_files
from roots import RootWriter

from holdfast.core import events as ev
from holdfast.integration.trackers import exporter as exporting
from holdfast.integration.trackers import projection as projecting
from holdfast.integration.trackers.exporter import Exporter
from holdfast.integration.trackers.projection import Projection
from holdfast.integration.trackers.runs import numbers, plain_config, run_id, step_of
from holdfast.results.history import open_history


class World:
    """An experiment that is written event by event, and a tracker that follows it."""

    def __init__(self, folder: Path, *, live: bool = True) -> None:
        self.root = RootWriter(folder / "exp").open()
        self.files = folder / "tracker"
        self.tracker = FileTracker(str(self.files), live=live)
        self.begin()

    def begin(self) -> None:
        """Forget everything, as a process does that is killed."""
        self.projection = Projection(self.root.info, self.root.spec)
        self.exporter = Exporter(self.tracker, self.projection)

    def run(self, n: int, *losses: float) -> None:
        for loss in losses:
            self.root.report(n, {"loss": loss})

    def shown(self, *, closing: bool = False) -> list[list[float]]:
        assert self.exporter.advance(closing=closing), self.exporter.trouble
        return [[loss for _, loss in rows] for runs in read_files(self.files).values() for rows in runs]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_trial_that_saves_nothing_is_shown_at_once(world):
    n = world.root.create({"lr": 1})
    world.root.start(n)
    world.run(n, 3.0, 2.0)
    assert world.shown() == [[3.0, 2.0]]


def test_rows_after_the_last_checkpoint_wait_for_the_next(world):
    n = world.root.create({"lr": 1})
    world.root.start(n)
    world.run(n, 3.0, 2.0)
    world.root.save(n, {"f": "x"})
    world.run(n, 1.0)
    assert world.shown() == [[3.0, 2.0]]
    world.run(n, 0.5)
    world.root.save(n, {"f": "y"})
    assert world.shown() == [[3.0, 2.0, 1.0, 0.5]]


def test_rows_after_a_checkpoint_that_is_being_committed_wait_too(world):
    n = world.root.create({"lr": 1})
    world.root.start(n)
    world.run(n, 3.0)
    world.root.stage(n, {"f": "x"})
    world.run(n, 2.0)
    assert world.shown() == [[3.0]]


def test_a_retry_from_a_checkpoint_continues_the_run(world):
    n = world.root.create({"lr": 1})
    world.root.start(n)
    world.run(n, 3.0, 2.0)
    world.root.save(n, {"f": "x"})
    world.run(n, 9.0, 9.0)
    world.shown()
    world.root.retry(n, ev.Cause.EXCEPTION)
    world.root.start(n)
    world.run(n, 1.0)
    world.root.end(n)
    assert world.shown() == [[3.0, 2.0, 1.0]]
    assert world.projection.runs[n].generation == 0


def test_a_retry_from_nothing_begins_a_new_run_and_the_old_one_is_retired(world):
    n = world.root.create({"lr": 1})
    world.root.start(n)
    world.run(n, 9.0, 9.0)
    world.shown()
    (old,) = world.files.glob("*.jsonl")
    world.root.retry(n, ev.Cause.EXCEPTION)
    world.root.start(n, scratch=True)
    world.run(n, 1.0)
    world.root.end(n)
    assert world.shown() == [[1.0]]
    (new,) = world.files.glob("*.jsonl")
    assert new.stem == f"{old.stem}-2"


def test_a_damaged_checkpoint_that_rewinds_shown_rows_begins_a_new_run(world):
    n = world.root.create({"lr": 1})
    world.root.start(n)
    world.run(n, 3.0)
    world.root.save(n, {"f": "x"})
    world.run(n, 2.0)
    index = world.root.save(n, {"f": "y"})
    assert world.shown() == [[3.0, 2.0]]
    world.root.cut(n, ev.Cause.DRIVER_LOST)
    world.root.reject(n, index, "damaged")
    world.root.start(n)
    world.run(n, 1.0)
    world.root.end(n)
    assert world.shown() == [[3.0, 1.0]]


def test_a_copy_of_another_trial_keeps_its_rows(world):
    """Population based training: a trial continues from the checkpoint of another, and its own rows stay."""
    donor, n = world.root.create({"lr": 1}), world.root.create({"lr": 2})
    for each in (donor, n):
        world.root.start(each)
    world.run(donor, 5.0)
    index = world.root.save(donor, {"f": "x"})
    world.run(n, 9.0, 8.0)
    world.root.save(n, {"f": "y"})
    world.run(n, 7.0)
    world.root.cut(n, ev.Cause.PREEMPTED)
    world.root.add(ev.TrialReconfigured(world.root.tick(), n, {"lr": 1.2}, donor=(donor, index), parent=donor))
    source, rows = world.root.state.start_point(world.root.trial(n))  # as a driver starts it
    world.root.add(ev.TrialStarted(world.root.tick(), n, 2, rows, source))
    world.run(n, 1.0)
    world.root.end(n)
    assert world.shown(closing=True) == [[5.0], [9.0, 8.0, 7.0, 1.0]]
    assert world.projection.runs[n].generation == 0


def test_which_run_is_the_present_one_does_not_depend_on_when_the_journal_is_read(world):
    n = world.root.create({"lr": 1})
    world.root.start(n)
    world.run(n, 9.0)
    world.root.retry(n, ev.Cause.EXCEPTION)
    world.root.start(n, scratch=True)
    world.run(n, 1.0)
    world.root.end(n)
    assert world.shown(closing=True) == [[1.0]]
    (only,) = world.files.glob("*.jsonl")
    assert only.stem == run_id(world.root.spec.uid, world.root.trial(n).id, 1)


def test_a_process_that_begins_anew_logs_nothing_twice(world):
    n = world.root.create({"lr": 1})
    world.root.start(n)
    world.run(n, 3.0, 2.0)
    world.shown()
    world.begin()
    world.run(n, 1.0)
    assert world.shown() == [[3.0, 2.0, 1.0]]


def test_a_tracker_that_is_not_live_gets_rows_when_the_trial_has_ended(tmp_path):
    world = World(tmp_path, live=False)
    n = world.root.create({"lr": 1})
    world.root.start(n)
    world.run(n, 3.0)
    assert world.shown() == []
    world.root.end(n)
    assert world.shown() == [[3.0]]


def test_held_rows_are_bounded_and_read_from_the_journal_again(world, monkeypatch):
    monkeypatch.setattr(projecting, "MAX_HELD_ROWS", 10)
    n = world.root.create({"lr": 1})
    world.root.start(n)
    world.run(n, 100.0)
    world.root.save(n, {"f": "x"})
    assert world.shown() == [[100.0]]
    expected = [100.0]
    for part in range(5):
        losses = [float(part * 8 + k) for k in range(8)]
        world.run(n, *losses)
        expected += losses
        world.shown()
        assert sum(len(run.held or ()) for run in world.projection.runs.values()) <= 10
    world.root.end(n)
    assert world.shown() == [expected]


def test_held_rows_are_bounded_while_a_long_journal_is_read(world, monkeypatch):
    """An export of a finished experiment reads the whole journal before it logs anything."""
    monkeypatch.setattr(projecting, "MAX_HELD_ROWS", 10)
    trials = [world.root.create({"lr": k}) for k in range(5)]
    for n in trials:
        world.root.start(n)
    for step in range(12):
        for n in trials:
            world.run(n, float(100 * n + step))
    for n in trials:
        world.root.end(n)
    most = []
    build = world.projection.builder.of

    def watched(*arguments):
        most.append(sum(len(run.held or ()) for run in world.projection.runs.values()))
        return build(*arguments)

    monkeypatch.setattr(world.projection.builder, "of", watched)
    assert world.shown(closing=True) == [[float(100 * n + step) for step in range(12)] for n in trials]
    assert max(most) <= 10


def test_more_runs_than_may_be_open_take_turns(world, monkeypatch):
    monkeypatch.setattr(exporting, "MAX_OPEN_RUNS", 2)
    numbers_ = [world.root.create({"lr": k}) for k in range(5)]
    for n in numbers_:
        world.root.start(n)
    for loss in (2.0, 1.0):
        for n in numbers_:
            world.run(n, loss)
        world.shown()
    assert len(world.exporter._open) == 2
    assert world.shown() == [[2.0, 1.0]] * 5


def test_one_run_that_is_refused_does_not_hold_up_the_others(world):
    good, bad = world.root.create({"lr": 1}), world.root.create({"lr": 2})
    for n in (bad, good):
        world.root.start(n)
        world.run(n, float(n))
    refused = world.root.trial(bad).id
    log = world.tracker.log

    def choosy(run, rows):
        if run.trial_id == refused:
            raise ValueError("I do not like it")
        log(run, rows)

    world.tracker.log = choosy
    assert not world.exporter.advance()
    assert "I do not like it" in world.exporter.trouble
    assert world.exporter.behind() == (1, 1)
    assert list(read_files(world.files)) == [world.root.trial(good).id]
    world.tracker.log = log
    assert world.shown() == [[float(good)], [float(bad)]]


def test_an_unfinished_run_is_closed_as_such_at_the_end(world):
    n = world.root.create({"lr": 1})
    world.root.start(n)
    world.run(n, 3.0)
    world.shown(closing=True)
    (file,) = world.files.glob("*.jsonl")
    assert json.loads(file.read_text().splitlines()[-1])[1:] == ["close", "", 1]


def test_rows_of_an_export_are_those_that_results_show(world):
    n = world.root.create({"lr": 1, "net": {"width": 3}})
    world.root.start(n)
    world.run(n, 3.0, 2.0)
    world.root.end(n)
    world.root.finish()
    history = open_history(world.root.path)
    assert world.shown(closing=True) == [[row["loss"] for row in history.rows(n)]]


# --- names and numbers


def test_steps_grow_whatever_a_trial_counts():
    assert step_of({"training_iteration": 3}, 2, timesteps=False) == 3
    assert step_of({"training_iteration": 3, "timesteps_total": 700}, 2, timesteps=True) == 700
    assert step_of({"training_iteration": 3}, 3, timesteps=False) == 4
    assert step_of({"training_iteration": "x"}, 3, timesteps=False) == 4
    assert step_of({"training_iteration": float("nan")}, 3, timesteps=False) == 4
    assert step_of({"training_iteration": 5.0}, 3, timesteps=False) == 5


def test_results_are_flat_numbers_and_configs_plain():
    result = {"loss": 1, "eval": {"a": 0.5, "b": "x"}, "ok": True, "done": False, "config": {"lr": 1}}
    assert numbers(result) == {"loss": 1, "eval/a": 0.5}
    marker = {"__object__": "sha", "type": "Adam"}
    assert plain_config({"a": {"b": 1}, "opt": marker, "l": [1, marker]}) == {
        "a": {"b": 1},
        "opt": "<Adam>",
        "l": [1, "<Adam>"],
    }


def test_ids_of_runs_tell_experiments_apart_and_are_safe_names():
    assert run_id("one", "a_0") != run_id("two", "a_0")
    assert run_id("one", "../x y") == run_id("one", "../x y")
    assert set(run_id("one", "../x y")) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
