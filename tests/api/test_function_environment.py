"""What a function trainable finds around it: its directory, output, config, parameters, threads and worker."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
from api_trainables import noop, note, save
from experiment_tools import history, json_rows, lines, statuses

import holdfast as tune

# --- what a trial finds around it


def test_a_trial_knows_who_it_is(make_tuner, storage):
    def train(config):
        context = tune.get_context()
        return {
            "name": context.get_experiment_name(),
            "id": context.get_trial_id(),
            "trial": context.get_trial_name(),
            "directory": context.get_trial_dir(),
            "resources": context.get_trial_resources().required_resources,
            "storage": context.get_storage().experiment_fs_path,
        }

    (result,) = make_tuner(train).fit()
    assert result.metrics["name"] == "exp"
    assert result.metrics["id"] == result.trial_id
    assert result.metrics["trial"] == f"train_{result.trial_id}"
    assert result.metrics["directory"] == result.path
    assert result.metrics["resources"] == {"CPU": 1}
    assert result.metrics["storage"] == str(storage / "exp")


def test_a_trial_runs_in_its_own_directory(make_tuner):
    def train(config):
        Path("artifact.txt").write_text("mine")
        return {"here": os.getcwd(), "there": os.environ["TUNE_ORIG_WORKING_DIR"]}

    (result,) = make_tuner(train).fit()
    assert result.metrics["here"] == result.path
    assert result.metrics["there"] == os.getcwd()
    assert Path(result.path, "artifact.txt").read_text() == "mine"


@pytest.mark.parametrize("how", ["environment", "older argument"])
def test_a_trial_can_run_in_the_drivers_directory(make_tuner, monkeypatch, tmp_path, how):
    monkeypatch.chdir(tmp_path)
    if how == "environment":
        monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "0")
        tuner = make_tuner(lambda config: {"here": os.getcwd()})
    else:
        with pytest.warns(DeprecationWarning, match="CHDIR_TO_TRIAL_DIR"):
            tuner = make_tuner(lambda config: {"here": os.getcwd()}, chdir_to_trial_dir=False)
    (result,) = tuner.fit()
    assert result.metrics["here"] == str(tmp_path)


def test_nothing_of_one_trial_reaches_the_next_in_the_same_worker(make_tuner):
    def train(config):
        before = os.environ.get("LEFT_BEHIND"), os.getcwd() == tune.get_context().get_trial_dir()
        os.environ["LEFT_BEHIND"] = "x"
        os.chdir("/")
        return {"before": before}

    grid = make_tuner(train, num_samples=4, engine=tune.LocalEngine(cpus=1)).fit()
    assert [result.metrics["before"] for result in grid] == [[None, True]] * 4


@pytest.mark.parametrize(
    ("setting", "stdout", "stderr"),
    [(True, "stdout", "stderr"), ("both.log", "both.log", "both.log"), (("out", "err"), "out", "err")],
)
def test_output_goes_to_files_of_the_trial(make_tuner, capfd, setting, stdout, stderr):
    def train(config):
        import subprocess
        import sys

        print("to stdout", config["x"], flush=True)
        print("to stderr", config["x"], file=sys.stderr, flush=True)
        subprocess.run(["echo", "from a child"], check=True)

    grid = make_tuner(train, {"x": tune.grid_search([1, 2])}, log_to_file=setting).fit()
    for result in grid:
        x = result.config["x"]
        assert f"to stdout {x}" in Path(result.path, stdout).read_text()
        assert f"to stderr {x}" in Path(result.path, stderr).read_text()
        assert "from a child" in Path(result.path, stdout).read_text()
        assert f"to stdout {3 - x}" not in Path(result.path, stdout).read_text()
    assert "to stdout" not in capfd.readouterr().out


def test_output_files_are_continued_by_a_retry(make_tuner, tmp_path):
    def train(config):
        print("attempt", flush=True)
        note(config, "diary", "x")
        if len(lines(Path(config["dir"], "diary"))) == 1:
            raise RuntimeError("once")

    config = tune.FailureConfig(max_failures=1)
    (result,) = make_tuner(train, {"dir": str(tmp_path)}, failure_config=config, log_to_file=True).fit()
    assert Path(result.path, "stdout").read_text().count("attempt") == 2


def test_config_values_keep_their_types(make_tuner):
    def train(config):
        return {"types": [type(config[key]).__name__ for key in "ifsbnld"]}

    space = {"i": 1, "f": 1.0, "s": "x", "b": True, "n": None, "l": [1, [2]], "d": {"a": {"b": 1}}}
    (result,) = make_tuner(train, space).fit()
    assert result.metrics["types"] == ["int", "float", "str", "bool", "NoneType", "list", "dict"]
    assert result.config == space


def test_a_trial_may_change_its_config_without_changing_the_record(make_tuner):
    def train(config):
        config["x"] = 99
        tune.report({"x": config["x"]})

    (result,) = make_tuner(train, {"x": 1}).fit()
    assert (result.metrics["x"], result.config, json_rows(result)[0]["config"]) == (99, {"x": 1}, {"x": 1})


# --- parameters and resources that come along


def test_with_parameters_hands_objects_to_the_function(make_tuner):
    def train(config, data, scale=1):
        return {"sum": scale * sum(data)}

    trainable = tune.with_parameters(train, data=list(range(100_000)), scale=2)
    (result,) = make_tuner(trainable).fit()
    assert result.metrics["sum"] == sum(range(100_000)) * 2
    assert "data" not in result.config
    assert Path(result.path).name.startswith("train_")


def test_with_parameters_and_with_resources_combine_in_any_order(run_config):
    def train(config, data):
        return {"data": data, "cpu": tune.get_context().get_trial_resources().required_resources["CPU"]}

    first = tune.with_resources(tune.with_parameters(train, data=5), {"cpu": 2})
    second = tune.with_parameters(tune.with_resources(train, {"cpu": 2}), data=5)
    for index, trainable in enumerate([first, second]):
        (result,) = tune.Tuner(trainable, run_config=run_config(name=f"exp{index}")).fit()
        assert (result.metrics["data"], result.metrics["cpu"]) == (5, 2)


def test_parameters_are_restored_without_being_given_again(make_tuner, storage, tmp_path):
    def train(config, data):
        save(1, data=len(data))
        if not Path(config["dir"], "mended").exists():
            raise RuntimeError("once")

    make_tuner(tune.with_parameters(train, data=[1, 2, 3]), {"dir": str(tmp_path)}).fit()
    (tmp_path / "mended").touch()
    (result,) = tune.Tuner.restore(storage / "exp", resume_errored=True).fit()
    assert (result.status, result.metrics["data"]) == ("TERMINATED", 3)


def test_functions_and_classes_of_the_script_need_not_be_importable(drivers, storage):
    """A notebook's functions exist nowhere but in the process that made them."""
    driver = drivers.start(
        """
class Helper:
    value = 5
def helper():
    return Helper.value
def train(config):
    return {"value": helper()}
tune.Tuner(train, run_config=config()).fit()
"""
    )
    assert driver.end()[0] == 0
    (result,) = tune.Tuner.restore(storage / "exp", _resume_config=tune.ResumeConfig(finished="restart")).fit()
    assert result.metrics["value"] == 5


