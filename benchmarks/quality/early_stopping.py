"""How much sooner a good learner is found when bad ones are given up early, and what more workers bring."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.quality.data import Curves, learning_curves
from holdfast.schedulers import create_scheduler
from holdfast.space import randint
from holdfast.testing.virtual import Point, VirtualExperiment

DATASETS = (44, 720, 822, 1120, 4541, 41146)
"""Every tenth of those with 2,000 rows and 200 whole curves or more, of which at most 3 % end as well as is asked."""
WITHIN = 0.01
WORKERS = (1, 4, 16, 64)
KILL_EVERY = 100
BUDGET = 200.0  # full trainings
WORKERS_FOR = 10.0


def schedulers(curves: Curves) -> dict[str, Callable[[], Any] | None]:
    """Everybody with the same resource: rows of the dataset."""
    largest = max(arm.sizes[-1] for arm in curves.arms)
    same = {"time_attr": "rows", "max_t": largest, "grace_period": largest // 64, "reduction_factor": 4}

    def make(name: str, **more: Any) -> Callable[[], Any]:
        return lambda: create_scheduler(name, **{**same, **more})

    return {
        "random search": None,
        "ASHA": make("asha"),
        "ASHA, promoting": make("asha_promotion"),
        "PASHA": make("pasha"),
        "HyperBand": make("hyperband"),
        "median rule": make("median_stopping_rule", min_samples_required=5),
    }


def search(curves: Curves, scheduler: Any, *, seed: int, kill_every: int = 0) -> float:
    """When one worker had trained a learner on all rows that is within 1 % of the best; infinite if it never had."""
    target = curves.best * (1 - WITHIN)

    def found(point: Point) -> bool:
        return bool(point.metrics["last"] and point.metrics["accuracy"] >= target)

    points = VirtualExperiment(
        curve=curves,
        space={"arm": randint(0, len(curves.arms))},
        scheduler=scheduler,
        num_samples=-1,
        slots=1,
        metric="accuracy",
        mode="max",
        seed=seed,
        until=BUDGET,
        enough=found,
        kill_every=kill_every,
    ).run()
    return points[-1].at if found(points[-1]) else math.inf


def run(quick: bool) -> dict[str, Any]:
    """The tables: times to a good learner, with and without kills, and what more workers bring."""
    datasets, seeds = (DATASETS[:2], 3) if quick else (DATASETS, 5)
    found = learning_curves(datasets)
    return {"sooner": _sooner(found, seeds), "workers": _workers(found[0])}


def _sooner(found: list[Curves], seeds: int) -> list[dict[str, Any]]:
    """Everybody on every dataset; who does not find one is counted with the whole budget."""
    rows = []
    for curves in found:
        slow: list[float] = []
        for name, scheduler, kill_every in _contenders(curves):
            own = [search(curves, scheduler, seed=seed, kill_every=kill_every) for seed in range(seeds)]
            slow = slow or own
            ratios = [min(a, BUDGET) / min(b, BUDGET) for a, b in zip(slow, own, strict=True)]
            rows.append(
                {
                    "dataset": curves.dataset,
                    "who": name,
                    "found": f"{sum(each < math.inf for each in own)}/{len(own)}",
                    "median time": statistics.median(own),
                    "sooner": statistics.geometric_mean(ratios),
                }
            )
    return rows


def _contenders(curves: Curves) -> Iterator[tuple[str, Any, int]]:
    for name, scheduler in schedulers(curves).items():
        yield name, scheduler, 0
        if name in ("ASHA", "HyperBand"):
            yield f"{name}, driver killed every {KILL_EVERY} reports", scheduler, KILL_EVERY


def _workers(curves: Curves) -> list[dict[str, Any]]:
    """How much work gets done in a second of virtual time, compared with one worker."""
    rows = []
    for name in ("ASHA", "ASHA, promoting", "HyperBand"):
        alone = 0.0
        for slots in WORKERS:
            points = VirtualExperiment(
                curve=curves,
                space={"arm": randint(0, len(curves.arms))},
                scheduler=schedulers(curves)[name],
                num_samples=-1,
                slots=slots,
                metric="accuracy",
                mode="max",
                until=WORKERS_FOR,
            ).run()
            rate = sum(point.metrics["cost"] for point in points) / WORKERS_FOR
            alone = alone or rate
            rows.append({"who": name, "workers": slots, "speed-up": rate / alone})
    return rows
