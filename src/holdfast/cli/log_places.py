"""Where the logs of an experiment are: in its directory, or in a store, from where they are fetched for a look.

Owns a scratch directory while somebody looks. Must never: change the experiment or its mirror.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, suppress
from pathlib import Path

from holdfast.cli.scratch_directories import scratch
from holdfast.core.state import Trial
from holdfast.errors import ObjectMissingError
from holdfast.results.history import History
from holdfast.results.shipped import is_driven_locally
from holdfast.storage import trial_logs
from holdfast.storage.remote_root import Remote, remote_of
from holdfast.storage.store import Fetching
from holdfast.views.trials import trial_dirname

_KEY = re.compile(re.escape(trial_logs.FOLDER) + r"/(?:(e\d+)/)?([A-Za-z0-9][\w.=,+-]*)")
_OF_DRIVER = re.compile(r"e\d+")
MAX_OBJECT_BYTES = 1024 * 1024 * 1024


def is_log(key: str) -> bool:
    """Whether an object of this key is a log of trials."""
    return _KEY.fullmatch(key) is not None


class LogPlaces:
    """The directories with the logs of one experiment, while they are looked at."""

    def __init__(self, history: History) -> None:
        self._root = history.root
        self._leaving = ExitStack()
        self._remote: Remote | None = None
        self._scratch = Path()
        self._fetched: dict[str, tuple[int, float]] = {}
        self._folders: list[str] = []

    def __enter__(self) -> LogPlaces:
        return self

    def __exit__(self, *error: object) -> None:
        self._leaving.close()

    def folders(self) -> list[str]:
        """Directories with logs."""
        own = os.path.join(self._root, trial_logs.FOLDER)
        try:
            with os.scandir(own) as entries:
                copied = [entry.path for entry in entries if _OF_DRIVER.fullmatch(entry.name)]
        except OSError:
            copied = []
        return [own, *sorted(path for path in copied if not os.path.islink(path)), *self._folders]

    def refresh(self, history: History, trial: Trial | None = None) -> None:
        """Bring what has changed in the store; nothing to do if the experiment is, or is driven, on this machine.

        Args:
            history: The experiment.
            trial: Whose output is wanted; None brings that of all.
        """
        self._root = history.root
        if history.restored is None or is_driven_locally(history):
            return
        if self._remote is None:
            self._remote = remote_of(history.info.url, history.info.filesystem)
            assert self._remote is not None
            self._scratch = self._leaving.enter_context(scratch(self._remote))
        self._fetch(self._remote, None if trial is None else trial_logs.log_name(trial.id))

    def _fetch(self, remote: Remote, only: str | None) -> None:
        for stat in remote.store.list(f"{trial_logs.FOLDER}/"):
            found = _KEY.fullmatch(stat.key)
            mark = (stat.size, stat.modified)
            if found is None or stat.size > MAX_OBJECT_BYTES or self._fetched.get(stat.key) == mark:
                continue
            if only is not None and not (found[2].startswith(only) or trial_logs.is_worker_log(found[2])):
                continue
            folder = self._scratch / (found[1] or "e0")
            try:
                remote.store.fetch([Fetching(stat.key, str(folder / found[2]))])
            except ObjectMissingError:
                continue  # its driver has replaced it by another
            self._fetched[stat.key] = mark
            if str(folder) not in self._folders:
                self._folders.append(str(folder))

    def files_of(self, history: History, trial: Trial) -> list[str]:
        """Files in the trial's own directory to which its output goes, if it goes there."""
        folder, names = trial_dirname(history.info, trial), self.streams()
        if self._remote is None:
            return [os.path.join(self._root, folder, name) for name in names]
        return [self._fetched_file(self._remote, f"{folder}/{name}") for name in names]

    def _fetched_file(self, remote: Remote, key: str) -> str:
        path = self._scratch / "trials" / key
        stat = remote.store.stat(key)
        if stat is not None and self._fetched.get(key) != (stat.size, stat.modified):
            with suppress(ObjectMissingError):
                remote.store.fetch([Fetching(key, str(path))])
                self._fetched[key] = (stat.size, stat.modified)
        return str(path)

    def streams(self) -> tuple[str, ...]:
        """Names of files in trials' own directories to which output goes."""
        names = (name for folder in self.folders() for name in trial_logs.read_streams(folder))
        return tuple(dict.fromkeys(names))

    def caveat(self, history: History) -> str:
        """Why there may be more elsewhere."""
        if history.restored is not None and not is_driven_locally(history):
            return ", according to the store"
        return ""
