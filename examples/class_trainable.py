"""The same line fit as a class: the driver decides when to save and when to stop.

A class says how to set up, how to do one step, how to save and how to load. ``CheckpointConfig`` says how often to
save, ``RunConfig(stop=...)`` when a trial ends.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import holdfast as tune


class LineFit(tune.Trainable):
    """Gradient descent on noisy points near y = 3 x - 1."""

    def setup(self, config: dict[str, Any]) -> None:
        rng = random.Random(0)
        self.data = [(x / 50, 3 * x / 50 - 1 + rng.gauss(0, 0.05)) for x in range(100)]
        self.lr = config["lr"]
        self.slope, self.intercept = 0.0, 0.0

    def step(self) -> dict[str, Any]:
        errors = [self.slope * x + self.intercept - y for x, y in self.data]
        self.slope -= self.lr * sum(e * x for e, (x, _) in zip(errors, self.data, strict=True)) / len(errors)
        self.intercept -= self.lr * sum(errors) / len(errors)
        return {"loss": sum(error**2 for error in errors) / len(errors)}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, float]:
        # A dict is stored for you. For large models, write files into checkpoint_dir and return nothing.
        return {"slope": self.slope, "intercept": self.intercept}

    def load_checkpoint(self, checkpoint: dict[str, float]) -> None:
        self.slope, self.intercept = checkpoint["slope"], checkpoint["intercept"]


def main(storage: str) -> tune.ResultGrid:
    """Try four learning rates, 30 iterations each, a checkpoint every ten."""
    results = tune.Tuner(
        LineFit,
        param_space={"lr": tune.grid_search([0.01, 0.1, 0.3, 0.6])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(
            name="line-class",
            storage_path=storage,
            if_exists="resume",
            stop={"training_iteration": 30},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=10, num_to_keep=2),
        ),
    ).fit()
    best = results.get_best_result()
    assert best.checkpoint is not None
    print(f"lr={best.config['lr']}: {best.checkpoint.to_dict()}")

    # An instance also works by itself, for example to continue with the best model.
    model = LineFit(best.config)
    model.restore(best.checkpoint)
    print(f"iteration {model.iteration}, next loss {model.train()['loss']:.5f}")
    return results


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results")
