"""A small experiment made of events, for the tests of the progress display."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import UNIT, State
from holdfast.core.transitions import apply
from holdfast.display.display import ExperimentFacts


class World:
    """Folds events into a real state and hands each of them on."""

    def __init__(self, feed: Callable[[ev.AnyEvent], None] | None = None, **facts: Any) -> None:
        self.state = State()
        self.at = 1000.0
        self.feed = feed or (lambda event: None)
        self.facts = ExperimentFacts(
            **{
                "name": "lr-search",
                "root": "/data/lr-search",
                "metric": "loss",
                "mode": "min",
                "total": 100,
                "started_at": self.at,
                "trainable": "train",
                **facts,
            }
        )
        self.add(ev.EpochStarted(self.at, 1, "w", "host", 1))
        self.add(ev.WorkerJoined(self.at, 1, "host", "10.0.0.1", 4242))
        self.facts.memory.capacity = {"CPU": 8 * UNIT}

    def add(self, event: ev.AnyEvent) -> None:
        apply(self.state, event, Retention())
        self.feed(event)

    def create(self, config: dict[str, Any] | None = None, name: str = "") -> int:
        n = len(self.state.trials)
        config = {"lr": 0.1 * (n + 1)} if config is None else config
        params = tuple(config)
        self.add(ev.TrialCreated(self.at, n, f"ab_{n:05d}", config, f"{n}", params, name=name))
        return n

    def start(self, n: int) -> None:
        attempt = self.state.trials[n].attempt + 1
        self.add(ev.TrialStarted(self.at, n, attempt))

    def launch(self, config: dict[str, Any] | None = None, name: str = "") -> int:
        n = self.create(config, name)
        self.start(n)
        return n

    def report(self, n: int, **metrics: Any) -> None:
        self.add(ev.Reported(self.at, n, self.state.trials[n].attempt, 1, 0.5, metrics))

    def finish(self, n: int) -> None:
        self.add(ev.TrialTerminated(self.at, n, self.state.trials[n].attempt, "returned"))

    def fail(self, n: int, error: ev.ErrorFacts | None = None, cause: str = ev.Cause.EXCEPTION) -> None:
        error = error or boom()
        self.add(ev.TrialErrored(self.at, n, self.state.trials[n].attempt, cause, error))

    def stumble(self, n: int, error: ev.ErrorFacts | None = None) -> None:
        attempt = self.state.trials[n].attempt
        self.add(ev.AttemptFailed(self.at, n, attempt, ev.Cause.EXCEPTION, error or boom()))


def boom(message: str = "loss exploded", line: int = 17) -> ev.ErrorFacts:
    return ev.ErrorFacts("ValueError", message, f"/home/me/train.py:{line}", "Traceback ...")
