"""A program that runs an experiment for the page to show: `python trained.py KIND STORAGE_PATH NAME`.

Kinds: `stopped_early` (ASHA, some trials fail), `population` (PBT), `endless` (until it is ended), `hostile` (names and
values that would do harm if they were more than text), `showcase` (as people have it, for pictures).
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast as tune
from holdfast.schedulers import ASHAScheduler, PopulationBasedTraining

MARK = "\u202egnp.exe"
SCRIPT = "<script>window.harmed=1</script><img src=x onerror='window.harmed=1'>"
STEPS = 12
DIGITS_STEPS = 27
PROGRAM = Path(__file__)
SOURCES = PROGRAM.parents[2] / "src"


def environ() -> dict[str, str]:
    """That of a program which uses the holdfast under test."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES), *filter(None, sys.path)])}


@contextmanager
def run_to_the_end(kind: str, storage_path: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver; whoever leaves before it has ended kills it."""
    with open(storage_path / "driver.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), kind, str(storage_path), name], env=environ(), stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def train_digits(config: dict[str, Any]) -> None:
    """Curves as those of a small network, without one: the same for the same configuration."""
    step, checkpoint = 0, tune.get_checkpoint()
    if checkpoint is not None:
        step = checkpoint.to_dict()["step"]
    distance = abs(math.log10(config["lr"]) + 2.2) + abs(config["dropout"] - 0.25) + 0.5 / config["layers"]
    floor, speed = 0.08 + 0.12 * distance, 0.35 / (0.6 + distance)
    if config["lr"] > 0.05 and config["layers"] > 5:
        raise FloatingPointError("loss is not finite: the learning rate is too high for this depth")
    for now in range(step + 1, DIGITS_STEPS + 1):
        time.sleep(0.005)
        wave = 0.02 * math.sin(now * 1.7 + 40 * config["dropout"]) / now
        loss = floor + (2.3 - floor) * math.exp(-speed * now) + wave
        row = {"loss": loss, "accuracy": 1 - loss / 2.6}
        tune.report(row, checkpoint=tune.Checkpoint.from_dict({"step": now}) if now % 5 == 0 else None)


def train(config: dict[str, Any]) -> None:
    step = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            step = int(Path(folder, "step").read_text())
    while step < config["steps"]:
        step += 1
        time.sleep(config["pause_s"])
        row = {"loss": (config["lr"] - 0.1) ** 2 + 1 / step, "size": config["layers"] * step, **config.get("row", {})}
        print(f"step {step} {SCRIPT if 'row' in config else ''}")
        if config["lr"] > 0.4:
            raise ValueError(f"too large {SCRIPT} {MARK}")
        if step % 4:
            tune.report(row)
            continue
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            tune.report(row, checkpoint=tune.Checkpoint.from_directory(folder))


def main() -> None:
    kind, storage_path, name = sys.argv[1:]
    space: dict[str, Any] = {
        "lr": tune.loguniform(1e-3, 0.3),
        "layers": tune.randint(1, 5),
        "act": tune.choice(["relu", "gelu"]),
        "steps": STEPS,
        "pause_s": 0.0,
    }
    scheduler: Any = None
    samples = 12
    if kind == "stopped_early":
        space["lr"] = tune.grid_search([0.001, 0.01, 0.05, 0.1, 0.2, 0.5])
        scheduler, samples = ASHAScheduler(), 2
    elif kind == "population":
        # Synchronous, so that who copies whom does not depend on how busy the machine is.
        scheduler = PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=4,
            hyperparam_mutations={"lr": tune.loguniform(1e-3, 0.3)},
            synch=True,
        )
        space["lr"], samples = tune.grid_search([0.001, 0.01, 0.05, 0.2]), 1
    elif kind == "endless":
        space.update(steps=100_000, pause_s=0.1)
    elif kind == "hostile":
        space.update({SCRIPT: MARK, "long": "A" * 200_000, "row": {f"{SCRIPT},{MARK}": 1.0, "%2C": 2.0}})
        samples = 3
    if kind == "showcase":
        space = {
            "lr": tune.loguniform(1e-4, 1e-1),
            "layers": tune.randint(2, 8),
            "dropout": tune.uniform(0.0, 0.5),
            "optimizer": tune.choice(["sgd", "adam", "rmsprop"]),
        }
        scheduler, samples = ASHAScheduler(max_t=DIGITS_STEPS, grace_period=3), 60
    tuned = tune.TuneConfig(
        metric="loss", mode="min", num_samples=samples, max_concurrent_trials=2, scheduler=scheduler
    )
    run = tune.RunConfig(name=name, storage_path=storage_path, if_exists="resume")
    trainable = train_digits if kind == "showcase" else train
    tune.Tuner(trainable, param_space=space, tune_config=tuned, run_config=run).fit()


if __name__ == "__main__":
    main()
