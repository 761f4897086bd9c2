"""How much sooner a good learner is found when bad ones are given up early, and what more workers bring."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.quality.data import Curves, learning_curves
from holdfast.schedulers import create_scheduler
from holdfast.space import randint
from holdfast.testing.virtual import Point, VirtualExperiment

DATASETS = (44, 1461, 1590, 4534, 40668)
WITHIN = 0.01
WORKERS = (1, 4, 16, 64)
KILL_EVERY = 20


def schedulers(curves: Curves) -> dict[str, Callable[[], Any] | None]:
    """Everybody with the same resource: rows of the dataset."""
    largest = max(arm.sizes[-1] for arm in curves.arms)
    same = {"time_attr": "rows", "max_t": largest, "grace_period": 16, "reduction_factor": 4}

    def make(name: str, **more: Any) -> Callable[[], Any]:
        return lambda: create_scheduler(name, **{**same, **more})

    return {
        "random search": None,
        "ASHA": make("asha"),
        "ASHA, promoting": make("asha_promotion"),
        "PASHA": make("pasha"),
        "HyperBand": make(
            "hyperband", time_attr="training_iteration", max_t=len(curves.arms[0].sizes), reduction_factor=3
        ),
        "median rule": make("median_stopping_rule", grace_period=64.0, min_samples_required=5),
    }


def play(curves: Curves, scheduler: Any, *, slots: int, seed: int, samples: int, kill_every: int = 0) -> list[Point]:
    """One search over the learners of a dataset."""
    return VirtualExperiment(
        curve=curves,
        space={"arm": randint(0, len(curves.arms))},
        scheduler=scheduler,
        num_samples=samples,
        slots=slots,
        metric="accuracy",
        mode="max",
        seed=seed,
        kill_every=kill_every,
    ).run()


def time_to(points: list[Point], target: float) -> float:
    """When somebody had trained on all rows and was as good as this; infinite if nobody was."""
    return next(
        (point.at for point in points if point.metrics["last"] and point.metrics["accuracy"] >= target), math.inf
    )


def run(quick: bool) -> dict[str, Any]:
    """The tables: times to a good learner, with and without kills, and what more workers bring."""
    datasets, seeds, samples = (DATASETS[:2], 3, 128) if quick else (DATASETS, 10, 256)
    found = learning_curves(datasets)
    return {"sooner": _sooner(found, seeds, samples), "workers": _workers(found[0], samples)}


def _sooner(found: list[Curves], seeds: int, samples: int) -> list[dict[str, Any]]:
    rows = []
    for curves in found:
        target = curves.best * (1 - WITHIN)
        times: dict[str, list[float]] = {}
        for name, scheduler in schedulers(curves).items():
            times[name] = [
                time_to(play(curves, scheduler, slots=4, seed=s, samples=samples), target) for s in range(seeds)
            ]
            killed = f"{name}, driver killed every {KILL_EVERY} trials"
            if name in ("ASHA", "HyperBand"):
                times[killed] = [
                    time_to(play(curves, scheduler, slots=4, seed=s, samples=samples, kill_every=KILL_EVERY), target)
                    for s in range(seeds)
                ]
        slow = times["random search"]
        for name, own in times.items():
            reached = [each for each in own if each < math.inf]
            ratios = [a / b for a, b in zip(slow, own, strict=True) if a < math.inf and b < math.inf]
            rows.append(
                {
                    "dataset": curves.dataset,
                    "arms": len(curves.arms),
                    "who": name,
                    "reached": f"{len(reached)}/{len(own)}",
                    "seconds": statistics.median(reached) if reached else math.inf,
                    "sooner": statistics.geometric_mean(ratios) if ratios else math.nan,
                }
            )
    return rows


def _workers(curves: Curves, samples: int) -> list[dict[str, Any]]:
    """How much work gets done in a second of virtual time, compared with one worker."""
    rows = []
    for name in ("ASHA", "ASHA, promoting", "HyperBand"):
        alone = 0.0
        for slots in WORKERS:
            points = play(curves, schedulers(curves)[name], slots=slots, seed=0, samples=max(samples, 16 * slots))
            rate = sum(point.metrics["cost"] for point in points) / points[-1].at
            alone = alone or rate
            rows.append({"who": name, "workers": slots, "speed-up": rate / alone})
    return rows
