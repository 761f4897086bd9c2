"""Trainables that several tests share; a module of its own, because workers import it and should not import pytest.

Tests meet running trials through files in ``config["dir"]``: a trial says where it is by making ``<trial id>.<step>``,
and waits at ``hold_at`` until somebody makes the file ``go``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast as tune

TIMEOUT_S = 60.0


def wait_for(path: Path) -> None:
    """Return when the file exists."""
    wait_until(path.exists, f"nobody made {path}")


def wait_until(condition: Callable[[], Any], complaint: str) -> None:
    """Return when the condition holds; a test that never makes it hold must not hang for ever."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(complaint)
        time.sleep(0.005)


def start_step() -> int:
    """The step that the trial's checkpoint was taken at, or 0."""
    checkpoint = tune.get_checkpoint()
    return int(Path(checkpoint.path, "step").read_text()) if checkpoint else 0


def save(step: int, **metrics: Any) -> None:
    """Report a step with a checkpoint of it."""
    with tune.checkpoint_dir() as directory:
        Path(directory, "step").write_text(str(step))
        tune.report({"step": step, **metrics}, checkpoint=tune.Checkpoint.from_directory(directory))


def count(config: dict[str, Any]) -> None:
    """Counts to ``steps`` with a checkpoint at each; ``hold_at`` waits for ``go``, ``fail_at`` raises once there."""
    places = Path(config["dir"])
    trial = tune.get_context().get_trial_id()
    for step in range(start_step() + 1, config.get("steps", 3) + 1):
        save(step, x=config.get("x"))
        places.joinpath(f"{trial}.{step}").touch()
        with open(places / "diary", "a") as diary:
            diary.write(f"{trial} {step}\n")
        if step == config.get("hold_at"):
            wait_for(places / "go")
        if step == config.get("fail_at") and not places.joinpath("mended").exists():
            raise RuntimeError(f"failed at {step}")


def note(config: dict[str, Any], name: str, text: str) -> None:
    """Append a line to a file that the test reads; one write, so that trials do not mix their lines."""
    fd = os.open(Path(config["dir"], name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, f"{text}\n".encode())
    finally:
        os.close(fd)


def noop(config: dict[str, Any]) -> dict[str, Any]:
    """Ends at once."""
    return {"score": 1}


def five(config: dict[str, Any]) -> None:
    """Reports five times."""
    for step in range(1, 6):
        tune.report({"score": step, "deep": {"er": 10 * step}})


def one_after_another(config: dict[str, Any]) -> None:
    """Notes when it begins and ends, so that a test can see how many were at work at once."""
    note(config, "diary", "+1")
    tune.report({"score": 1})
    note(config, "diary", "-1")


def all_at_once(config: dict[str, Any]) -> None:
    """Ends only when as many trials as ``config["together"]`` are at work at the same time."""
    note(config, "present", tune.get_context().get_trial_id())
    present = Path(config["dir"], "present")
    wait_until(lambda: len(present.read_text().splitlines()) >= config["together"], "the others did not come")


def scores(config: dict[str, Any]) -> None:
    """Saves a checkpoint with each of the given scores; None is a result without one."""
    for step, score in enumerate(config["scores"], start=1):
        save(step, **({} if score is None else {"score": score, "m": {"a": score}}))


class Counter(tune.Trainable):
    """Counts, saving its state as a dict."""

    def setup(self, config: dict[str, Any]) -> None:
        self.step_number = 0

    def step(self) -> dict[str, Any]:
        self.step_number += 1
        config = self.config
        if "dir" in config:
            Path(config["dir"], f"{self.trial_id}.{self.step_number}").touch()
        if self.step_number == config.get("hold_at"):
            wait_for(Path(config["dir"], "go"))
        if self.step_number == config.get("fail_at") and not Path(config["dir"], "mended").exists():
            raise RuntimeError(f"failed at {self.step_number}")
        return {"step": self.step_number, "done": self.step_number >= config.get("steps", 3)}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"step_number": self.step_number}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.step_number = checkpoint["step_number"]


class Crashed(RuntimeError):
    """What ``Crash`` raises."""


class Crash(tune.Callback):
    """Ends the driver, once, with an exception after some results: the fastest way to leave trials unfinished."""

    def __init__(self, directory: Any, after: int) -> None:
        self.marker = Path(directory, "crashed")
        self.after = after
        self.seen = 0

    def on_trial_result(self, **info: Any) -> None:
        self.seen += 1
        if self.seen == self.after and not self.marker.exists():
            self.marker.touch()
            raise Crashed


class FromEnvironment(tune.Callback):
    """Named by an environment variable in a test."""

    def on_trial_complete(self, trial: Any, **info: Any) -> None:
        Path(trial.config["dir"], f"env.{trial.trial_id}").touch()
