"""Where a ``Result`` gets its facts: from an experiment's journal, or from the files in a lone trial directory.

Owns reading both, and the exception that stands for a failed trial. Must never unpickle anything.
"""

from __future__ import annotations

import csv
import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from holdfast.checkpoints import scratch
from holdfast.checkpoints.checkpoint import Checkpoint
from holdfast.checkpoints.names import index_of
from holdfast.checkpoints.remote_place import StoreFilesystem
from holdfast.core.state import CheckpointRecord, Status, Trial, UserNote
from holdfast.errors import DamageError, NoResultError, TrialError
from holdfast.results.history import History
from holdfast.results.raised import trial_error
from holdfast.storage.address import parse
from holdfast.storage.layout import PARAMS_FILE, PROGRESS_FILE, RESULT_FILE
from holdfast.storage.remote_root import Remote
from holdfast.storage.store import Fetching
from holdfast.storage.untrusted import read_regular
from holdfast.views.trials import ERROR_FILE, ExperimentInfo, checkpoint_at, trial_dirname


class TrialSource(Protocol):
    """The facts about one trial."""

    @property
    def trial_id(self) -> str: ...

    @property
    def status(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def filesystem(self) -> Any: ...

    def config(self) -> dict[str, Any]: ...

    def metrics(self) -> dict[str, Any]:
        """The last row, in full."""
        ...

    def rows(self) -> list[dict[str, Any]]:
        """All rows that count, in order."""
        ...

    def copies(self) -> list[tuple[int, str]]:
        """Where the trial continued as a copy of another: before which row, and the other's id."""
        ...

    def error(self) -> TrialError | None: ...

    def said(self) -> tuple[tuple[str, ...], tuple[UserNote, ...]]:
        """The tags and notes of users."""
        ...

    def checkpoint(self) -> Checkpoint | None:
        """The latest one."""
        ...

    def checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """Those that are kept, with what was reported with them, worst to best."""
        ...


class FoldedTrial:
    """A trial of an experiment whose journal was folded."""

    def __init__(self, history: History, trial: Trial) -> None:
        self.history = history
        self.trial = trial
        self.trial_id = trial.id

    @property
    def status(self) -> str:
        return self.trial.status

    @property
    def path(self) -> str:
        return self.history.place(self.trial)

    @property
    def filesystem(self) -> Any:
        return filesystem_of(self.history.info)

    def config(self) -> dict[str, Any]:
        return self.history.config(self.trial)

    def metrics(self) -> dict[str, Any]:
        return self.history.last(self.trial)

    def rows(self) -> list[dict[str, Any]]:
        return self.history.rows(self.trial.n)

    def copies(self) -> list[tuple[int, str]]:
        return self.history.copies(self.trial.n)

    def error(self) -> TrialError | None:
        return trial_error(self.history, self.trial)

    def said(self) -> tuple[tuple[str, ...], tuple[UserNote, ...]]:
        return self.trial.tags, self.trial.notes

    def checkpoint(self) -> Checkpoint | None:
        latest = self.trial.latest()
        return None if latest is None else self._checkpoint(latest)

    def checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        history, trial = self.history, self.trial
        kept = history.retention.best(trial)
        return [(self._checkpoint(record), history.checkpoint_metrics(trial, record)) for record in kept]

    def _checkpoint(self, record: CheckpointRecord) -> Checkpoint:
        info = self.history.info
        return checkpoint_at(info, trial_dirname(info, self.trial), record.index, record.digest)


class TrialFiles:
    """A trial directory that has been taken out of its experiment: what its files say.

    Args:
        directory: The trial's directory.
        place: How it is called, if that is not its path.

    Raises:
        NoResultError: It does not exist or holds no result file.
    """

    def __init__(self, directory: Path, place: str = "") -> None:
        self.path = place or str(directory)
        self._directory = directory
        self._rows = _read_rows(directory, self.path)
        last = self._rows[-1] if self._rows else {}
        self.trial_id = str(last.get("trial_id", directory.name))
        self._params = _read_params(directory / PARAMS_FILE)
        self._error = _read_text(directory / ERROR_FILE)
        failed = self._error is not None and not last.get("done")
        self.status = Status.ERROR if failed else Status.TERMINATED if last.get("done") else Status.PENDING

    @property
    def filesystem(self) -> Any:
        return local_filesystem()

    def config(self) -> dict[str, Any]:
        found = self.metrics().get("config")
        if isinstance(found, dict):
            return found
        return self._params

    def metrics(self) -> dict[str, Any]:
        return self._rows[-1] if self._rows else {}

    def rows(self) -> list[dict[str, Any]]:
        return self._rows

    def copies(self) -> list[tuple[int, str]]:
        return []  # result files do not say

    def said(self) -> tuple[tuple[str, ...], tuple[UserNote, ...]]:
        return (), ()  # nor this

    def error(self) -> TrialError | None:
        if self.status != Status.ERROR:
            return None
        text = self._error or ""
        return TrialError(f"{self._directory.name} failed: {text}", trial_id=self.trial_id, traceback=text)

    def checkpoint(self) -> Checkpoint | None:
        found = self.checkpoints()
        return found[-1][0] if found else None

    def checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """All checkpoints, oldest first: the files do not say how they are to be ranked."""
        metrics = {str(row["checkpoint_dir_name"]): row for row in self._rows if row.get("checkpoint_dir_name")}
        return [(self._checkpoint(name), metrics.get(name, {})) for name in sorted(self._names(), key=_index)]

    def _names(self) -> list[str]:
        return [entry.name for entry in self._directory.iterdir() if index_of(entry.name) is not None]

    def _checkpoint(self, name: str) -> Checkpoint:
        return Checkpoint(self._directory / name)


class RemoteTrialFiles(TrialFiles):
    """The same in a store: its result files are fetched at once, its checkpoints when they are used."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        keys = {stat.key for stat in remote.store.list("")}
        self._found = sorted({key.partition("/")[0] for key in keys})
        wanted = sorted(keys.intersection((RESULT_FILE, PROGRESS_FILE, PARAMS_FILE, ERROR_FILE)))
        with scratch.directory("trial") as scratch_dir:
            directory = Path(scratch_dir) / remote.name
            if keys:
                directory.mkdir()
            remote.store.fetch([Fetching(name, str(directory / name)) for name in wanted])
            super().__init__(directory, remote.url)

    @property
    def filesystem(self) -> Any:
        return self._remote.filesystem or StoreFilesystem.at(self._remote.address).shown()

    def _names(self) -> list[str]:
        return [name for name in self._found if index_of(name) is not None]

    def _checkpoint(self, name: str) -> Checkpoint:
        return Checkpoint(self._remote.below(name).url, self._remote.filesystem)


def filesystem_of(info: ExperimentInfo) -> Any:
    """Where an experiment is: a file system of pyarrow's if pyarrow is there, or what stands for a store."""
    if not info.url:
        return local_filesystem()
    return info.filesystem or StoreFilesystem.at(parse(info.url)).shown()


def local_filesystem() -> Any:
    """pyarrow's local file system if pyarrow is there."""
    try:
        import_module("pyarrow")
        return import_module("pyarrow.fs").LocalFileSystem()
    except ImportError:
        return None


def _index(name: str) -> int:
    return index_of(name) or 0


def _read_rows(directory: Path, place: str) -> list[dict[str, Any]]:
    if not directory.is_dir():
        raise NoResultError(f"There is no trial at {place}: the directory does not exist.")
    for name, read in ((RESULT_FILE, _read_json_rows), (PROGRESS_FILE, _read_csv_rows)):
        file = directory / name
        if file.is_file() and file.stat().st_size:
            return read(file)
    raise NoResultError(
        f"{place} is not the directory of a trial: it holds neither {RESULT_FILE} nor {PROGRESS_FILE}, and no "
        "experiment above it knows it. Give the path of one trial; ResultGrid.from_path() opens a whole experiment."
    )


def _read_text(file: Path) -> str | None:
    try:
        return _text(file).rstrip()
    except OSError:
        return None


def _read_params(file: Path) -> dict[str, Any]:
    try:
        stored = json.loads(_read_text(file) or "")
    except (ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _read_json_rows(file: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for line in _text(file).splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a line that a crash cut short
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _read_csv_rows(file: Path) -> list[dict[str, Any]]:
    try:
        rows = list(csv.DictReader(io.StringIO(_text(file), newline="")))
    except csv.Error as error:
        raise DamageError(f"{file} cannot be read as a table: {error}. Nothing was changed.") from None
    return [{key: _parsed(text) for key, text in row.items() if key and text} for row in rows]


def _text(file: Path) -> str:
    return read_regular(file).decode("utf-8", errors="replace")


def _parsed(text: Any) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except (TypeError, ValueError):
            continue
    return text
