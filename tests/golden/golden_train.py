"""What the golden experiments train. Importable by name, so their pickles refer to it and hold no code."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import holdfast as tune

STEPS = 6
EVERY = 2


class Note:
    """A value that is no plain data."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "Note"


def make_note(spec: Any) -> Note:
    """Made for each trial by the search."""
    return Note(f"of a trial that is {spec.config.kind}")


def train(config: dict[str, Any]) -> None:
    """Sums up, and saves the sum every two steps; some trials end otherwise, the first time or always."""
    assert isinstance(config["note"], Note)
    start, total = 0, 0.0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            step, text = (Path(directory) / "sum.txt").read_text().split()
        start, total = int(step), float(text)
    for step in range(start + 1, STEPS + 1):
        total += config["x"]
        if config["kind"] == "killed once" and checkpoint is None and step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if config["kind"] == "failing" and step == 4:
            raise ValueError("this trial fails at step 4")
        metrics = {"sum": total, "nested": {"step": step}}
        if step % EVERY:
            tune.report(metrics)
            continue
        with tune.checkpoint_dir() as directory:
            (Path(directory) / "sum.txt").write_text(f"{step} {total!r}")
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(directory))
