"""Two callbacks: one whose state survives crashes, one that logs to its own file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import holdfast as tune
from holdfast.callbacks import LoggerCallback


def train(config: dict) -> None:
    """Five steps of something."""
    for step in range(1, 6):
        tune.report({"score": config["x"] * step})


class Record(tune.Callback):
    """Announces every new best score of the experiment; the record survives a restore."""

    def __init__(self) -> None:
        self.best = float("-inf")

    def on_trial_result(self, trial: Any, result: dict[str, Any], **info: Any) -> None:
        if result["score"] > self.best:
            self.best = result["score"]
            print(f"new record {self.best:.2f} by {trial} at iteration {result['training_iteration']}")

    def get_state(self) -> dict[str, Any]:
        return {"best": self.best}

    def set_state(self, state: dict[str, Any]) -> None:
        self.best = state["best"]


class Scores(LoggerCallback):
    """Appends the last score of each finished trial to one text file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        line = "failed" if failed else f"{trial.last_result['score']:.3f}"
        with self.file.open("a") as file:
            file.write(f"{trial.trial_id} {line}\n")


def main(storage: str) -> tune.ResultGrid:
    """Run four trials and print the file."""
    scores = Path(storage, "scores.txt").absolute()
    scores.parent.mkdir(parents=True, exist_ok=True)
    results = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=4, seed=5),
        run_config=tune.RunConfig(
            name="callbacks", storage_path=storage, if_exists="resume", callbacks=[Record(), Scores(scores)], verbose=0
        ),
    ).fit()
    print(scores.read_text(), end="")
    return results


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results")
