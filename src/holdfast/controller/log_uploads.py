"""Logs of trials on their way to a store.

Each driver's are in a place of its own (``.holdfast/logs/e<epoch>/``): a driver on another machine does not have what
the one before it kept, and must not put its own in the place of that. Whoever reads them puts them together.

Owns what was sent of them, and copies of files that are still printed to, because what changes cannot be uploaded.
Must never: touch a log.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from holdfast.storage import trial_logs
from holdfast.storage.store import Sending

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
