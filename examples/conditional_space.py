"""A search space in which some parameters exist only for some choices, and some depend on others."""

from __future__ import annotations

import sys
from typing import Any

import holdfast as tune

SPACE: dict[str, Any] = {
    # Each option of a choice may contain domains: momentum exists for sgd only.
    "optimizer": tune.choice(
        [
            {"name": "sgd", "momentum": tune.uniform(0.0, 0.99)},
            {"name": "adam", "beta2": tune.choice([0.99, 0.999])},
        ]
    ),
    "lr": tune.loguniform(1e-4, 1e-1),
    "layers": tune.randint(1, 4),
    # A function gets the values sampled before it: one width for each layer, decreasing.
    "widths": tune.sample_from(lambda config: [64 >> i for i in range(config["layers"])]),
    # What it returns may be a domain again.
    "dropout": tune.sample_from(lambda config: tune.uniform(0.2, 0.5) if config["layers"] > 2 else 0.0),
}


def train(config: dict) -> dict[str, float]:
    """A made-up loss; returning metrics is enough for a trial without steps."""
    penalty = 0.1 if config["optimizer"]["name"] == "sgd" else 0.0
    return {"loss": abs(config["lr"] - 0.01) + penalty + config["dropout"] / len(config["widths"])}


def main(storage: str) -> tune.ResultGrid:
    """Draw eight configurations; with a seed the same ones every time."""
    results = tune.Tuner(
        train,
        param_space=SPACE,
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=8, seed=11),
        run_config=tune.RunConfig(name="conditional", storage_path=storage, if_exists="resume", verbose=0),
    ).fit()
    for result in results:
        print(result.config)
    print("best:", results.get_best_result().config)
    return results


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results")
