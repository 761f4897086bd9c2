"""Trainables for population based training; a module of its own, because workers import it.

The task: reach the top of 1.2 - a^2 - b^2 from (0.9, 0.8). A trial moves along ``a`` if ``h0`` is 1 and along ``b`` if
``h1`` is 1, so one whose config has only one of them stays below 0.6 for ever. Each state has a token, which is
reported and saved; what a trial has loaded is noted in ``config["dir"]``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from api_trainables import note

import holdfast as tune
from holdfast.schedulers import PopulationBasedTraining

STEPS = 40
START = (0.9, 0.8)
"""Of different values, so that one half of the population is really better than the other."""
SPACE = {"h0": tune.grid_search([0, 1]), "h1": tune.sample_from(lambda config: 1 - config["h0"])}


def pbt(**settings: Any) -> PopulationBasedTraining:
    known = {
        "time_attr": "training_iteration",
        "metric": "q",
        "mode": "max",
        "perturbation_interval": 4,
        "hyperparam_mutations": {"h0": [0, 1], "h1": [0, 1]},
        "quantile_fraction": 0.5,
    }
    return PopulationBasedTraining(**{**known, **settings})


class Data:
    """Something in a config that is not plain data."""


def moved(theta: list[float], config: dict[str, Any]) -> list[float]:
    assert isinstance(config.get("data", Data()), Data)
    return [value * (1 - 0.15 * h) for value, h in zip(theta, (config["h0"], config["h1"]), strict=True)]


def quality(theta: list[float]) -> float:
    return 1.2 - theta[0] ** 2 - theta[1] ** 2


def climb(config: dict[str, Any]) -> None:
    """A function that saves with every report."""
    theta, first = list(START), 1
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        state = json.loads(Path(checkpoint.path, "state").read_text())
        note(config, "loads", f"{tune.get_context().get_trial_id()} {state['token']}")
        theta, first = state["theta"], state["step"] + 1
    for step in range(first, config.get("steps", STEPS) + 1):
        theta = moved(theta, config)
        token = os.urandom(8).hex()
        with tune.checkpoint_dir() as directory:
            Path(directory, "state").write_text(json.dumps({"theta": theta, "step": step, "token": token}))
            metrics = {"q": quality(theta), "token": token}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(directory))


class Climber(tune.Trainable):
    """A class that saves when it is asked to."""

    def setup(self, config: dict[str, Any]) -> None:
        self.theta = list(START)
        self.token = ""

    def step(self) -> dict[str, Any]:
        self.theta = moved(self.theta, self.config)
        self.token = os.urandom(8).hex()
        return {"q": quality(self.theta), "token": self.token, "done": self.iteration + 1 >= STEPS}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"theta": self.theta, "token": self.token}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        note(self.config, "loads", f"{self.trial_id} {checkpoint['token']}")
        self.theta, self.token = checkpoint["theta"], checkpoint["token"]
