"""Transformers: reports, checkpoints, and trainings that were killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from interrupted import check_same_history, kill_and_restore

import holdfast as tune

pytestmark = pytest.mark.slow


def import_libraries():
    pytest.importorskip("transformers", exc_type=ImportError)
    pytest.importorskip("accelerate", exc_type=ImportError)


def run(train, folder: Path, *, retries: int = 0):
    run_config = tune.RunConfig(
        storage_path=str(folder), verbose=0, failure_config=tune.FailureConfig(max_failures=retries)
    )
    (result,) = tune.Tuner(train, run_config=run_config).fit()
    return result


def test_a_killed_training_ends_with_the_same_weights(tmp_path):
    whole, broken, before, after = kill_and_restore(tmp_path, "train_transformers")
    assert (before, after) == ([1, 2, 3, 4, 5], [5, 6, 7, 8])
    assert len(whole.metrics_history) == 8
    check_same_history(whole, broken, "loss", "epoch")
    files = [Path(found.checkpoint.path, "checkpoint", "model.safetensors") for found in (whole, broken)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not list(Path(whole.path, "trainer").glob("checkpoint-*"))


def test_without_the_checkpoint_steps_are_computed_again_and_reported_once(tmp_path):
    def train(config):
        from train_transformers import make_trainer

        from holdfast.integration.transformers import TuneReportCheckpointCallback

        fresh = tune.get_checkpoint() is None
        trainer = make_trainer([TuneReportCheckpointCallback()], num_train_epochs=2 if fresh else 3)
        trainer.train()
        if fresh:
            raise RuntimeError("in the middle")

    result = run(train, tmp_path, retries=1)
    assert result.error is None
    assert [row["step"] for row in result.metrics_history] == [4, 8, 12]
    assert {"loss", "eval_loss", "learning_rate", "epoch"} <= result.metrics.keys()


def test_a_trainer_that_does_not_evaluate_reports_what_it_logs(tmp_path):
    def train(config):
        from train_transformers import make_trainer

        from holdfast.integration.transformers import TuneReportCallback

        arguments = {"eval_strategy": "no", "save_strategy": "no", "logging_strategy": "steps", "logging_steps": 2}
        make_trainer([TuneReportCallback(["loss", "step"])], num_train_epochs=2, **arguments).train()

    assert [row["step"] for row in run(train, tmp_path).metrics_history] == [2, 4, 6, 8]


def test_a_wrong_metric_names_those_that_exist(tmp_path):
    def train(config):
        from train_transformers import make_trainer

        from holdfast.integration.transformers import TuneReportCallback

        make_trainer([TuneReportCallback("accuracy")], num_train_epochs=1).train()

    text = str(run(train, tmp_path).error)
    assert "no 'accuracy'" in text
    assert "'eval_loss'" in text
