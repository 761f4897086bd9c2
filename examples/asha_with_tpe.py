"""Model-based search with early stopping: TPE proposes configurations, ASHA ends those that fall behind.

Trains linear classifiers on scikit-learn's handwritten digits. Needs ``pip install 'holdfast[optuna]' scikit-learn``.
Kill it at any time and start it again: ASHA's rungs and TPE's state are resumed exactly.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import holdfast as tune
from holdfast.schedulers import ASHAScheduler
from holdfast.search import OptunaSearch

MAX_EPOCHS = 27


def train(config: dict) -> None:
    """Train one classifier for as long as it is let."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x / 16.0, y, random_state=0)
    model = SGDClassifier(alpha=config["alpha"], eta0=config["eta0"], learning_rate="constant", random_state=0)
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            model, start = pickle.loads(Path(directory, "model.pkl").read_bytes())
    for epoch in range(start + 1, MAX_EPOCHS + 1):
        model.partial_fit(x_train, y_train, classes=range(10))
        with tune.checkpoint_dir() as directory:
            Path(directory, "model.pkl").write_bytes(pickle.dumps((model, epoch)))
            tune.report({"accuracy": model.score(x_test, y_test)}, checkpoint=tune.Checkpoint.from_directory(directory))


def main(storage: str) -> tune.ResultGrid:
    """Try 20 configurations; few of them are trained to the end."""
    results = tune.Tuner(
        train,
        param_space={"alpha": tune.loguniform(1e-6, 1e-1), "eta0": tune.loguniform(1e-4, 1.0)},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=20,
            seed=1,
            search_alg=OptunaSearch(points_to_evaluate=[{"alpha": 1e-4, "eta0": 0.01}]),
            scheduler=ASHAScheduler(max_t=MAX_EPOCHS, grace_period=1, reduction_factor=3),
        ),
        run_config=tune.RunConfig(
            name="asha-with-tpe",
            storage_path=storage,
            if_exists="resume",
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ),
    ).fit()
    epochs = sorted((len(result.metrics_history) for result in results), reverse=True)
    best = results.get_best_result()
    print(f"epochs per trial: {epochs}: {sum(epochs)} instead of {len(results) * MAX_EPOCHS}")
    print(f"best accuracy {best.metrics['accuracy']:.4f} with {best.config}")
    return results


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results")
