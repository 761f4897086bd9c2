"""Model-based search on tables: the same library asked through holdfast and by itself must do equally well."""

from __future__ import annotations

import statistics
from itertools import product
from typing import Any

from benchmarks.quality.data import Table, tables
from holdfast.search import create_searcher
from holdfast.space import choice
from holdfast.testing.virtual import VirtualExperiment

BUDGET = 100
CHECKED = (25, 50, 100)
KILL_EVERY = 10


def ours(table: Table, seed: int, searcher: str | None, kill_every: int = 0) -> list[float]:
    """Losses in the order of evaluation, one at a time."""
    points = VirtualExperiment(
        curve=lambda config, step, state: (1.0, {"loss": table.loss(config)}, 1) if step == 1 else None,
        space={key: choice(values) for key, values in table.space.items()},
        searcher=(lambda: create_searcher(searcher)) if searcher else None,
        num_samples=BUDGET,
        slots=1,
        metric="loss",
        mode="min",
        seed=seed,
        kill_every=kill_every,
    ).run()
    return [point.metrics["loss"] for point in points]


def optuna_alone(table: Table, seed: int) -> list[float]:
    """The same with Optuna's own loop."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    losses: list[float] = []

    def objective(trial: Any) -> float:
        losses.append(table.loss({key: trial.suggest_categorical(key, values) for key, values in table.space.items()}))
        return losses[-1]

    study.optimize(objective, n_trials=BUDGET)
    return losses


def run(quick: bool) -> dict[str, Any]:
    """Normalised regret: 0 is the best configuration of the table, 1 their median."""
    seeds = 4 if quick else 20
    problems = dict(list(tables().items())[:3]) if quick else tables()
    runs = {
        "holdfast, OptunaSearch (TPE)": lambda table, seed: ours(table, seed, "optuna"),
        "Optuna alone (TPE)": optuna_alone,
        "holdfast, random": lambda table, seed: ours(table, seed, None),
    }
    regrets: dict[str, list[list[float]]] = {name: [] for name in runs}
    unchanged = True
    for table in problems.values():
        scale = _scale(table)
        for seed in range(seeds):
            for name, play in runs.items():
                losses = play(table, seed)
                regrets[name].append([(min(losses[:n]) - scale[0]) / (scale[1] - scale[0]) for n in CHECKED])
        unchanged &= ours(table, 0, "optuna") == ours(table, 0, "optuna", KILL_EVERY)
    rows = []
    for name, found in regrets.items():
        row: dict[str, Any] = {"who": name, "runs": len(found)}
        for place, n in enumerate(CHECKED):
            values = [each[place] for each in found]
            row[f"after {n}"] = statistics.mean(values)
            row[f"+- {n}"] = statistics.stdev(values) / len(values) ** 0.5
        rows.append(row)
    rows.append({"who": f"the same losses with the driver killed every {KILL_EVERY} trials", "runs": unchanged})
    return {"regret": rows}


def _scale(table: Table) -> tuple[float, float]:
    """The best and the median loss of all configurations."""
    losses = [table.loss(dict(zip(table.space, values, strict=True))) for values in product(*table.space.values())]
    return min(losses), statistics.median(losses)
