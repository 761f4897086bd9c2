"""Function trainables in real experiments: how they are called, what they report, save, print and are given."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
from api_trainables import count, five, note, save
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


@pytest.mark.parametrize("option", [{"checkpoint_frequency": 2}, {"checkpoint_at_end": True}])
def test_options_for_classes_are_refused_for_functions(make_tuner, option):
    (name,) = option
    with pytest.raises(InvalidInputError, match=rf"{name}.*report\("):
        make_tuner(count, checkpoint_config=tune.CheckpointConfig(**option))
