"""Experiments with every kind of search, for tests that kill their drivers: one life of a driver is one call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import holdfast as tune
from holdfast.schedulers import DEHBScheduler, HyperBandForBOHB
from holdfast.search import (
    BasicVariantGenerator,
    BayesOptSearch,
    ConcurrencyLimiter,
    DEHBSearch,
    HyperOptSearch,
    NevergradSearch,
    OptunaSearch,
    Repeater,
    SobolSearch,
    TuneBOHB,
    ZOOptSearch,
)

TRIALS = 12
STEPS = 2

NUMBERS = {"x": tune.uniform(-5, 5), "y": tune.uniform(-5, 5)}
MIXED = {
    **NUMBERS,
    "lr": tune.loguniform(1e-5, 1e-1),
    "units": tune.qlograndint(8, 512, 8),
    "model": tune.choice([{"kind": "a", "c": tune.randn(0, 1)}, {"kind": "b"}]),
    "data": tune.choice([b"train", b"test"]),  # not plain: stands in the journal as a marker
}
HYPEROPT = {**NUMBERS, "lr": tune.loguniform(1e-5, 1e-1), "model": tune.choice(["a", "b"])}
GRID = {**MIXED, "g": tune.grid_search([1, 2, 3])}


class Search(NamedTuple):
    """How to search."""

    make: Callable[[], Any]
    space: dict[str, Any]
    num_samples: int = TRIALS
    metric: str | None = "loss"
    needs: str = "optuna"
    scheduler: Callable[[], Any] | None = None


def samplers() -> Any:
    """Optuna's samplers; several warn that they are experimental."""
    import optuna

    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return optuna.samplers


def tpe() -> OptunaSearch:
    return OptunaSearch(sampler=samplers().TPESampler(n_startup_trials=3))


SEARCHES = {
    "tpe": Search(tpe, MIXED),
    "cma-es": Search(lambda: OptunaSearch(sampler=samplers().CmaEsSampler(popsize=3)), NUMBERS),
    "gp": Search(lambda: OptunaSearch(sampler=samplers().GPSampler(n_startup_trials=8)), NUMBERS, needs="torch"),
    "nsga-ii": Search(
        lambda: OptunaSearch(
            metric=["loss", "size"], mode=["min", "max"], sampler=samplers().NSGAIISampler(population_size=3)
        ),
        MIXED,
        metric=None,
    ),
    "random and grid": Search(lambda: BasicVariantGenerator(points_to_evaluate=[{"x": 1.0}]), GRID, 4),
    "sobol": Search(SobolSearch, MIXED, needs="scipy"),
    "hyperopt": Search(lambda: HyperOptSearch(n_initial_points=3), HYPEROPT, needs="hyperopt"),
    "limited hyperopt": Search(
        lambda: ConcurrencyLimiter(HyperOptSearch(n_initial_points=3), 2), HYPEROPT, needs="hyperopt"
    ),
    "limited tpe": Search(lambda: ConcurrencyLimiter(tpe(), 2), MIXED),
    "limited tpe in batches": Search(lambda: ConcurrencyLimiter(tpe(), 3, batch=True), MIXED),
    "repeated tpe": Search(lambda: Repeater(tpe(), repeat=2), MIXED),
    "bohb": Search(
        lambda: TuneBOHB(bohb_config={"min_points_in_model": 3}),
        MIXED,
        needs="numpy",
        scheduler=lambda: HyperBandForBOHB(max_t=STEPS, reduction_factor=2),
    ),
    "dehb": Search(
        lambda: DEHBSearch(max_t=STEPS, reduction_factor=2), MIXED, needs="holdfast", scheduler=DEHBScheduler
    ),
    "bayesopt": Search(lambda: BayesOptSearch(random_search_steps=8), NUMBERS, needs="bayes_opt"),
    "nevergrad": Search(lambda: NevergradSearch("OnePlusOne"), MIXED, needs="nevergrad"),
    "zoopt": Search(lambda: ZOOptSearch(budget=TRIALS), HYPEROPT, needs="zoopt"),
}


def train(config: dict[str, Any]) -> None:
    """The last configurations of a search depend on every value that was reported before."""
    for step in range(STEPS):
        loss = config["x"] ** 2 + config["y"] ** 2 + STEPS - step
        tune.report({"loss": float("nan") if config["x"] > 4.5 else loss, "size": abs(config["x"])})
    if config["y"] < -4.5:
        raise ValueError("some trials fail")


def live(root: str, name: str) -> None:
    """One driver's life: begin the experiment or continue it, until its end."""
    if tune.Tuner.can_restore(root):
        tuner = tune.Tuner.restore(root, train)
    else:
        search = SEARCHES[name]
        tuner = tune.Tuner(
            train,
            param_space=search.space,
            tune_config=tune.TuneConfig(
                search_alg=search.make(),
                scheduler=search.scheduler and search.scheduler(),
                num_samples=search.num_samples,
                seed=7,
                metric=search.metric,
                mode="min" if search.metric else None,
            ),
            run_config=tune.RunConfig(
                name=os.path.basename(root),
                storage_path=os.path.dirname(root),
                verbose=0,
                engine=tune.LocalEngine(cpus=1),
            ),
        )
    tuner.fit()
