"""Roots that were moved, copied, damaged or are being written: where ``Tuner.restore`` works and where it refuses."""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from pathlib import Path

import pytest
from api_trainables import Crash, Crashed, count, noop, scores
from experiment_tools import checkpoints, csv_rows, history, json_rows, lines, statuses

import holdfast as tune
from holdfast.errors import (
    DamageError,
    ExperimentLockedError,
    ExperimentNotFoundError,
    NewerFormatError,
)

restore = tune.Tuner.restore


# --- where the root is now


@pytest.mark.parametrize("how", ["moved", "renamed", "copied", "zipped"])
def test_an_experiment_continues_wherever_its_root_is_now(crashed, root, storage, tmp_path, how):
    crashed(count, {"steps": 5, "x": tune.grid_search([1, 2])}, after=4)
    place = tmp_path / "elsewhere" / "exp"
    place.parent.mkdir()
    if how == "moved":
        shutil.move(root, place)
    elif how == "renamed":
        place = storage / "other name"
        root.rename(place)
    elif how == "copied":
        shutil.copytree(root, place)
    else:
        shutil.make_archive(str(tmp_path / "archive"), "zip", root)
        with zipfile.ZipFile(tmp_path / "archive.zip") as archive:
            archive.extractall(place)
        shutil.rmtree(root)
    before = sorted(path.name for path in root.rglob("*")) if how == "copied" else None
    grid = restore(place).fit()
    assert grid.experiment_path == str(place)
    assert [history(result, "step") for result in grid] == [[1, 2, 3, 4, 5]] * 2
    assert all(Path(result.path).parent == place for result in grid)
    assert all(Path(result.checkpoint.path).is_relative_to(place) for result in grid)
    assert [[row["step"] for row in json_rows(result)] for result in grid] == [[1, 2, 3, 4, 5]] * 2
    if how == "copied":
        assert sorted(path.name for path in root.rglob("*")) == before
    else:
        assert not root.exists()


def test_no_step_is_trained_twice_after_a_move(crashed, root, tmp_path):
    crashed(count, {"steps": 5}, after=3)
    done = lines(tmp_path / "diary")
    shutil.move(root, tmp_path / "moved")
    restore(tmp_path / "moved").fit()
    diary = lines(tmp_path / "diary")
    assert diary[: len(done)] == done
    assert len(diary) == len(set(diary))
    assert not any(line.endswith(" 1") for line in diary[len(done) :])


def test_a_root_may_be_named_in_many_ways(make_tuner, root, monkeypatch, storage):
    make_tuner(noop).fit()
    monkeypatch.chdir(storage)
    monkeypatch.setenv("HOME", str(storage))
    for path in ("exp", "./exp/", "~/exp", root, str(root) + "/", f"file://{root}"):
        assert tune.Tuner.can_restore(path)
        assert restore(path).get_results().experiment_path == str(root)


def test_trials_are_found_again_in_another_time_zone(crashed, root, tmp_path, monkeypatch):
    crashed(count, {"steps": 4}, after=2)
    (before,) = restore(root).get_results()
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        (result,) = restore(root).fit()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert result.path == before.path
    assert history(result, "step") == [1, 2, 3, 4]
    assert len(lines(tmp_path / "diary")) == len(set(lines(tmp_path / "diary")))


def test_directories_of_finished_trials_may_be_removed(make_tuner, root, tmp_path):
    first, _ = make_tuner(count, {"dir": str(tmp_path), "x": tune.grid_search([1, 2])}).fit()
    shutil.rmtree(first.path)
    grid = restore(root).fit()
    assert [history(result, "step") for result in grid] == [[1, 2, 3]] * 2


def test_any_name_will_do(make_tuner, tmp_path):
    name = 'it\'s "quoted" über 50% {x} $HOME'
    callbacks = [Crash(tmp_path, 2)]
    tuner = make_tuner(count, {"dir": str(tmp_path)}, name=name, callbacks=callbacks)
    with pytest.raises(Crashed):
        tuner.fit()
    (result,) = restore(tmp_path / "storage" / name).fit()
    assert history(result, "step") == [1, 2, 3]


def test_results_of_a_restored_tuner_come_from_storage(crashed, root):
    crashed(count, {"steps": 4, "x": tune.grid_search([1, 2])}, after=3)
    grid = restore(root).get_results()
    assert statuses(grid) == ["PENDING"] * 2
    assert sum(len(result.metrics_history) for result in grid) >= 3
    assert not list(root.glob(".holdfast/epochs/*2"))


def test_restoring_again_and_again_loses_nothing(make_tuner, root, tmp_path):
    with pytest.raises(Crashed):
        make_tuner(count, {"dir": str(tmp_path), "steps": 8}, callbacks=[Crash(tmp_path, 1)]).fit()
    for _ in range(4):
        (tmp_path / "crashed").unlink()
        with pytest.raises(Crashed):
            restore(root).fit()
    (result,) = restore(root).fit()
    assert history(result, "step") == list(range(1, 9))
    assert [row["training_iteration"] for row in json_rows(result)] == list(range(1, 9))
    diary = lines(tmp_path / "diary")
    assert len(diary) == len(set(diary))


