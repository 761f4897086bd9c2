"""Where other tuners are weak, and what holdfast does there: one test for each known weakness (W1, W2, ...)."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from api_trainables import Counter, Crash, Crashed, count, noop, note, save, start_step
from experiment_tools import checkpoints, csv_rows, history, json_rows, lines, statuses, wait_until

import holdfast as tune
from holdfast.errors import ExperimentExistsError, ExperimentLockedError

restore = tune.Tuner.restore


class Thing:
    def __init__(self, n):
        self.n = n


def test_w1_trials_generated_after_a_restore_have_real_values(make_tuner, root, tmp_path, monkeypatch):
    """W1: after a restore without the space, new trials run with placeholders in place of their parameters."""
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")

    def train(config):
        return {"seen": [config["s"], config["object"].n, config["option"].n]}

    space = {
        "g": tune.grid_search([1, 2, 3, 4]),
        "s": tune.sample_from(lambda config: 10 * config["g"]),
        "object": Thing(7),
        "option": tune.choice([Thing(8)]),
    }
    with pytest.raises(Crashed):
        make_tuner(train, space, max_concurrent_trials=1, callbacks=[Crash(tmp_path, 1)]).fit()
    assert len(restore(root).get_results()) < 4
    grid = restore(root).fit()
    assert [result.metrics["seen"] for result in grid] == [[10, 7, 8], [20, 7, 8], [30, 7, 8], [40, 7, 8]]


def test_w2_an_experiment_restored_before_its_first_run_is_the_same_experiment(make_tuner, root):
    """W2: a crash between the constructor and the first snapshot makes a restore start a different experiment."""
    make_tuner(noop, {"x": tune.grid_search([1, 2, 3, 4, 5])}, stop={"score": 1})
    assert tune.Tuner.can_restore(root)
    grid = restore(root).fit()
    assert [result.config["x"] for result in grid] == [1, 2, 3, 4, 5]


def test_w3_sigterm_ends_in_order_and_loses_nothing(drivers, root, tmp_path):
    """W3: SIGTERM is not handled: no snapshot, no result files, and a restore starts from scratch."""
    driver = drivers.start(
        'tune.Tuner(count, param_space={"dir": str(DIR), "steps": 6, "hold_at": 3}, run_config=config()).fit()\n'
    )
    driver.wait_for_lines(tmp_path / "diary", 3)
    driver.signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    assert driver.end()[0] == 143
    (before,) = restore(root).get_results()
    assert len(json_rows(before)) == len(before.metrics_history) >= 3
    assert before.checkpoint is not None
    (result,) = restore(root).fit()
    assert history(result, "step") == [1, 2, 3, 4, 5, 6]
    assert len(lines(tmp_path / "diary")) == len(set(lines(tmp_path / "diary")))


def test_w5_progress_since_the_last_snapshot_survives_a_hard_kill(drivers, root, tmp_path):
    """W5: what happened since the last snapshot, ten seconds or more, is lost when the driver is killed."""
    driver = drivers.start(
        'tune.Tuner(count, param_space={"dir": str(DIR), "steps": 8, "hold_at": 6}, run_config=config()).fit()\n'
    )
    driver.wait_for_lines(tmp_path / "diary", 6)
    driver.kill()
    assert not list(root.glob(".holdfast/snapshots/*.hfs"))
    (before,) = restore(root).get_results()
    assert history(before, "step") == [1, 2, 3, 4, 5, 6]
    (tmp_path / "go").touch()
    (result,) = restore(root).fit()
    assert history(result, "step") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(lines(tmp_path / "diary")) == 8


def test_w6_a_resumed_trial_has_its_whole_retry_budget(make_tuner, root, tmp_path):
    """W6: max_failures is spent once and for all, so a resumed trial dies at its next failure."""

    def train(config):
        note(config, "attempts", "x")
        raise RuntimeError("again")

    config = tune.FailureConfig(max_failures=2)
    make_tuner(train, {"dir": str(tmp_path)}, failure_config=config).fit()
    assert len(lines(tmp_path / "attempts")) == 3
    restore(root, resume_errored=True).fit()
    assert len(lines(tmp_path / "attempts")) == 6


@pytest.mark.parametrize("damage", ["missing", "changed", "truncated", "without manifest"])
def test_w7_a_bad_latest_checkpoint_falls_back_to_the_one_before_it(make_tuner, root, tmp_path, caplog, damage):
    """W7: if the latest checkpoint is missing or corrupt the trial fails, though older good ones exist."""
    space = {"dir": str(tmp_path), "steps": 5, "fail_at": 4}
    (before,) = make_tuner(count, space).fit()
    latest = Path(before.checkpoint.path)
    if damage == "missing":
        shutil.rmtree(latest)
    elif damage == "changed":
        (latest / "step").write_text("9")
    elif damage == "truncated":
        (latest / "step").write_text("")
    else:
        (latest / "_manifest.json").unlink()
    (tmp_path / "mended").touch()
    with caplog.at_level(logging.WARNING, "holdfast"):
        (result,) = restore(root, resume_errored=True).fit()
    assert history(result, "step") == [1, 2, 3, 4, 5]
    assert lines(tmp_path / "diary")[4].endswith(" 4")
    assert result.metrics["iterations_since_restore"] == 2
    assert "checkpoint_000003 cannot be used" in caplog.text


def test_w7_a_trial_whose_checkpoints_are_all_bad_is_not_restarted_silently(make_tuner, root, tmp_path):
    """W7: a trial without a usable checkpoint must not lose its progress without a word."""
    space = {"dir": str(tmp_path), "steps": 3, "fail_at": 2}
    (before,) = make_tuner(count, space).fit()
    for name in checkpoints(before):
        Path(before.path, name, "step").write_text("x")
    (tmp_path / "mended").touch()
    (result,) = restore(root, resume_errored=True).fit()
    assert result.status == "ERROR"
    assert "restart_errored=True" in str(result.error)
    (result,) = restore(root, restart_errored=True).fit()
    assert history(result, "step") == [1, 2, 3]


def test_w8_nested_and_missing_scores_are_ranked_right(make_tuner):
    """W8: a nested score is ignored and a missing one counts as best, so the best checkpoints are deleted."""

    def train(config):
        for step, value in enumerate([5, None, 4, None, 3], start=1):
            save(step, **({} if value is None else {"m": {"a": value}}))

    config = tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="m/a")
    (result,) = make_tuner(train, checkpoint_config=config).fit()
    assert checkpoints(result) == ["checkpoint_000000", "checkpoint_000002", "checkpoint_000004"]
    assert [metrics["m"]["a"] for _, metrics in result.best_checkpoints] == [4, 5]


def test_w10_an_experiment_ended_by_fail_fast_can_be_resumed(make_tuner, root, tmp_path):
    """W10: after fail_fast a restored experiment stops at once and calls its failed trial finished."""
    space = {"dir": str(tmp_path), "steps": 4, "x": tune.grid_search([1, 2, 3])}
    space["fail_at"] = tune.sample_from(lambda config: 2 if config["x"] == 1 else None)
    config = tune.FailureConfig(fail_fast=True)
    grid = make_tuner(count, space, failure_config=config, max_concurrent_trials=1).fit()
    assert grid[0].status == "ERROR"
    (tmp_path / "mended").touch()
    grid = restore(root, resume_errored=True).fit()
    assert statuses(grid) == ["TERMINATED"] * 3
    assert [history(result, "step") for result in grid] == [[1, 2, 3, 4]] * 3


def test_w11_a_checkpoint_never_mixes_files_of_two_attempts(make_tuner, root, tmp_path):
    """W11: a checkpoint is copied into its final place, and a reused index merges old and new files."""

    def train(config):
        note(config, "attempts", "x")
        attempt = len(lines(Path(config["dir"], "attempts")))
        with tune.checkpoint_dir() as directory:
            Path(directory, f"shard_{attempt}").touch()
            if attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)  # half-way through saving
            tune.report({"attempt": attempt}, checkpoint=tune.Checkpoint.from_directory(directory))
        if attempt == 2:
            raise RuntimeError("after saving")

    config = tune.FailureConfig(max_failures=1)
    (result,) = make_tuner(train, {"dir": str(tmp_path)}, failure_config=config).fit()
    assert result.status == "ERROR"
    (result,) = restore(root, restart_errored=True).fit()
    assert result.status == "TERMINATED"
    found = {
        name: sorted(path.name for path in Path(result.path, name).glob("shard_*")) for name in checkpoints(result)
    }
    assert list(found.values()) == [["shard_3"]]


@pytest.mark.parametrize("damage", ["deleted", "torn", "torn journal"])
def test_w12_state_never_depends_on_one_file_that_a_crash_can_tear(make_tuner, root, tmp_path, damage, monkeypatch):
    """W12: state is written in place, in several files of different moments, without checksums or a fallback."""
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    space = {"dir": str(tmp_path), "steps": 4, "x": tune.grid_search([1, 2, 3])}
    with pytest.raises(Crashed):
        make_tuner(count, space, callbacks=[Crash(tmp_path, 7)]).fit()
    before = [result.metrics_history for result in restore(root).get_results()]
    private = root / ".holdfast"
    if damage == "deleted":
        shutil.rmtree(private / "snapshots", ignore_errors=True)
    elif damage == "torn":
        for snapshot in private.glob("snapshots/*.hf?"):
            snapshot.write_bytes(snapshot.read_bytes()[:-3])
    else:
        segment = max(path for path in private.glob("journal/*") if path.is_file())
        segment.write_bytes(segment.read_bytes().rstrip(b"\0") + b"half a rec")
    assert [result.metrics_history for result in restore(root).get_results()] == before
    grid = restore(root).fit()
    assert [history(result, "step") for result in grid] == [[1, 2, 3, 4]] * 3


def test_w13_a_second_experiment_never_hides_the_first(make_tuner, root):
    """W13: the same name run twice mixes two sessions in one directory, and a restore sees only the newest."""
    make_tuner(noop, {"x": tune.grid_search([1, 2])}).fit()
    with pytest.raises(ExperimentExistsError):
        make_tuner(noop, {"x": 3})
    assert [result.config["x"] for result in restore(root).fit()] == [1, 2]


def test_w13_two_drivers_cannot_run_one_experiment(make_tuner, root):
    """W13: nothing keeps two drivers from writing the same experiment at the same time."""
    refused = []

    class Second(tune.Callback):
        def on_trial_start(self, **info):
            with pytest.raises(ExperimentLockedError) as caught:
                restore(root).fit()
            refused.append(caught.value.pid)

        def __reduce__(self):
            return tune.Callback, ()

    assert statuses(make_tuner(noop, callbacks=[Second()]).fit()) == ["TERMINATED"]
    assert refused == [os.getpid()]


def test_w17_callbacks_hear_of_a_restored_trial(make_tuner, root, tmp_path):
    """W17: on_trial_restore is documented but never called."""

    class Restored(tune.Callback):
        def on_trial_restore(self, trial, **info):
            note({"dir": str(tmp_path)}, "restored", f"{trial.trial_id} {trial.last_result['step']}")

    space = {"dir": str(tmp_path), "fail_at": 2}
    (before,) = make_tuner(count, space, callbacks=[Restored()]).fit()
    assert lines(tmp_path / "restored") == []
    (tmp_path / "mended").touch()
    restore(root, resume_errored=True).fit()
    assert lines(tmp_path / "restored") == [f"{before.trial_id} 2"]


def test_w18_a_search_of_a_hundred_million_variants_can_be_resumed(make_tuner, root, tmp_path, monkeypatch):
    """W18: grids above a million variants cannot be resumed."""
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "2")

    class Enough(tune.Stopper):
        def __init__(self):
            self.seen = 0

        def __call__(self, trial_id, result):
            self.seen += 1
            return False

        def stop_all(self):
            return self.seen >= 14

    space = {name: tune.grid_search(list(range(10))) for name in "abcdefgh"}
    with pytest.raises(Crashed):
        make_tuner(noop, space, stop=Enough(), callbacks=[Crash(tmp_path, 7)]).fit()
    grid = restore(root).fit()
    assert len(grid) >= 14
    numbers = [sum(result.config[name] * 10**power for power, name in enumerate("abcdefgh")) for result in grid]
    assert numbers == list(range(len(grid)))


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of a few megabytes, which a test can really fill."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(path: str) -> None:
    """Leave no byte free on this file's disk."""
    with open(path, "wb", buffering=0) as filler:
        for size in (65536, 4096, 1):
            try:
                while True:
                    filler.write(b"\0" * size)
            except OSError:
                continue


