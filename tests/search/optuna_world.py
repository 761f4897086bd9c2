"""What tests of OptunaSearch share: samplers, a space, and a look at what Optuna was told."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
from optuna.samplers import (
    CmaEsSampler,
    NSGAIIISampler,
    NSGAIISampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

import holdfast as tune
from holdfast.search.optuna import OptunaSearch

SPACE = {
    "x": tune.uniform(-5, 5),
    "lr": tune.loguniform(1e-5, 1e-1),
    "units": tune.randint(1, 64),
    "depth": tune.lograndint(1, 9),
    "kind": tune.choice(["a", "b", "c"]),
    "epochs": 3,
}
NUMBERS = {"x": tune.uniform(-5, 5), "y": tune.uniform(-5, 5), "z": tune.quniform(0, 1, 0.1)}


def quiet(make: Any, *args: Any, **kwargs: Any) -> Any:
    """Several samplers warn that they are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*args, **kwargs)


def tpe_with_everything() -> TPESampler:
    return quiet(TPESampler, multivariate=True, group=True, constant_liar=True, n_startup_trials=4)


SAMPLERS = {
    "tpe": lambda: None,
    "tpe, joint": tpe_with_everything,
    "cma-es": lambda: CmaEsSampler(n_startup_trials=2, popsize=4, warn_independent_sampling=False),
    "nsga-ii": lambda: NSGAIISampler(population_size=5),
    "nsga-iii": lambda: quiet(NSGAIIISampler, population_size=5),
    "qmc": lambda: quiet(QMCSampler, scramble=True, warn_asynchronous_seeding=False, warn_independent_sampling=False),
    "random": RandomSampler,
}


MANY = ("tpe", "nsga-iii", "random")
"""Others that know several objectives."""


def score(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": config["x"] ** 2 + abs(math.log10(config.get("lr", 1)) + 3) + config.get("units", 0) / 64}


def learned(search: OptunaSearch) -> list[Any]:
    return search._study.get_trials(deepcopy=False)


def told(search: OptunaSearch, trial_id: str, loss: Any = 1.0, **more: Any) -> Any:
    """Suggest, tell, and say what Optuna made of it."""
    search.suggest(trial_id)
    number = search._open[trial_id].number
    search.on_trial_complete(trial_id, {"loss": loss, **more})
    return learned(search)[number]


def mostly_slow(*fast: str) -> list[Any]:
    """The samplers; only these few belong to the fast lane."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in SAMPLERS]
