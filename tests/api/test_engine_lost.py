"""A cluster that is lost for good: the run shuts down gracefully, and claims no success."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.config import Environment
from holdfast.controller import driver
from holdfast.controller.experiment import Experiment
from holdfast.controller.lost_reports import was_started
from holdfast.core.observations import Interrupted, Observation, Report
from holdfast.engines.base import Engine
from holdfast.engines.local_engine import LocalProcessEngine
from holdfast.errors import EngineLostError
from holdfast.storage.layout import Root

WHY = "the connection to the Ray cluster was lost"


class LostEngine(LocalProcessEngine):
    """Is lost after the first report, as an engine for clusters may be."""

    lost = ""

    def join(self) -> None:
        pass

    def poll(self, timeout_s: float) -> Sequence[Observation]:
        words = super().poll(timeout_s)
        if not self.lost and any(isinstance(word, Report) for word in words):
            self.lost = WHY
            return [*words, Interrupted(WHY)]
        return words


def train(config: dict[str, Any]) -> None:
    for step in range(config["steps"]):
        tune.report({"step": step})
        time.sleep(0.05)


def test_fit_raises_the_call_that_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(experiment: Experiment, environment: Environment) -> Engine:
        return LostEngine(tune.LocalEngine(), log_dir=experiment.root.logs)

    config = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    tuner = tune.Tuner(train, param_space={"steps": 100}, run_config=config)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "choose_engine", losing)
        with pytest.raises(EngineLostError) as error:
            tuner.fit()
    assert error.value.call == f'Tuner.restore("{tmp_path / "e"}").fit()'
    assert str(error.value).startswith("The connection to the Ray cluster was lost. The run has ended with 1 trial unf")
    assert str(error.value).endswith(error.value.call)
    (result,) = tune.Tuner.restore(str(tmp_path / "e"), trainable=train).fit()
    assert result.metrics["step"] == 99


class RefusingEngine(LostEngine):
    def join(self) -> None:
        raise tune.TuneError("no such cluster")


def test_what_the_cluster_refuses_leaves_the_experiment_unstarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the same name can be used again."""

    def refusing(experiment: Experiment, environment: Environment) -> Engine:
        return RefusingEngine(tune.LocalEngine(), log_dir=experiment.root.logs)

    config = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    tuner = tune.Tuner(train, param_space={"steps": 1}, run_config=config)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "choose_engine", refusing)
        with pytest.raises(tune.TuneError, match="no such cluster"):
            tuner.fit()
    assert not was_started(Root(tmp_path / "e"))
    again = tune.Tuner(train, param_space={"steps": 1}, run_config=config)
    assert again.fit()[0].metrics["step"] == 0
