"""Files of a run beside its journal: result files, and ``error.txt`` and ``error.pkl`` of trials that have failed.

They are written behind the loop, repaired when an experiment is opened, and waited for at its end. Owns how long files
are waited for, which files others than our own loggers have written, and the pickled exceptions on their way from a
worker to their files. Everything in these files is a projection of the journal: losing it loses nothing. Must never
wait for a disk in the loop's thread before the end, and never load an exception or put one into the journal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

from holdfast.callbacks.file_writer import FileWriter
from holdfast.callbacks.loggers import ErrorFiles, FileLogger
from holdfast.callbacks.policy_log import PolicyLog
from holdfast.controller.file_sync import files_since
from holdfast.controller.history_reader import HistoryReader
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.state import State
from holdfast.journal.records import read_events
from holdfast.storage.layout import Root
from holdfast.views.trials import TrialList, TrialView

FLUSH_S = 60.0
HURRIED_S = 5.0  # how long result files are waited for once somebody wants the driver to end
CLOSE_S = 30.0


class ResultFileEdge:
    """Keeps the files of one experiment equal to its journal.

    Args:
        writer: What writes them; shared with the loggers.
        loggers: Those that write a file of rows per trial.
        policies: What writes down who copied whom; None if nobody wants that.
        history: The rows of trials whose files are behind.
        trials: Whose files they are.
        root: The experiment's.
        output_files: Names of the files in a trial's directory that take what it prints.
    """

    def __init__(
        self,
        writer: FileWriter,
        loggers: Sequence[FileLogger],
        policies: PolicyLog | None,
        history: HistoryReader,
        trials: TrialList,
        root: Root,
        output_files: tuple[str, ...],
    ) -> None:
        self._writer = writer
        self._loggers = loggers
        self._policies = policies
        self._history = history
        self._trials = trials
        self._root = root
        self._output_files = output_files
        self._late: set[str] = set()  # files of callbacks that do not say what they write, and output of ended trials
        self._is_ending: Callable[[], bool] = lambda: False
        self._asked_at = 0.0
        self._gave_up = False  # files that could not be written are not waited for again

    def be_told_of_end(self, is_ending: Callable[[], bool]) -> None:
        """From now on ask this whether somebody wants the driver to end: a signal must not wait for a bad disk."""
        self._is_ending = is_ending

    # --- events

    def watch(self, state: State, event: ev.AnyEvent) -> None:
        """Keep what is to be written about an event that was just applied."""
        if self._policies is not None:
            self._policies.watch(state, event)

    def after_events(self) -> None:
        """Write what was kept: the events are in the journal now."""
        if self._policies is not None:
            self._policies.write()

    def trial_ended(self, n: int) -> None:
        """What the trial has printed is complete."""
        if self._output_files and self._root.remote is not None:
            folder = self._trials[n].path
            self._late.update(os.path.join(folder, name) for name in self._output_files)

    # --- repair

    def repair_rows(self, numbers: Iterable[int]) -> None:
        """Give files of finished trials the rows that they lack; the journal is read once for all."""
        trials = map(self._trials.__getitem__, numbers)
        finished = [trial for trial in trials if trial.is_finished() and trial.record.rows]
        behind: set[int] = set()

        def nothing_yet(n: int) -> Iterable[dict[str, Any]]:
            behind.add(n)
            return ()

        self._sync_rows(finished, nothing_yet)
        if behind:
            rows = self._history.rows_of(behind)
            self._sync_rows([trial for trial in finished if trial.record.n in behind], rows.__getitem__)

    def _sync_rows(self, trials: list[TrialView], load: Callable[[int], Iterable[dict[str, Any]]]) -> None:
        for trial in trials:
            for file_logger in self._loggers:
                file_logger.sync_rows(trial, trial.record.rows, partial(load, trial.record.n))

    def repair_policies(self, state: State) -> None:
        """Write anew who copied whom, if anybody did."""
        if self._policies is not None and self._policies.is_needed(state):
            events = read_events(self._root.path)
            with events.folding():
                self._policies.repair(events)

    # --- waiting

    @property
    def trouble(self) -> str:
        """Why files cannot be written, or ""."""
        return self._writer.trouble

    def take_written(self) -> set[str]:
        """Paths of the result files that were written since the last call. May be called from any thread."""
        late, self._late = self._late, set()
        return self._writer.take_written() | late

    def add_written_since(self, began: float) -> None:
        """Count as written what callbacks that do not say so have written since a moment."""
        if self._root.remote is not None:
            self._late.update(files_since(self._root.path, began))

    def flush(self) -> bool:
        """Whether every row told so far is in its file. May be called from any thread."""
        if self._writer.flush(0.0 if self._gave_up else FLUSH_S, self._is_over):
            return True
        self._gave_up = self._is_ending()
        return False

    def _is_over(self) -> bool:
        """Whether files are not waited for any more: somebody wants the driver to end, and a moment has passed.

        They are made again from the journal by the next restore.
        """
        if not self._is_ending():
            return False
        self._asked_at = self._asked_at or time.monotonic()
        return time.monotonic() - self._asked_at > HURRIED_S

    def close(self) -> None:
        """Stop writing, whatever is left."""
        self._writer.close(0.0 if self._gave_up else CLOSE_S)


class ErrorFileEdge:
    """Writes down how trials fail.

    Args:
        files: What writes them.
        trials: Whose they are.
        history: How trials have failed before.

    Attributes:
        failure: The first trial that ended in ERROR and its pickled exception, for ``fail_fast="raise"``.
    """

    def __init__(self, files: ErrorFiles, trials: TrialList, history: HistoryReader) -> None:
        self._files = files
        self._trials = trials
        self._history = history
        self._pickled: dict[int, bytes] = {}
        self.failure: tuple[int, bytes] | None = None

    def raised(self, observation: ob.Raised) -> None:
        """Keep the exception until its failure is fact."""
        if observation.pickled:
            self._pickled[observation.n] = observation.pickled

    def attempt_failed(self, event: ev.AttemptFailed) -> None:
        """An attempt has failed, and the trial is tried again."""
        self._write(event, self._pickled.pop(event.n, b""))

    def trial_errored(self, event: ev.TrialErrored) -> None:
        """A trial has ended with a failure."""
        pickled = self._pickled.pop(event.n, b"")
        self.failure = self.failure or (event.n, pickled)
        self._write(event, pickled)

    def _write(self, event: ev.AttemptFailed | ev.TrialErrored, pickled: bytes) -> None:
        self._files.failed(self._trials[event.n], event.at, event.error, pickled)

    def repair(self, numbers: Iterable[int]) -> None:
        """Give files the failures that they lack; the journal is read once for all, if any lacks something."""
        trials = map(self._trials.__getitem__, numbers)
        failed = [trial for trial in trials if trial.num_failures]
        failures = cache(lambda: self._history.failures_of({trial.record.n for trial in failed}))
        for trial in failed:
            self._files.sync(trial, partial(lambda n: failures()[n], trial.record.n))
