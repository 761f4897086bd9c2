"""``holdfast show``: tables, details, and the story of a trial in plain sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, many_trials, small_experiment

from holdfast.core import events as ev
from holdfast.core.retention import Retention


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return small_experiment(tmp_path / "exp").die().path


def sentences(out: str) -> list[str]:
    """A printed story without its times."""
    return [line[len("2023-11-14 22:13:20  ") :] for line in out.splitlines()]


def test_the_table_has_a_line_for_each_trial(path: Path, holdfast: Callable[..., Any]) -> None:
    lines = holdfast("show", path).out.splitlines()
    assert lines[0].split() == ["Trial", "Status", "loss", "lr", "Iter", "Time", "nested/deep", "Ended"]
    assert lines[2].split() == ["train_abcde_00000", "TERMINATED", "1", "0.1", "3", "1.5", "s", "2", "finished"]
    assert lines[5].split()[:2] == ["train_abcde_00003", "PENDING"]


def test_a_long_table_is_cut_and_says_so(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    path = many_trials(tmp_path / "exp", 60).path
    out = holdfast("show", path).out
    assert len(out.splitlines()) == 43
    assert "and 20 more trials" in out
    assert len(holdfast("show", path, "--limit", "0").out.splitlines()) == 62


@pytest.mark.parametrize("given", ["abcde_00002", "train_abcde_00002", "2", "00002", "train_abcde_00002_2_lr=0.3_x"])
def test_a_trial_is_found_by_id_name_number_and_directory(path: Path, holdfast: Callable[..., Any], given: str) -> None:
    assert holdfast("show", path, given).out.startswith("train_abcde_00002 (number 2): TERMINATED (returned)")


def test_a_unique_beginning_is_enough_and_an_ambiguous_one_is_refused(
    tmp_path: Path, holdfast: Callable[..., Any]
) -> None:
    root = RootWriter(tmp_path / "exp").open()
    for identity in ("aa11_x", "aa22_x", "bb33_x"):
        root.create({}, id=identity)
    path = root.finish().path
    assert "bb33_x" in holdfast("show", path, "bb").out
    answer = holdfast("show", path, "aa")
    assert answer.code == 2
    assert "'aa' matches 2 trials: aa11_x, aa22_x" in answer.err
    answer = holdfast("show", path, "zz")
    assert answer.code == 2
    assert "has 3 trials, but none named 'zz'" in answer.err


def test_a_parameter_that_is_none_is_shown(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({"depth": None})
    assert "config      depth = None\n" in holdfast("show", root.finish().path, "0").out


def test_details_show_config_result_checkpoints_and_the_traceback(path: Path, holdfast: Callable[..., Any]) -> None:
    done = holdfast("show", path, "0").out
    assert "config      lr = 0.1" in done
    assert "result      loss=1" in done
    assert "checkpoint  checkpoint_000002 at iteration 3, 9 B, committed" in done
    failed = holdfast("show", path, "1").out
    assert "failed      once; last: ValueError: lr is too large at /home/me/train.py:17" in failed
    assert "    Traceback (most recent call last):" in failed
    lost = holdfast("show", path, "3").out
    assert "PENDING; it was running when its driver exited" in lost
    assert "on resume   continues from checkpoint_000000 (iteration 1)" in lost


def test_json_has_the_same(path: Path, holdfast: Callable[..., Any]) -> None:
    assert len(json.loads(holdfast("show", path, "--json").out)) == 4
    trial = json.loads(holdfast("show", path, "1", "--json").out)
    assert trial["last_failure"]["traceback"].startswith("Traceback")
    assert trial["path"].startswith(f"{path}/train_abcde_00001_")
    told = json.loads(holdfast("show", path, "1", "--story", "--json").out)["story"]
    assert told[0]["text"] == "Trial abcde_00001 was created with lr=0.2."
    assert told[0]["at"] > 0


def test_the_story_of_a_retried_trial(path: Path, holdfast: Callable[..., Any]) -> None:
    assert sentences(holdfast("show", path, "2", "--story").out) == [
        "Trial abcde_00002 was created with lr=0.3.",
        "Attempt 1 started from the beginning.",
        "It reported iterations 1 to 2 in 3.0 s (loss from 5 to 4.5), saved checkpoint_000000.",
        "Attempt 1 failed: killed by SIGKILL, which holdfast did not send; the trial is retried (failure 1).",
        "Attempt 2 started from checkpoint_000000 (iteration 1); 1 later report of the earlier attempt does not count.",
        "It reported iteration 2 (loss=4).",
        "It finished: the training function returned.",
    ]


def test_the_story_of_a_trial_whose_driver_died(path: Path, holdfast: Callable[..., Any]) -> None:
    last = sentences(holdfast("show", path, "3", "--story").out)[-1]
    assert last.startswith("Nothing more is known: the driver (pid ")


def test_the_story_tells_of_damage_and_of_the_older_checkpoint_used_instead(
    tmp_path: Path, holdfast: Callable[..., Any]
) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({"lr": 0.1})
    root.start(0)
    for step in range(3):
        root.report(0, {"loss": 3.0 - step})
        root.save(0, {"model.pkl": str(step)})
    root.retry(0, ev.Cause.OUT_OF_MEMORY, message="probably out of memory: killed by SIGKILL")
    root.reject(0, 2, "the content of model.pkl is not what was saved")
    root.start(0)
    root.report(0, {"loss": 0.5}, verdict="stop", why="loss <= 1")
    root.end(0, "loss <= 1")
    told = sentences(holdfast("show", root.finish().path, "0", "--story").out)
    assert told[2:] == [
        "It reported iterations 1 to 3 in 6.0 s (loss from 3 to 1), saved checkpoint_000000 to checkpoint_000002.",
        "Attempt 1 failed: probably out of memory: killed by SIGKILL; the trial is retried (failure 1).",
        "checkpoint_000002 was rejected: the content of model.pkl is not what was saved.",
        "Attempt 2 started from checkpoint_000001 (iteration 2); 1 later report of the earlier attempt does not count.",
        "It reported iteration 3 (loss=0.5).",
        "It had to stop: loss <= 1.",
        "It was stopped: loss <= 1.",
    ]


def test_the_story_shows_drivers_pauses_notes_and_the_users_requests(
    tmp_path: Path, holdfast: Callable[..., Any]
) -> None:
    root = RootWriter(tmp_path / "exp", retention=Retention(num_to_keep=1)).open()
    root.create({})
    root.start(0)
    for step in range(2):
        root.report(0, {"loss": 1.0})
        root.save(0, {"a": str(step)})
        root.drop(0)
    root.stage(0, {"a": "never committed"})
    root.cut(0, ev.Cause.PREEMPTED, "SIGTERM from outside")
    root.finish("SIGINT")
    root.open()
    root.start(0)
    root.add(ev.Noted(root.tick(), 0, "the disk was full for a while"))
    root.add(ev.TrialPaused(root.tick(), 0, 2), ev.TrialResumed(root.tick(), 0))
    root.start(0)
    root.error(0, type="KeyError", message="'x'", location="t.py:1")
    root.add(ev.TrialRequeued(root.tick(), 0, "restart"))
    told = "\n".join(sentences(holdfast("show", root.finish().path, "0", "--story").out))
    for part in (
        "saved checkpoint_000000 to checkpoint_000001, wrote checkpoint_000002, not committed yet, 1 checkpoint no",
        "Attempt 1 was interrupted (not counted as a failure): its worker was preempted (SIGTERM from outside).",
        "The driver stopped: SIGINT.",
        "took over the experiment.",
        "the disk was full for a while.",
        "It was paused.",
        "It was resumed.",
        "Attempt 3 failed, and with it the trial: KeyError: 'x' at t.py:1.",
        "It runs again from the beginning; its earlier reports no longer count: the user asked for it.",
    ):
        assert part in told


def test_a_story_tells_the_cause_that_an_event_carries(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({})
    root.start(0)
    root.report(0, {"loss": 1.0})
    root.save(0, {"a": "1"})
    root.add(
        ev.TrialPaused(root.tick(), 0, 1, "ASHAScheduler"), ev.TrialResumed(root.tick(), 0, "nothing else could run")
    )
    root.start(0)
    root.end(0)
    root.add(ev.TrialRequeued(root.tick(), 0, "resume", "the stop rule was changed"))
    root.add(ev.TrialReconfigured(root.tick(), 0, {"lr": 2}, why="PB2: its score was bad"))
    root.add(ev.TrialReconfigured(root.tick(), 0, {"lr": 3}, "", (0, 0), 0, why="PB2: its score was worse"))
    root.add(ev.TrialResized(root.tick(), 0, {"CPU": 2.0}, why="Resizer: more is free"))
    root.add(ev.TrialResized(root.tick(), 0, {"CPU": 3.0}, by_user=True))
    root.add(ev.CheckpointsDropped(root.tick(), 0, (0,), "the trial begins anew"))
    told = "\n".join(sentences(holdfast("show", root.finish().path, "0", "--story").out))
    for part in (
        "It was paused: ASHAScheduler.",
        "It was resumed: nothing else could run.",
        "It runs again from its latest checkpoint: the stop rule was changed.",
        "It was given another config (PB2: its score was bad): lr=2.",
        "copy of abcde_00000 (PB2: its score was worse), from its checkpoint_000000, with lr=3.",
        "It was given other resources (Resizer: more is free): CPU=2.",
        "It was given other resources (the user): CPU=3.",
        "1 checkpoint deleted (the trial begins anew).",
    ):
        assert part in told


def test_the_story_of_an_exploit_names_the_donor(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = RootWriter(tmp_path / "exp").open()
    for n in range(2):
        root.create({})
        root.start(n)
        root.report(n, {"loss": 1.0})
    root.save(1, {"a": "donor"})
    root.add(ev.TrialPaused(root.tick(), 0, 1), ev.TrialResumed(root.tick(), 0))
    root.start(0, source=(1, 0))
    told = sentences(holdfast("show", root.finish().path, "0", "--story").out)
    assert any("from checkpoint_000000 of abcde_00001 (iteration 1)" in line for line in told)


def test_a_checkpoint_that_only_was_written_has_somebody_who_wrote_it(
    tmp_path: Path, holdfast: Callable[..., Any]
) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({})
    root.start(0)
    root.report(0, {"loss": 1.0})
    root.add(ev.Noted(root.tick(), 0, "an interlude"))
    root.add(ev.CheckpointStaged(root.tick(), 0, 1, 0, ".sealed-0", 10, 1))
    told = sentences(holdfast("show", root.finish().path, "0", "--story").out)
    assert "It wrote checkpoint_000000, not committed yet." in told


def test_the_story_of_the_experiment_counts_the_ordinary_and_names_the_rest(
    path: Path, holdfast: Callable[..., Any]
) -> None:
    told = sentences(holdfast("show", path, "--story").out)
    assert told[0].endswith("started the experiment.")
    assert told[1] == "4 trials created, 4 attempts started, 4 reports made, 3 checkpoints saved, 1 trial ended."
    assert told[2] == "abcde_00001 failed with no retry left: ValueError: lr is too large at /home/me/train.py:17."
    assert told[-1].startswith("Nothing more is known")


def test_an_empty_experiment_has_nothing_to_show(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    path = RootWriter(tmp_path / "exp").path
    assert "has no trials yet" in holdfast("show", path).out
    assert "Nothing has happened yet" in holdfast("show", path, "--story").out


def test_tuples_look_the_same_in_every_command(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    pair = {"__exact__": "tuple", "value": [1, {"__exact__": "tuple", "value": [2]}]}
    root = RootWriter(tmp_path / "exp").open()
    root.create({"obj": pair, "list": [1, 2], "deep": {"in": pair}})
    path = root.die().path
    listed, told = holdfast("list-trials", path).out, holdfast("show", path, "0", "--story").out
    shown = holdfast("show", path, "0").out
    for text in (listed, told, shown):
        assert "(1, (2,))" in text
        assert "[1, 2]" in text
        assert "[1, [2" not in text
    assert holdfast("list-trials", path, "--filter", "config/deep/in == '(1, (2,))'").out == listed
    file = tmp_path / "rows.csv"
    holdfast("list-trials", path, "--output", file)
    assert '"[1,[2]]"' in file.read_text()
