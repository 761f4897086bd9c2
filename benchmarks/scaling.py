"""Very many trials that do nothing: does the last thousand cost what the first thousand cost?

Three runs, because a thousand trials take half a second, which anything else on the machine can spoil. The peers are
left out: 100,000 trials would take them hours.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.harness import Bench

WINDOW = 1000
SAMPLE_S = 0.1


def run(bench: Bench) -> None:
    """Measure time, memory and disk per trial along a long run."""
    from benchmarks.harness import OURS, Call, at_most

    trials, repeats = (10_000, 1) if bench.quick else (100_000, 3)
    off = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
    found = bench.alternate([Call(OURS, "holdfast", {"trials": trials}, env=off, timeout_s=1800)], repeats)
    bench.row(
        f"{trials:,} trials: last 1,000 / first 1,000 after warm-up",
        "x",
        bench.figures(found, "slowdown"),
        at_most(1.3),
    )
    bench.row("last tenth / first tenth after warm-up", "x", bench.figures(found, "slowdown_tenths"))
    bench.row("the same in CPU time of the driver", "x", bench.figures(found, "slowdown_cpu"))
    bench.row("trials over the whole run", "1/s", bench.figures(found, "rate"), higher=True)
    bench.row("growth of the driver's memory per trial", "KB", bench.figures(found, "rss_kb"), at_most(4))
    bench.row("journal and snapshots per trial", "KB", bench.figures(found, "kept_kb"), at_most(1))
    bench.row("all of the experiment's disk blocks per trial", "KB", bench.figures(found, "disk_kb"))


def holdfast(trials: int) -> dict[str, Any]:
    """Two workers; a thread of the driver writes down its memory and CPU time ten times a second."""
    import threading

    import holdfast as tune

    def train(config: dict[str, Any]) -> dict[str, float]:
        return {"at": time.monotonic()}

    root = os.path.join(os.environ["HOME"], "scaling")
    tuner = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=trials),
        run_config=tune.RunConfig(
            name="scaling", storage_path=os.environ["HOME"], verbose=0, engine=tune.LocalEngine(cpus=2)
        ),
    )
    samples: list[tuple[float, float, float]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(SAMPLE_S):
            samples.append((time.monotonic(), _rss_kb(), time.process_time()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    grid = tuner.fit()
    over.set()
    watcher.join()
    return _figures(sorted(result.metrics["at"] for result in grid), samples, root)


def _figures(stamps: list[float], samples: list[tuple[float, float, float]], root: str) -> dict[str, Any]:
    trials, tenth = len(stamps), len(stamps) // 10
    warm = 2 * WINDOW
    early = _at(samples, stamps[warm])[0]
    kept = sum(_sizes(os.path.join(root, ".holdfast", part))[0] for part in ("journal", "snapshots"))
    last, first = stamps[-1] - stamps[-WINDOW], stamps[warm] - stamps[WINDOW + 1]
    tenths = (stamps[-1] - stamps[-tenth]) / (stamps[WINDOW + tenth] - stamps[WINDOW + 1])
    return {
        "slowdown": last / first,
        "slowdown_tenths": tenths,
        "slowdown_cpu": _cpu(samples, stamps[-tenth:]) / _cpu(samples, stamps[WINDOW : WINDOW + tenth]),
        "rate": trials / (stamps[-1] - stamps[0]),
        "rss_kb": (samples[-1][1] - early) / (trials - warm),
        "kept_kb": kept / trials / 1024,
        "disk_kb": _sizes(root)[1] / trials / 1024,
    }


def _at(samples: list[tuple[float, float, float]], moment: float) -> tuple[float, float]:
    """Memory and CPU time as they were first sampled after ``moment``."""
    return next((sample[1:] for sample in samples if sample[0] >= moment), samples[-1][1:])


def _cpu(samples: list[tuple[float, float, float]], stamps: list[float]) -> float:
    """CPU time of the driver while these trials ran."""
    return _at(samples, stamps[-1])[1] - _at(samples, stamps[0])[1]


def _rss_kb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1024


def _sizes(path: str) -> tuple[int, int]:
    """Bytes in files, and bytes of disk blocks, directories included."""
    size = blocks = 0
    for folder, _, names in os.walk(path):
        blocks += os.stat(folder).st_blocks * 512
        for name in names:
            found = os.stat(os.path.join(folder, name))
            size += found.st_size
            blocks += found.st_blocks * 512
    return size, blocks


if __name__ == "__main__":
    child.main(globals())
