"""An estimator of scikit-learn that learns in steps; a killed trial resumes with the step that it was in.

Needs scikit-learn: pip install 'holdfast[sklearn]'
"""

import sys

from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

import holdfast as tune
from holdfast.integration.sklearn import TrainingState


def train(config):
    x, test_x, y, test_y = train_test_split(*load_digits(return_X_y=True), random_state=0)
    model = SGDClassifier(alpha=config["alpha"], random_state=0)
    state = TrainingState(model)
    for _ in range(state.resume(), 5):
        model.partial_fit(x, y, classes=range(10))
        state.report({"accuracy": model.score(test_x, test_y)})


if __name__ == "__main__":
    storage = sys.argv[1] if len(sys.argv) > 1 else "results"
    tuner = tune.Tuner(
        train,
        param_space={"alpha": tune.grid_search([1e-5, 1e-3, 1e-1])},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        run_config=tune.RunConfig(name="sklearn_steps", storage_path=storage, if_exists="resume", verbose=0),
    )
    best = tuner.fit().get_best_result()
    print("best:", best.config, best.metrics["accuracy"])
