"""Loggers: callbacks that write what trials report.

Owns ``LoggerCallback`` for users, ``FileLogger`` (one file of rows per trial, kept equal to the journal), and the files
about failures. Must never touch a disk on the loop's path except to look at files that another driver has left.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from holdfast.callbacks.callback import Callback
from holdfast.callbacks.file_writer import FileWriter
from holdfast.core.events import ErrorFacts
from holdfast.errors import TrialError
from holdfast.views.results import OURS, date_text, flatten_result
from holdfast.views.trials import ERROR_FILE, PICKLED_ERROR_FILE

if TYPE_CHECKING:
    from holdfast.views.trials import TrialView

Load: TypeAlias = Callable[[], Iterable[Mapping[str, Any]]]
"""Gets the surviving rows of a trial from the journal."""


class LoggerCallback(Callback):
    """Base class of loggers: override what you want to log.

    Example:
        >>> class PrintLoss(LoggerCallback):
        ...     def log_trial_result(self, iteration, trial, result):
        ...         print(trial, result["loss"])
    """

    forwards: ClassVar[Mapping[str, str]] = {
        "on_trial_start": "log_trial_start",
        "on_trial_restore": "log_trial_restore",
        "on_trial_save": "log_trial_save",
        "on_trial_result": "log_trial_result",
        "on_trial_complete": "log_trial_end",
        "on_trial_error": "log_trial_end",
    }

    def log_trial_start(self, trial: TrialView) -> None:
        """The trial begins to run, for the first time or again."""

    def log_trial_restore(self, trial: TrialView) -> None:
        """The trial begins to run from a checkpoint."""

    def log_trial_save(self, trial: TrialView) -> None:
        """A checkpoint of the trial has been committed."""

    def log_trial_result(self, iteration: int, trial: TrialView, result: dict[str, Any]) -> None:
        """The trial has reported."""

    def log_trial_end(self, trial: TrialView, failed: bool = False) -> None:
        """The trial has ended."""

    def on_trial_start(self, iteration: int, trials: Sequence[TrialView], trial: TrialView, **info: Any) -> None:
        self.log_trial_start(trial)

    def on_trial_restore(self, iteration: int, trials: Sequence[TrialView], trial: TrialView, **info: Any) -> None:
        self.log_trial_restore(trial)

    def on_trial_save(self, iteration: int, trials: Sequence[TrialView], trial: TrialView, **info: Any) -> None:
        self.log_trial_save(trial)

    def on_trial_result(
        self, iteration: int, trials: Sequence[TrialView], trial: TrialView, result: dict[str, Any], **info: Any
    ) -> None:
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(self, iteration: int, trials: Sequence[TrialView], trial: TrialView, **info: Any) -> None:
        self.log_trial_end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: Sequence[TrialView], trial: TrialView, **info: Any) -> None:
        self.log_trial_end(trial, failed=True)


class TrialLog:
    """What a file logger knows about the file of one live trial."""

    __slots__ = ("extra", "path", "rows")

    def __init__(self, path: str, rows: int, extra: Any = None) -> None:
        self.path = path
        self.rows = rows  # those that the file has or will have
        self.extra = extra  # the format's own


class FileLogger(LoggerCallback):
    """Keeps one file per trial that shows exactly the trial's surviving rows.

    Rows are encoded at once and written by a ``FileWriter`` at most half a second later. The journal is the truth:
    ``sync_rows`` brings a file that a crash or a retry has left with other rows back in line.

    Durability: a row is in the file when ``writer.flush()`` has returned True after it was logged.
    """

    _OF_ONE_RUN = frozenset({"_writer", "_own_writer", "_logs", "_shapes", "_recent"})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Not in __init__: a user's subclass need not call ours, and unpickling does not either.
        logger = super().__new__(cls)
        logger._reset()
        return logger

    def _reset(self) -> None:
        """Know nothing of any run."""
        self._writer: FileWriter | None = None
        self._own_writer = False
        self._logs: dict[str, TrialLog] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Settings are pickled with their callbacks, perhaps after a run: nothing of that run may come along."""
        return {name: value for name, value in vars(self).items() if name not in self._OF_ONE_RUN}

    # --- what a format defines

    def filename(self, trial: TrialView) -> str:
        """The file's name inside the trial's directory."""
        raise NotImplementedError

    def encode(self, log: TrialLog, trial: TrialView, result: Mapping[str, Any]) -> bytes:
        """One row as the bytes to append. May queue an edit of the file before that."""
        raise NotImplementedError

    def row_ends(self, data: bytes) -> list[int]:
        """Where each whole row of a file ends; a file's head counts as part of its first row."""
        raise NotImplementedError

    def decode(self, data: bytes, start: int, end: int) -> dict[str, Any]:
        """The row between two ends as a flat dict, its values as ``cell`` makes them; empty if it is damaged."""
        raise NotImplementedError

    def cell(self, value: Any) -> Any:
        """A number or string as it comes back from the file."""
        return value

    def learn(self, log: TrialLog, data: bytes) -> None:
        """Take from a file's content what is needed to continue with it."""

    # --- hooks

    def setup(self, *args: Any, **info: Any) -> None:
        self._logs.clear()

    def log_trial_start(self, trial: TrialView) -> None:
        self.sync_rows(trial, trial.record.rows, None if trial.info.load_rows is None else trial.load_rows)

    def log_trial_result(self, iteration: int, trial: TrialView, result: dict[str, Any]) -> None:
        log = self._logs.get(trial.trial_id)
        if log is None:
            if not _is_of_this_driver(trial):
                # A report that an attempt of an earlier driver left in its spool. That driver may have died before it
                # wrote the rows before this one, so appending would leave a gap. The journal has the report: the file
                # is synced with it when the trial starts again or has ended.
                return
            log = self._open(trial, trial.record.rows, None)
        data = self.encode(log, trial, result)
        log.rows += 1
        self.writer.append(log.path, data)

    def log_trial_end(self, trial: TrialView, failed: bool = False) -> None:
        self._logs.pop(trial.trial_id, None)

    def on_experiment_end(self, trials: Sequence[TrialView], **info: Any) -> None:
        if self._own_writer and self._writer is not None:
            self._writer.close()
            self._writer = None
        self._logs.clear()

    # --- the file

    @property
    def writer(self) -> FileWriter:
        """What writes the files; one of its own if nobody has given one."""
        if self._writer is None:
            self._writer, self._own_writer = FileWriter(), True
        return self._writer

    def use_writer(self, writer: FileWriter) -> None:
        """Share a writer with others. Whoever made it closes it."""
        self._writer, self._own_writer = writer, False

    def sync_rows(self, trial: TrialView, rows: int, load: Load | None) -> None:
        """Make the trial's file show its first ``rows`` rows, and continue from there.

        It is done whenever a trial starts. Do it too after opening an experiment, for each trial whose file may be
        behind the journal.

        Args:
            trial: The trial, in a state that has ``rows`` surviving rows.
            rows: How many rows survive.
            load: The surviving rows, from the journal; only called if the file has to be written anew. None if they
                cannot be had: then rows that the file lacks stay missing.
        """
        log = self._logs.get(trial.trial_id)
        if log is None:
            self._open(trial, rows, load)
        elif log.rows > rows:
            self._cut(log, rows)
        elif log.rows < rows and load is not None:
            self._rewrite(log, trial, load)

    def _open(self, trial: TrialView, rows: int, load: Load | None) -> TrialLog:
        """Look at a file that another driver, or an earlier life of this trial, has left."""
        log = TrialLog(f"{trial.path}{os.sep}{self.filename(trial)}", 0)
        if not trial.is_finished():
            self._logs[trial.trial_id] = log
        record = trial.record
        started_by_us = record.attempt == 1 and _is_of_this_driver(trial) and not record.final
        if started_by_us and trial.state.epoch <= 1:
            # The first driver: there is no file yet. A later one may find the file of a start that a power cut took out
            # of the journal.
            return log
        data = self.writer.read(log.path) or b""
        ends = self.row_ends(data)
        whole = len(ends) >= rows and self._ends_with(trial, rows, data, ends)
        if not whole and load is not None:
            self._rewrite(log, trial, load)
            return log
        log.rows = min(rows, len(ends))
        self.learn(log, data)
        # Also if it is as it should be: a driver that was taken over may have it open, and add a row when it wakes.
        inherited = record.attempt > 0 and not started_by_us and not trial.is_finished()
        if inherited or len(data) != (ends[log.rows - 1] if log.rows else 0):
            self._cut(log, log.rows, anew=inherited)
        return log

    def _ends_with(self, trial: TrialView, rows: int, data: bytes, ends: Sequence[int]) -> bool:
        """Whether the last of the surviving rows is in its place.

        Changes reach a file in order, so if that row is there then so are all before it, and rows of attempts that
        were given up are not: a file with as many rows, but of another lineage, is distinguished by its last one.
        """
        record = trial.record
        if not rows or record.rows != rows:
            return True
        found = self.decode(data, ends[rows - 2] if rows > 1 else 0, ends[rows - 1])
        metrics = record.metrics or {}
        expected = {key: value for key, value in flatten_result(metrics).items() if key not in OURS}
        expected["time_total_s"] = record.time_total
        if "training_iteration" not in metrics:
            expected["training_iteration"] = record.iteration
        return "time_total_s" in found and all(
            found[key] == self.cell(value)
            for key, value in expected.items()
            if key in found and isinstance(value, int | float | str) and value == value
        )

    def _cut(self, log: TrialLog, rows: int, *, anew: bool = False) -> None:
        row_ends = self.row_ends

        def first_rows(data: bytes) -> bytes:
            ends = row_ends(data)
            return data[: ends[min(rows, len(ends)) - 1]] if rows and ends else b""

        self.writer.edit(log.path, first_rows, anew=anew)
        log.rows = rows
        if not rows:
            log.extra = None

    def _rewrite(self, log: TrialLog, trial: TrialView, load: Load) -> None:
        log.rows, log.extra = 0, None
        self.writer.replace(log.path, b"")
        for result in load():
            data = self.encode(log, trial, result)
            log.rows += 1
            self.writer.append(log.path, data)


