"""Two objectives at once: small trees with few errors. The result is not one best trial but a Pareto front.

Trains decision trees on scikit-learn's handwritten digits. Needs ``pip install 'holdfast[optuna]' scikit-learn``.
"""

from __future__ import annotations

import sys
from typing import Any

import holdfast as tune
from holdfast.search import OptunaSearch

OBJECTIVES = {"error": "min", "leaves": "min"}


def train(config: dict) -> dict[str, Any]:
    """Train one tree; returning metrics is enough for a trial without steps."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.tree import DecisionTreeClassifier

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)
    tree = DecisionTreeClassifier(**config, random_state=0).fit(x_train, y_train)
    return {"error": 1 - tree.score(x_test, y_test), "leaves": int(tree.get_n_leaves())}


def front(results: tune.ResultGrid) -> list[tune.Result]:
    """The trials that no other one beats in both objectives, the smallest trees first."""
    seen = sorted(results, key=lambda result: (result.metrics["leaves"], result.metrics["error"]))
    found: list[tune.Result] = []
    for result in seen:
        if not found or result.metrics["error"] < found[-1].metrics["error"]:
            found.append(result)
    return found


def main(storage: str) -> tune.ResultGrid:
    """Try 40 trees and print the front."""
    results = tune.Tuner(
        train,
        param_space={
            "max_leaf_nodes": tune.lograndint(2, 300),
            "min_samples_leaf": tune.randint(1, 20),
            "criterion": tune.choice(["gini", "entropy"]),
        },
        tune_config=tune.TuneConfig(
            num_samples=40,
            seed=5,
            # Several objectives are passed to the searcher itself; TuneConfig accepts only one.
            search_alg=OptunaSearch(metric=list(OBJECTIVES), mode=list(OBJECTIVES.values())),
        ),
        run_config=tune.RunConfig(name="multi-objective", storage_path=storage, if_exists="resume"),
    ).fit()
    for result in front(results):
        print(f"{result.metrics['leaves']:4d} leaves, error {result.metrics['error']:.3f}: {result.config}")
    return results


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results")
