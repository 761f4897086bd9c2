"""Who writes ``RunConfig(if_exists="resume")`` is told what to do with the script, which has no call of restore."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

import holdfast as tune
from holdfast.errors import InvalidInputError, MetricMissingError

Make = Callable[..., tune.Tuner]


def train(config: dict[str, Any]) -> None:
    tune.report({"loss": config["x"], "cost": 1})


def other(config: dict[str, Any]) -> None:
    tune.report({"loss": 1.0})


class Trains(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {}


Trains.__name__ = Trains.__qualname__ = "train"

SPACE = {"x": tune.uniform(0, 1)}
RESUME = {"if_exists": "resume"}


@pytest.mark.parametrize(
    ("trainable", "space"),
    [(other, SPACE), (Trains, SPACE), (train, {**SPACE, "y": 1}), (train, {"x": tune.uniform(0, 2)})],
    ids=["another function", "a class", "another key", "another domain"],
)
def test_what_is_refused_is_explained_without_calls_of_restore(
    make_tuner: Make, trainable: Any, space: dict[str, Any]
) -> None:
    make_tuner(train, SPACE, **RESUME).fit()
    with pytest.raises(InvalidInputError) as refused:
        make_tuner(trainable, space, **RESUME)
    text = str(refused.value)
    assert "Tuner.restore" not in text
    assert "start another experiment, with a new RunConfig(name=...)" in text
    assert "resume" in text


def test_a_refusal_names_the_experiment_that_exists(make_tuner: Make) -> None:
    path = make_tuner(train, SPACE, **RESUME).fit().experiment_path
    with pytest.raises(InvalidInputError) as refused:
        make_tuner(other, SPACE, **RESUME)
    assert f'Invalid `trainable`: {path} exists, and RunConfig(if_exists="resume") resumes it: it must be' in str(
        refused.value
    )


def test_calls_of_restore_are_explained_as_such(make_tuner: Make) -> None:
    path = make_tuner(train, SPACE, **RESUME).fit().experiment_path
    with pytest.raises(InvalidInputError, match=r"Invalid `trainable` input to `Tuner.restore\(\)`"):
        tune.Tuner.restore(path, trainable=other)


def test_a_missing_metric_is_corrected_in_the_script(make_tuner: Make, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MetricMissingError) as missing:
        make_tuner(train, SPACE, metric="costs", mode="min", verbose=1, **RESUME).fit()
    text = str(missing.value)
    assert "Tuner.restore" not in text
    assert 'write tune_config=TuneConfig(metric="cost", mode="min") and run the script again' in text
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        'Resume: run the script again with tune_config=TuneConfig(metric="cost", mode="min"), or with'
    )
    results = make_tuner(train, SPACE, metric="cost", mode="min", **RESUME).fit()
    assert results.get_best_result().metrics["cost"] == 1


class Interrupts(tune.Callback):
    sent = False

    def on_trial_result(self, *_: Any, **__: Any) -> None:
        if not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGINT)


def endless(config: dict[str, Any]) -> None:
    while True:
        tune.report({"loss": 1.0})


@pytest.mark.parametrize(("if_exists", "words"), [("resume", "the same script again, or Tuner"), ("error", "Tuner")])
def test_an_interrupted_script_is_resumed_by_running_it_again(
    make_tuner: Make, capsys: pytest.CaptureFixture[str], if_exists: str, words: str
) -> None:
    make_tuner(endless, if_exists=if_exists, verbose=1, callbacks=[Interrupts()]).fit()
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"Resume with: {words}.restore(")
