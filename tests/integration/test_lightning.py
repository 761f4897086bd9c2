"""Lightning: reports, checkpoints, and fits that were killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from interrupted import check_same_history, kill_and_restore

import holdfast as tune
from holdfast.errors import InvalidInputError

pytestmark = pytest.mark.slow


def import_libraries():
    global torch, lightning, TuneReportCallback, TuneReportCheckpointCallback
    torch = pytest.importorskip("torch", exc_type=ImportError)
    lightning = pytest.importorskip("lightning", exc_type=ImportError)
    from holdfast.integration.pytorch_lightning import TuneReportCallback, TuneReportCheckpointCallback


def test_a_killed_fit_ends_with_the_same_weights(tmp_path):
    whole, broken, before, after = kill_and_restore(tmp_path, "train_lightning")
    assert (before, after) == ([1, 2, 3, 4, 5], [5, 6, 7, 8])
    check_same_history(whole, broken, "loss")
    first, second = (
        torch.load(Path(found.checkpoint.path, "checkpoint"), weights_only=True) for found in (whole, broken)
    )
    assert all(torch.equal(first["state_dict"][name], second["state_dict"][name]) for name in first["state_dict"])
    assert first["global_step"] == second["global_step"] == 40


def test_a_wrong_metric_names_those_that_exist(tmp_path):
    def train(config):
        from train_lightning import Network

        model = Network()
        data = torch.utils.data.DataLoader([(torch.zeros(6), 1)])
        lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            callbacks=[TuneReportCallback("loss")],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
        ).fit(model, data, data)

    run_config = tune.RunConfig(storage_path=str(tmp_path), verbose=0)
    (result,) = tune.Tuner(train, run_config=run_config).fit()
    assert "no 'loss'" in str(result.error)
    assert "['val_loss']" in str(result.error)


def test_an_unknown_hook_is_refused():
    with pytest.raises(InvalidInputError, match=r"on='epoch'.*validation_end"):
        TuneReportCheckpointCallback(on="epoch")
