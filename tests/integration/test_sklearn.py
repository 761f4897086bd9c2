"""scikit-learn: estimators that learn in steps, and trainings that were killed."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from interrupted import check_same_history, kill_and_restore
from made_data import points

import holdfast as tune
from holdfast.errors import InvalidTypeError

pytestmark = pytest.mark.slow


def import_libraries():
    global RandomForestClassifier, SGDClassifier, TrainingState
    pytest.importorskip("sklearn", exc_type=ImportError)
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import SGDClassifier

    from holdfast.integration.sklearn import TrainingState


def run(train, folder: Path):
    run_config = tune.RunConfig(storage_path=str(folder), verbose=0, failure_config=tune.FailureConfig(max_failures=1))
    (result,) = tune.Tuner(train, run_config=run_config).fit()
    assert result.error is None
    return result


def test_a_killed_training_ends_with_the_same_weights(tmp_path):
    whole, broken, before, after = kill_and_restore(tmp_path, "train_sklearn")
    assert (before, after) == ([1, 2, 3, 4, 5], [5, 6, 7, 8])
    check_same_history(whole, broken, "accuracy", "loss")
    first, second = (
        pickle.loads(Path(found.checkpoint.path, "estimator.pkl").read_bytes())["estimator"]
        for found in (whole, broken)
    )
    for one, other in zip([*first.coefs_, *first.intercepts_], [*second.coefs_, *second.intercepts_], strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_growing_ensemble_keeps_its_size(tmp_path):
    def train(config):
        x, y = points(60)
        model = RandomForestClassifier(n_estimators=2, warm_start=True, random_state=0)
        state = TrainingState(model)
        for step in range(state.resume(), 3):
            model.set_params(n_estimators=2 * (step + 1)).fit(x, y)
            state.report({"trees": len(model.estimators_), "size": model.n_estimators})
            if step == 1:
                raise RuntimeError("in the middle")

    assert [row["trees"] for row in run(train, tmp_path).metrics_history] == [2, 4, 6]


def test_a_parameter_that_the_configuration_has_changed_since_is_set(tmp_path):
    def train(config):
        x, y = points(60)
        fresh = tune.get_checkpoint() is None
        model = SGDClassifier(alpha=0.1 if fresh else 0.2, random_state=0)
        state = TrainingState(model)
        state.resume()
        model.partial_fit(x, y, classes=[0, 1])
        state.report({"alpha": model.alpha, "seen": model.t_})
        if fresh:
            raise RuntimeError("in the middle")

    rows = run(train, tmp_path).metrics_history
    assert [row["alpha"] for row in rows] == [0.1, 0.2]
    assert rows[1]["seen"] == 121


def test_something_that_is_no_estimator_is_refused():
    with pytest.raises(InvalidTypeError, match="estimator="):
        TrainingState({"weights": 1})
