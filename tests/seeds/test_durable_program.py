"""The program of "DurableTrainable" over holdfast's parts, with copies in a directory and in a bucket."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import durable_program
import pytest
from guide_scripts import Machine

import holdfast


class Count(durable_program.DurableTrainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.x = 0

    def step(self) -> dict[str, Any]:
        self.x += 1
        return {"x": self.x}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"x": self.x}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.x = checkpoint["x"]


@pytest.fixture
def make() -> Iterator[Any]:
    """Makes instances that are stopped when the test ends, whose directories go with it."""
    made: list[Count] = []

    def build(place: str) -> Count:
        made.append(Count(place, {}))
        return made[-1]

    yield build
    for one in made:
        logdir = one.logdir
        one.stop()
        shutil.rmtree(logdir, ignore_errors=True)


def test_it_saves_restores_and_deletes_its_copies(make: Any, tmp_path: Path, caplog: Any) -> None:
    kept = tmp_path / "kept"
    trainable = make(str(kept))
    trainable.train()
    saved = trainable.save()
    assert [path.name for path in kept.iterdir()] == [Path(saved).name]
    trainable.train()
    trainable.restore(saved)
    assert trainable.train()["x"] == 2
    trainable.delete_checkpoint(saved)
    trainable.storage_client.wait()  # copies are deleted in the background
    assert not list(kept.iterdir())
    assert not Path(saved).exists()
    trainable.delete_checkpoint(saved)
    assert "checkpoint path not found" in caplog.text
    with pytest.raises(ValueError, match="sub-directory"):
        trainable.save(str(tmp_path / "elsewhere"))


def test_what_it_saved_in_a_bucket_is_there_when_the_directory_is_lost(make: Any, bucket: str) -> None:
    first = make(f"{bucket}/durable")
    first.train()
    first.train()
    saved = first.save()
    shutil.rmtree(saved)
    first.train()
    first.restore(saved)
    assert (first.x, first.iteration) == (2, 2)
    first.delete_checkpoint(saved)
    assert not Path(saved).exists()


# As its docstring has it: holdfast's own class, whose copies an experiment makes itself.
RUN = """
from holdfast.compat import tune
from holdfast.compat.tune.durable_trainable import DurableTrainable

class MyDurableTrainable(DurableTrainable):
    def setup(self, config):
        self.x = 0

    def step(self):
        self.x += 1
        return {"x": self.x, "place": self.remote_checkpoint_dir, "done": self.x == 3}

    def save_checkpoint(self, checkpoint_dir):
        return {"x": self.x}

    def load_checkpoint(self, checkpoint):
        self.x = checkpoint["x"]

tune.run(MyDurableTrainable, sync_to_driver=False, name="durable", upload_dir="<bucket>/runs", checkpoint_freq=1)
"""


def test_in_an_experiment_it_runs_without_syncing_to_the_driver(machine: Machine, bucket: str) -> None:
    machine.run(RUN, bucket=bucket)
    shutil.rmtree(machine.home)
    (result,) = holdfast.ResultGrid.from_path(f"{bucket}/runs/durable")
    assert result.metrics["place"] == result.path
    assert result.path.startswith(f"{bucket}/runs/durable/")
    assert result.checkpoint.to_dict()["x"] == 3
