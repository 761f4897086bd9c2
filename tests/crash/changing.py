"""One step in the life of an experiment whose settings are changed; prints the trials that there are afterwards."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import holdfast as tune
from holdfast import TuneConfig, Tuner
from holdfast.search import OptunaSearch


def train(config: dict[str, Any]) -> None:
    for step in range(4):
        tune.report({"loss": config["x"] + step, "gain": config["x"] - step})


def quiet(**fields: Any) -> tune.RunConfig:
    return tune.RunConfig(verbose=0, engine=tune.LocalEngine(cpus=1), **fields)


def tuner(root: Path, step: str) -> Tuner:
    if step == "begin":
        first = TuneConfig(num_samples=4, seed=3, metric="loss", mode="min", search_alg=OptunaSearch())
        place = quiet(name=root.name, storage_path=root.parent, stop={"training_iteration": 2})
        return Tuner(train, param_space={"x": tune.uniform(0, 1)}, tune_config=first, run_config=place)
    if step == "extend":
        more = quiet(stop={"training_iteration": 3})
        return Tuner.restore(root, tune_config=TuneConfig(num_samples=8), run_config=more)
    if step == "metric":
        return Tuner.restore(root, tune_config=TuneConfig(metric="gain", mode="max", num_samples=8))
    return Tuner.restore(root, tune_config=TuneConfig(num_samples=10) if step == "more" else None)


if __name__ == "__main__":
    grid = tuner(Path(sys.argv[1]), sys.argv[2]).fit()
    print(json.dumps([[result.config, result.metrics["training_iteration"]] for result in grid]))
