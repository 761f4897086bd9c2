"""One trial's history out of many reports, in a fresh process: CPU time and memory.

The figures are of the reading alone: what opening the experiment took, and imports, is measured by ``reopen``.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.harness import Bench

NO_LOGGERS = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
REPORTS = 1000


def run(bench: Bench) -> None:
    """Make an experiment, then read the rows of its first trial, and those of all trials one after the other."""
    from benchmarks.harness import OURS, Call

    trials = 50 if bench.quick else 1000
    root = str(bench.directory() / "reports")
    arguments = {"root": root, "trials": trials}
    bench.once(Call(OURS, "holdfast_make", arguments, env=NO_LOGGERS, timeout_s=1800))
    for what, function in (("one trial", "holdfast_one"), ("all trials in turn", "holdfast_all")):
        found = bench.alternate([Call(OURS, function, arguments)], 2 if bench.quick else 5)
        of = f"{what} of {trials:,} x {REPORTS:,} reports"
        bench.row(f"rows of {of}: CPU", "s", bench.figures(found, "cpu_s"))
        bench.row(f"rows of {of}: memory", "MB", bench.figures(found, "grown_mb"))


def _train(config: dict[str, Any]) -> None:
    import holdfast as tune

    for step in range(REPORTS):
        tune.report({"loss": config["x"] + 1 / (step + 1), "accuracy": step / REPORTS, "step": step})


def holdfast_make(root: str, trials: int) -> None:
    """An experiment whose trials report often."""
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


def holdfast_one(root: str, trials: int) -> dict[str, float]:
    """The rows of one trial."""
    return _read(root, range(1), trials)


def holdfast_all(root: str, trials: int) -> dict[str, float]:
    """The rows of each trial; the caller keeps none."""
    return _read(root, range(trials), trials)


def _read(root: str, wanted: range, trials: int) -> dict[str, float]:
    import holdfast as tune

    grid = tune.ResultGrid.from_path(root)
    assert len(grid) == trials
    before = resource.getrusage(resource.RUSAGE_SELF)
    for n in wanted:
        assert len(grid[n].metrics_history) == REPORTS
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": cpu_s, "grown_mb": (after.ru_maxrss - before.ru_maxrss) / 1024}


if __name__ == "__main__":
    child.main(globals())
