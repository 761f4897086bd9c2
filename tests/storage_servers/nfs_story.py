"""Experiments on NFS, run inside the NFS machine: a driver's life, two drivers that meet, a server that restarts."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import holdfast as tune

STEPS = 4
GATED_STEP = 2
DEADLINE_S = 100.0
DOWN_S = 2.0
GATE = os.path.join(tempfile.gettempdir(), os.environ.get("STORY", ""))


def train(config: dict[str, Any]) -> None:
    """Keeps a file of each checkpoint open, and reads it: what retention deletes lives on as ``.nfs...`` for a while.

    If another client deletes it, reading fails (ESTALE).
    """
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] if checkpoint else 0
    held = []
    for step in range(start + 1, STEPS + 1):
        tune.report({"loss": config["x"] - step, "step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
        while config["gated"] and step == GATED_STEP and not os.path.exists(GATE):
            time.sleep(0.1)
        for name in glob.glob(os.path.join(tune.get_context().get_trial_dir(), "checkpoint_*", "*")):
            with contextlib.suppress(FileNotFoundError):  # it may be deleted just now
                held.append(open(name, "rb"))  # noqa: SIM115
        for file in held:
            file.seek(0)
            file.read()


def live(storage: str, how: str = "") -> None:
    """Begin the experiment or continue it, until its end; ``how`` is empty, "gated" or "takeover"."""
    path = os.path.join(storage, "exp")
    if tune.Tuner.can_restore(path):
        tuner = tune.Tuner.restore(path, train, takeover=how == "takeover")
    else:
        tuner = tune.Tuner(
            train,
            param_space={"x": tune.grid_search([1.0, 2.0]), "gated": how == "gated"},
            run_config=tune.RunConfig(
                name="exp",
                storage_path=storage,
                verbose=0,
                sync_config=tune.SyncConfig(syncer=None),
                checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
                engine=tune.LocalEngine(cpus=2),
            ),
        )
    found = [(result.config["x"], result.metrics["step"], len(result.metrics_history)) for result in tuner.fit()]
    print(sorted(found))


def meet(one: str, other: str) -> None:
    """Through two clients: a second driver is refused, a third one takes over and finishes, and the first is fenced."""
    first = start(one, "gated")
    until_gated(other)
    print("second:", *end_of(start(other)))
    third = start(other, "takeover")
    wait(lambda: os.path.exists(os.path.join(other, "exp", ".holdfast", "epochs", "00000002")), "the takeover")
    open_gate()
    print("first:", *end_of(first))
    print("third:", *end_of(third))


def restart(storage: str, stop: str, begin: str) -> None:
    """The server is gone for a while, in which trials report and save, and then asks its clients what they had."""
    driver = start(storage, "gated")
    until_gated(storage)
    subprocess.run(json.loads(stop), check=True)
    open_gate()
    time.sleep(DOWN_S)
    subprocess.run(json.loads(begin), check=True)
    print("driver:", *end_of(driver))


def start(storage: str, how: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "live", storage, how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """How a driver ended, and its last words."""
    said = process.communicate()[0].splitlines() or [""]
    return process.returncode, said[-1]


def until_gated(storage: str) -> None:
    pattern = os.path.join(storage, "exp", "*", f"checkpoint_{GATED_STEP - 1:06d}")
    wait(lambda: len(glob.glob(pattern)) == 2, "the checkpoints at the gate")


def open_gate() -> None:
    with open(GATE, "w"):
        pass


def wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.1)


if __name__ == "__main__":
    {"live": live, "meet": meet, "restart": restart}[sys.argv[1]](*sys.argv[2:])
