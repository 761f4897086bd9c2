"""What workers on other machines print, written down here as if they had printed here.

A worker's stream has a marker line at the beginning of each attempt. What comes before the next one belongs to the
attempt before, and is handed over to its trial then.

Owns: the worker logs of the driver that belong to workers elsewhere. Must never: be the reason why a trial fails.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from holdfast.engines.exits import size_of
from holdfast.space.naming import is_inside
from holdfast.storage import trial_logs


class ReceivedOutput:
    """The output of workers elsewhere.

    Args:
        folder: Where the logs of workers are.
        limit: The most bytes that are kept of one trial's output; None keeps all.
        root: Of the experiment; files that trials print to are below it.
    """

    def __init__(self, folder: Path, limit: int | None, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._limit = limit
        self._begins: dict[str, int] = {}
        self._rest: dict[int, bytes] = {}  # of workers: a line that has not ended yet, and may be a marker

    def path(self, worker: int) -> str:
        """The file that a worker's output goes to."""
        return str(self._folder / f"worker-{worker}.log")

    def take(self, worker: int, data: bytes) -> None:
        """Write down what a worker has printed."""
        data = self._rest.pop(worker, b"") + data
        begin = 0
        while (found := _marker(data, begin)) >= 0:
            self._write(worker, data[begin:found])
            self.settle(worker)
            end = data.index(b"\n", found) + 1
            self._write(worker, data[found:end])
            begin = end
        whole = data.rfind(b"\n") + 1
        last = data[whole:]
        if last and b"--- ".startswith(last[:4]) and len(last) < trial_logs.MAX_HEAD_BYTES:
            self._rest[worker] = data[max(whole, begin) :]
            data = data[: max(whole, begin)]
        self._write(worker, data[begin:])

    def begin(self, path: str) -> None:
        """An attempt begins to print to a file of its trial, which has what earlier attempts have printed."""
        self._begins[path] = size_of(str(self._root / path))

    def append(self, path: str, offset: int, data: bytes) -> None:
        """Write down what an attempt has appended to a file of its trial."""
        if not is_inside(path):
            return
        offset += self._begins.get(path, 0)
        with contextlib.suppress(OSError):
            target = self._root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            # Once the bound on output has cut the file, this belongs at its new end: elsewhere it would leave a hole.
            cut = os.O_APPEND if size_of(str(target)) <= offset else 0
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | cut, 0o666)
            try:
                os.pwrite(fd, data, offset)
            finally:
                os.close(fd)

    def settle(self, worker: int) -> None:
        """Hand what was written so far over to its trial."""
        if rest := self._rest.pop(worker, b""):
            self._write(worker, rest)
        with contextlib.suppress(OSError):
            if os.path.exists(self.path(worker)):
                trial_logs.settle(self.path(worker), self._limit)

    def _write(self, worker: int, data: bytes) -> None:
        if data:
            with contextlib.suppress(OSError), open(self.path(worker), "ab") as file:
                file.write(data)


def _marker(data: bytes, begin: int) -> int:
    """Where the next complete marker line begins; -1 if there is none."""
    while (found := data.find(b"--- ", begin)) >= 0:
        starts_line = found == 0 or data[found - 1 : found] == b"\n"
        if starts_line and trial_logs.parse_head(data[found : found + trial_logs.MAX_HEAD_BYTES]):
            return found
        begin = found + 1
    return -1