def test_w22_report_waits_while_the_disk_is_full(make_tuner, small_disk, tmp_path, caplog):
    """W22: an error of the storage while report() saves is raised in the trainable, and counts as its failure."""

    def train(config):
        save(1)
        mine = Path(config["dir"], "mine")
        mine.mkdir()
        mine.joinpath("weights").write_bytes(b"x" * 200_000)
        fill(config["filler"])
        tune.report({"step": 2}, checkpoint=tune.Checkpoint.from_directory(mine))
        return {"step": 3}

    filler = small_disk / "filler"
    make_room = threading.Thread(
        target=lambda: (wait_until(lambda: "waiting for space" in caplog.text, "the wait"), filler.unlink())
    )
    make_room.start()
    space = {"dir": str(tmp_path), "filler": str(filler)}
    (result,) = make_tuner(train, space, storage_path=small_disk).fit()
    make_room.join()
    assert (result.status, history(result, "step")) == ("TERMINATED", [1, 2, 3])
    assert Path(result.checkpoint.path, "weights").stat().st_size == 200_000
    assert not Path(result.path, "error.txt").exists()
    assert [row["step"] for row in json_rows(result)] == [1, 2, 3]


def test_w22_a_trial_that_meets_a_full_disk_itself_is_not_failed(make_tuner, small_disk, tmp_path):
    """W22: a trial whose own write to the storage fails for lack of space loses one of its retries."""

    def train(config):
        if start_step() == 0:
            save(1)
            fill(config["filler"])
        try:
            save(2)
        except OSError:
            note(config, "full", "x")
            raise
        return {"step": 3}

    filler = small_disk / "filler"
    make_room = threading.Thread(
        target=lambda: (wait_until((tmp_path / "full").exists, "the failure"), filler.unlink())
    )
    make_room.start()
    space = {"dir": str(tmp_path), "filler": str(filler)}
    (result,) = make_tuner(train, space, storage_path=small_disk).fit()
    make_room.join()
    assert (result.status, history(result, "step")) == ("TERMINATED", [1, 2, 3])
    assert not Path(result.path, "error.txt").exists()


