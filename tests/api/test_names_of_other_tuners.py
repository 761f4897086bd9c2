"""Modules and names that scripts of other generations import: each is the real thing under another name."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from typing import Any

import pytest
from api_trainables import count, noop

import holdfast as tune
from holdfast.errors import InvalidTypeError

SAME = {
    "air.RunConfig": "RunConfig",
    "air.CheckpointConfig": "CheckpointConfig",
    "air.FailureConfig": "FailureConfig",
    "air.Checkpoint": "Checkpoint",
    "air.Result": "Result",
    "analysis.ExperimentAnalysis": "ExperimentAnalysis",
    "callback.Callback": "Callback",
    "error.TuneError": "TuneError",
    "progress_reporter.CLIReporter": "CLIReporter",
    "progress_reporter.JupyterNotebookReporter": "JupyterNotebookReporter",
    "progress_reporter.ProgressReporter": "ProgressReporter",
    "registry.register_trainable": "register_trainable",
    "result_grid.ResultGrid": "ResultGrid",
    "search.basic_variant.BasicVariantGenerator": "BasicVariantGenerator",
    "search.sample.uniform": "uniform",
    "stopper.Stopper": "Stopper",
    "trainable.Trainable": "Trainable",
    "trainable.with_parameters": "with_parameters",
    "tune_config.ResumeConfig": "ResumeConfig",
    "tune_config.TuneConfig": "TuneConfig",
    "tuner.Tuner": "Tuner",
}


@pytest.mark.parametrize(("place", "name"), SAME.items())
def test_a_name_elsewhere_is_the_same_thing(place: str, name: str) -> None:
    module, _, found = place.rpartition(".")
    assert getattr(importlib.import_module(f"holdfast.{module}"), found) is getattr(tune, name)


@pytest.mark.parametrize("module", sorted({place.split(".")[0] for place in SAME} | {"experiment", "result", "utils"}))
def test_a_module_needs_no_import_of_its_own(module: str) -> None:
    code = f"import holdfast as tune; print(tune.{module}.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"holdfast.{module}\n"


def test_the_trial_of_callbacks_can_be_named(make_tuner):
    kinds = []

    class Looks(tune.Callback):
        def on_trial_complete(self, trial: Any, **info: Any) -> None:
            kinds.append(isinstance(trial, tune.experiment.Trial))

    make_tuner(noop, callbacks=[Looks()]).fit()
    assert kinds == [True]


class Saves(tune.Trainable):
    def setup(self, config):
        self.x = config.get("x", 0)

    def step(self):
        self.x += 1
        return {"x": self.x, tune.result.SHOULD_CHECKPOINT: self.x == 2, tune.result.DONE: self.x == 3}

    def save_checkpoint(self, checkpoint_dir):
        return {"x": self.x}

    def load_checkpoint(self, checkpoint):
        self.x = checkpoint["x"]


def test_keys_of_results_have_names(make_tuner, run_config):
    (result,) = make_tuner(Saves, checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False)).fit()
    assert result.metrics[tune.result.TRAINING_ITERATION] == 3
    assert result.checkpoint.to_dict()["x"] == 2


# --- session


def uses_session(config):
    from holdfast.air import session

    checkpoint = session.get_checkpoint()
    assert checkpoint is None
    session.report(
        {"id": session.get_trial_id(), "name": session.get_trial_name(), "exp": session.get_experiment_name()},
        checkpoint=tune.Checkpoint.from_dict({"dir": session.get_trial_dir()}),
    )


def test_a_session_is_the_running_trial(make_tuner):
    (result,) = make_tuner(uses_session).fit()
    assert result.error is None
    assert (result.metrics["id"], result.metrics["exp"]) == (result.trial_id, "exp")
    assert result.checkpoint.to_dict()["dir"] == result.path


def test_session_tells_once_how_it_is_written_today(monkeypatch):
    from holdfast.air import Session, session
    from holdfast.trainable import context

    monkeypatch.setattr(context, "_warned", set())
    monkeypatch.setattr(session, "_told", set())
    assert tune.session is session
    with (
        pytest.warns(DeprecationWarning, match=r"session\.report\(\) .* now written tune\.report") as told,
        pytest.warns(UserWarning, match="outside of a trial"),
    ):
        session.report({"loss": 1})
    assert all(warning.filename == __file__ for warning in told)
    session.report({"loss": 1})
    with pytest.warns(DeprecationWarning, match=r"tune\.get_checkpoint"), pytest.warns(UserWarning, match="outside"):
        assert Session.get_checkpoint() is None


def test_older_names_warn_and_work():
    with pytest.warns(DeprecationWarning, match=r"tune\.SyncConfig"):
        assert tune.syncConfig is tune.SyncConfig
    with pytest.warns(DeprecationWarning, match="not needed any more"):
        assert tune.durable(count) is count


# --- utils


def test_validate_save_restore_passes_a_class_that_keeps_its_state():
    assert tune.utils.validate_save_restore(Saves) is True
    assert tune.utils.validate_save_restore(Saves, {"x": 5}, num_gpus=0) is True


class LosesItsState(Saves):
    def load_checkpoint(self, checkpoint):
        raise KeyError("weights")


def test_validate_save_restore_raises_what_goes_wrong():
    with pytest.raises(KeyError, match="weights"):
        tune.utils.validate_save_restore(LosesItsState)
    with pytest.raises(InvalidTypeError, match=r"for subclasses of tune\.Trainable"):
        tune.utils.validate_save_restore(noop)


def test_diagnose_serialization_shows_the_way(capsys):
    lock = threading.Lock()

    def train(config):
        with lock:
            pass

    assert tune.utils.diagnose_serialization(noop) is True
    assert tune.utils.diagnose_serialization(train) == {
        "closure variable 'lock': lock (cannot pickle '_thread.lock' object)"
    }
    assert "  closure variable 'lock': lock" in capsys.readouterr().out


def test_flatten_dict_joins_keys():
    assert tune.utils.flatten_dict({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a/b": 1, "d": [1]}