def _is_of_this_driver(trial: TrialView) -> bool:
    """Whether the driver of now has started the trial's newest attempt."""
    return trial.record.attempt_at > trial.state.epoch_at


class ErrorFiles:
    """Writes ``error.txt`` (the story of every failure) and ``error.pkl`` (the last exception) of trials.

    Args:
        writer: What writes the files.
    """

    def __init__(self, writer: FileWriter) -> None:
        self._writer = writer

    def failed(self, trial: TrialView, at: float, error: ErrorFacts, pickled: bytes = b"") -> None:
        """A trial has failed, as the state says already.

        Args:
            trial: The trial after the failure.
            at: When it failed.
            error: What is known about it.
            pickled: The exception, if it could be pickled where it was raised.
        """
        text = failure_text(trial.num_failures, at, error)
        self._writer.append(os.path.join(trial.path, ERROR_FILE), text.encode("utf-8", "backslashreplace"))
        self._writer.replace(os.path.join(trial.path, PICKLED_ERROR_FILE), pickled or _pickled_facts(trial, error))

    def sync(self, trial: TrialView, load: Callable[[], Iterable[tuple[float, ErrorFacts]]]) -> None:
        """After a crash: write ``error.txt`` anew if it lacks failures.

        Args:
            trial: The trial.
            load: When and how the trial failed, each time, from the journal; only called if something is missing.
        """
        if not trial.num_failures:
            return
        path = os.path.join(trial.path, ERROR_FILE)
        data = self._writer.read(path) or b""
        if f"Failure # {trial.num_failures} (occurred at ".encode() in data and data.endswith(b"\n"):
            return
        failures = list(load())
        text = "".join(failure_text(n, at, error) for n, (at, error) in enumerate(failures, start=1))
        self._writer.replace(path, text.encode("utf-8", "backslashreplace"))
        if failures:
            pickled = _pickled_facts(trial, failures[-1][1])
            self._writer.replace(os.path.join(trial.path, PICKLED_ERROR_FILE), pickled)


def failure_text(number: int, at: float, error: ErrorFacts) -> str:
    """One entry of ``error.txt``."""
    story = error.traceback.rstrip("\n") or ": ".join(part for part in (error.type, error.message) if part)
    if error.output and not error.traceback:
        story += f"\nIts last output:\n{error.output.rstrip()}"
    return f"Failure # {number} (occurred at {date_text(at)})\n{story}\n"


def _pickled_facts(trial: TrialView, error: ErrorFacts) -> bytes:
    """An exception to load where the original cannot be had: the process died, or it does not pickle."""
    message = ": ".join(part for part in (error.type, error.message) if part) or "unknown"
    facts = {
        "trial_id": trial.trial_id,
        "cause": trial.record.cause,
        "error_type": error.type,
        "location": error.location,
        "traceback": error.traceback,
    }
    return pickle.dumps(TrialError(message, **facts))
