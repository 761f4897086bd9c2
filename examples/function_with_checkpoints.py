"""A training function that saves its state after every epoch and resumes from it after any interruption.

Fits a line to noisy points by gradient descent, without any library. Kill this script at any moment with ``kill -9``
and resume it with ``holdfast resume results/line``.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import holdfast as tune

EPOCHS = 30


def points() -> list[tuple[float, float]]:
    """Points near the line y = 3 x - 1."""
    rng = random.Random(0)
    return [(x / 50, 3 * x / 50 - 1 + rng.gauss(0, 0.05)) for x in range(100)]


def train(config: dict) -> None:
    """Fit slope and intercept."""
    slope, intercept, start = 0.0, 0.0, 1
    checkpoint = tune.get_checkpoint()  # None unless this attempt resumes an earlier one
    if checkpoint:
        with checkpoint.as_directory() as directory:
            saved = json.loads(Path(directory, "state.json").read_text())
        slope, intercept, start = saved["slope"], saved["intercept"], saved["epoch"] + 1

    data = points()
    for epoch in range(start, EPOCHS + 1):
        errors = [slope * x + intercept - y for x, y in data]
        slope -= config["lr"] * sum(error * x for error, (x, _) in zip(errors, data, strict=True)) / len(data)
        intercept -= config["lr"] * sum(errors) / len(data)
        loss = sum(error**2 for error in errors) / len(data)

        # A directory next to its final location: saving it is a rename, regardless of its size.
        with tune.checkpoint_dir() as directory:
            state = {"slope": slope, "intercept": intercept, "epoch": epoch}
            Path(directory, "state.json").write_text(json.dumps(state))
            tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(directory))


def main(storage: str) -> tune.ResultGrid:
    """Try six learning rates and look into the best checkpoint."""
    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.loguniform(1e-3, 1.0)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=6, seed=3),
        run_config=tune.RunConfig(
            name="line",
            storage_path=storage,
            if_exists="resume",
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=2,
                checkpoint_score_attribute="loss",
                checkpoint_score_order="min",
            ),
        ),
    )
    results = tuner.fit()
    best = results.get_best_result()
    with best.get_best_checkpoint("loss", "min").as_directory() as directory:
        state = json.loads(Path(directory, "state.json").read_text())
    print(f"lr={best.config['lr']:.4f}: y = {state['slope']:.2f} x + {state['intercept']:.2f}")
    return results


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results")