def test_a_restored_search_goes_on_exactly_as_it_would_have(run_config, tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")

    def draw(name, *callbacks):
        space = {"u": tune.uniform(0, 1), "g": tune.grid_search([1, 2]), "s": tune.sample_from(lambda c: -c["u"])}
        return tune.Tuner(
            noop,
            param_space=space,
            tune_config=tune.TuneConfig(num_samples=5, seed=11),
            run_config=run_config(name=name, callbacks=list(callbacks)),
        )

    whole = [result.config for result in draw("whole").fit()]
    tuner = draw("cut", Crash(tmp_path, 3))
    with pytest.raises(Crashed):
        tuner.fit()
    assert [result.config for result in restore(run_config().storage_path + "/cut").fit()] == whole


# --- paths that are no experiment, or cannot be opened


def test_a_path_that_does_not_exist_is_not_found(storage):
    with pytest.raises(ExperimentNotFoundError, match="does not exist") as caught:
        restore(storage / "nothing")
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ValueError)
    assert not tune.Tuner.can_restore(storage / "nothing")


def test_the_parent_of_an_experiment_is_not_one_but_the_message_knows_it(make_tuner, storage, root):
    make_tuner(noop)
    with pytest.raises(ExperimentNotFoundError, match="no experiment state file") as caught:
        restore(storage)
    assert f"Did you mean {root}" in str(caught.value)


def test_a_trials_directory_is_not_an_experiment_but_the_message_knows_it(make_tuner, root):
    (result,) = make_tuner(noop).fit()
    with pytest.raises(ExperimentNotFoundError, match="not a holdfast experiment") as caught:
        restore(result.path)
    assert f"Did you mean {root}" in str(caught.value)


def test_a_file_is_not_an_experiment(tmp_path):
    (tmp_path / "file").write_text("x")
    assert not tune.Tuner.can_restore(tmp_path / "file")
    with pytest.raises(ExperimentNotFoundError):
        restore(tmp_path / "file")


def test_a_newer_format_is_refused_and_left_alone(make_tuner, root):
    make_tuner(noop).fit()
    spec = root / ".holdfast" / "spec.json"
    facts = json.loads(spec.read_text())
    spec.write_text(json.dumps({**facts, "format": 99, "version": "9.9"}))
    with pytest.raises(NewerFormatError, match=r"newer holdfast .*9\.9.*Upgrade"):
        restore(root)
    assert json.loads(spec.read_text())["format"] == 99


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b"\xff\xfe"])
def test_a_damaged_record_is_refused_and_left_alone(make_tuner, root, content):
    make_tuner(noop).fit()
    spec = root / ".holdfast" / "spec.json"
    spec.write_bytes(content)
    with pytest.raises(DamageError, match=r"spec\.json is damaged"):
        restore(root)
    assert spec.read_bytes() == content


def test_a_trainable_that_cannot_be_loaded_is_asked_for(make_tuner, root):
    make_tuner(noop).fit()
    (root / ".holdfast" / "objects" / "trainable.pkl").write_bytes(b"no pickle")
    with pytest.raises(DamageError, match=r"Tuner\.restore\(path, trainable="):
        restore(root)
    assert len(restore(root, noop).fit()) == 1


# --- one driver at a time


def test_a_second_driver_is_refused_and_changes_nothing(drivers, root, tmp_path):
    driver = drivers.start(
        'tune.Tuner(count, param_space={"dir": str(DIR), "hold_at": 1}, run_config=config()).fit()\n'
    )
    driver.wait_for(tmp_path / "diary")
    before = {path: path.stat().st_mtime_ns for path in root.glob(".holdfast/objects/*")}
    with pytest.raises(ExperimentLockedError, match="takeover=True") as caught:
        restore(root, count, param_space={"dir": "other", "hold_at": 2}).fit()
    assert caught.value.pid == driver.process.pid
    assert str(driver.process.pid) in str(caught.value)
    assert caught.value.host in str(caught.value)
    assert {path: path.stat().st_mtime_ns for path in root.glob(".holdfast/objects/*")} == before
    (tmp_path / "go").touch()
    assert driver.end()[0] == 0
    assert statuses(restore(root).fit()) == ["TERMINATED"]


