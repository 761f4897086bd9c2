"""Trials that sleep a second, sixteen at once on two cores: observed time over the least possible."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.harness import Bench

AT_ONCE = 16


def run(bench: Bench) -> None:
    """Measure the whole of ``fit()``, the start of workers included and that of Ray's cluster excluded."""
    from benchmarks.harness import OURS, Call

    arguments = {"trials": 48 if bench.quick else 160}
    found = bench.alternate(
        [
            Call(OURS, "holdfast", arguments),
            Call("optuna, threads", "optuna", arguments, peer="optuna"),
            Call("ray tune", "ray", arguments, peer="ray"),
        ],
        1 if bench.quick else 3,
    )
    least = arguments["trials"] / AT_ONCE
    title = f"{arguments['trials']} trials of 1 s, {AT_ONCE} at once: observed / least"
    bench.row(title, "x", bench.figures(found, "fit_s", 1 / least))


def _sleep(config: dict[str, Any]) -> dict[str, float]:
    time.sleep(1)
    return {"loss": config["x"]}


def holdfast(trials: int) -> dict[str, Any]:
    """Sixteen processes."""
    import holdfast as tune

    tuner = tune.Tuner(
        _sleep,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=trials),
        run_config=tune.RunConfig(
            name="sleep", storage_path=os.environ["HOME"], verbose=0, engine=tune.LocalEngine(cpus=AT_ONCE)
        ),
    )
    before = time.monotonic()
    tuner.fit()
    return {"fit_s": time.monotonic() - before}


def ray(trials: int) -> dict[str, Any]:
    """Sixteen processes, reused."""
    from ray import tune

    with child.ray_cluster(AT_ONCE):
        tuner = tune.Tuner(
            _sleep,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(num_samples=trials, reuse_actors=True),
            run_config=tune.RunConfig(name="sleep", storage_path=os.environ["HOME"], verbose=0),
        )
        before = time.monotonic()
        tuner.fit()
        return {"fit_s": time.monotonic() - before}


def optuna(trials: int) -> dict[str, Any]:
    """Sixteen threads of one process, nothing stored."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    before = time.monotonic()
    study.optimize(lambda trial: _sleep({"x": trial.suggest_float("x", 0, 1)})["loss"], n_trials=trials, n_jobs=AT_ONCE)
    return {"fit_s": time.monotonic() - before}


if __name__ == "__main__":
    child.main(globals())
