"""Opening a finished experiment in a fresh process: all of its results, and its status on the command line."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.harness import Bench

STATUS = "import sys; from holdfast.cli.main import main; sys.exit(main())"
NO_LOGGERS = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}


def run(bench: Bench) -> None:
    """Make the experiments, then open them again and again; times of the calls, without imports."""
    from benchmarks.harness import OURS, Call, at_most

    sizes = {2000: at_most(1.0)} if bench.quick else {2000: None, 10_000: at_most(1.0), 100_000: at_most(10.0)}
    largest_of_peer = {"ray tune": 60 if bench.quick else 2000, "optuna, journal": 500 if bench.quick else 10_000}
    for trials, bar in sizes.items():
        openers = [_ours(bench, trials)]
        for label, largest in largest_of_peer.items():
            if (trials <= largest or bench.quick) and bench.with_peers:
                openers.append(_peer(bench, label, min(trials, largest)))
        found = bench.alternate(openers, 2 if bench.quick else 5)
        bench.row(f"results of {trials:,} trials", "s", bench.figures(found, "open_s"), bar)
        bench.row(f"results of {trials:,} trials: CPU", "s", bench.figures(found, "cpu_s"))
        root = str(openers[0].arguments["root"])
        status = Call(OURS, command=("-c", STATUS, "status", root, "--json"))
        found = bench.alternate([status], 2 if bench.quick else 5)
        limit = at_most(0.5) if trials == 10_000 or bench.quick else None
        bench.row(
            f"`holdfast status --json` of {trials:,} trials, whole process", "s", bench.figures(found, "wall_s"), limit
        )


def _ours(bench: Bench, trials: int) -> Any:
    from benchmarks.harness import OURS, Call

    root = str(bench.directory() / "many")
    bench.once(Call(OURS, "holdfast_make", {"root": root, "trials": trials}, env=NO_LOGGERS, timeout_s=1800))
    return Call(OURS, "holdfast_open", {"root": root, "trials": trials})


def _peer(bench: Bench, label: str, trials: int) -> Any:
    from benchmarks.harness import Call

    peer = label.split()[0].strip(",")
    root = str(bench.directory() / "many")
    arguments = {"root": root, "trials": trials}
    shown = f"{label} ({trials:,})" if bench.quick else label  # in a hurry, peers open fewer trials than we do
    make = Call(f"{shown}, making", f"{peer}_make", arguments, peer=peer, env=NO_LOGGERS, timeout_s=1800)
    bench.alternate([make], 1)
    return Call(shown, f"{peer}_open", arguments, peer=peer)


def _train(config: dict[str, Any]) -> dict[str, float]:
    return {"loss": config["x"]}


def holdfast_make(root: str, trials: int) -> None:
    """An experiment of no-op trials."""
    import holdfast as tune

    tune.Tuner(
        _train,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=trials, metric="loss", mode="min"),
        run_config=tune.RunConfig(
            name=os.path.basename(root),
            storage_path=os.path.dirname(root),
            verbose=0,
            engine=tune.LocalEngine(cpus=2),
        ),
    ).fit()


def holdfast_open(root: str, trials: int) -> dict[str, Any]:
    """From the path to the best result."""
    import holdfast as tune

    tune.Tuner  # noqa: B018  # names are imported at their first use
    before, cpu = time.monotonic(), time.process_time()
    grid = tune.Tuner.restore(root).get_results()
    best = grid.get_best_result()
    open_s, cpu_s = time.monotonic() - before, time.process_time() - cpu
    assert len(grid) == trials
    assert best.metrics is not None
    return {"open_s": open_s, "cpu_s": cpu_s}


def ray_make(root: str, trials: int) -> None:
    """The same experiment."""
    from ray import tune

    with child.ray_cluster(2):
        tune.Tuner(
            _train,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(num_samples=trials, metric="loss", mode="min", reuse_actors=True),
            run_config=tune.RunConfig(name=os.path.basename(root), storage_path=os.path.dirname(root), verbose=0),
        ).fit()


def ray_open(root: str, trials: int) -> dict[str, Any]:
    """From the path to the best result; needs no cluster."""
    from ray import tune

    before = time.monotonic()
    grid = tune.Tuner.restore(root, trainable=_train).get_results()
    grid.get_best_result("loss", "min")
    open_s = time.monotonic() - before
    assert len(grid) == trials
    return {"open_s": open_s}


def optuna_make(root: str, trials: int) -> None:
    """The same experiment in a journal."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=_optuna_storage(root), study_name="many", sampler=optuna.samplers.RandomSampler()
    )
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=trials, n_jobs=2)


def optuna_open(root: str, trials: int) -> dict[str, Any]:
    """From the path to the best trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    before = time.monotonic()
    study = optuna.load_study(storage=_optuna_storage(root), study_name="many")
    count = len(study.trials)
    _ = study.best_trial
    open_s = time.monotonic() - before
    assert count == trials
    return {"open_s": open_s}


def _optuna_storage(root: str) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(f"{root}.log"))


if __name__ == "__main__":
    child.main(globals())
