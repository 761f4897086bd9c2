"""Function trainables in real experiments: how they are called, what they report, save, print and are given."""

from __future__ import annotations

import functools
import os
import shutil
import threading
from pathlib import Path

import pytest
from api_trainables import count, five, noop, note, save
from experiment_tools import checkpoints, csv_rows, history, json_rows, lines, statuses

import holdfast as tune
from holdfast.errors import InvalidInputError

# --- what a function may look like


def test_a_returned_dict_is_the_last_result(make_tuner):
    def train(config):
        tune.report({"a": 1})
        return {"a": 2, "b": 3}

    (result,) = make_tuner(train).fit()
    assert history(result, "a") == [1, 2]
    assert (result.metrics["b"], result.metrics["training_iteration"], result.metrics["done"]) == (3, 2, True)


def test_a_returned_number_is_the_metric_of_no_name(make_tuner):
    grid = make_tuner(lambda config: config["value"], {"value": tune.grid_search([0.5, 7, True, 0])}).fit()
    assert [result.metrics["_metric"] for result in grid] == [0.5, 7, True, 0]


def test_nothing_returned_is_no_result(make_tuner):
    grid = make_tuner(lambda config: config["value"], {"value": tune.grid_search([None, {}, [], "", False])}).fit()
    assert [result.metrics_history for result in grid] == [[]] * 5
    assert statuses(grid) == ["TERMINATED"] * 5


def test_something_else_returned_is_an_error(make_tuner):
    (result,) = make_tuner(lambda config: "loss").fit()
    assert "must return or yield a dict" in str(result.error)


def test_a_generator_reports_what_it_yields(make_tuner):
    def train(config):
        for step in range(3):
            yield {"step": step}
        yield 0.25
        return {"step": 9}

    (result,) = make_tuner(train).fit()
    assert [row.get("step", row.get("_metric")) for row in result.metrics_history] == [0, 1, 2, 0.25, 9]


def test_a_stopped_generator_is_closed(make_tuner, tmp_path):
    def train(config):
        try:
            while True:
                yield {"x": 1}
        finally:
            Path(config["dir"], "closed").touch()

    (result,) = make_tuner(train, {"dir": str(tmp_path)}, stop={"training_iteration": 2}).fit()
    assert history(result) == [1, 2]
    assert (tmp_path / "closed").exists()


def test_partials_callables_and_methods_are_trainables(run_config):
    def scaled(factor, config):
        return {"y": factor * config["x"]}

    class Model:
        def __call__(self, config):
            return {"y": config["x"]}

        def train(self, config):
            return {"y": -config["x"]}

    found = []
    for index, trainable in enumerate([functools.partial(scaled, 3), Model(), Model().train]):
        tuner = tune.Tuner(trainable, param_space={"x": 2}, run_config=run_config(name=f"exp{index}"))
        found.append(tuner.fit()[0].metrics["y"])
    assert found == [6, 2, -2]


def test_a_function_of_the_older_style_gets_a_reporter(make_tuner):
    def train(config, reporter):
        reporter(mean_loss=0.5)
        reporter(0.25, mean_loss=0.4)

    (result,) = make_tuner(train).fit()
    assert history(result, "mean_loss") == [0.5, 0.4]
    assert result.metrics["_metric"] == 0.25


def test_a_function_of_the_older_style_gets_its_checkpoint_dir(make_tuner, tmp_path):
    def train(config, checkpoint_dir=None):
        start = int(Path(checkpoint_dir, "step").read_text()) if checkpoint_dir else 0
        for step in range(start + 1, 4):
            with tune.checkpoint_dir(step=step) as directory:
                Path(directory, "step").write_text(str(step))
            tune.report(step=step)
            if step == 2 and start == 0:
                raise RuntimeError("once")

    (result,) = make_tuner(train, failure_config=tune.FailureConfig(max_failures=1)).fit()
    assert history(result, "step") == [1, 2, 3]
    assert len(checkpoints(result)) == 3


