"""What tests of searchers share: spaces with every kind of domain, and a searcher that writes down what it hears."""

from __future__ import annotations

from typing import Any

import holdfast as tune
from holdfast.search.searcher import PickledSearcher

MODEL = {
    "model": tune.choice(
        [
            {"kind": "svm", "c": tune.loguniform(1e-3, 1e3), "kernel": tune.choice(["rbf", "linear"])},
            {"kind": "tree", "depth": tune.randint(1, 10), "parts": [tune.uniform(0, 1), 7]},
            "nothing",
            tune.uniform(10, 20),
        ]
    ),
    "x": tune.uniform(0, 1),
}

EVERY_DOMAIN = {
    "uniform": tune.uniform(-2, 3),
    "quniform": tune.quniform(-1, 1, 0.1),
    "odd step": tune.quniform(0, 1, 1 / 3),
    "loguniform": tune.loguniform(1e-6, 1e2),
    "qloguniform": tune.qloguniform(0.5, 100, 0.5),
    "randint": tune.randint(-3, 9),
    "qrandint": tune.qrandint(-8, 12, 4),
    "qrandint1": tune.qrandint(0, 5),
    "lograndint": tune.lograndint(1, 1000),
    "qlograndint": tune.qlograndint(10, 1000, 10),
    "randn": tune.randn(10, 2),
    "qrandn": tune.qrandn(0, 5, 0.5),
    "choice": tune.choice(["a", None, True, 2, 2.5]),
    "same": tune.choice([1, True, 1.0, 1]),
    "lists": tune.choice([[1, 2], [3, [4]], {"a": 1}]),
    "one": tune.choice(["only"]),
    "fixed": tune.uniform(4, 4),
    "nested": {"deep": {"er": tune.uniform(0, 1)}, "list": [tune.randint(0, 3), 5]},
}


class Notebook(PickledSearcher):
    """Writes down what it hears."""

    def __init__(self, total: int = 1000, patience: int = 1000) -> None:
        super().__init__("loss", "min")
        self.total, self.patience = total, patience
        self.asked = 0
        self.heard: list[tuple[str, Any, bool]] = []
        self.other: list[Any] = []

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
        self.other.append((metric, mode, config, spec))
        return True

    def suggest(self, trial_id: str) -> Any:
        if self.asked >= self.total:
            return self.FINISHED
        if self.asked - len(self.heard) >= self.patience:
            return None
        self.asked += 1
        return {"x": self.asked}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.other.append((trial_id, result))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.heard.append((trial_id, result, error))

    def on_pause(self, trial_id: str) -> None:
        self.other.append(("pause", trial_id))

    def on_unpause(self, trial_id: str) -> None:
        self.other.append(("unpause", trial_id))

    def add_evaluated_point(self, parameters: Any, value: float, *more: Any) -> None:
        self.other.append((parameters, value, *more))
