"""Keras, on the backend of ``KERAS_BACKEND`` (PyTorch unless it says otherwise): reports, checkpoints, killed fits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from interrupted import check_same_history, kill_and_restore

import holdfast as tune

os.environ.setdefault("KERAS_BACKEND", "torch")

pytestmark = [
    pytest.mark.slow,
    # Keras asks tensors for arrays in a way that this NumPy deprecates.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def import_libraries():
    global keras
    pytest.importorskip(os.environ["KERAS_BACKEND"], exc_type=ImportError)
    keras = pytest.importorskip("keras", exc_type=ImportError)


def run(train, folder: Path):
    run_config = tune.RunConfig(storage_path=str(folder), verbose=0)
    (result,) = tune.Tuner(train, run_config=run_config).fit()
    return result


def test_a_killed_fit_ends_with_the_same_weights(tmp_path):
    whole, broken, before, after = kill_and_restore(tmp_path, "train_keras")
    assert (before, after) == ([1, 2, 3, 4, 5], [5, 6, 7, 8])
    check_same_history(whole, broken, "loss")
    first, second = (keras.saving.load_model(Path(found.checkpoint.path, "model.keras")) for found in (whole, broken))
    for one, other in zip(first.weights, second.weights, strict=True):
        assert keras.ops.convert_to_numpy(one).tobytes() == keras.ops.convert_to_numpy(other).tobytes()
    for one, other in zip(first.optimizer.variables, second.optimizer.variables, strict=True):
        assert keras.ops.convert_to_numpy(one).tobytes() == keras.ops.convert_to_numpy(other).tobytes()


def test_early_stopping_ends_with_a_checkpoint(tmp_path):
    def train(config):
        from train_keras import make_model, points

        from holdfast.integration.keras import TuneReportCheckpointCallback

        stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=100)
        callback = TuneReportCheckpointCallback(filename="net.weights.h5")
        make_model().fit(*points(40), epochs=5, callbacks=[callback, stop], verbose=0)

    result = run(train, tmp_path)
    assert result.error is None
    assert len(result.metrics_history) == 3  # two epochs, and the second again with its checkpoint
    assert Path(result.checkpoint.path, "net.weights.h5").exists()


def test_a_wrong_metric_names_those_that_exist(tmp_path):
    def train(config):
        from train_keras import make_model, points

        from holdfast.integration.keras import TuneReportCallback

        make_model().fit(*points(40), epochs=1, callbacks=[TuneReportCallback("val_loss")], verbose=0)

    text = str(run(train, tmp_path).error)
    assert "no 'val_loss'" in text
    assert "['loss']" in text