def test_older_spellings_of_report_work(make_tuner):
    def train(config):
        tune.report(3)
        tune.report(loss=1)
        tune.report(0.5, loss=2)

    (result,) = make_tuner(train).fit()
    assert [row.get("_metric") for row in result.metrics_history] == [3, None, 0.5]
    assert [row.get("loss") for row in result.metrics_history] == [None, 1, 2]


# --- results


def test_results_have_the_automatic_keys(make_tuner):
    (result,) = make_tuner(five, {"x": 1}).fit()
    last = result.metrics
    assert last["training_iteration"] == last["iterations_since_restore"] == 5
    assert last["trial_id"] == result.trial_id
    assert last["config"] == result.config == {"x": 1}
    assert last["pid"] != os.getpid()
    assert last["pid"] > 0
    assert last["hostname"] == os.uname().nodename
    assert {"node_ip", "date", "timestamp", "time_total_s", "time_this_iter_s", "time_since_restore"} <= last.keys()
    assert last["done"] is True
    assert isinstance(last["timestamp"], int)


def test_the_last_row_of_a_returning_function_is_marked_done_once_in_all_places(make_tuner):
    (result,) = make_tuner(five).fit()
    assert result.metrics["done"] is True
    assert len(json_rows(result)) == len(csv_rows(result)) == 5


def test_a_function_that_reports_done_ends_there(make_tuner, tmp_path):
    def train(config):
        for step in range(5):
            tune.report({"step": step, "done": step == 1})
            note(config, "diary", step)

    (result,) = make_tuner(train, {"dir": str(tmp_path)}).fit()
    assert history(result, "step") == [0, 1]
    assert result.status == "TERMINATED"
    assert lines(tmp_path / "diary") == ["0"]


def test_the_users_iteration_and_totals_win(make_tuner):
    def train(config):
        tune.report({"training_iteration": 10, "timesteps_this_iter": 5})
        tune.report({"timesteps_this_iter": 7, "episodes_this_iter": 1})
        tune.report({"timesteps_total": 100})

    (result,) = make_tuner(train).fit()
    assert history(result) == [10, 11, 12]
    assert [row["timesteps_total"] for row in result.metrics_history] == [5, 12, 100]
    assert result.metrics_history[1]["episodes_total"] == 1


def test_values_are_those_at_the_time_of_the_report(make_tuner):
    def train(config):
        metrics = {"nested": {"x": 1}, "list": [1]}
        tune.report(metrics)
        metrics["nested"]["x"] = 2
        metrics["list"].append(2)
        tune.report(metrics)

    (result,) = make_tuner(train).fit()
    assert history(result, "nested") == [{"x": 1}, {"x": 2}]
    assert history(result, "list") == [[1], [1, 2]]


def test_nan_and_infinity_are_ordinary_values(make_tuner):
    def train(config):
        tune.report({"x": float("nan"), "y": float("inf")})
        tune.report({"x": 1.0, "y": float("-inf")})

    (result,) = make_tuner(train).fit()
    first, second = result.metrics_history
    assert first["x"] != first["x"]
    assert (first["y"], second["y"]) == (float("inf"), float("-inf"))
    assert json_rows(result)[0]["y"] == float("inf")


def test_numpy_values_become_numbers(make_tuner):
    numpy = pytest.importorskip("numpy")

    def train(config):
        tune.report({"f": numpy.float32(0.5), "i": numpy.int64(3), "a": numpy.arange(3), "b": numpy.bool_(True)})

    (result,) = make_tuner(train, {"n": numpy.int64(4)}).fit()
    assert {key: result.metrics[key] for key in "fiab"} == {"f": 0.5, "i": 3, "a": [0, 1, 2], "b": True}
    assert result.config == {"n": 4}


def test_metrics_of_a_wrong_kind_are_the_trials_error(make_tuner):
    def train(config):
        tune.report([["not", "a", "dict"], {1: 2}, "text"][config["n"]])

    grid = make_tuner(train, {"n": tune.grid_search([0, 1, 2])}).fit()
    assert [result.error.error_type for result in grid] == ["InvalidTypeError"] * 3


# --- checkpoints


