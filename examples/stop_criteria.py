"""All ways to stop a trial or the whole experiment."""

from __future__ import annotations

import sys
from typing import Any

import holdfast as tune
from holdfast.stopper import ExperimentPlateauStopper, MaximumIterationStopper, TrialPlateauStopper


def train(config: dict) -> None:
    """A loss that falls and flattens; runs until something stops it."""
    step = 0
    while True:
        step += 1
        tune.report({"loss": config["floor"] + 1 / step**2, "eval": {"accuracy": 1 - 1 / step}})


class Diverged(tune.Stopper):
    """Ends trials that begin badly, and the whole experiment once five of them did."""

    def __init__(self) -> None:
        self.hopeless: set[str] = set()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if result["loss"] > 1.25:
            self.hopeless.add(trial_id)
            return True
        return False

    def stop_all(self) -> bool:
        return len(self.hopeless) >= 5


def too_good(trial_id: str, result: dict[str, Any]) -> bool:
    """A function is enough if there is nothing to say about the whole experiment."""
    return result["loss"] < 0.3


CRITERIA: dict[str, Any] = {
    "bound": {"training_iteration": 20},
    "nested-bound": {"eval/accuracy": 0.9},
    "function": too_good,
    "own-stopper": [Diverged(), MaximumIterationStopper(20)],
    "trial-plateau": TrialPlateauStopper("loss", std=0.01, num_results=4, grace_period=5),
    "experiment-plateau": ExperimentPlateauStopper("loss", std=0.001, top=10, mode="min"),
}


def main(storage: str) -> dict[str, tune.ResultGrid]:
    """Run the same three trials under each criterion."""
    found = {}
    for name, stop in CRITERIA.items():
        found[name] = tune.Tuner(
            train,
            param_space={"floor": tune.grid_search([0.0, 0.2, 0.29])},
            run_config=tune.RunConfig(name=name, storage_path=storage, if_exists="resume", stop=stop, verbose=0),
        ).fit()
        print(f"{name}: {[len(result.metrics_history) for result in found[name]]} iterations")

    # A budget for the whole experiment counts only the time during which a driver runs.
    found["budget"] = tune.Tuner(
        train,
        param_space={"floor": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=-1, time_budget_s=1.0),
        run_config=tune.RunConfig(
            name="budget", storage_path=storage, if_exists="resume", stop={"training_iteration": 5}, verbose=0
        ),
    ).fit()
    print(f"budget: {len(found['budget'])} trials in one second")
    return found


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results")
