"""One experiment for every tracker: a trial that runs through, one that fails and rewinds, two that are killed.

Run as ``python tracked.py STORAGE TRACKER``: begins the experiment, or restores it. Every attempt reports other losses,
so that rows of abandoned attempts can be told from those that survive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast as tune

HERE = Path(__file__).parent
NAME = "exp"
STEPS = 8
DEADLINE_S = 180.0


def train(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] + 1 if checkpoint else 1
    marks = Path(config["folder"])
    attempt = f"{config['kind']}-{time.time_ns()}"
    for step in range(start, STEPS + 1):
        if config["kind"] == "fails" and step == 6 and not (marks / "failed").exists():
            (marks / "failed").touch()
            raise ValueError("once")
        loss = step + (hash(attempt) % 1000) / 1e6
        save = config["kind"] != "bare" and step % 3 == 0
        checkpoint = tune.Checkpoint.from_dict({"step": step}) if save else None
        tune.report({"loss": loss, "eval": {"accuracy": step / 10}, "note": "x"}, checkpoint=checkpoint)
        if config["kind"] in ("waits", "bare") and step == 5:
            _wait_to_be_killed(marks / config["kind"])


def _wait_to_be_killed(mark: Path) -> None:
    if mark.exists():
        return
    mark.touch()
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        time.sleep(0.02)
    raise AssertionError("nobody has killed this trial")


def callback(tracker: str, storage: str) -> Any:
    base = Path(storage).parent
    if tracker == "file":
        from file_tracker import FileTrackerCallback

        return FileTrackerCallback(str(base / "file"))
    from holdfast import integration

    made: dict[str, Callable[[], Any]] = {
        "wandb": lambda: integration.WandbLoggerCallback(project="p", mode="offline", dir=str(base)),
        "mlflow": lambda: integration.MLflowLoggerCallback(f"sqlite:///{base}/mlflow.db"),
        "comet": lambda: integration.CometLoggerCallback(online=False, offline_directory=str(base / "comet")),
        "aim": lambda: integration.AimLoggerCallback(repo=str(base / "aim")),
    }
    return made[tracker]()


def main(storage: str, tracker: str) -> None:
    root = Path(storage, NAME)
    if tune.Tuner.can_restore(root):
        tuner = tune.Tuner.restore(str(root), trainable=train)
    else:
        kinds = ["runs", "fails", "waits", "bare"]
        tuner = tune.Tuner(
            train,
            param_space={"kind": tune.grid_search(kinds), "folder": str(Path(storage).parent), "model": {"width": 3}},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(
                name=NAME,
                storage_path=storage,
                verbose=0,
                callbacks=[callback(tracker, storage)],
                failure_config=tune.FailureConfig(max_failures=2),
                engine=tune.LocalEngine(cpus=4),
            ),
        )
    grid = tuner.fit()
    sys.exit(1 if grid.errors else 0)


def start(folder: Path, tracker: str) -> subprocess.Popen[bytes]:
    known = {"HOME": str(folder), "PYTHONHASHSEED": "0", "WANDB_MODE": "offline", "COMET_OPTIMIZER_ID": ""}
    with open(folder / "output", "ab") as output:
        return subprocess.Popen(
            [sys.executable, str(HERE / "tracked.py"), str(folder / "store"), tracker],
            env={**os.environ, **known},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def until(condition: Callable[[], object], driver: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for something that will come; a driver that ends before it is an error."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it does not come"
        assert driver is None or driver.poll() is None, "the driver has ended"
        time.sleep(0.02)


def surviving(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and losses by trial, as the journal has them."""
    from holdfast.results.history import open_history

    history = open_history(folder / "store" / NAME)
    return {
        trial.id: [(row["training_iteration"], row["loss"]) for row in history.rows(trial.n)]
        for trial in history.state.trials
    }


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main(*sys.argv[1:])
