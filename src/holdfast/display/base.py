"""What every display is, what all of them share, and the display that the others fall back to: a few plain lines.

Owns the interface, the limit on the time a display may take, the queue of lines about single trials, and the budget of
plain lines: however long an experiment runs and whatever fails, at most ``MAX_LINES`` at verbose 1, besides those that
trials print. Lines about progress come at times that grow geometrically; each kind of failure gets a line when it first
happens and one with the user's file and line at the end; what the end needs is set aside from the beginning.

A display is an edge: whatever goes wrong in it must never end an experiment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TextIO

from holdfast.core import events as ev
from holdfast.core.state import State, Status
from holdfast.display.clipping import advice_line
from holdfast.display.closing import CLOSING_LINES, closing_lines
from holdfast.display.experiment_facts import DisplayOptions, Ending, ExperimentFacts, ProgressView, RunSummary
from holdfast.display.table import TableMaker
from holdfast.display.tracker import ProgressTracker, make_row
from holdfast.display.trial_output import LOOK_S, OutputLine, TrialOutput, plain_line
from holdfast.display.words import (
    ended_text,
    first_failure_text,
    metrics_text,
    next_line,
    one_line,
    opening_lines,
    plural,
    progress_text,
)

logger = logging.getLogger("holdfast")

MAX_SHARE = 0.05
"""Most of the driver's time that a display may use."""

MAX_QUEUED = 1000
"""Lines about single trials that wait for the next update; more are counted and left out."""

MAX_NOTES = 500
"""Different notes that are distinguished; from then on they are only counted."""

MAX_LINES = 40
OPENING_LINES = 2
MAX_NOTE_LINES = 4
MAX_FIRST_FAILURES = 4
MAX_PROGRESS = MAX_LINES - OPENING_LINES - MAX_NOTE_LINES - MAX_FIRST_FAILURES - CLOSING_LINES

FIRST_PROGRESS_S = 5.0
GROWTH = 2.2
"""With 16 lines of progress the last one comes after eight days."""

SHOW_ENDS = 2
SHOW_RESULTS = 3


class Display:
    """Shows an experiment while it runs. This base class shows nothing.

    The order of calls is ``start``, then any number of ``feed``, ``update`` and ``note``, then ``end``; ``close`` may
    come at any time, more than once, and from a ``finally``.
    """

    shows_notes = True
    """Whether notes are shown as they come, so that nobody need be warned of the same at the end."""

    def __init__(self, options: DisplayOptions | None = None, verbose: int = 1) -> None:
        self.options = options or DisplayOptions()
        self.verbose = verbose
        self.tracker = ProgressTracker()
        self._queue: list[ev.AnyEvent] = []
        self._left_out = 0
        self._notes: dict[str, None] = {}
        self._more_notes = 0
        self.output: TrialOutput | None = None

    def watch(self, output: TrialOutput) -> None:
        """Show what trials print, too."""
        self.output = output

    def start(self, facts: ExperimentFacts) -> None:
        """The experiment is about to run."""

    def inform(self, text: str) -> None:
        """Something worth knowing, and no reason to act."""
        self.note(text)

    def feed(self, event: ev.AnyEvent) -> None:
        """Take one journaled event, after it was applied to the state."""
        self.tracker.feed(event)
        if self.output is not None:
            self.output.feed(event)
        if self.verbose >= SHOW_ENDS:
            self._enqueue(event)

    def update(self, state: State, facts: ExperimentFacts, at: float, durable_lag_s: float = 0.0) -> None:
        """Show the present state if it is time to. May be called as often as one likes."""

    def note(self, text: str) -> None:
        """Show something that the user should know."""

    def end(self, state: State, facts: ExperimentFacts, summary: RunSummary) -> None:
        """Show how it ended; the last call but ``close``."""

    def close(self) -> None:
        """Give the terminal back, without a word."""

    def view(self, state: State, facts: ExperimentFacts, at: float, lag_s: float = 0.0) -> ProgressView:
        """What there is to show."""
        return self.tracker.view(state, facts, self.options, at, lag_s)

    def _new_note(self, text: str) -> str:
        """The note as one line, or "" if it was there before or is one too many."""
        line = advice_line(text, 400)
        if line in self._notes:
            return ""
        if len(self._notes) >= MAX_NOTES:
            self._more_notes += 1
            return ""
        self._notes[line] = None
        return line

    def _enqueue(self, event: ev.AnyEvent) -> None:
        kind = type(event)
        ended = kind is ev.TrialTerminated or kind is ev.TrialErrored
        if not ended and not (kind is ev.Reported and self.verbose >= SHOW_RESULTS):
            return
        if len(self._queue) < MAX_QUEUED:
            self._queue.append(event)
        else:
            self._left_out += 1

    def _take_output(self, state: State, *, final: bool = False) -> list[OutputLine]:
        """Lines that trials printed since the last time."""
        return [] if self.output is None else self.output.take(state, final=final)

    def _take_lines(self, state: State, facts: ExperimentFacts) -> list[str]:
        """Lines about single trials since the last time (verbose 2 and 3)."""
        lines = [self._event_line(event, state, facts) for event in self._queue]
        if self._left_out:
            lines.append(f"... {self._left_out:,} more of these lines left out")
        self._queue.clear()
        self._left_out = 0
        return lines

    def _event_line(self, event: ev.AnyEvent, state: State, facts: ExperimentFacts) -> str:
        objective = self.options.objective(facts)
        assert isinstance(event, ev.TrialTerminated | ev.TrialErrored | ev.Reported)
        trial = state.trials[event.n]
        if isinstance(event, ev.Reported):
            return f"{one_line(facts.name_of(trial), 60)} reports {metrics_text(event.metrics, objective)}"
        row = make_row(state, trial, facts, event.at)
        failure = None
        if isinstance(event, ev.TrialErrored):
            failure = self.tracker.kind_of(event.cause, event.error)
        return ended_text(row, objective, failure)


