"""BOHB: HyperBand decides how long configurations are trained, a model of good and bad ones chooses the next ones.

Fits a line to noisy points by gradient descent with momentum. Needs NumPy. HyperBand pauses trials until the others of
their bracket have reached the same point, so the training saves its state; kill it and start it again: both resume.
"""

from __future__ import annotations

import random
import sys
from collections import Counter

import holdfast as tune
from holdfast.schedulers import HyperBandForBOHB
from holdfast.search import TuneBOHB

MAX_STEPS = 27


def points() -> list[tuple[float, float]]:
    """Points near the line y = 3 x - 1."""
    rng = random.Random(0)
    return [(x / 50, 3 * x / 50 - 1 + rng.gauss(0, 0.05)) for x in range(100)]


def train(config: dict) -> None:
    """Fit slope and intercept."""
    state = {"slope": 0.0, "intercept": 0.0, "push": [0.0, 0.0], "step": 0}
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        state = checkpoint.to_dict()
    data = points()
    while state["step"] < MAX_STEPS:
        errors = [state["slope"] * x + state["intercept"] - y for x, y in data]
        slopes = [sum(e * x for e, (x, _) in zip(errors, data, strict=True)) / len(data), sum(errors) / len(data)]
        push = [config["momentum"] * p - config["lr"] * g for p, g in zip(state["push"], slopes, strict=True)]
        state = {
            "slope": state["slope"] + push[0],
            "intercept": state["intercept"] + push[1],
            "push": push,
            "step": state["step"] + 1,
        }
        loss = sum(error**2 for error in errors) / len(errors)
        tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_dict(state))


def main(storage: str) -> tune.ResultGrid:
    """Try one band of HyperBand: brackets that begin with 27 trials of one step, and end with few of 27."""
    results = tune.Tuner(
        train,
        param_space={"lr": tune.loguniform(1e-3, 2.0), "momentum": tune.uniform(0.0, 0.99)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=49,
            seed=2,
            search_alg=TuneBOHB(),
            scheduler=HyperBandForBOHB(max_t=MAX_STEPS, reduction_factor=3),
        ),
        run_config=tune.RunConfig(
            name="bohb",
            storage_path=storage,
            if_exists="resume",
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ),
    ).fit()
    steps = Counter(len(result.metrics_history) for result in results)
    print("trials by their number of steps:", dict(sorted(steps.items())))
    best = results.get_best_result()
    print(f"best loss {best.metrics['loss']:.5f} with {best.config}")
    return results


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results")
