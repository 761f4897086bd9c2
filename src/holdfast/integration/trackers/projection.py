"""The journal as runs: which rows of which trials may be shown by now.

Owns the rule that keeps trackers right, because most of them cannot take back a row. A row is *safe*, and is shown,
when no ordinary retry can rewind it:

- the trial has ended, or
- a committed checkpoint stands at the row or after it, so that a retry continues behind it, or
- the trial has saved nothing so far. A retry begins from nothing then, and so with a new run; the old one is retired.

The same happens in the rare case that safe rows are superseded all the same: the checkpoint was damaged, or the user
restarted the trial. Which run is the present one, its *generation*, is a function of the journal alone.

Rows that are not safe yet are kept, at most ``MAX_HELD_ROWS`` of all trials; what is more is read from the journal
again when it is safe. Must never write.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast.controller.spec import Spec
from holdfast.core import events as ev
from holdfast.core.state import State, Status, Stored, Trial
from holdfast.core.transitions import apply, check_known
from holdfast.journal.reader import Position
from holdfast.journal.records import read_events
from holdfast.journal.trial_index import TrialIndex
from holdfast.views.results import ResultBuilder
from holdfast.views.trial_rows import TrialRows
from holdfast.views.trials import ExperimentInfo

MAX_HELD_ROWS = 50_000


class TrialRun:
    """What is known of the present run of one trial.

    Attributes:
        generation: How often the trial began anew after rows were safe.
        safe: How many rows may be shown.
        shown: How many were taken.
        step: Of the last row that was taken.
        retired: How many generations before this one are known to be retired.
        closed: The status with which the run was closed; None if it has to be closed (again).
    """

    __slots__ = ("closed", "first", "generation", "held", "retired", "safe", "shown", "step")

    def __init__(self) -> None:
        self.generation = self.safe = self.shown = self.retired = 0
        self.step = -1
        self.closed: str | None = None
        self.first = 0  # number of the first row in ``held``
        self.held: list[dict[str, Any]] | None = []  # rows from ``first`` on; None: they are in the journal

    def cut(self, rows: int) -> bool:
        """The trial continues behind so many rows. Returns whether that begins a new run."""
        self.closed = None
        if rows < self.safe:
            self.generation += 1
            self.safe = self.shown = self.first = 0
            self.step = -1
            self.held = None if rows else []
            return True
        if self.held is not None:
            del self.held[rows - self.first :]
        return False


class Projection:
    """Follows the journal of one experiment.

    Args:
        info: The experiment.
        spec: Its stored facts.
        end: Where to stop; None follows for ever.

    Attributes:
        dirty: Trials with something new since it was last cleared.
    """

    def __init__(self, info: ExperimentInfo, spec: Spec, end: Position | None = None) -> None:
        self.info = info
        self.spec = spec
        self.state = State()
        self.builder = ResultBuilder(info)
        self.runs: dict[int, TrialRun] = {}
        self.dirty: set[int] = set()
        self._end = end
        self._position: Position | None = None
        self._held = 0
        self._makers: dict[type, Callable[[Any], None]] = {
            ev.Reported: self._reported,
            ev.TrialStarted: lambda event: self._cut(event.n, event.rows),
            ev.TrialRequeued: self._requeued,
        }

    def advance(self) -> None:
        """Take in what the journal has gained.

        Raises:
            FencedError: The place where this reader stopped is no part of the history any more: begin anew.
            JournalDamagedError: As reading does.
        """
        self.__dict__.pop("_reader", None)
        events = read_events(self.info.root, after=self._position, end=self._end)
        state, retention, makers = self.state, self.spec.retention, self._makers
        with events.folding():
            for event in events:
                check_known(state, event)
                maker = makers.get(type(event))
                if maker is not None:
                    maker(event)
                apply(state, event, retention)
                n = getattr(event, "n", -1)
                if n >= 0:
                    self._touch(n)
        self._position = events.contents.position

    def pending(self, n: int) -> int:
        """How many rows of a trial may be shown and were not."""
        run = self.runs[n]
        return run.safe - run.shown

    def take(self, n: int, most: int) -> list[dict[str, Any]]:
        """The next rows of a trial that may be shown, in order; ``shown`` is left to whoever has shown them."""
        run = self.runs[n]
        if run.held is None or run.first > run.shown:
            self._load(n, run)
        assert run.held is not None
        start = run.shown - run.first
        return run.held[start : min(start + most, run.safe - run.first)]

    def mark_shown(self, n: int, rows: int, step: int) -> None:
        """Rows that were taken are shown; they need not be held any longer."""
        run = self.runs[n]
        run.shown, run.step = rows, step
        if run.held is not None:
            done = rows - run.first
            del run.held[:done]
            self._held -= done
            run.first = rows

    def unsafe_rows(self) -> int:
        """How many rows are held back."""
        return sum(self.state.trials[n].rows - run.safe for n, run in self.runs.items())

    # --- events, before they are applied

    def _reported(self, event: ev.Reported) -> None:
        run = self._run(event.n)
        if run.held is not None:
            run.held.append(self.builder.of(self.state, self.state.trials[event.n], event))
            self._held += 1
            if self._held > MAX_HELD_ROWS:
                self._forget_rows()

    def _requeued(self, event: ev.TrialRequeued) -> None:
        if event.mode == "restart":
            self._cut(event.n, 0)
        else:
            self._run(event.n).closed = None

    def _cut(self, n: int, rows: int) -> None:
        run = self._run(n)
        before = len(run.held or ())
        run.cut(rows)
        self._held -= before - len(run.held or ())

    # --- and after

    def _touch(self, n: int) -> None:
        run, trial = self._run(n), self.state.trials[n]
        run.safe = max(run.safe, _safe_rows(self.state, trial))
        self.dirty.add(n)

    def _run(self, n: int) -> TrialRun:
        run = self.runs.get(n)
        if run is None:
            run = self.runs[n] = TrialRun()
        return run

    # --- memory

    def _forget_rows(self) -> None:
        """Leave all rows to the journal. Not one trial at a time: with many trials, choosing would take longer."""
        for run in self.runs.values():
            if run.held:
                run.held = None
        self._held = 0

    def _load(self, n: int, run: TrialRun) -> None:
        """Read the rows of a trial that are not held. Later ones go on being left to the journal."""
        rows = self._reader.fold(n).rows.get(n, [])
        if run.held is not None:
            self._held -= len(run.held)
        run.held, run.first = rows[run.shown : self.state.trials[n].rows], run.shown
        self._held += len(run.held)

    @cached_property
    def _reader(self) -> TrialRows:
        index = TrialIndex(Path(self.info.root), end=self._position, epoch=self.state.epoch)
        return TrialRows(index, self.builder, self.spec.retention)


def _safe_rows(state: State, trial: Trial) -> int:
    if trial.status in Status.FINAL:
        return trial.rows
    start = state.start_point(trial)
    if start is not None:
        return min(start[1], trial.rows)
    # The first checkpoint is being committed: a retry will soon continue from its row.
    staged = [record.row for record in trial.checkpoints if record.stored == Stored.STAGED]
    return min(staged[0], trial.rows) if staged else trial.rows
