"""LightGBM: reports, checkpoints, and trainings that were killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from interrupted import check_same_history, kill_and_restore
from made_data import points

import holdfast as tune

pytestmark = pytest.mark.slow

PARAMETERS = {"objective": "binary", "metric": ["binary_logloss", "auc"], "num_threads": 1, "verbose": -1}


def import_libraries():
    global lightgbm, TuneReportCallback, TuneReportCheckpointCallback
    lightgbm = pytest.importorskip("lightgbm", exc_type=ImportError)
    from holdfast.integration.lightgbm import TuneReportCallback, TuneReportCheckpointCallback


def data():
    import lightgbm  # trials call this too, in modules of their own

    x, y = points(80)
    return lightgbm.Dataset(x, y)


def run(train, folder: Path, *, retries: int = 0, **space):
    run_config = tune.RunConfig(
        storage_path=str(folder),
        verbose=0,
        engine=tune.LocalEngine(cpus=1),
        failure_config=tune.FailureConfig(max_failures=retries),
    )
    return tune.Tuner(train, param_space=space, run_config=run_config).fit()


def trees(result: tune.Result) -> str:
    """The model without the parameters that it was trained with."""
    return Path(result.checkpoint.path, "model.txt").read_text().partition("\nparameters:")[0]


def test_a_killed_training_ends_with_the_same_trees(tmp_path):
    whole, broken, before, after = kill_and_restore(tmp_path, "train_lightgbm")
    assert (before, after) == ([1, 2, 3, 4, 5], [4, 5, 6, 7, 8])
    check_same_history(whole, broken, "loss")
    assert trees(whole) == trees(broken)
    assert TuneReportCheckpointCallback.get_model(broken.checkpoint).current_iteration() == 8


@pytest.mark.parametrize("given", [True, False])
def test_a_failed_training_goes_on_with_and_without_its_model(tmp_path, given):
    """Without ``init_model`` all rounds are computed again, with their random numbers, and reported once."""

    def train(config):
        callback = TuneReportCheckpointCallback(frequency=2)

        def fail(env):
            if config["fail"] and env.iteration == 5 and tune.get_checkpoint() is None:
                raise RuntimeError("in the middle")

        lightgbm.train(
            {**PARAMETERS, "bagging_fraction": 1.0 if given else 0.5, "bagging_freq": 1},
            data(),
            num_boost_round=9,
            valid_sets=[data()],
            callbacks=[callback, fail],
            init_model=callback.init_model if given else None,
        )

    whole, broken = run(train, tmp_path, retries=1, fail=tune.grid_search([False, True]))
    assert broken.error is None
    check_same_history(whole, broken, "valid_0-auc", "valid_0-binary_logloss")
    assert trees(whole) == trees(broken)


def test_a_training_that_was_complete_adds_no_round(tmp_path):
    def train(config):
        callback = TuneReportCheckpointCallback()
        booster = lightgbm.train(
            PARAMETERS, data(), 5, valid_sets=[data()], callbacks=[callback], init_model=callback.init_model
        )
        if callback.init_model is None:
            raise RuntimeError("after the end")
        tune.report({"rounds": booster.current_iteration()})

    (result,) = run(train, tmp_path, retries=1)
    assert result.metrics["rounds"] == 5
    assert len(result.metrics_history) == 6


def test_a_wrong_metric_names_those_that_exist(tmp_path):
    def train(config):
        lightgbm.train(PARAMETERS, data(), 2, valid_sets=[data()], callbacks=[TuneReportCallback(["auc"])])

    (result,) = run(train, tmp_path)
    assert "no 'auc'" in str(result.error)
    assert "['valid_0-auc', 'valid_0-binary_logloss']" in str(result.error)


def test_cross_validation_reports_means_and_cannot_be_saved(tmp_path):
    def train(config):
        callback = (TuneReportCheckpointCallback if config["save"] else TuneReportCallback)()
        lightgbm.cv(PARAMETERS, data(), 2, nfold=2, callbacks=[callback])

    reported, saved = run(train, tmp_path, save=tune.grid_search([False, True]))
    assert {"valid-auc-mean", "valid-auc-stdv"} <= reported.metrics.keys()
    assert "Use TuneReportCallback" in str(saved.error)
