"""Our HyperBand beside Optuna's and Syne Tune's: when each finds a good learner, on the same curves and draws.

One worker; a row costs the same whoever learns from it, trials that were paused continue where they were, and each
library counts from the same first rung by the same factor. Optuna's pruner stops trials and resumes none; Syne Tune has
a synchronous HyperBand, and two asynchronous ones in as many brackets.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import statistics
import subprocess
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.peers import ready
from benchmarks.quality.data import Arm, Curves
from benchmarks.quality.early_stopping import BUDGET, DATASETS, WITHIN, hyperband, recorded, search
from benchmarks.quality.hyperband_peers import Level, Problem, all_times
from holdfast.space import randint
from holdfast.space.variants import VariantPlan

SETTINGS = ((64, 4), (64, 8))
"""The first rung is at one such part of the rows, and one of so many trials continues."""

SEEDS = range(12, 60)
"""The order of our brackets was chosen with the seeds before these, so nothing here was chosen on them."""

RESAMPLED = 2_000
"""How often searches are drawn again, to tell a difference from chance."""

SAME = 1e-9  # sums of the same costs in another order
DRAWS = 6_000  # no search has needed as many
OURS = {
    "holdfast, HyperBandScheduler": False,
    "holdfast, HyperBandScheduler(largest_first=True)": True,
}
PEERS = {
    "Optuna, HyperbandPruner": "optuna_pruner",
    "Syne Tune, synchronous": "syne_tune_synchronous",
    "Syne Tune, promotion in brackets": "syne_tune_promotion",
    "Syne Tune, stopping in brackets": "syne_tune_stopping",
}

Times = dict[str, list[list[float]]]  # by library, for each dataset and seed


def run(quick: bool) -> dict[str, Any]:
    """A table for each setting."""
    datasets, seeds = (DATASETS[2:4], range(3)) if quick else (DATASETS, SEEDS)
    found = recorded(datasets)
    return {
        f"From 1/{depth} of the rows, one of {factor} goes on": _table(found, seeds, depth, factor)
        for depth, factor in (SETTINGS[:1] if quick else SETTINGS)
    }


def _table(found: list[Curves], seeds: range, depth: int, factor: int) -> list[dict[str, Any]]:
    times = _own_times(found, seeds, depth, factor)
    times.update(_peers_times([_problem(curves, seeds, depth, factor) for curves in found]))
    return [_row(name, times) for name in ("random search", *OURS, *PEERS) if name in times]


def _row(name: str, times: Times) -> dict[str, Any]:
    """Beside random search, and beside our own; who does not find one is counted with the whole budget."""
    first = next(iter(OURS))
    own, slow, ours = (_flat(times[each]) for each in (name, "random search", first))
    sooner = [a / b for a, b in zip(slow, own, strict=True)]
    low, high = _interval(times[name], times[first])
    return {
        "who": name,
        "found": f"{sum(time < math.inf for each in times[name] for time in each)} of {len(own)}",
        "sooner (geometric mean)": statistics.geometric_mean(sooner),
        "sooner (median)": statistics.median(sooner),
        "mean time, full trainings": statistics.mean(own),
        "its time / that of the first of ours": statistics.geometric_mean(
            a / b for a, b in zip(own, ours, strict=True)
        ),
        "of 95 %": f"{low:.2f} to {high:.2f}",
        "sooner than the first of ours": f"{sum(a < b - SAME for a, b in zip(own, ours, strict=True))} of {len(own)}",
        "later": f"{sum(a > b + SAME for a, b in zip(own, ours, strict=True))} of {len(own)}",
    }


def _interval(times: list[list[float]], ours: list[list[float]]) -> tuple[float, float]:
    """Where 95 % of the geometric means lie, if other seeds had been drawn for each dataset (a paired bootstrap)."""
    chance = random.Random(0)
    logs = [
        [math.log(min(a, BUDGET) / min(b, BUDGET)) for a, b in zip(theirs, own, strict=True)]
        for theirs, own in zip(times, ours, strict=True)
    ]
    means = sorted(
        statistics.fmean(value for each in logs for value in chance.choices(each, k=len(each)))
        for _ in range(RESAMPLED)
    )
    return math.exp(means[RESAMPLED // 40]), math.exp(means[-RESAMPLED // 40 - 1])


def _flat(times: list[list[float]]) -> list[float]:
    return [min(time, BUDGET) for each in times for time in each]


# --- our own


def _own_times(found: list[Curves], seeds: range, depth: int, factor: int) -> Times:
    names = ("random search", *OURS)
    cases = list(product(names, range(len(found)), seeds))
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        asked = [pool.submit(_own, name, found[n], seed, depth, factor) for name, n, seed in cases]
        times = iter([each.result() for each in asked])
    return {name: [[next(times) for _ in seeds] for _ in found] for name in names}


def _own(name: str, curves: Curves, seed: int, depth: int, factor: int) -> float:
    scheduler = hyperband(depth, factor, largest_first=OURS[name]) if name in OURS else None
    return search(curves, scheduler, seed=seed)


# --- theirs


def _problem(curves: Curves, seeds: range, depth: int, factor: int) -> Problem:
    rungs = [factor**power for power in range(round(math.log(depth, factor)) + 1)]
    arms = [_at_rungs(arm, rungs) for arm in curves.arms]
    return Problem(arms, [_draws(curves, seed) for seed in seeds], curves.best * (1 - WITHIN), BUDGET, factor)


def _at_rungs(arm: Arm, rungs: list[int]) -> list[Level]:
    """What a learner shows when it has first been trained on as many rows as a rung asks for, and what that costs."""
    levels, spent = [], 0.0
    points = iter(zip(arm.sizes, arm.costs, arm.scores, strict=True))
    size, score = 0, math.nan
    for rung in rungs:
        while rungs[-1] * size / arm.sizes[-1] < rung:
            size, cost, score = next(points)
            spent += cost
        levels.append(Level(rung, spent, score))
        spent = 0.0
    return levels


def _draws(curves: Curves, seed: int) -> list[int]:
    """The learners that our own searches try, in their order."""
    plan = VariantPlan({"arm": randint(0, len(curves.arms))}, seed=seed, num_samples=-1)
    draws: list[int] = []
    mark = None
    while len(draws) < DRAWS:
        variant = plan.next(mark)
        assert variant is not None
        mark = variant.mark
        draws.append(variant.config["arm"])
    return draws


def _peers_times(problems: list[Problem]) -> Times:
    here = {name: who for name, who in PEERS.items() if who.startswith("optuna")}
    there = {name: who for name, who in PEERS.items() if name not in here}
    found = all_times(problems, list(here.values()))
    python = ready("syne_tune")
    if python is not None:
        given = json.dumps({"problems": [each._asdict() for each in problems], "who": list(there.values())})
        command = [python, "-m", "benchmarks.quality.hyperband_peers"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, env=environment, check=True)
        found.update(json.loads(done.stdout))
    return {name: found[who] for name, who in PEERS.items() if who in found}
