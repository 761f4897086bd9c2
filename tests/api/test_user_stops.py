"""A user stops trials of a live experiment: each ends as by a stop rule, whatever kind of trainable it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.controller.user_requests import stop_all, stop_trial
from holdfast.results.history import open_history
from holdfast.schedulers import ASHAScheduler, PopulationBasedTraining

Make = Callable[..., tune.Tuner]
DEADLINE_S = 60.0
MANY = 4_000  # steps: a trial that nobody stops ends all the same, and the test fails


class Counter(tune.Trainable):
    """Counts its steps, and saves only when it is told to."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        time.sleep(0.002)
        return {"loss": self.config["x"], "count": self.count, "done": self.count > MANY}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "count").write_text(str(self.count))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.count = int(Path(checkpoint_dir, "count").read_text())


def train_fast(config: dict[str, Any]) -> None:
    """Reports follow one another at once, so that they do not wait for answers."""
    for step in range(100 * MANY):
        tune.report({"loss": config["x"], "step": step})


def train_slowly(config: dict[str, Any]) -> None:
    for step in range(MANY):
        time.sleep(0.005)
        tune.report({"loss": config["x"]}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


class Stopping(threading.Thread):
    """Stops trials, one after the other, once all of them have reported."""

    def __init__(self, root: Path, numbers: list[int], *, then_all: bool = False) -> None:
        super().__init__()
        self._root = root
        self._numbers = numbers
        self._then_all = then_all
        self.said: list[str] = []

    def run(self) -> None:
        for n in self._numbers:
            self.said.append(stop_trial(self._root, self._id_of(n), wait_s=DEADLINE_S))
        if self._then_all:
            self.said.append(stop_all(self._root, wait_s=DEADLINE_S))

    def _id_of(self, n: int) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                history = open_history(self._root)
                trials, owner = history.state.trials, history.owner
                if len(trials) > n and trials[n].metrics is not None and owner is not None and owner.alive:
                    return trials[n].id
            except tune.TuneError:
                pass  # there is nothing yet, or a driver just begins
            time.sleep(0.02)
        raise AssertionError(f"trial {n} has not reported")


def run_and_stop(tuner: tune.Tuner, stopping: Stopping) -> tune.ResultGrid:
    stopping.start()
    grid = tuner.fit()
    stopping.join()
    assert len(stopping.said) == len(stopping._numbers) + stopping._then_all
    return grid


@pytest.mark.parametrize("trainable", [train_fast, train_slowly])
def test_functions_end_with_their_next_report(make_tuner: Make, root: Path, trainable: Any) -> None:
    tuner = make_tuner(trainable, {"x": tune.grid_search([1, 2])})
    grid = run_and_stop(tuner, Stopping(root, [0, 1]))
    assert [result.status for result in grid] == ["TERMINATED", "TERMINATED"]
    for result in grid:
        rows = result.metrics_history
        assert [row["training_iteration"] for row in rows] == list(range(1, len(rows) + 1))
        assert (result.checkpoint is not None) == (trainable is train_slowly)


def test_a_class_saves_at_its_end(make_tuner: Make, root: Path) -> None:
    config = tune.CheckpointConfig(checkpoint_at_end=True)
    grid = run_and_stop(make_tuner(Counter, {"x": 1}, checkpoint_config=config), Stopping(root, [0]))
    assert grid[0].status == "TERMINATED"
    assert grid[0].checkpoint is not None
    with grid[0].checkpoint.as_directory() as directory:
        assert int(Path(directory, "count").read_text()) == grid[0].metrics["count"]


SCHEDULERS = {
    "asha": lambda: ASHAScheduler(max_t=10 * MANY, grace_period=5 * MANY),
    "pbt": lambda: PopulationBasedTraining(perturbation_interval=20, hyperparam_mutations={"x": tune.uniform(0, 1)}),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_lose_a_trial_and_the_experiment_can_be_resumed(
    make_tuner: Make, root: Path, scheduler: str
) -> None:
    space, chosen = {"x": tune.uniform(0, 1)}, SCHEDULERS[scheduler]()
    tuner = make_tuner(train_slowly, space, num_samples=3, scheduler=chosen, metric="loss", mode="min")
    grid = run_and_stop(tuner, Stopping(root, [1], then_all=True))
    assert [result.status for result in grid][1] == "TERMINATED"
    assert {result.status for result in grid} <= {"TERMINATED", "PENDING", "PAUSED"}
    again = tune.Tuner.restore(root)
    grid = run_and_stop(again, Stopping(root, [0], then_all=True))
    assert [result.status for result in grid][:2] == ["TERMINATED", "TERMINATED"]
    assert not grid.errors
