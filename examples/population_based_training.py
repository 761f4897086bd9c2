"""Population based training: poor trials continue from the weights of good ones, with mutated learning rates.

The result is a model and a schedule of its hyperparameters. Trains linear classifiers on scikit-learn's handwritten
digits (``pip install scikit-learn``). A class trainable fits well: it saves when the scheduler wants a checkpoint, and
not after every step.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import holdfast as tune
from holdfast.schedulers import PopulationBasedTraining

MUTATIONS = {"eta0": tune.loguniform(1e-5, 1.0), "alpha": tune.loguniform(1e-7, 1e-1)}


class Digits(tune.Trainable):
    """A linear classifier; one step is a pass through the data."""

    def setup(self, config: dict[str, Any]) -> None:
        from sklearn.datasets import load_digits
        from sklearn.linear_model import SGDClassifier
        from sklearn.model_selection import train_test_split

        x, y = load_digits(return_X_y=True)
        self.x, self.x_test, self.y, self.y_test = train_test_split(x / 16.0, y, random_state=0)
        self.model = SGDClassifier(loss="log_loss", learning_rate="constant", random_state=0, **config)

    def step(self) -> dict[str, Any]:
        from sklearn.metrics import log_loss

        self.model.partial_fit(self.x, self.y, classes=range(10))
        return {"loss": log_loss(self.y_test, self.model.predict_proba(self.x_test))}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "model.pkl").write_bytes(pickle.dumps(self.model))

    def load_checkpoint(self, checkpoint: str) -> None:
        self.model = pickle.loads(Path(checkpoint, "model.pkl").read_bytes())
        # The weights may be another trial's. The hyperparameters are always this trial's own.
        self.model.set_params(**self.config)


def main(storage: str) -> tune.ResultGrid:
    """Train a population of four, compare it every four steps, and show who copied whom."""
    results = tune.Tuner(
        Digits,
        param_space=MUTATIONS,  # where the four start
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=4,
            seed=3,
            scheduler=PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=4,
                hyperparam_mutations=MUTATIONS,
            ),
        ),
        run_config=tune.RunConfig(
            name="population",
            storage_path=storage,
            if_exists="resume",
            stop={"training_iteration": 24},
            # A checkpoint that another trial starts from is kept until that trial has saved its own.
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1, checkpoint_at_end=True),
        ),
    ).fit()
    copies = Path(results.experiment_path, "pbt_global.txt")
    for line in copies.read_text().splitlines() if copies.exists() else ():
        trial, donor, step, donor_step, old, new = json.loads(line)
        print(
            f"step {step}: trial {trial.partition('_')[0]} went on from step {donor_step} of trial "
            f"{donor.partition('_')[0]}, eta0 {old['eta0']:.5f} -> {new['eta0']:.5f}"
        )
    best = results.get_best_result()
    print(f"best loss {best.metrics['loss']:.4f} with {best.config}")
    return results


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results")
