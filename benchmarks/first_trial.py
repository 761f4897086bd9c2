"""From the exec of a script to the first line inside its first trial, and to the end of a run of one trial."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.harness import Bench


def run(bench: Bench) -> None:
    """Measure whole scripts, imports included."""
    from benchmarks.harness import OURS, Call, at_most

    calls = [
        Call(OURS, "holdfast"),
        Call("ray tune", "ray", peer="ray"),
        Call("optuna", "optuna", peer="optuna"),
    ]
    bench.alternate(calls[:1] + calls[2:], 1)
    found = bench.alternate(calls, 2 if bench.quick else 5)
    first = {label: [run["at"] - run["exec_at"] for run in runs] for label, runs in found.items()}
    bench.row("exec to the first line of the first trial", "s", first, at_most(0.6))
    bench.row("exec to the exit of a script with one trial", "s", bench.figures(found, "wall_s"))


def holdfast() -> dict[str, Any]:
    """One trial, everything at its default but the place."""
    import holdfast as tune

    storage = os.environ["HOME"]

    def train(config: dict[str, Any]) -> dict[str, float]:
        return {"at": time.monotonic()}

    run_config = tune.RunConfig(name="first", storage_path=storage, verbose=0)
    grid = tune.Tuner(train, param_space={"x": tune.uniform(0, 1)}, run_config=run_config).fit()
    return {"at": grid[0].metrics["at"]}


def ray() -> dict[str, Any]:
    """The same with Ray Tune, the start of its cluster included."""
    from ray import tune

    def train(config: dict[str, Any]) -> dict[str, float]:
        return {"at": time.monotonic()}

    with child.ray_cluster(2):
        run_config = tune.RunConfig(name="first", storage_path=os.environ["HOME"], verbose=0)
        grid = tune.Tuner(train, param_space={"x": tune.uniform(0, 1)}, run_config=run_config).fit()
        return {"at": grid[0].metrics["at"]}


def optuna() -> dict[str, Any]:
    """The same with Optuna, whose trials run inside the script's own process."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: Any) -> float:
        at = time.monotonic()
        trial.suggest_float("x", 0, 1)
        return at

    study = optuna.create_study()
    study.optimize(objective, n_trials=1)
    return {"at": study.trials[0].value}


if __name__ == "__main__":
    child.main(globals())
