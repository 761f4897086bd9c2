"""Following a large experiment, as a live page does: opening it, what is new, the table and all curves.

The figures are CPU time of the calls in a fresh process, without imports, and the memory of that process at the end.
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
REPORTS = 10
NEWS = 1000
COLUMNS = ("trial_id", "status", "iteration", "time_total_s", "started_at", "ended_at", "attempts")
COLUMNS += ("metric/loss", "config/x")


def run(bench: Bench) -> None:
    """Make two experiments, then open and follow both: what is new must cost the same in the large one."""
    from benchmarks.harness import OURS, Call, at_most

    large = 2000 if bench.quick else 100_000
    for trials in (100, large):
        root = str(bench.directory() / f"trials-{trials}")
        arguments = {"root": root, "trials": trials}
        bench.once(Call(OURS, "holdfast_make", arguments, env=NO_LOGGERS, timeout_s=1800))
        found = bench.alternate([Call(OURS, "holdfast_follow", arguments)], 2 if bench.quick else 5)
        of = f"{trials:,} x {REPORTS} reports"
        is_large = trials == 100_000
        bench.row(f"open {of}: CPU", "s", bench.figures(found, "open_s"), at_most(2.0) if is_large else None)
        bench.row(f"nothing new in {of}: CPU", "ms", bench.figures(found, "quiet_s", 1000.0))
        bench.row(f"{NEWS:,} new records in {of}: CPU", "ms", bench.figures(found, "news_s", 1000.0))
        bench.row(f"the same as facts of {of}: CPU", "ms", bench.figures(found, "facts_s", 1000.0))
        bench.row(f"{len(COLUMNS)} columns of {of}: CPU", "s", bench.figures(found, "columns_s"))
        bench.row(f"all curves of {of}: CPU", "s", bench.figures(found, "curves_s"), at_most(2.5) if is_large else None)
        bench.row(f"all of that, {of}: memory", "MB", bench.figures(found, "memory_mb"), at_most(400.0))


def _train(config: dict[str, Any]) -> None:
    import holdfast as tune

    for step in range(REPORTS):
        tune.report({"loss": config["x"] + 1 / (step + 1), "accuracy": step / REPORTS})


def holdfast_make(root: str, trials: int) -> None:
    """An experiment whose trials report some times."""
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


def holdfast_follow(root: str, trials: int) -> dict[str, float]:
    """Open, follow, and ask for everything that a page shows."""
    from holdfast.results.follow import Follower

    figures: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        before = time.process_time()
        answer = call()
        figures[name] = time.process_time() - before
        return answer

    follower = timed("open_s", lambda: Follower.open(root))
    assert len(follower.history.state.trials) >= trials  # each measurement adds one
    timed("quiet_s", follower.advance)
    follower.facts()
    timed("columns_s", lambda: follower.columns.pack(COLUMNS))
    timed("curves_s", lambda: follower.curves)
    assert len(follower.curves) >= trials * REPORTS
    _append(root, len(follower.history.state.trials))
    assert timed("news_s", follower.advance).record > NEWS
    timed("facts_s", follower.facts)
    with open("/proc/self/statm") as file:
        figures["memory_mb"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return figures


def _append(root: str, n: int) -> None:
    """What a driver writes that comes, runs one trial that reports often, and leaves."""
    from holdfast.core import events as ev
    from holdfast.journal.epoch import claim_epoch
    from holdfast.journal.log import Journal

    claim = claim_epoch(root)
    journal = Journal.create_or_append(root, claim, threaded=False)
    at = time.time()
    events: list[ev.AnyEvent] = [
        ev.EpochStarted(at, claim.epoch, claim.writer, claim.host, claim.pid),
        ev.TrialCreated(at, n, f"late_{claim.epoch}", {"x": 0.5}, "late"),
        ev.TrialStarted(at, n, 1),
        *(ev.Reported(at, n, 1, 1, 0.1, {"loss": 1.0 / (step + 1), "accuracy": 0.5}) for step in range(NEWS - 5)),
        ev.AttemptInterrupted(at, n, 1, ev.Cause.DRIVER_STOPPED),
        ev.DriverStopped(at, "done"),
    ]
    journal.append([ev.encode(event) for event in events])
    journal.close()


if __name__ == "__main__":
    child.main(globals())