def test_a_reported_directory_is_copied_and_stays_the_users(make_tuner, tmp_path):
    def train(config):
        mine = Path(config["dir"], "mine")
        mine.mkdir()
        for step in range(2):
            mine.joinpath("state").write_text(str(step))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(mine))
        mine.joinpath("state").write_text("later")

    (result,) = make_tuner(train, {"dir": str(tmp_path)}).fit()
    assert (tmp_path / "mine" / "state").read_text() == "later"
    assert [Path(result.path, name, "state").read_text() for name in checkpoints(result)] == ["0", "1"]
    assert history(result, "checkpoint_dir_name") == ["checkpoint_000000", "checkpoint_000001"]


def test_rows_without_a_checkpoint_say_so(make_tuner):
    def train(config):
        tune.report({"x": 1})
        save(1)
        tune.report({"x": 2})

    (result,) = make_tuner(train).fit()
    assert history(result, "checkpoint_dir_name") == [None, "checkpoint_000000", None]
    assert result.checkpoint.path.endswith("checkpoint_000000")


def test_a_checkpoint_holds_whole_trees_and_metadata(make_tuner):
    def train(config):
        with tune.checkpoint_dir() as directory:
            Path(directory, "a", "b").mkdir(parents=True)
            Path(directory, "a", "b", "c.bin").write_bytes(b"\0" * 100_000)
            checkpoint = tune.Checkpoint.from_directory(directory)
            checkpoint.set_metadata({"epoch": 3})
            tune.report({"x": 1}, checkpoint=checkpoint)

    (result,) = make_tuner(train).fit()
    with result.checkpoint.as_directory() as directory:
        assert Path(directory, "a", "b", "c.bin").stat().st_size == 100_000
    assert result.checkpoint.get_metadata() == {"epoch": 3}


def test_a_checkpoint_made_of_a_dict_comes_back_as_one(make_tuner):
    def train(config):
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["step"] if checkpoint else 0
        for step in range(start + 1, 4):
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
            if step == 2 and not start:
                raise RuntimeError("once")

    (result,) = make_tuner(train, failure_config=tune.FailureConfig(max_failures=1)).fit()
    assert history(result, "step") == [1, 2, 3]
    assert result.checkpoint.to_dict() == {"step": 3}


def test_an_empty_directory_is_a_checkpoint_too(make_tuner, tmp_path):
    def train(config):
        Path(config["dir"], "empty").mkdir()
        tune.report({"x": 1}, checkpoint=tune.Checkpoint.from_directory(Path(config["dir"], "empty")))

    (result,) = make_tuner(train, {"dir": str(tmp_path)}).fit()
    assert result.status == "TERMINATED"
    assert len(checkpoints(result)) == 1


def test_a_checkpoint_that_does_not_exist_is_the_trials_error(make_tuner):
    def train(config):
        tune.report({"x": 1}, checkpoint=tune.Checkpoint.from_directory("/nowhere/at/all"))

    (result,) = make_tuner(train).fit()
    assert "/nowhere/at/all" in str(result.error)


def test_nothing_is_left_beside_the_checkpoints_when_a_trial_has_ended(make_tuner, tmp_path):
    def train(config):
        save(1)
        with tune.checkpoint_dir() as directory:
            Path(directory, "never reported").touch()
        if config["x"]:
            raise RuntimeError("failed")

    grid = make_tuner(train, {"x": tune.grid_search([0, 1])}).fit()
    for result in grid:
        hidden = [path.name for path in Path(result.path).iterdir() if path.name.startswith(".")]
        assert hidden == []


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
        shutil.rmtree(tune.get_context().get_trial_dir())
        tune.report({"step": 2})

    grid = make_tuner(train, {"x": tune.grid_search([1, 2])}).fit()
    assert [history(result, "training_iteration") for result in grid] == [[1, 2]] * 2


@pytest.mark.parametrize("option", [{"checkpoint_frequency": 2}, {"checkpoint_at_end": True}])
def test_options_for_classes_are_refused_for_functions(make_tuner, option):
    (name,) = option
    with pytest.raises(InvalidInputError, match=rf"{name}.*report\("):
        make_tuner(count, checkpoint_config=tune.CheckpointConfig(**option))
