"""Two trials that report four metrics as fast as they can.

Two rates: as the trials see it, and until ``fit()`` has returned and every file is complete.
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
    """Measure with JSON and CSV, with all default loggers, and without any."""
    from benchmarks.harness import OURS, Call, at_least

    quick = bench.quick
    many, few, repeats = (2000, 200, 1) if quick else (5000, 500, 3)
    ray_few = Call("ray tune", "ray", {"reports": few, "loggers": "json csv"}, peer="ray", env=NO_LOGGERS)
    found = bench.alternate(
        [
            Call(OURS, "holdfast", {"reports": many, "loggers": "json csv"}, env=NO_LOGGERS),
            Call("optuna, journal", "optuna", {"reports": many // 5}, peer="optuna"),
            ray_few,
        ],
        repeats,
    )
    _rows(bench, "JSON and CSV logs", found, at_least(10_000))
    found = bench.alternate(
        [
            Call(OURS, "holdfast", {"reports": many, "loggers": "default"}),
            Call("ray tune", "ray", {"reports": few, "loggers": "default"}, peer="ray"),
        ],
        repeats,
    )
    _rows(bench, "default logs", found, None)
    call = Call(OURS, "holdfast", {"reports": many, "loggers": "none"}, env=NO_LOGGERS)
    _rows(bench, "no logs", bench.alternate([call], repeats), None)


def _rows(bench: Bench, what: str, found: dict[str, list[dict[str, Any]]], bar: Any) -> None:
    bench.row(f"reports, {what}, as the trials see it", "1/s", bench.figures(found, "rate"), bar, higher=True)
    whole = bench.figures(found, "whole_rate")
    bench.row(f"reports, {what}, until fit() returned", "1/s", whole, bar, higher=True)
    bench.row(f"driver CPU per report, {what}", "us", bench.figures(found, "cpu_us"))


def _figures(place: str, total: int, cpu_s: float, ended: float) -> dict[str, float]:
    """From the moments that every trial has written down."""
    began, done = [], []
    for name in os.listdir(place):
        with open(os.path.join(place, name)) as file:
            first, last = file.read().split()
        began.append(float(first))
        done.append(float(last))
    assert len(began) == 2, f"{len(began)} trials have run"
    start = min(began)
    return {"rate": total / (max(done) - start), "whole_rate": total / (ended - start), "cpu_us": cpu_s / total * 1e6}


def _trainable(report: Any, place: str, reports: int) -> Any:
    def train(config: dict[str, Any]) -> None:
        began = time.monotonic()
        for step in range(reports):
            report({"loss": 1.0 / (step + 1), "accuracy": 0.5, "lr": 1e-3, "epoch": step})
        with open(os.path.join(place, str(os.getpid())), "w") as file:
            file.write(f"{began} {time.monotonic()}")

    return train


def holdfast(reports: int, loggers: str) -> dict[str, Any]:
    """Two CPUs, so both trials run at once."""
    import holdfast as tune
    from holdfast.callbacks.csv_logger import CSVLoggerCallback
    from holdfast.callbacks.json_logger import JsonLoggerCallback

    storage = os.environ["HOME"]
    place = os.path.join(storage, "moments")
    os.mkdir(place)
    tuner = tune.Tuner(
        _trainable(tune.report, place, reports),
        tune_config=tune.TuneConfig(num_samples=2),
        run_config=tune.RunConfig(
            name="reports",
            storage_path=storage,
            verbose=0,
            engine=tune.LocalEngine(cpus=2),
            callbacks=[JsonLoggerCallback(), CSVLoggerCallback()] if loggers == "json csv" else None,
        ),
    )
    before = time.process_time()
    grid = tuner.fit()
    ended = time.monotonic()
    assert [result.metrics["training_iteration"] for result in grid] == [reports, reports]
    return _figures(place, 2 * reports, time.process_time() - before, ended)


def ray(reports: int, loggers: str) -> dict[str, Any]:
    """Ray Tune with the loggers of the same names."""
    from ray import tune
    from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback

    storage = os.environ["HOME"]
    place = os.path.join(storage, "moments")
    os.mkdir(place)
    with child.ray_cluster(2):
        callbacks = [JsonLoggerCallback(), CSVLoggerCallback()] if loggers == "json csv" else None
        tuner = tune.Tuner(
            _trainable(tune.report, place, reports),
            tune_config=tune.TuneConfig(num_samples=2),
            run_config=tune.RunConfig(name="reports", storage_path=storage, verbose=0, callbacks=callbacks),
        )
        before = time.process_time()
        tuner.fit()
        ended = time.monotonic()
        return _figures(place, 2 * reports, time.process_time() - before, ended)


def optuna(reports: int) -> dict[str, Any]:
    """``trial.report`` of one value (it takes no more) to a journal, from two threads; Optuna has no log files."""
    import threading

    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = os.environ["HOME"]
    place = os.path.join(storage, "moments")
    os.mkdir(place)

    def objective(trial: Any) -> float:
        began = time.monotonic()
        for step in range(reports):
            trial.report(1.0 / (step + 1), step)
        with open(os.path.join(place, str(threading.get_ident())), "w") as file:
            file.write(f"{began} {time.monotonic()}")
        return 0.0

    journal = JournalStorage(JournalFileBackend(os.path.join(storage, "journal.log")))
    study = optuna.create_study(storage=journal)
    before = time.process_time()
    study.optimize(objective, n_trials=2, n_jobs=2)
    return _figures(place, 2 * reports, time.process_time() - before, time.monotonic())


if __name__ == "__main__":
    child.main(globals())
