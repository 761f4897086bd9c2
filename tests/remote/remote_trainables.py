"""Trainables of the tests that run experiments in their own process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import holdfast as tune


def train(config: dict[str, Any]) -> None:
    """Five steps with a checkpoint each; continues where the last one was."""
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            start = json.loads((Path(directory) / "state.json").read_text())["step"]
    for step in range(start + 1, config.get("steps", 5) + 1):
        with tune.checkpoint_dir() as directory:
            (Path(directory) / "deep" / "er").mkdir(parents=True)
            (Path(directory) / "state.json").write_text(json.dumps({"step": step}))
            (Path(directory) / "deep" / "er" / "weights.bin").write_bytes(bytes(1000 * step))
            (Path(directory) / "empty").touch()
        checkpoint = tune.Checkpoint.from_directory(directory)
        tune.report({"loss": config["x"] / step, "step": step}, checkpoint=checkpoint)
        if step == config.get("die_at"):
            marker = Path(config["marker"])
            if not marker.exists():
                marker.touch()
                raise RuntimeError("this trial fails once")


class Counter(tune.Trainable):
    """The same as a class."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        return {"loss": 1 / self.count, "step": self.count, "done": self.count >= 4}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        (Path(checkpoint_dir) / "count").write_text(str(self.count))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.count = int((Path(checkpoint_dir) / "count").read_text())


def odd_files(config: dict[str, Any]) -> None:
    """A checkpoint whose files have names that a file system takes."""
    with tune.checkpoint_dir() as directory:
        for name in config["names"]:
            path = os.path.join(os.fsencode(directory), os.fsencode(name))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(os.fsencode(name))
    tune.report({"loss": 1.0}, checkpoint=tune.Checkpoint.from_directory(directory))


def plain(config: dict[str, Any]) -> None:
    """Reports and nothing else."""
    for step in range(3):
        tune.report({"loss": step + config.get("x", 0)})


def with_artifacts(config: dict[str, Any]) -> None:
    """Leaves a file of its own in its directory."""
    Path(tune.get_context().get_trial_dir(), "artifact.txt").write_text("mine")
    plain(config)