class SilentDisplay(Display):
    """Shows nothing; what the user must not miss goes to the log."""

    shows_notes = False

    def __init__(self) -> None:
        super().__init__(verbose=0)

    def feed(self, event: ev.AnyEvent) -> None:
        """Nothing is shown, so nothing is counted."""

    def inform(self, text: str) -> None:
        logger.info("%s", advice_line(text, 1000))

    def note(self, text: str) -> None:
        logger.warning("%s", advice_line(text, 1000))

    def end(self, state: State, facts: ExperimentFacts, summary: RunSummary) -> None:
        if summary.outcome == Ending.TAKEN_OVER:
            logger.warning(
                "%s was taken over by %s, which continues it. This process stops; nothing is lost. %s",
                one_line(facts.name, 80),
                one_line(summary.reason, 200),
                next_line(facts, summary),
            )
        elif summary.outcome != Ending.FINISHED:
            reason = one_line(summary.reason, 200)
            ended = "was interrupted" if summary.outcome == Ending.INTERRUPTED else "ended with an error"
            unfinished = sum(state.counts[status] for status in Status.ALL if status not in Status.FINAL)
            logger.warning(
                "%s %s%s%s. %s",
                one_line(facts.name, 80),
                ended,
                f" ({reason})" if reason else "",
                f"; unfinished: {plural(unfinished, 'trial')}" if unfinished else "",
                next_line(facts, summary),
            )


class Throttle:
    """Lets work happen at most once per interval, and for at most ``MAX_SHARE`` of the time."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._next = clock()

    def ready(self) -> bool:
        """Whether it is time."""
        return self._clock() >= self._next

    def run(self, work: Callable[[], None]) -> None:
        """Do the work, and wait the longer for the next time the longer it took."""
        began = self._clock()
        try:
            work()
        finally:
            now = self._clock()
            self._next = now + max(self._interval_s, (now - began) * (1 / MAX_SHARE - 1))


class PlainDisplay(Display):
    """Prints at most ``MAX_LINES`` lines; from verbose 2 also one for each trial that ends, from 3 each result."""

    def __init__(self, stream: TextIO, options: DisplayOptions | None = None, verbose: int = 1) -> None:
        super().__init__(options, verbose)
        self._stream: TextIO | None = stream
        self._table = TableMaker(self.options)
        self._looks = Throttle(LOOK_S)
        self._shown_notes = 0
        self._announced = 0
        self._announcements = 0
        self._progress = 0
        self._next_at: float | None = None
        self._next_table_at = 0.0

    def say(self, line: str) -> None:
        """Print one line now. The stream may be closed, broken or limited to ASCII: never raises for that."""
        if self._stream is None:
            return
        try:
            try:
                self._stream.write(line + "\n")
            except UnicodeEncodeError:
                encoding = getattr(self._stream, "encoding", None) or "ascii"
                self._stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # A closed pipe or file: nobody reads this any more, but the experiment continues.
            self._stream = None

    def start(self, facts: ExperimentFacts) -> None:
        for line in opening_lines(facts, self.options.objective(facts)):
            self.say(line)

    def note(self, text: str) -> None:
        line = self._new_note(text)
        if line and (self._shown_notes < MAX_NOTE_LINES or self.verbose > 1):
            self._shown_notes += 1
            self.say(f"Note: {line}")

    def show_output(self, state: State, facts: ExperimentFacts, *, final: bool = False) -> None:
        """Print what trials have printed, if it is time to."""
        if self.output is not None and (final or self._looks.ready()):
            self._looks.run(lambda: self._print_output(state, facts, final))

    def _print_output(self, state: State, facts: ExperimentFacts, final: bool) -> None:
        for line in self._take_output(state, final=final):
            self.say(plain_line(line, state, facts))

    def update(self, state: State, facts: ExperimentFacts, at: float, durable_lag_s: float = 0.0) -> None:
        if self._next_at is None:
            self._begin(state, facts, at)
        self.show_output(state, facts)
        for line in self._take_lines(state, facts):
            self.say(line)
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
            self.say(line)
        view = self.view(state, facts, summary.at)
        if self.options.print_tables:
            self._print_table(view, facts)
        unshown = len(self._notes) + self._more_notes - self._shown_notes
        for line in closing_lines(view, state, facts, summary, unshown):
            self.say(line)

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
            self.say(progress_text(view))

    def _announce(self, state: State, facts: ExperimentFacts) -> None:
        for group in self.tracker.kinds(self._announced):
            self._announced += 1
            if self._announcements < MAX_FIRST_FAILURES:
                self._announcements += 1
                self.say(first_failure_text(group, state, facts))

    def _show_progress(self, view: ProgressView) -> None:
        self._progress += 1
        if self._progress >= MAX_PROGRESS:
            self._next_at = float("inf")
        else:
            self._next_at = view.at + FIRST_PROGRESS_S * GROWTH**self._progress * (1 - 1 / GROWTH)
        self.say(progress_text(view))

    def _print_table(self, view: ProgressView, facts: ExperimentFacts) -> None:
        self.say(progress_text(view))
        objective = self.options.objective(facts)
        for line in self._table.make(view.rows, objective[0] if objective else None).lines():
            self.say(line)