def test_w23_a_snapshot_that_cannot_be_written_does_not_end_the_experiment(
    make_tuner, root, tmp_path, caplog, monkeypatch
):
    """W23: a storage error while a snapshot is taken ends the run, and at the end it is ignored."""
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")

    class InTheWay(tune.Callback):
        def setup(self, **info):
            (root / ".holdfast" / "snapshots").write_text("a file where a directory should be")

    space = {"dir": str(tmp_path), "x": tune.grid_search([1, 2])}
    grid = make_tuner(count, space, callbacks=[InTheWay()]).fit()
    assert statuses(grid) == ["TERMINATED"] * 2
    assert "no snapshot could be written" in caplog.text
    (root / ".holdfast" / "snapshots").unlink()
    again = restore(root).get_results()
    assert [result.metrics_history for result in again] == [result.metrics_history for result in grid]


def test_w24_a_trial_that_hangs_is_noticed(make_tuner, tmp_path):
    """W24: a hanging trial is never detected; users have to build their own timeout."""

    def train(config):
        note(config, "attempts", "x")
        tune.report({"step": 1})
        if len(lines(Path(config["dir"], "attempts"))) == 1:
            threading.Event().wait()

    config = tune.FailureConfig(max_failures=-1, stall_timeout_s=0.4)
    (result,) = make_tuner(train, {"dir": str(tmp_path)}, failure_config=config).fit()
    assert result.status == "TERMINATED"
    assert len(lines(tmp_path / "attempts")) >= 2
    assert "no report for" in Path(result.path, "error.txt").read_text()


