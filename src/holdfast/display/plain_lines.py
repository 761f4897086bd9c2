"""Progress as a few calm lines, for logs and pipes.

Owns the budget: however long an experiment runs and whatever fails, at most ``MAX_LINES`` lines at verbose 1, besides
those that trials print. Lines about progress come at times that grow geometrically; each kind of failure gets a line
when it first happens and one with the user's file and line at the end; what the end needs is set aside from the
beginning.
"""

from __future__ import annotations

from typing import TextIO

from holdfast.core.state import State
from holdfast.display.base import Display, LineWriter, Throttle
from holdfast.display.experiment_facts import DisplayOptions, ExperimentFacts, ProgressView, RunSummary
from holdfast.display.table import TableMaker
from holdfast.display.trial_output import LOOK_S, plain_line
from holdfast.display.words import (
    CLOSING_LINES,
    closing_lines,
    first_failure_text,
    opening_lines,
    progress_text,
)

MAX_LINES = 40
OPENING_LINES = 2
MAX_NOTES = 4
MAX_FIRST_FAILURES = 4
MAX_PROGRESS = MAX_LINES - OPENING_LINES - MAX_NOTES - MAX_FIRST_FAILURES - CLOSING_LINES

FIRST_PROGRESS_S = 5.0
GROWTH = 2.2
"""With 16 lines of progress the last one comes after eight days."""


class PlainDisplay(Display):
    """Prints at most ``MAX_LINES`` lines; from verbose 2 also one for each trial that ends, from 3 each result."""

    def __init__(self, stream: TextIO, options: DisplayOptions | None = None, verbose: int = 1) -> None:
        super().__init__(options, verbose)
        self._writer = LineWriter(stream)
        self._table = TableMaker(self.options)
        self._looks = Throttle(LOOK_S)
        self._shown_notes = 0
        self._announced = 0
        self._announcements = 0
        self._progress = 0
        self._next_at: float | None = None
        self._next_table_at = 0.0

    @property
    def lines_written(self) -> int:
        """How many lines there were so far."""
        return self._writer.written

    def say(self, line: str) -> None:
        """Print one line now."""
        self._writer.write(line)

    def start(self, facts: ExperimentFacts) -> None:
        for line in opening_lines(facts, self.options.objective(facts)):
            self._writer.write(line)

    def note(self, text: str) -> None:
        line = self._new_note(text)
        if line and (self._shown_notes < MAX_NOTES or self.verbose > 1):
            self._shown_notes += 1
            self._writer.write(f"Note: {line}")

    def show_output(self, state: State, facts: ExperimentFacts, *, final: bool = False) -> None:
        """Print what trials have printed, if it is time to."""
        if self.output is not None and (final or self._looks.ready()):
            self._looks.run(lambda: self._print_output(state, facts, final))

    def _print_output(self, state: State, facts: ExperimentFacts, final: bool) -> None:
        for line in self._take_output(state, final=final):
            self._writer.write(plain_line(line, state, facts))

    def update(self, state: State, facts: ExperimentFacts, at: float, durable_lag_s: float = 0.0) -> None:
        if self._next_at is None:
            self._begin(state, facts, at)
        self.show_output(state, facts)
        for line in self._take_lines(state, facts):
            self._writer.write(line)
        if self.tracker.kinds_seen > self._announced:
            self._announce(state, facts)
        if self.options.print_tables and at >= self._next_table_at:
            self._next_table_at = at + self.options.table_period_s
            self._print_table(self.view(state, facts, at, durable_lag_s), facts)
        elif self._next_at is not None and at >= self._next_at:
            self._show_progress(self.view(state, facts, at, durable_lag_s))

    def end(self, state: State, facts: ExperimentFacts, summary: RunSummary) -> None:
        self.show_output(state, facts, final=True)
        for line in self._take_lines(state, facts):
            self._writer.write(line)
        view = self.view(state, facts, summary.at)
        if self.options.print_tables:
            self._print_table(view, facts)
        unshown = len(self._notes) + self._more_notes - self._shown_notes
        for line in closing_lines(view, state, facts, summary, unshown):
            self._writer.write(line)

    def _begin(self, state: State, facts: ExperimentFacts, at: float) -> None:
        """The first look: it also sets the point from which speed is measured."""
        self._next_at = at + FIRST_PROGRESS_S
        self._next_table_at = at + self.options.table_period_s
        view = self.view(state, facts, at)
        # Failures of earlier drivers are old news; the end tells them.
        if facts.resumed:
            self._announced = self.tracker.kinds_seen
        if facts.resumed and state.trials:
            self._progress += 1
            self._writer.write(progress_text(view))

    def _announce(self, state: State, facts: ExperimentFacts) -> None:
        for group in self.tracker.kinds(self._announced):
            self._announced += 1
            if self._announcements < MAX_FIRST_FAILURES:
                self._announcements += 1
                self._writer.write(first_failure_text(group, state, facts))

    def _show_progress(self, view: ProgressView) -> None:
        self._progress += 1
        if self._progress >= MAX_PROGRESS:
            self._next_at = float("inf")
        else:
            self._next_at = view.at + FIRST_PROGRESS_S * GROWTH**self._progress * (1 - 1 / GROWTH)
        self._writer.write(progress_text(view))

    def _print_table(self, view: ProgressView, facts: ExperimentFacts) -> None:
        self._writer.write(progress_text(view))
        objective = self.options.objective(facts)
        for line in self._table.make(view.rows, objective[0] if objective else None).lines():
            self._writer.write(line)
