"""Files of an experiment in a store besides journal and checkpoints: result files and logs, uploaded periodically.

Result files are projections of the journal, so losing the last minutes of them loses nothing. They must not replace
those of a driver that has taken over, which `FencedUploads` prevents. Logs have one place for each driver
(``.holdfast/logs/e<epoch>/``): a driver on another machine does not have the logs of the driver before it and must not
overwrite them. Readers join them.

Owns a thread, the set of changed files, and copies of logs that are still written to, because a changing file cannot be
uploaded. Scans for result files only once, for those that an earlier driver wrote and did not upload, and for artifacts
if the user wants them uploaded. Must never change a log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable

from holdfast.callbacks.result_files import is_of_experiment, is_of_trial
from holdfast.checkpoints import names
from holdfast.controller.fenced_uploads import FencedUploads
from holdfast.errors import StorageError, StoreDeniedError, StoreUnreachableError
from holdfast.storage import trial_logs
from holdfast.storage.store import Sending, Store

logger = logging.getLogger("holdfast")

BATCH = 256
LOOK_S = 1.0

SENT = ".holdfast/files-sent"
"""In the mirror; its time says when everything that had been written before was in the store."""

CLOCK_STEP_S = 0.05  # times of files are those of the kernel's last tick
_MARGIN_S = 2.0  # between the writing of a file and being told of it


class FileSync:
    """Uploads files below ``root`` that somebody says have changed.

    Args:
        store: Where to.
        root: The mirror.
        changed: Takes away the paths of files that were written since the last call.
        period_s: How often.
        artifacts: Upload everything that is new in trials' directories, not only what ``changed`` tells.
        is_void: Whether somebody else writes the experiment now, whose files must not be replaced by older ones.
        also: Sends what else has changed; raises `StorageError` if that does not work.
        logs: Names logs that have changed, and what they are called in the store.
    """

    def __init__(
        self,
        store: Store,
        root: str | os.PathLike[str],
        changed: Callable[[], Iterable[str]],
        *,
        period_s: float,
        artifacts: bool = False,
        is_void: Callable[[], bool] = lambda: False,
        also: Callable[[], None] = lambda: None,
        logs: Callable[[], Iterable[Sending]] = lambda: (),
    ) -> None:
        self._uploads = FencedUploads(store)
        self._root = os.path.abspath(root)
        self._changed = changed
        self._period_s = period_s
        self._artifacts = artifacts
        self._is_void = is_void
        self._also = also
        self._logs = logs
        self._keys: dict[str, str] = {}  # of logs that wait
        self._waiting: set[str] = set()
        self._sent: dict[str, tuple[int, int]] = {}  # of artifacts
        self._inherited = False  # have the files of former drivers been looked for?
        # Guards what follows. The upload itself is the thread's alone: nobody else may hang in a store that is dead.
        self._told = threading.Condition()
        self._asked = self._done = 0
        self._failure: Exception | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin the thread."""
        self._thread = threading.Thread(target=self._loop, name="holdfast-files-sync", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; what has not been uploaded stays in the mirror."""
        with self._told:
            self._stopping = True
            self._told.notify_all()
        if self._thread is not None:
            self._thread.join(LOOK_S)

    def ask(self) -> int:
        """Let everything that has changed so far be uploaded now; a ticket to wait with."""
        with self._told:
            self._asked += 1
            self._told.notify_all()
            return self._asked

    def wait(self, ticket: int, timeout_s: float) -> bool:
        """Wait for what was asked for.

        Returns:
            Whether it is in the store. Otherwise the upload is still under way.

        Raises:
            StorageError: Some of it could not be uploaded; it is tried again next time.
        """
        with self._told:
            if not self._told.wait_for(lambda: self._done >= ticket, timeout_s):
                return False
            if self._failure is not None:
                raise self._failure
            return True

    def _loop(self) -> None:
        while True:
            with self._told:
                self._told.wait_for(lambda: self._stopping or self._asked > self._done, self._period_s)
                if self._stopping:
                    return
                ticket = self._asked
            try:
                self._upload()
                failure = None
            except Exception as error:  # also a bug must reach whoever waits
                failure = error
                logger.debug("result files could not be uploaded: %s", error)
            with self._told:
                self._done, self._failure = ticket, failure
                self._told.notify_all()

    def _upload(self) -> None:
        began = time.time()
        self._also()
        self._collect()
        waiting = sorted(self._waiting)
        for at in range(0, len(waiting), BATCH):
            if not self._send(waiting[at : at + BATCH]):
                return
        if waiting:  # otherwise nobody has looked whether this is still our mirror
            self._note_sent(began)

    def _send(self, batch: list[str]) -> bool:
        """Upload some files; False if somebody else writes them now."""
        try:
            files = [Sending(path, self._key(path)) for path in batch if os.path.isfile(path)]
            if not self._uploads.send(files, is_void=self._is_void):
                return False
        except (StoreDeniedError, StoreUnreachableError):
            raise
        except StorageError:
            # One of the files may be the reason, because it grows or is gone; it must not keep the others.
            if len(batch) == 1:
                raise
            for path in batch:
                with contextlib.suppress(StorageError):
                    if not self._send([path]):
                        return False
            if not self._waiting.isdisjoint(batch):
                raise
        self._waiting.difference_update(batch)
        for path in batch:
            self._keys.pop(path, None)
        return True

    def _collect(self) -> None:
        if not self._inherited:
            self._waiting.update(self._left_behind())
            self._inherited = True
        self._waiting.update(path for path in map(os.path.abspath, self._changed()) if self._is_inside(path))
        for log in self._logs():
            self._keys[log.path] = log.key
            self._waiting.add(log.path)
        if self._artifacts:
            for directory in self._trial_dirs():
                self._waiting.update(self._changed_artifacts(directory))

    def _left_behind(self) -> list[str]:
        """What a driver that was killed had written and not uploaded."""
        try:
            since = os.stat(os.path.join(self._root, SENT)).st_mtime - _MARGIN_S
        except OSError:
            since = 0.0
        places = [(self._root, is_of_experiment), *((directory, is_of_trial) for directory in self._trial_dirs())]
        found = []
        for directory, is_ours in places:
            with contextlib.suppress(OSError), os.scandir(directory) as files:
                found += [file.path for file in files if is_ours(file.name) and file.stat().st_mtime >= since]
        return found

    def _trial_dirs(self) -> list[str]:
        with os.scandir(self._root) as entries:
            return [
                entry.path
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]

    def _note_sent(self, at: float) -> None:
        path = os.path.join(self._root, SENT)
        with contextlib.suppress(OSError):  # then they are uploaded once more
            with open(path, "ab"):
                pass
            os.utime(path, (at, at))

    def _changed_artifacts(self, directory: str) -> Iterable[str]:
        for parent, directories, files in os.walk(directory):
            directories[:] = [
                name for name in directories if names.index_of(name) is None and not names.is_temporary(name)
            ]
            for name in files:
                path = os.path.join(parent, name)
                try:
                    facts = os.lstat(path)
                except OSError:
                    continue
                mark = (facts.st_size, facts.st_mtime_ns)
                if self._sent.get(path) != mark and os.path.isfile(path) and not os.path.islink(path):
                    self._sent[path] = mark
                    yield path

    def _is_inside(self, path: str) -> bool:
        return path.startswith(self._root + os.sep)

    def _key(self, path: str) -> str:
        return self._keys.get(path) or os.path.relpath(path, self._root).replace(os.sep, "/")


def files_since(root: str | os.PathLike[str], began: float) -> Iterable[str]:
    """Files of an experiment, checkpoints and private ones left out, that were written since a moment."""
    for parent, directories, files in os.walk(root):
        directories[:] = [name for name in directories if names.index_of(name) is None and not name.startswith(".")]
        for name in files:
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                if not name.startswith(".") and os.lstat(path).st_mtime >= began - CLOCK_STEP_S:
                    yield path


COPIES = ".sending"


class LogUploads:
    """Says what has changed in the logs below ``root`` since the last time.

    Args:
        root: The mirror.
        epoch: Of the driver.
    """

    def __init__(self, root: str | os.PathLike[str], epoch: int) -> None:
        self._folder = os.path.join(root, trial_logs.FOLDER)
        self._prefix = f"{trial_logs.FOLDER}/e{epoch}"
        self._sent: dict[str, tuple[int, int]] = {}

    def changed(self) -> list[Sending]:
        """Files to upload; each is named once for each change."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                with contextlib.suppress(OSError):
                    if (path := self._to_send(entry)) is not None:
                        found.append(Sending(path, f"{self._prefix}/{entry.name}"))
        return found

    def _to_send(self, entry: os.DirEntry[str]) -> str | None:
        name = entry.name
        ours = name.endswith((".log", ".log" + trial_logs.OLDER)) or name == trial_logs.STREAMS
        if not ours or name == "nanny.log" or not entry.is_file(follow_symlinks=False):
            return None
        facts = entry.stat(follow_symlinks=False)
        mark = (facts.st_size, facts.st_mtime_ns)
        printing = trial_logs.is_worker_log(name.removesuffix(trial_logs.OLDER))
        if self._sent.get(name) == mark or (printing and facts.st_size <= trial_logs.HEAD_BYTES):
            return None
        self._sent[name] = mark
        return self._copied(entry) if printing else entry.path

    def _copied(self, entry: os.DirEntry[str]) -> str:
        copies = os.path.join(self._folder, COPIES)
        os.makedirs(copies, exist_ok=True)
        path = os.path.join(copies, entry.name)
        with os.fdopen(trial_logs.open_log(entry.path), "rb") as source, open(path, "wb") as target:
            shutil.copyfileobj(source, target, trial_logs.COPY_BYTES)
        return path

    def close(self) -> None:
        """Remove the copies."""
        shutil.rmtree(os.path.join(self._folder, COPIES), ignore_errors=True)