def test_w26_result_files_have_no_repeated_rows_and_no_lost_columns(make_tuner, tmp_path):
    """W26: after a retry result.json repeats iterations, and progress.csv drops columns that appear late."""

    def train(config):
        note(config, "attempts", "x")
        retried = len(lines(Path(config["dir"], "attempts"))) > 1
        for step in range(1, 5):
            tune.report({"step": step, "retried": retried, **({"late": step} if step > 2 else {})})
            if step == 3 and not retried:
                raise RuntimeError("once")

    config = tune.FailureConfig(max_failures=1)
    (result,) = make_tuner(train, {"dir": str(tmp_path)}, failure_config=config).fit()
    assert [(row["training_iteration"], row["retried"]) for row in json_rows(result)] == [
        (n, True) for n in (1, 2, 3, 4)
    ]
    assert [row["training_iteration"] for row in csv_rows(result)] == ["1", "2", "3", "4"]
    assert [row["late"] for row in csv_rows(result)] == ["", "", "3", "4"]


def test_w31_a_restarted_trial_keeps_its_id_and_directory(make_tuner, root, tmp_path):
    """W31: restart_errored makes a new trial in a new directory and leaves the old one behind."""
    (before,) = make_tuner(count, {"dir": str(tmp_path), "fail_at": 2}).fit()
    (tmp_path / "mended").touch()
    (result,) = restore(root, restart_errored=True).fit()
    assert (result.trial_id, result.path) == (before.trial_id, before.path)
    assert [path.name for path in root.iterdir() if not path.name.startswith(".")] == [Path(before.path).name]
    assert len(checkpoints(result)) == 3
    assert [row["step"] for row in json_rows(result)] == [1, 2, 3]


