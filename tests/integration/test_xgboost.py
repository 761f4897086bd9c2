"""XGBoost: reports, checkpoints, and trainings that were killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from interrupted import check_same_history, kill_and_restore
from made_data import points

import holdfast as tune

pytestmark = pytest.mark.slow

PARAMETERS = {"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "nthread": 1}


def import_libraries():
    global xgboost, TuneReportCallback, TuneReportCheckpointCallback
    xgboost = pytest.importorskip("xgboost", exc_type=ImportError)
    from holdfast.integration.xgboost import TuneReportCallback, TuneReportCheckpointCallback


def data():
    import xgboost  # trials call this too, in modules of their own

    x, y = points(80)
    return xgboost.DMatrix(x, y, nthread=1)


def run(train, folder: Path, **space):
    run_config = tune.RunConfig(storage_path=str(folder), verbose=0, engine=tune.LocalEngine(cpus=1))
    (result,) = tune.Tuner(train, param_space=space, run_config=run_config).fit()
    return result


def test_a_killed_training_ends_with_the_same_trees(tmp_path):
    whole, broken, before, after = kill_and_restore(tmp_path, "train_xgboost")
    assert (before, after) == ([1, 2, 3, 4, 5], [4, 5, 6, 7, 8])
    check_same_history(whole, broken, "loss")
    models = [Path(result.checkpoint.path, "model.ubj").read_bytes() for result in (whole, broken)]
    assert models[0] == models[1]
    assert TuneReportCheckpointCallback.get_model(broken.checkpoint).num_boosted_rounds() == 8


def test_every_round_is_a_report_and_the_end_is_saved(tmp_path):
    def train(config):
        callback = TuneReportCheckpointCallback(frequency=2)
        xgboost.train(PARAMETERS, data(), 3, evals=[(data(), "eval")], callbacks=[callback], verbose_eval=False)

    result = run(train, tmp_path)
    assert result.error is None
    assert len(result.metrics_history) == 4  # the last one repeats the third, with its checkpoint
    assert {"eval-logloss", "eval-error"} <= result.metrics.keys()
    saved = [TuneReportCheckpointCallback.get_model(found) for found, _ in result.best_checkpoints]
    assert [booster.num_boosted_rounds() for booster in saved] == [2, 3]


def test_early_stopping_of_a_resumed_training_knows_the_rounds_before(tmp_path):
    def train(config):
        class Fail(xgboost.callback.TrainingCallback):
            def after_iteration(self, model, epoch, evals_log):
                if config["fail"] and epoch == 5 and tune.get_checkpoint() is None:
                    raise RuntimeError("in the middle")
                return False

        xgboost.train(
            {**PARAMETERS, "eta": 3.0, "max_depth": 6, "lambda": 0.0},
            data(),
            num_boost_round=40,
            evals=[(xgboost.DMatrix(*[part[80:] for part in points(160)], nthread=1), "eval")],
            callbacks=[
                TuneReportCheckpointCallback("eval-logloss", frequency=2, checkpoint_at_end=False),
                Fail(),
                xgboost.callback.EarlyStopping(8, metric_name="logloss"),
            ],
            verbose_eval=False,
        )

    run_config = tune.RunConfig(
        storage_path=str(tmp_path), verbose=0, failure_config=tune.FailureConfig(max_failures=1)
    )
    grid = tune.Tuner(train, param_space={"fail": tune.grid_search([False, True])}, run_config=run_config).fit()
    histories = [[row["eval-logloss"] for row in result.metrics_history] for result in grid]
    assert len(histories[0]) < 40
    assert histories[0] == histories[1]


def test_a_training_that_was_resumed_by_hand_is_left_alone(tmp_path):
    def train(config):
        checkpoint = tune.get_checkpoint()
        model = TuneReportCheckpointCallback.get_model(checkpoint) if checkpoint else None
        done = model.num_boosted_rounds() if model else 0
        xgboost.train(
            PARAMETERS,
            data(),
            num_boost_round=6 - done,
            xgb_model=model,
            evals=[(data(), "eval")],
            callbacks=[TuneReportCheckpointCallback("eval-error", frequency=2)],
            verbose_eval=False,
        )
        if done == 0:
            raise RuntimeError("after the end")

    failure = tune.FailureConfig(max_failures=1)
    run_config = tune.RunConfig(storage_path=str(tmp_path), verbose=0, failure_config=failure)
    (result,) = tune.Tuner(train, run_config=run_config).fit()
    assert result.error is None
    assert TuneReportCheckpointCallback.get_model(result.checkpoint).num_boosted_rounds() == 6


def test_a_wrong_metric_names_those_that_exist(tmp_path):
    def train(config):
        xgboost.train(
            PARAMETERS, data(), 2, evals=[(data(), "eval")], callbacks=[TuneReportCallback("loss")], verbose_eval=False
        )

    text = str(run(train, tmp_path).error)
    assert "no 'loss'" in text
    assert "['eval-error', 'eval-logloss']" in text


def test_metrics_can_be_changed_before_they_are_chosen(tmp_path):
    def train(config):
        callback = TuneReportCallback("accuracy", lambda found: {"accuracy": 1 - found["eval-error"]})
        xgboost.train(PARAMETERS, data(), 2, evals=[(data(), "eval")], callbacks=[callback], verbose_eval=False)

    assert 0.5 < run(train, tmp_path).metrics["accuracy"] <= 1


def test_cross_validation_reports_means_and_cannot_be_saved(tmp_path):
    def train(config):
        callback = (TuneReportCheckpointCallback if config["save"] else TuneReportCallback)()
        xgboost.cv(PARAMETERS, data(), 2, nfold=2, callbacks=[callback])

    result = run(train, tmp_path / "report", save=False)
    assert {"test-logloss-mean", "test-logloss-std"} <= result.metrics.keys()
    assert "Use TuneReportCallback" in str(run(train, tmp_path / "save", save=True).error)
