"""Trials that report at a steady pace, as training loops do: observed time over the least possible.

Each trial sleeps a fiftieth of a second and reports, over and over. The figure has all the time that a report keeps
a training loop waiting, and the start of all workers. There are more trials than cores, because they mostly sleep.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.harness import Bench

PACE_S = 0.02
REPORTS = 1000


def run(bench: Bench) -> None:
    """Measure the whole of ``fit()``; the start of Ray's cluster is not counted."""
    from benchmarks.harness import OURS, Call, at_most

    reports = REPORTS // 5 if bench.quick else REPORTS
    for trials, bar, peers in ((16, 1.03, ("ray", "optuna")), (96, 1.05, ("optuna",))):
        arguments = {"trials": trials, "reports": reports}
        labels = {"ray": "ray tune", "optuna": "optuna, threads and journal"}
        calls = [Call(OURS, "holdfast", arguments)]
        calls += [Call(labels[peer], peer, arguments, peer=peer) for peer in peers]
        found = bench.alternate(calls, 1 if bench.quick else 3)
        title = f"{trials} trials, each {1 / PACE_S:.0f} reports/s for {reports * PACE_S:.0f} s: observed / least"
        bench.row(title, "x", bench.figures(found, "fit_s", 1 / (reports * PACE_S)), at_most(bar))
        bench.row(f"driver CPU per report, {trials} trials", "us", bench.figures(found, "cpu_us"))


def holdfast(trials: int, reports: int) -> dict[str, Any]:
    """One process for each trial, JSON and CSV logs."""
    import holdfast as tune

    def train(config: dict[str, Any]) -> None:
        for step in range(reports):
            time.sleep(PACE_S)
            tune.report({"loss": 1 / (step + config["x"])})

    tuner = tune.Tuner(
        train,
        param_space={"x": tune.uniform(1, 2)},
        tune_config=tune.TuneConfig(num_samples=trials),
        run_config=tune.RunConfig(
            name="paced", storage_path=os.environ["HOME"], verbose=0, engine=tune.LocalEngine(cpus=trials)
        ),
    )
    return _timed(tuner.fit, trials * reports)


def ray(trials: int, reports: int) -> dict[str, Any]:
    """One process for each trial, its default logs."""
    from ray import tune

    def train(config: dict[str, Any]) -> None:
        for step in range(reports):
            time.sleep(PACE_S)
            tune.report({"loss": 1 / (step + config["x"])})

    with child.ray_cluster(trials):
        tuner = tune.Tuner(
            train,
            param_space={"x": tune.uniform(1, 2)},
            tune_config=tune.TuneConfig(num_samples=trials),
            run_config=tune.RunConfig(name="paced", storage_path=os.environ["HOME"], verbose=0),
        )
        return _timed(tuner.fit, trials * reports)


def optuna(trials: int, reports: int) -> dict[str, Any]:
    """One thread for each trial; every report goes to the journal."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: Any) -> float:
        x = trial.suggest_float("x", 1, 2)
        for step in range(reports):
            time.sleep(PACE_S)
            trial.report(1 / (step + x), step)
        return 1 / (reports + x)

    storage = JournalStorage(JournalFileBackend(os.path.join(os.environ["HOME"], "journal.log")))
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler())
    return _timed(lambda: study.optimize(objective, n_trials=trials, n_jobs=trials), trials * reports)


def _timed(work: Any, reports: int) -> dict[str, Any]:
    before, cpu = time.monotonic(), time.process_time()
    work()
    return {"fit_s": time.monotonic() - before, "cpu_us": (time.process_time() - cpu) / reports * 1e6}


if __name__ == "__main__":
    child.main(globals())
