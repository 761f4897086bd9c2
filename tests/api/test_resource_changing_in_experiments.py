"""Resources that change while trials run, in real experiments."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from api_trainables import TIMEOUT_S, save, start_step
from experiment_tools import history, statuses

import holdfast as tune
from holdfast.schedulers import FIFOScheduler
from holdfast.schedulers.resource_changing import (
    DistributeResources,
    DistributeResourcesToTopJob,
    ResourceChangingScheduler,
)


class Measured(tune.Trainable):
    """Reports how many CPUs it has been given."""

    def setup(self, config: dict[str, Any]) -> None:
        self.total = 0

    def step(self) -> dict[str, Any]:
        self.total += 1
        inside = tune.get_context().get_trial_resources()
        assert inside == self.trial_resources
        return {"total": self.total, "cpus": inside.required_resources["CPU"], "bundles": len(inside.bundles)}

    def save_checkpoint(self, directory: str) -> None:
        Path(directory, "total").write_text(str(self.total))

    def load_checkpoint(self, directory: str) -> None:
        self.total = int(Path(directory, "total").read_text())


def until_grown(config: dict[str, Any]) -> None:
    """Reports with checkpoints until it has been given more."""
    end, step = time.monotonic() + TIMEOUT_S, start_step()
    while time.monotonic() < end:
        step += 1
        cpus = tune.get_context().get_trial_resources().required_resources["CPU"]
        save(step, cpus=cpus)
        if cpus > config["begins_with"]:
            return
        time.sleep(0.005)


def test_a_class_goes_on_from_its_checkpoint_with_more_resources(make_tuner):
    scheduler = ResourceChangingScheduler(FIFOScheduler(), DistributeResources())
    engine = tune.LocalEngine(cpus=3)
    (result,) = make_tuner(Measured, scheduler=scheduler, engine=engine, stop={"training_iteration": 4}).fit()
    assert history(result, "cpus") == [1, 3, 3, 3]
    assert history(result, "total") == [1, 2, 3, 4]
    assert history(result) == [1, 2, 3, 4]


def test_a_function_goes_on_from_its_checkpoint_with_more_resources(make_tuner):
    trainable = tune.with_resources(until_grown, {"cpu": 2})
    engine = tune.LocalEngine(cpus=5)
    tuner = make_tuner(trainable, {"begins_with": 2}, scheduler=ResourceChangingScheduler(), engine=engine)
    (result,) = tuner.fit()
    assert result.status == "TERMINATED"
    steps, cpus = history(result, "step"), history(result, "cpus")
    assert steps == list(range(1, len(steps) + 1))
    assert cpus == [2] * (len(cpus) - 1) + [5]


def test_the_best_trial_gets_what_is_free(make_tuner):
    scheduler = ResourceChangingScheduler(None, DistributeResourcesToTopJob(metric="total", mode="max"))
    grid = make_tuner(
        Measured,
        {"x": tune.grid_search([1, 2])},
        scheduler=scheduler,
        engine=tune.LocalEngine(cpus=4),
        stop={"training_iteration": 5},
    ).fit()
    assert statuses(grid) == ["TERMINATED"] * 2
    assert [history(result, "total") for result in grid] == [[1, 2, 3, 4, 5]] * 2
    assert max(max(history(result, "cpus")) for result in grid) > 1


def test_a_restored_experiment_goes_on_with_the_resources_that_were_given(crashed, root):
    engine = tune.LocalEngine(cpus=3)
    crashed(Measured, {}, after=3, scheduler=ResourceChangingScheduler(), engine=engine, stop={"training_iteration": 6})
    (result,) = tune.Tuner.restore(root).fit()
    assert history(result, "cpus") == [1, 3, 3, 3, 3, 3]
    assert history(result) == [1, 2, 3, 4, 5, 6]


def test_resources_that_depend_on_the_config_are_refused(make_tuner):
    trainable = tune.with_resources(until_grown, lambda config: {"cpu": config["begins_with"]})
    space = {"begins_with": tune.grid_search([1, 2])}
    tuner = make_tuner(trainable, space, scheduler=ResourceChangingScheduler(), engine=tune.LocalEngine(cpus=4))
    with pytest.raises(RuntimeError, match="start with equal resources"):
        tuner.fit()


def test_workers_that_are_used_again_are_refused(make_tuner):
    with pytest.raises(ValueError, match="reuse_actors"):
        make_tuner(Measured, scheduler=ResourceChangingScheduler(), reuse_actors=True)
