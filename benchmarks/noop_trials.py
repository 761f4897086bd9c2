"""Trials that do nothing, two at once: what the machinery around a trial costs.

Every trial returns the moment at which it ran; the rate is taken from those moments, after a warm-up.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.harness import Bench

NO_LOGGERS = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}


def run(bench: Bench) -> None:
    """Measure without and with the default loggers."""
    from benchmarks.harness import OURS, Call, at_least

    quick = bench.quick
    bare = bench.alternate(
        [
            Call(OURS, "holdfast", {"trials": 4000 if quick else 20_000}, env=NO_LOGGERS),
            Call("optuna, memory", "optuna", {"trials": 1000 if quick else 5000, "journal": False}, peer="optuna"),
            Call("optuna, journal", "optuna", {"trials": 200 if quick else 1000, "journal": True}, peer="optuna"),
            Call("ray tune", "ray", {"trials": 40 if quick else 200}, peer="ray", env=NO_LOGGERS),
        ],
        1 if quick else 3,
    )
    logged = bench.alternate(
        [
            Call(OURS, "holdfast", {"trials": 1000 if quick else 5000}),
            Call("ray tune", "ray", {"trials": 40 if quick else 200}, peer="ray"),
        ],
        1 if quick else 3,
    )
    bench.row("durable no-op trials, loggers off", "1/s", bench.figures(bare, "rate"), at_least(2000))
    bench.row("driver CPU per such trial", "us", bench.figures(bare, "cpu_us"))
    bench.row("durable no-op trials, default loggers", "1/s", bench.figures(logged, "rate"), at_least(500))
    bench.row("driver CPU per such trial, default loggers", "us", bench.figures(logged, "cpu_us"))


def holdfast(trials: int) -> dict[str, Any]:
    """The default local engine with two CPUs; workers are reused."""
    import holdfast as tune

    def train(config: dict[str, Any]) -> dict[str, float]:
        return {"at": time.monotonic()}

    tuner = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=trials),
        run_config=tune.RunConfig(
            name="noop", storage_path=os.environ["HOME"], verbose=0, engine=tune.LocalEngine(cpus=2)
        ),
    )
    before = time.process_time()
    grid = tuner.fit()
    cpu_us = (time.process_time() - before) / trials * 1e6
    stamps = [result.metrics["at"] for result in grid]
    assert len(stamps) == trials, f"{len(stamps)} of {trials} trials have a result"
    return {"rate": child.rate_after(stamps, trials // 10), "cpu_us": cpu_us}


def ray(trials: int) -> dict[str, Any]:
    """Ray Tune with two CPUs; ``reuse_actors`` is its fast way."""
    from ray import tune

    def train(config: dict[str, Any]) -> dict[str, float]:
        return {"at": time.monotonic()}

    with child.ray_cluster(2):
        tuner = tune.Tuner(
            train,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(num_samples=trials, reuse_actors=True),
            run_config=tune.RunConfig(name="noop", storage_path=os.environ["HOME"], verbose=0),
        )
        before = time.process_time()
        grid = tuner.fit()
        cpu_us = (time.process_time() - before) / trials * 1e6
        return {"rate": child.rate_after([result.metrics["at"] for result in grid], trials // 10), "cpu_us": cpu_us}


def optuna(trials: int, journal: bool) -> dict[str, Any]:
    """Optuna with two threads; only the journal is durable."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: Any) -> float:
        trial.suggest_float("x", 0, 1)
        return time.monotonic()

    path = os.path.join(os.environ["HOME"], "journal.log")
    storage = JournalStorage(JournalFileBackend(path)) if journal else None
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler())
    before = time.process_time()
    study.optimize(objective, n_trials=trials, n_jobs=2)
    cpu_us = (time.process_time() - before) / trials * 1e6
    return {"rate": child.rate_after([trial.value for trial in study.trials], trials // 10), "cpu_us": cpu_us}


if __name__ == "__main__":
    child.main(globals())
