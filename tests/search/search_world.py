"""A searcher at its adapter, as a driver has it: questions and results in an order that can be told again.

A history is what a live adapter heard, in order: the items, and the numbers of trials that came into being. Results are
computed from what was suggested, so a searcher that suggests something else is found out.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

import holdfast as tune
from holdfast.search.replayable import (
    Answer,
    Asked,
    Completed,
    Item,
    NoMoreSuggestions,
    ReplayableSearcher,
    ResultTold,
    Suggested,
)
from holdfast.search.searcher import PickledSearcher, Searcher
from holdfast.search.spaces import Filler
from holdfast.space.naming import trial_id

History = list[Item | int]
Score = Callable[[dict[str, Any]], dict[str, Any]]
"""Config -> the last result of its trial."""


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


def trial_name(n: int) -> str:
    return trial_id("cafe5", n)


class Adapter:
    """One life of a searcher's adapter.

    Args:
        searcher: The user's object, which is copied.
        space: The search space.
        metric: The experiment's.
        mode: The experiment's.
        seed: The experiment's.
        limit: How many trials there may be.
    """

    def __init__(
        self,
        searcher: Searcher,
        space: Mapping[str, Any],
        metric: str | None = "loss",
        mode: str | None = "min",
        seed: int = 7,
        limit: int | None = None,
    ) -> None:
        self.searcher = pickle.loads(cloudpickle.dumps(searcher))
        taken = self.searcher.set_search_properties(metric, mode, dict(space), seed=seed, num_samples=limit or -1)
        assert taken
        self.adapter = ReplayableSearcher(self.searcher, trial_name, limit)
        self.filler = Filler(space, type(searcher).__name__)
        self.configs: dict[int, dict[str, Any]] = {}
        self.created = 0

    def hear(self, told: Item | int) -> list[Answer]:
        """One step of a history; what the searcher answers."""
        if isinstance(told, int):
            self.adapter.claim(told)
            self.created = told + 1
            return []
        answers = self.adapter.hear(told)
        for answer in answers:
            if isinstance(answer, Suggested):
                self.configs[answer.n] = self.filler.config(answer.values)
        return answers

    def get_state(self) -> bytes:
        return self.adapter.get_state(self.created)

    def set_state(self, state: bytes, created: int, later: list[Item]) -> None:
        self.adapter.set_state(state, created, later)
        self.created = created


def live(
    adapter: Adapter, score: Score, trials: int, slots: int = 4, seed: int = 1, with_results: bool = False
) -> History:
    """Run so many trials, some of which fail or report nonsense, and write down what the searcher heard."""
    dice = random.Random(seed)
    history: History = []
    running: list[int] = []
    owed, ended = 0, False

    def tell(told: Item | int) -> None:
        nonlocal owed, ended
        history.append(told)
        for answer in adapter.hear(told):
            if isinstance(answer, Suggested):
                tell(answer.n)
                running.append(answer.n)
                owed -= 1
            ended = ended or isinstance(answer, NoMoreSuggestions)

    while True:
        if not ended and not owed and len(running) < slots and len(adapter.configs) < trials:
            owed = 1
            tell(Asked(1))
            continue
        if not running:
            return history
        n = running.pop(dice.randrange(len(running)))
        result = score(adapter.configs[n])
        if with_results:
            tell(ResultTold(trial_name(n), {**result, "training_iteration": 1}))
        tell(_end_of(n, result, dice.random()))


def _end_of(n: int, result: dict[str, Any], chance: float) -> Completed:
    if chance < 0.06:
        return Completed(trial_name(n), None, True)
    if chance < 0.12:
        return Completed(trial_name(n), dict.fromkeys(result, math.nan), False)
    if chance < 0.18:
        return Completed(trial_name(n), dict.fromkeys(result, math.inf), False)
    return Completed(trial_name(n), result, False)


def retold(adapter: Adapter, history: History) -> list[list[Answer]]:
    """The answers of a adapter that is told a history."""
    return [adapter.hear(told) for told in history]


def check_continues_exactly(make: Callable[[], Adapter], history: History, every: int = 1, ahead: int = 10_000) -> None:
    """A adapter that is told the history again, or remembers any part of it and is told the rest, answers the same.

    Args:
        make: A new adapter.
        history: From ``live``.
        every: Take the memory at every so manyth step.
        ahead: How many steps to compare after that.
    """
    expected = retold(make(), history)
    assert retold(make(), history) == expected
    first = make()
    for step, told in enumerate(history):
        first.hear(told)
        if step % every:
            continue
        state, created = first.get_state(), first.created
        rest, answers = history[step + 1 :], expected[step + 1 :]
        second = make()
        second.set_state(state, created, [])
        assert second.adapter.unclaimed() == first.adapter.unclaimed()
        assert retold(second, rest[:ahead]) == answers[:ahead], f"after step {step}"
        later = [each for each in rest[:5] if not isinstance(each, int)]
        third = make()
        third.set_state(state, created, later)
        for each in rest[:5]:
            if isinstance(each, int):
                third.hear(each)
        assert retold(third, rest[5 : 5 + ahead]) == answers[5 : 5 + ahead], f"after step {step}, and more was told"