def test_a_live_experiment_can_be_taken_over(drivers, root, tmp_path):
    driver = drivers.start(
        'tune.Tuner(count, param_space={"dir": str(DIR), "hold_at": 2, "steps": 5}, run_config=config()).fit()\n'
    )
    driver.wait_for_lines(tmp_path / "diary", 2)
    (result,) = restore(root, takeover=True).fit()
    assert history(result, "step") == [1, 2, 3, 4, 5]
    (tmp_path / "go").touch()  # the old driver's trial reports once more
    code, output = driver.end()
    assert code != 0
    assert "FencedError" in output
    assert "taken over" in output
    (again,) = restore(root).get_results()
    assert again.metrics_history == result.metrics_history
    assert [row["step"] for row in json_rows(again)] == [1, 2, 3, 4, 5]


def test_results_can_be_read_while_another_driver_runs(drivers, root, tmp_path):
    driver = drivers.start(
        'tune.Tuner(count, param_space={"dir": str(DIR), "hold_at": 2}, run_config=config()).fit()\n'
    )
    driver.wait_for(tmp_path / "diary")
    (result,) = restore(root).get_results()
    assert result.metrics["step"] in (1, 2)
    (tmp_path / "go").touch()
    assert driver.end()[0] == 0


# --- kill -9


def test_nothing_acknowledged_is_lost_when_everything_is_killed(drivers, root, tmp_path):
    driver = drivers.start(
        """
tune.Tuner(
    count,
    param_space={"dir": str(DIR), "hold_at": 3, "steps": 5, "x": tune.grid_search([1, 2, 3])},
    run_config=config(checkpoint_config=tune.CheckpointConfig(num_to_keep=2)),
).fit()
"""
    )
    driver.wait_for_lines(tmp_path / "diary", 6)
    driver.kill()
    acknowledged = lines(tmp_path / "diary")
    grid = restore(root).get_results()
    recorded = {f"{row['trial_id']} {row['step']}" for result in grid for row in result.metrics_history}
    assert set(acknowledged) <= recorded
    (tmp_path / "go").touch()
    grid = restore(root).fit()
    assert [history(result, "step") for result in grid] == [[1, 2, 3, 4, 5]] * 3
    assert len(lines(tmp_path / "diary")) == len(set(lines(tmp_path / "diary"))) == 15
    for result in grid:
        assert [row["training_iteration"] for row in json_rows(result)] == [1, 2, 3, 4, 5]
        assert [row["training_iteration"] for row in csv_rows(result)] == list("12345")
        assert checkpoints(result) == ["checkpoint_000003", "checkpoint_000004"]


def test_the_files_of_a_finished_trial_are_complete_after_kill_9(drivers, root, tmp_path):
    """A snapshot that knows the trial as settled may be on disk before its last rows are in the files."""
    driver = drivers.start(
        """
class Kill(tune.Callback):
    def on_step_end(self, iteration, trials, **info):
        if sum(trial.is_finished() for trial in trials) >= 3 and list(Path(STORAGE).glob("exp/.holdfast/snapshots/*")):
            os.kill(os.getpid(), 9)

tune.Tuner(
    count,
    param_space={"dir": str(DIR), "x": tune.grid_search(list(range(40)))},
    run_config=config(callbacks=[Kill()]),
).fit()
""",
        TUNE_GLOBAL_CHECKPOINT_S="0",
    )
    assert driver.end()[0] == -9
    settled = [result for result in restore(root).get_results() if result.status == "TERMINATED"]
    assert settled
    tuner = restore(root)
    tuner._experiment.settings.run_config.callbacks = []
    for result in tuner.fit():
        assert [row["training_iteration"] for row in json_rows(result)] == [1, 2, 3]
        assert [row["training_iteration"] for row in csv_rows(result)] == list("123")
        assert Path(result.path, "params.json").exists()


def test_checkpoints_survive_kill_9_and_retention_goes_on_exactly(drivers, root, tmp_path):
    driver = drivers.start(
        """
def train(config):
    from api_trainables import save, start_step
    scores = [5, 1, 4, 2, 3]
    for step in range(start_step() + 1, 6):
        save(step, score=scores[step - 1])
        DIR.joinpath(f"at.{step}").touch()
        if step == 3:
            wait_for(DIR / "go")

tune.Tuner(
    train,
    run_config=config(checkpoint_config=tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score")),
).fit()
"""
    )
    driver.wait_for(tmp_path / "at.3")
    driver.kill()
    (tmp_path / "go").touch()
    (result,) = restore(root).fit()
    assert checkpoints(result) == ["checkpoint_000000", "checkpoint_000002", "checkpoint_000004"]
    assert [metrics["score"] for _, metrics in result.best_checkpoints] == [4, 5]


def test_scores_of_a_moved_experiment_are_still_ranked(make_tuner, root, tmp_path):
    config = tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score")
    make_tuner(scores, {"scores": [5, 1, 4, 2, 3]}, checkpoint_config=config).fit()
    shutil.move(root, tmp_path / "moved")
    (result,) = restore(tmp_path / "moved").get_results()
    assert [metrics["score"] for _, metrics in result.best_checkpoints] == [4, 5]
    assert Path(result.get_best_checkpoint("score", "max").path, "step").read_text() == "1"
