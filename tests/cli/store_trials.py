"""Experiments in stores: what trains, how to interrupt it, and how to get at single objects."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

import holdfast as tune
from holdfast.core import events as ev
from holdfast.storage.agent_client import connect
from holdfast.storage.store import Store
from servers.process import poll

STEPS = 4


def train(config: dict[str, Any]) -> None:
    """Counts to four, with a checkpoint at each step.

    Waits at step ``hold_at`` for the file ``go``, and after it while there is a file ``stay``.
    """
    before = tune.get_checkpoint()
    start = 0
    if before is not None:
        with before.as_directory() as directory:
            start = json.loads(Path(directory, "state.json").read_text())["step"]
    for step in range(start, STEPS):
        if step == config.get("hold_at"):
            Path(config["dir"], "held").touch()
            while not Path(config["dir"], "go").exists():
                time.sleep(0.01)
        while step > config.get("hold_at", step) and Path(config["dir"], "stay").exists():
            time.sleep(0.01)
        with tune.checkpoint_dir() as directory:
            Path(directory, "state.json").write_text(json.dumps({"step": step + 1}))
            Path(directory, "sub").mkdir()
            Path(directory, "sub", "weights.bin").write_bytes(bytes([step]) * 10_000)
        tune.report({"loss": config["x"] + STEPS - step, "step": step}, checkpoint=tune.Checkpoint(directory))


class InterruptOnce(tune.Callback):
    """What a person does: Ctrl+C after the third report, if the flag is there; then the flag is gone."""

    def __init__(self, flag: str) -> None:
        self.flag = flag
        self.seen = 0

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self.seen += 1
        if self.seen == 3 and os.path.exists(self.flag):
            os.unlink(self.flag)
            os.kill(os.getpid(), signal.SIGINT)


class GoOnAfterSave(tune.Callback):
    """Lets trials continue that wait for the file ``go``, once a checkpoint is committed."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def on_trial_save(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        Path(self.directory, "go").touch()


def tuner(storage: str, name: str = "exp", *, xs: tuple[int, ...] = (1, 2), callback: Any = None, **config: Any) -> Any:
    return tune.Tuner(
        train,
        param_space={"x": tune.grid_search(list(xs)), **config},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(
            name=name,
            storage_path=storage,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
            callbacks=[callback] if callback else None,
        ),
    )


def interrupted(storage: str, tmp_path: Path, name: str = "exp") -> str:
    """An experiment that was ended with Ctrl+C; where it is."""
    flag = tmp_path / "flag"
    flag.touch()
    grid = tuner(storage, name, xs=(1, 2, 3), callback=InterruptOnce(str(flag))).fit()
    assert any(result.status == "PENDING" for result in grid)
    return grid.experiment_path


def driver(storage: str, directory: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that runs an experiment of one trial, which waits before its third step."""
    code = f"import store_trials; store_trials.tuner({storage!r}, xs=(1,), hold_at=2, dir={str(directory)!r}).fit()"
    path = os.pathsep.join(dict.fromkeys(sys.path))
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **environ, "PYTHONPATH": path})
    poll(lambda: (directory / "held").exists() or process.poll() is not None, 60, "the trial to wait")
    assert process.poll() is None
    return process


def store_of(url: str) -> Store:
    return connect(url)


def clone(url: str, target: str) -> Store:
    """The same objects in another place of the store."""
    old, new = connect(url), connect(target)
    for stat in old.list(""):
        new.put(stat.key, old.get(stat.key))
    return new


def flip(store: Store, key: str, at: int = -1) -> None:
    """Damage one byte of an object."""
    data = bytearray(store.get(key))
    data[at] ^= 0xFF
    store.put(key, bytes(data))


def keys(store: Store, end: str) -> list[str]:
    """Keys with this end."""
    return [stat.key for stat in store.list("") if stat.key.endswith(end)]


def parts_from_first_commit(store: Store) -> list[str]:
    """Keys of the journal's parts, from the one that tells of the first committed checkpoint on.

    A commit follows the part with the record of its stage, so the parts before know the trials and that checkpoint.
    """
    parts = keys(store, ".hfp")
    tag = msgspec.msgpack.encode(ev.CheckpointCommitted.__struct_config__.tag)
    first = next(number for number, key in enumerate(parts) if tag in store.get(key))
    return parts[first:]
