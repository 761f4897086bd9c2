"""Trainables that several tests of older spellings share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import holdfast as tune


class Count(tune.Trainable):
    """Counts; fails or ends where its config says so."""

    def setup(self, config: dict[str, Any]) -> None:
        self.x = 0

    def step(self) -> dict[str, Any]:
        self.x += 1
        fails = self.config.get("fails")
        if fails and self.x == 2 and Path(fails).exists():
            raise RuntimeError("told to fail")
        return {"x": self.x, "done": self.x >= self.config.get("steps", 3)}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"x": self.x}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.x = checkpoint["x"]

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        path = os.path.join(export_dir, "exported.txt")
        Path(path).write_text(",".join(export_formats))
        return dict.fromkeys(export_formats, path)


def score(config: dict[str, Any]) -> dict[str, Any]:
    """Reports its ``x``, or what the checkpoint has that it starts from."""
    checkpoint = tune.get_checkpoint()
    return {"score": config.get("x", 0) if checkpoint is None else checkpoint.to_dict()["x"]}


def fail(config: dict[str, Any]) -> None:
    """Never works."""
    raise ValueError("never works")