# --- threads and reuse


def test_report_may_be_called_by_a_thread_of_the_trial(make_tuner):
    def train(config):
        def work():
            for step in range(3):
                tune.report({"step": step})

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    (result,) = make_tuner(train).fit()
    assert history(result, "step") == [0, 1, 2]


def test_workers_are_used_again(make_tuner):
    grid = make_tuner(lambda config: {"score": 1}, num_samples=6, engine=tune.LocalEngine(cpus=1)).fit()
    assert len({result.metrics["pid"] for result in grid}) == 1


def test_workers_are_replaced_after_a_number_of_trials(make_tuner):
    engine = tune.LocalEngine(cpus=1, max_trials_per_worker=2)
    grid = make_tuner(noop, num_samples=4, engine=engine).fit()
    assert len({result.metrics["pid"] for result in grid}) == 2


def test_workers_may_be_spawned_rather_than_forked(make_tuner):
    grid = make_tuner(noop, num_samples=2, engine=tune.LocalEngine(cpus=1, start="spawn")).fit()
    assert statuses(grid) == ["TERMINATED"] * 2


def test_random_numbers_differ_between_trials_and_repeat_for_a_trial(make_tuner):
    def train(config):
        import random

        return {"x": random.random()}

    grid = make_tuner(train, num_samples=4).fit()
    assert len({result.metrics["x"] for result in grid}) == 4


# --- a trial's directory goes away under it


def test_a_trial_directory_that_somebody_removes_does_not_end_the_experiment(make_tuner, tmp_path):
    def train(config):
        save(1)
        shutil.rmtree(tune.get_context().get_trial_dir(), ignore_errors=True)  # a commit may be at work in it
        tune.report({"step": 2})

    grid = make_tuner(train, {"x": tune.grid_search([1, 2])}).fit()
    assert [history(result, "training_iteration") for result in grid] == [[1, 2]] * 2
