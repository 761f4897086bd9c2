"""Corrected code of settings: given again, it takes the place of what is stored with the experiment."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.controller.overrides import is_alike
from holdfast.schedulers import ASHAScheduler, MedianStoppingRule, TrialScheduler
from holdfast.search import OptunaSearch

STEPS = 6


def train(config: dict[str, Any]) -> None:
    for step in range(STEPS):
        tune.report({"loss": config["x"] - step})


SPACE = {"x": tune.grid_search([1.0, 2.0])}


def stop_rule(limit: int, *, broken: bool) -> Callable[[str, dict[str, Any]], bool]:
    def stop(trial_id: str, result: dict[str, Any]) -> bool:
        return bool(result["iteration" if broken else "training_iteration"] >= limit)

    return stop


def scheduler(limit: int, *, broken: bool) -> TrialScheduler:
    class Mine(TrialScheduler):
        def __init__(self, limit: int) -> None:
            self.limit = limit

        def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
            iteration = result["iteration" if broken else "training_iteration"]
            return self.STOP if iteration >= self.limit else self.CONTINUE

    return Mine(limit)


def lengths(grid: tune.ResultGrid) -> list[int]:
    return [result.metrics["training_iteration"] for result in grid]


@pytest.mark.parametrize("way", ["restore", "if_exists"])
def test_a_corrected_stop_rule_is_used(
    make_tuner: Callable[..., tune.Tuner], run_config: Callable[..., tune.RunConfig], root: Path, way: str
) -> None:
    with pytest.raises(KeyError, match="iteration"):
        make_tuner(train, SPACE, stop=stop_rule(2, broken=True)).fit()
    corrected = stop_rule(2, broken=False)
    if way == "restore":
        tuner = tune.Tuner.restore(root, run_config=run_config(stop=corrected))
    else:
        tuner = make_tuner(train, SPACE, stop=corrected, if_exists="resume")
    assert lengths(tuner.fit()) == [2, 2]
    # It is stored: nobody has to give it a third time.
    assert lengths(tune.Tuner.restore(root).fit()) == [2, 2]


def test_a_corrected_scheduler_is_used_and_one_with_other_arguments_is_not(
    make_tuner: Callable[..., tune.Tuner], root: Path
) -> None:
    with pytest.raises(KeyError, match="iteration"):
        make_tuner(train, SPACE, scheduler=scheduler(3, broken=True)).fit()
    with pytest.warns(UserWarning, match="keeps its settings: scheduler=Mine with the arguments that it had"):
        other = tune.Tuner.restore(root, tune_config=tune.TuneConfig(scheduler=scheduler(4, broken=False)))
    with pytest.raises(KeyError, match="iteration"):
        other.fit()
    corrected = tune.TuneConfig(scheduler=scheduler(3, broken=False))
    assert lengths(tune.Tuner.restore(root, tune_config=corrected).fit()) == [3, 3]


def test_what_was_settled_at_the_beginning_is_not_changed_and_the_user_is_told(
    make_tuner: Callable[..., tune.Tuner],
) -> None:
    make_tuner(train, SPACE, metric="loss", mode="min", seed=1).fit()
    other = {"seed": 2, "failure_config": tune.FailureConfig(max_failures=3), "scheduler": ASHAScheduler()}
    with pytest.warns(UserWarning, match="keeps its settings") as told:
        again = make_tuner(train, SPACE, metric="loss", mode="min", if_exists="resume", **other)
    (text,) = [str(each.message) for each in told if each.category is UserWarning]
    assert "seed=1, not 2" in text
    assert "failure_config=" in text
    assert "scheduler=None, not AsyncHyperBandScheduler" in text
    assert "metric=" not in text
    assert len(again.fit()) == 2


def test_the_same_script_again_says_nothing(make_tuner: Callable[..., tune.Tuner]) -> None:
    fields: dict[str, Any] = {
        "metric": "loss",
        "mode": "min",
        "callbacks": [tune.Callback()],
        "stop": {"training_iteration": 3},
        "checkpoint_config": tune.CheckpointConfig(num_to_keep=2),
        "failure_config": tune.FailureConfig(max_failures=1),
    }
    space = {"x": tune.uniform(0, 1)}

    def algorithms() -> dict[str, Any]:
        return {"scheduler": ASHAScheduler(max_t=9), "search_alg": OptunaSearch(), "num_samples": 2}

    make_tuner(train, space, **algorithms(), **fields).fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = make_tuner(train, space, **algorithms(), **fields, if_exists="resume")
    assert len(again.fit()) == 2


def test_a_corrected_rule_that_cannot_work_is_refused_before_anything_is_changed(
    make_tuner: Callable[..., tune.Tuner], run_config: Callable[..., tune.RunConfig], root: Path
) -> None:
    make_tuner(train, SPACE, stop=stop_rule(2, broken=False)).fit()
    with pytest.raises(ValueError, match="stop"):
        tune.Tuner.restore(root, run_config=run_config(stop=lambda one_argument: True))
    assert lengths(tune.Tuner.restore(root).fit()) == [2, 2]


class Ring:
    """Refers to itself."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.itself = self


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        ({"loss": 1}, {"loss": 1}, True),
        ({"loss": 1}, {"loss": 2}, False),
        (None, lambda: None, False),
        (lambda: 1, lambda: 2, True),
        ([tune.Callback()], [tune.Callback()], True),
        ([tune.Callback()], [], False),
        (ASHAScheduler(max_t=9), ASHAScheduler(max_t=9), True),
        (ASHAScheduler(max_t=9), ASHAScheduler(max_t=10), False),
        (ASHAScheduler(), MedianStoppingRule(), False),
        ("asha", ASHAScheduler(), False),
        (OptunaSearch({"x": tune.uniform(0, 1)}), OptunaSearch({"x": tune.uniform(0, 1)}), True),
        (OptunaSearch({"x": tune.uniform(0, 1)}), OptunaSearch({"x": tune.uniform(0, 2)}), False),
        (OptunaSearch(lambda trial: {}), OptunaSearch(lambda trial: {"x": 1}), True),
        (Ring(1), Ring(1), True),
        (Ring(1), Ring(2), False),
    ],
)
def test_what_counts_as_the_same(old: Any, new: Any, alike: bool) -> None:
    assert is_alike(old, new) is alike
