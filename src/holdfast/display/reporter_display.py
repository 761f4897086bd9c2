"""Runs a reporter that the user wrote, in place of a display.

Owns when the reporter is called. A reporter that raises is left alone from then on: the
experiment continues, and the plain display takes over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from holdfast.core import events as ev
from holdfast.core.state import UNIT, State
from holdfast.display.base import Display, PlainDisplay, Throttle, logger
from holdfast.display.experiment_facts import DisplayOptions, Ending, ExperimentFacts, RunSummary
from holdfast.display.trial_output import TrialOutput
from holdfast.display.words import next_line
from holdfast.views.trials import ExperimentInfo, TrialList

ASK_S = 0.1
"""Seconds between two questions whether to report."""


class ReporterDisplay(Display):
    """Asks the user's reporter whether to report, and lets it."""

    def __init__(
        self,
        reporter: Any,
        stream: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(DisplayOptions())
        self._reporter = reporter
        self._plain = PlainDisplay(stream)
        self._throttle = Throttle(ASK_S, clock)
        self._trials: TrialList | None = None
        self._broken = False

    def watch(self, output: TrialOutput) -> None:
        self._plain.watch(output)

    def start(self, facts: ExperimentFacts) -> None:
        setup = getattr(self._reporter, "setup", None)
        if setup is not None:
            self._safely(lambda: setup(facts.started_at, facts.total, facts.metric, facts.mode))

    def feed(self, event: ev.AnyEvent) -> None:
        self._plain.feed(event)

    def note(self, text: str) -> None:
        self._plain.note(text)

    def update(self, state: State, facts: ExperimentFacts, at: float, durable_lag_s: float = 0.0) -> None:
        if self._broken:
            self._plain.update(state, facts, at, durable_lag_s)
            return
        self._plain.show_output(state, facts)
        if self._throttle.ready():
            self._throttle.run(lambda: self._safely(lambda: self._ask(state, facts, done=False)))

    def end(self, state: State, facts: ExperimentFacts, summary: RunSummary) -> None:
        if not self._broken:
            self._plain.show_output(state, facts, final=True)
            self._safely(lambda: self._ask(state, facts, done=True))
        if self._broken:
            self._plain.end(state, facts, summary)
        elif summary.outcome != Ending.FINISHED:
            self._plain.say(next_line(facts, summary))

    def _ask(self, state: State, facts: ExperimentFacts, *, done: bool) -> None:
        if self._trials is None:
            self._trials = TrialList(state, facts.info or _info(facts))
        trials = self._trials
        if self._reporter.should_report(trials, done=done):
            self._reporter.report(trials, done, _resources(state))

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            self._broken = True
            name = type(self._reporter).__name__
            logger.warning("%s failed and is not asked again; the experiment goes on.", name, exc_info=True)


def _info(facts: ExperimentFacts) -> ExperimentInfo:
    return ExperimentInfo(
        root=Path(facts.root),
        name=facts.name,
        trainable_name=facts.trainable or "trial",
        metric=facts.metric,
        mode=facts.mode,
        total_samples=facts.total,
    )


def _resources(state: State) -> str:
    used, capacity = state.driver.used, state.driver.capacity
    shown = (f"{used.get(name, 0) / UNIT:g}/{amount / UNIT:g} {name}" for name, amount in capacity.items() if amount)
    return f"Resources in use: {', '.join(shown) or 'none'}"
