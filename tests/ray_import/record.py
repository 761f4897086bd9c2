"""Records the experiments below ``recorded/``: small ones, made with Ray Tune itself (2.60) and cut to what is read.

Not a test and never imported by one: it needs Ray, which the tests do not. To record again:

    python -m venv /tmp/ray_env && /tmp/ray_env/bin/pip install 'ray[tune]==2.60.*'
    mkdir -p /tmp/ray_recording && cp tests/ray_import/record.py /tmp/ray_recording/
    /tmp/ray_env/bin/python /tmp/ray_recording/record.py tests/ray_import/recorded

Everything happens below /tmp/ray_recording and /tmp/ray_results, so these are the only paths in the pickles. What names
the machine in texts is replaced. What nothing reads is left out: event files, pickled errors and trainables (which hold
paths of the environment), ``params.pkl``, ``progress.csv`` and the states of searchers and schedulers.

function     a function that saves with each report; the best two checkpoints are kept; a tuple and a NaN
class        a class with save_checkpoint and load_checkpoint that returns a dict
errored      one trial fails for good, one fails once and repeats iterations, two end well
interrupted  kill -9 to the driver in the middle; one trial is finished, one runs, others are pending
pbt          population based training: trials continue from each other's checkpoints
objects      a value of the search space is an object of a class of the script
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path("/tmp/ray_results")
LEFT_OUT = (
    "events.out.tfevents*",
    "error.pkl",
    "trainable.pkl",
    "params.pkl",
    "progress.csv",
    "basic-variant-state-*",
    ".validate_storage_marker",
    "pbt_*.txt",
)
os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "0.5"
os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"


class Widget:
    """Something that only this script knows."""

    def __init__(self, size: int) -> None:
        self.size = size


def start_of(checkpoint: Any) -> int:
    """The step that a checkpoint holds."""
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as directory:
        return int((Path(directory) / "step.txt").read_text())


def report_step(step: int, **metrics: Any) -> None:
    """Report with a checkpoint."""
    from ray import tune

    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "step.txt").write_text(str(step))
        tune.report({"step": step, **metrics}, checkpoint=tune.Checkpoint.from_directory(directory))


def train(config: dict[str, Any]) -> None:
    """Four steps, the second with a NaN."""
    from ray import tune

    for step in range(start_of(tune.get_checkpoint()) + 1, 5):
        report_step(step, loss=config["lr"] / step, odd=float("nan") if step == 2 else 1.0)


def failing(config: dict[str, Any]) -> None:
    """Fails always at step 3, or once at step 3 with a checkpoint of step 1 only."""
    from ray import tune

    for step in range(start_of(tune.get_checkpoint()) + 1, 5):
        if step == 3 and config["how"] == "always":
            raise ValueError("the third step is too much")
        marker = Path("failed-once")
        if step == 3 and config["how"] == "once" and not marker.exists():
            marker.write_text("yes")
            raise RuntimeError("only this time")
        if step % 2:
            report_step(step, loss=1.0 / step)
        else:
            tune.report({"step": step, "loss": 1.0 / step})


def slow(config: dict[str, Any]) -> None:
    """Three steps; then trial 0 ends and the others wait to be killed."""
    from ray import tune

    for step in range(start_of(tune.get_checkpoint()) + 1, 4):
        report_step(step, loss=config["lr"] / step)
    if config["lr"] > 0.1:
        time.sleep(3600)


def population(config: dict[str, Any]) -> None:
    """Learns well or badly by its rate, and at a pace that lets the others keep up."""
    from ray import tune

    start = tune.get_checkpoint()
    score, step = 0.0, 0
    if start is not None:
        with start.as_directory() as directory:
            step, score = json.loads((Path(directory) / "state.json").read_text())
    while step < 8:
        step, score = step + 1, score + config["lr"]
        time.sleep(0.3)
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "state.json").write_text(json.dumps([step, score]))
            tune.report({"score": score}, checkpoint=tune.Checkpoint.from_directory(directory))


def with_widget(config: dict[str, Any]) -> None:
    """Two steps with an object of the search space."""
    for step in (1, 2):
        report_step(step, loss=float(config["widget"].size) / step)


def make_class() -> type:
    """A class of the older kind, whose checkpoints are dicts."""
    from ray import tune

    class Counting(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.count = 0

        def step(self) -> dict[str, Any]:
            self.count += 1
            return {"score": self.count * self.config["lr"]}

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return {"count": self.count}

        def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.count = checkpoint["count"]

    return Counting


def record(name: str) -> None:
    """Run one of the experiments."""
    import ray
    from ray import tune

    # One trial at a time where the driver is killed: so one is finished, one runs and the others wait.
    ray.init(num_cpus=1 if name == "interrupted" else 2, include_dashboard=False, object_store_memory=80_000_000)
    run: dict[str, Any] = {"name": name, "storage_path": str(RESULTS), "verbose": 0}
    grid = tune.grid_search
    if name == "function":
        keep = tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min")
        space = {"lr": grid([0.1, 0.2, 0.3]), "shape": (2, 3), "nested": {"depth": 1}}
        tuner = tune.Tuner(
            train,
            param_space=space,
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(checkpoint_config=keep, **run),
        )
    elif name == "class":
        tuner = tune.Tuner(
            make_class(),
            param_space={"lr": tune.uniform(0.1, 0.9)},
            tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=2),
            run_config=tune.RunConfig(
                stop={"training_iteration": 3},
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, checkpoint_at_end=True),
                **run,
            ),
        )
    elif name == "errored":
        tuner = tune.Tuner(
            failing,
            param_space={"how": grid(["always", "once", "never", "not"])},
            run_config=tune.RunConfig(failure_config=tune.FailureConfig(max_failures=1), **run),
        )
    elif name == "interrupted":
        tuner = tune.Tuner(
            slow,
            param_space={"lr": grid([0.1, 0.2, 0.3])},
            tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=2),
            run_config=tune.RunConfig(**run),
        )
    elif name == "pbt":
        pbt = tune.schedulers.PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=2,
            hyperparam_mutations={"lr": [0.1, 0.5, 1.0]},
            quantile_fraction=0.5,
        )
        tuner = tune.Tuner(
            population,
            param_space={"lr": grid([0.1, 1.0])},
            tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=pbt),
            run_config=tune.RunConfig(**run),
        )
    else:
        tuner = tune.Tuner(
            with_widget,
            param_space={"widget": Widget(3), "lr": grid([0.1, 0.2])},
            run_config=tune.RunConfig(**run),
        )
    tuner.fit()
    ray.shutdown()


def kill_in_the_middle(child: subprocess.Popen[bytes]) -> None:
    """Wait until the second trial has saved three times and the experiment's file says that it runs; then kill -9."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        rows = [len(path.read_text().splitlines()) for path in (RESULTS / "interrupted").glob("*/result.json")]
        states = sorted((RESULTS / "interrupted").glob("experiment_state-*.json"))
        text = states[-1].read_text() if states else ""
        if sum(rows) >= 6 and "RUNNING" in text and "TERMINATED" in text and "PENDING" in text:
            break
        time.sleep(0.2)
    time.sleep(2.0)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def keep(source: Path, target: Path) -> None:
    """Copy what an importer reads, without what names the machine."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*LEFT_OUT))
    environment = re.escape(str(Path(sys.prefix)))
    for path in target.rglob("*"):
        if path.suffix in (".txt", ".json", ".csv") and path.is_file() and "checkpoint_" not in str(path):
            text = path.read_text()
            text = re.sub(environment, "/home/user/env", text)
            text = re.sub(re.escape(sys.base_prefix), "/usr", text)
            path.write_text(text)


def main() -> None:
    """Record all, each in a process of its own, and copy them."""
    target = Path(sys.argv[1])
    chosen = sys.argv[2:] or ["function", "class", "errored", "interrupted", "pbt", "objects"]
    for name in chosen:
        shutil.rmtree(RESULTS / name, ignore_errors=True)
        child = subprocess.Popen([sys.executable, __file__, "--one", name], start_new_session=True)
        if name == "interrupted":
            kill_in_the_middle(child)
        else:
            child.wait()
        keep(RESULTS / name, target / name)


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        record(sys.argv[2])
    else:
        main()
