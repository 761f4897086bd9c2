"""Keeps what trials print within its bound, while they run.

Owns one thread, which looks at the sizes of the files that attempts print to. It is a thread of the driver's and not a
part of its loop, because a callback of the user's may hold that up for minutes, and a trial that prints without end
fills a disk in less. Must never: hold anybody up, or raise.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

from holdfast.storage import trial_logs

LOOK_S = 0.25


class OutputBounds:
    """Cuts the files that ``files`` names as soon as they have more than half of ``limit`` bytes."""

    def __init__(self, files: Callable[[], Iterable[str]], limit: int) -> None:
        self._files = files
        self._limit = limit
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-output", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking; returns when no file is being cut any more."""
        self._end.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(trial_logs.LOCK_S)

    def _run(self) -> None:
        while not self._end.wait(LOOK_S):
            for path in self._files():
                if os.path.exists(path):
                    trial_logs.shorten(path, self._limit)
