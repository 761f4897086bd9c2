"""Experiments that a syncer copies, run through the Tuner; shared by the tests and by the drivers that they kill."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sync_tools import CP

import holdfast as tune
from holdfast.controller.opening import open_state
from holdfast.controller.spec import read_spec
from holdfast.core.state import Stored
from holdfast.storage.layout import Root
from holdfast.sync.synced_copy import SyncedCopy
from holdfast.syncer import FunctionSyncer, Syncer

EPOCHS = 6
HELD = "HELD_AT"
"""Environment variable: the epoch at which trials of a driver that will be killed wait for ever."""

DRIVER = """
import sys
import synced
make = synced.SYNCERS.get(sys.argv[2])
synced.tuner(sys.argv[1], make() if make else sys.argv[2], trials=2).fit()
"""


def train(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    first = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    for epoch in range(first, config.get("epochs", EPOCHS)):
        while epoch == int(os.environ.get(HELD, -1)):
            time.sleep(0.05)
        tune.report({"epoch": epoch, "first": first}, checkpoint=tune.Checkpoint.from_dict({"epoch": epoch}))


def copy(source: str, target: str) -> None:
    """A user's function. Like any copying tool it says so if there is nothing to copy."""
    shutil.copytree(source, target, dirs_exist_ok=True)


class Plain(Syncer):
    """A user's class that does everything at once, in the calling thread, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.ups: list[str] = []
        self.deleted: list[str] = []
        self.broken = False

    def sync_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None = None) -> bool:
        if self.broken:
            raise ConnectionError("the line is dead")
        self.ups.append(remote_dir)
        copy(local_dir, remote_dir)
        return True

    def sync_down(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None = None) -> bool:
        copy(remote_dir, local_dir)
        return True

    def delete(self, remote_dir: str) -> bool:
        self.deleted.append(Path(remote_dir).name)
        shutil.rmtree(remote_dir)
        return True

    def rounds(self, remote: Path) -> int:
        return self.ups.count(str(remote))


SYNCERS: dict[str, Any] = {"a command": lambda: CP, "a function": lambda: copy, "a class": Plain}


def tuner(upload_dir: str, syncer: Any, trials: int = 1, trainable: Any = train, **fields: Any) -> tune.Tuner:
    sync = {"sync_period": 300.0, **fields.pop("sync", {})}
    known = {"name": "exp", "verbose": 0, "engine": tune.LocalEngine(cpus=2)}
    return tune.Tuner(
        trainable,
        param_space={"trial": tune.grid_search(list(range(trials))), **fields.pop("space", {})},
        run_config=tune.RunConfig(
            sync_config=tune.SyncConfig(upload_dir=upload_dir, syncer=syncer, **sync), **{**known, **fields}
        ),
    )


def start_driver(upload_dir: str | Path, kind: str, **environment: str) -> subprocess.Popen[bytes]:
    """A driver in a process of its own, with one of the syncers or a command."""
    paths = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    return subprocess.Popen([sys.executable, "-c", DRIVER, str(upload_dir), kind], env=variables)


def check_copy(remote: Path, scratch: Path) -> set[str]:
    """Bring the copy back as it is now: whatever its journal refers to is there. Returns the checkpoints it knows."""
    synced_copy = SyncedCopy(scratch, str(remote), FunctionSyncer(copy))
    try:
        synced_copy.fetch()
    finally:
        synced_copy.close()
    state = open_state(scratch, read_spec(Root(scratch)).retention).state
    known = set()
    for trial in state.trials:
        (folder,) = scratch.glob(f"*_{trial.id}_*")
        for record in trial.checkpoints:
            if record.stored == Stored.COMMITTED:
                name = f"checkpoint_{record.index:06d}"
                assert (folder / name / "_manifest.json").exists(), f"{folder.name}/{name} is missing"
                known.add(f"{folder.name}/{name}")
    return known