def test_w32_the_grid_after_an_interruption_says_what_the_disk_says(drivers, root, tmp_path):
    """W32: after Ctrl+C the returned grid shows trials as TERMINATED while the disk says RUNNING."""
    driver = drivers.start(
        """
space = {"dir": str(DIR), "steps": 99, "hold_at": 2, "x": tune.grid_search([1, 2, 3])}
grid = tune.Tuner(count, param_space=space, run_config=config()).fit()
DIR.joinpath("statuses").write_text(" ".join(result.status for result in grid))
"""
    )
    driver.wait_for_lines(tmp_path / "diary", 4)
    driver.signal(signal.SIGINT)
    (tmp_path / "go").touch()
    code, output = driver.end()
    assert code == 0, output
    found = (tmp_path / "statuses").read_text().split()
    assert found == statuses(restore(root).get_results()) == ["PENDING"] * 3


def test_w32_classes_too_are_shown_as_the_disk_has_them(make_tuner, root, tmp_path):
    """W32: the same for a run that fail_fast has ended."""
    space = {"dir": str(tmp_path), "steps": 10**6, "x": tune.grid_search([1, 2])}
    space["fail_at"] = tune.sample_from(lambda config: 3 if config["x"] == 1 else None)
    grid = make_tuner(Counter, space, failure_config=tune.FailureConfig(fail_fast=True)).fit()
    assert statuses(grid) == statuses(restore(root).get_results()) == ["ERROR", "PENDING"]
