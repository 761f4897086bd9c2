"""Trials that do nothing, two at once: what the machinery around a trial costs.

Every trial returns, or reports once, the moment at which it ran. One rate is taken from those moments, without the
first tenth of the trials as a warm-up. The other is what a user sees: all trials, by the time until ``fit()`` returned.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
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
    reporting = bench.alternate(
        [
            Call(OURS, "holdfast", {"trials": 4000 if quick else 20_000, "reports": True}, env=NO_LOGGERS),
            Call("optuna, journal", "optuna", {"trials": 200 if quick else 1000, "reports": True}, peer="optuna"),
            Call("ray tune", "ray", {"trials": 40 if quick else 200, "reports": True}, peer="ray", env=NO_LOGGERS),
        ],
        1 if quick else 3,
    )
    for what, found, bar in (
        ("that return, loggers off", bare, at_least(2000)),
        ("that report once, loggers off", reporting, None),
        ("that return, default loggers", logged, at_least(500)),
    ):
        bench.row(f"trials {what}, after a warm-up", "1/s", bench.figures(found, "rate"), bar, higher=True)
        bench.row(f"trials {what}, until fit() returned", "1/s", bench.figures(found, "whole_rate"), higher=True)
        bench.row(f"driver CPU, trials {what}", "us", bench.figures(found, "cpu_us"))


class _Watch:
    """Times a run, on the wall and of this process."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.process_time()

    def figures(self, trials: int, stamps: Callable[[], list[float]]) -> dict[str, Any]:
        """To be called when the run has returned; the moments of the trials are fetched after the clocks were read."""
        wall, cpu = time.monotonic() - self._began[0], time.process_time() - self._began[1]
        found = stamps()
        assert len(found) == trials, f"{len(found)} of {trials} trials have a result"
        rate = child.rate_after(found, trials // 10)
        return {"rate": rate, "whole_rate": trials / wall, "cpu_us": cpu / trials * 1e6}


def holdfast(trials: int, reports: bool = False) -> dict[str, Any]:
    """The default local engine with two CPUs; workers are reused."""
    import holdfast as tune

    def train(config: dict[str, Any]) -> dict[str, float] | None:
        if not reports:
            return {"at": time.monotonic()}
        tune.report({"at": time.monotonic()})
        return None

    tuner = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=trials),
        run_config=tune.RunConfig(
            name="noop", storage_path=os.environ["HOME"], verbose=0, engine=tune.LocalEngine(cpus=2)
        ),
    )
    watch = _Watch()
    grid = tuner.fit()
    return watch.figures(trials, lambda: [result.metrics["at"] for result in grid])


def ray(trials: int, reports: bool = False) -> dict[str, Any]:
    """Ray Tune with two CPUs; ``reuse_actors`` is its fast way."""
    from ray import tune

    def train(config: dict[str, Any]) -> dict[str, float] | None:
        if not reports:
            return {"at": time.monotonic()}
        tune.report({"at": time.monotonic()})
        return None

    with child.ray_cluster(2):
        tuner = tune.Tuner(
            train,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(num_samples=trials, reuse_actors=True),
            run_config=tune.RunConfig(name="noop", storage_path=os.environ["HOME"], verbose=0),
        )
        watch = _Watch()
        grid = tuner.fit()
        return watch.figures(trials, lambda: [result.metrics["at"] for result in grid])


def optuna(trials: int, journal: bool = True, reports: bool = False) -> dict[str, Any]:
    """Optuna with two threads; only the journal is durable."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: Any) -> float:
        trial.suggest_float("x", 0, 1)
        at = time.monotonic()
        if reports:
            trial.report(at, step=1)
        return at

    path = os.path.join(os.environ["HOME"], "journal.log")
    storage = JournalStorage(JournalFileBackend(path)) if journal else None
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler())
    watch = _Watch()
    study.optimize(objective, n_trials=trials, n_jobs=2)
    return watch.figures(trials, lambda: [trial.value for trial in study.trials])


if __name__ == "__main__":
    child.main(globals())
