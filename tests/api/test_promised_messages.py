"""Messages that users and their scripts rely on: the kind of error and the words that it must contain."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from api_trainables import noop

import holdfast as tune


def train(config):
    tune.report({"loss": 1.0}, checkpoint=tune.Checkpoint.from_dict({"step": 1}))


def another(config): ...


def without_loss(config):
    tune.report({"accuracy": 1.0})


class Counts(tune.Trainable):
    def step(self):
        return {"x": 1}

    def save_checkpoint(self, checkpoint_dir):
        return {"x": 1}

    def load_checkpoint(self, checkpoint): ...


def says(kind: type[BaseException], words: list[str], call: Any, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    for word in words:
        assert word in str(caught.value)


@pytest.fixture
def finished(make_tuner, root) -> Path:
    make_tuner(train, {"a": 1, "b": {"c": tune.grid_search([1, 2])}}).fit()
    return root


def test_restoring_with_another_trainable(finished):
    says(ValueError, ["trainable", "'another'", "'train'"], tune.Tuner.restore, finished, another)


def test_restoring_with_another_space(finished):
    words = ["param_space", "Got: ['a']", "Expected: ['a', 'b/c/grid_search']"]
    says(ValueError, words, tune.Tuner.restore, finished, param_space={"a": 1})


def test_results_before_the_run(make_tuner):
    says(RuntimeError, ["has not been run"], make_tuner(noop).get_results)


def test_restore_on_an_instance(make_tuner):
    tuner = make_tuner(noop)
    says(AttributeError, ["classmethod"], lambda: tuner.restore("path"))


def test_a_result_without_the_metric(make_tuner):
    tuner = make_tuner(without_loss, metric="loss", mode="min")
    says(ValueError, ["loss", "TuneConfig", "TUNE_DISABLE_STRICT_METRIC_CHECKING"], tuner.fit)


@pytest.mark.parametrize("option", [{"checkpoint_frequency": 2}, {"checkpoint_at_end": True}])
def test_class_options_for_a_function(make_tuner, option):
    words = [*option, "report"]
    says(ValueError, words, make_tuner, noop, checkpoint_config=tune.CheckpointConfig(**option))


def test_failing_fast_and_retrying():
    says(ValueError, ["max_failures must be 0"], tune.FailureConfig, max_failures=2, fail_fast=True)


def test_a_mode_that_does_not_exist():
    says(ValueError, ["['min', 'max']", "'mx'"], tune.TuneConfig, mode="mx")


def test_no_best_result(finished):
    grid = tune.ResultGrid.from_path(finished)
    words = ["No best trial found for the given metric", "accuracy", "NaN"]
    says(RuntimeError, words, grid.get_best_result, "accuracy", "max")
    says(ValueError, ["No metric is provided"], grid.get_best_result)
    says(ValueError, ["No mode is provided"], grid.get_best_result, "loss")


@pytest.mark.parametrize(("template", "word"), [("cp {target}", "{source}"), ("cp {source}", "{target}")])
def test_a_template_without_its_places(template, word):
    says(ValueError, [f"Sync template missing '{word}'"], tune.SyncConfig, syncer=template)


def test_a_checkpoint_that_is_gone(finished):
    checkpoint = tune.ResultGrid.from_path(finished)[0].checkpoint
    shutil.rmtree(checkpoint.path)
    says(ValueError, ["does not exist on storage anymore", checkpoint.path], Counts({}).restore, checkpoint)


def test_no_experiment(tmp_path):
    says(ValueError, ["no experiment state file", str(tmp_path)], tune.Tuner.restore, tmp_path)
    says(ValueError, ["No experiment snapshot file", str(tmp_path)], tune.ExperimentAnalysis, tmp_path)


def test_a_directory_name_with_a_slash(make_tuner):
    says(ValueError, ["must not contain '/'", "'a/b'"], make_tuner(noop, trial_dirname_creator=lambda _: "a/b").fit)


def test_no_trainable():
    says(tune.TuneError, ["need to provide a trainable"], tune.Tuner)


def test_a_space_that_is_no_dict(make_tuner):
    says(ValueError, ["`param_space` must be a dict", "list"], make_tuner, noop, [1])
    says(ValueError, ["run_config"], make_tuner, noop, {"run_config": tune.RunConfig()})
