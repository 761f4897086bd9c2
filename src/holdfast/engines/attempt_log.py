"""Where a worker process prints: its own file, which it hands over to the trial when an attempt has printed something.

Owns descriptors 1 and 2 of the worker between attempts. Must never: be the reason why a trial fails, or trust a
descriptor that user code may have closed.
"""

from __future__ import annotations

import fcntl
import os

from holdfast.storage import trial_logs

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class AttemptLog:
    """The log of one worker, as its standard output and standard error.

    Attributes:
        limit: The most bytes that are kept of one trial's output; None keeps all.
    """

    def __init__(self, path: str) -> None:
        self.limit: int | None = None
        self._path = path
        self._inode = (0, 0)
        self._head_size = 0

    def open(self) -> None:
        """Let this process print to the file. A file and not a pipe: a chatty trial cannot stall its driver."""
        fd = os.open(self._path, _FLAGS | os.O_APPEND, 0o666)
        facts = os.fstat(fd)
        self._inode = (facts.st_dev, facts.st_ino)
        found = trial_logs.parse_head(os.pread(fd, trial_logs.MAX_HEAD_BYTES, 0)) if facts.st_size else None
        self._head_size = found[1] if found else 0
        for number in (1, 2):
            os.dup2(fd, number)
        if fd not in (1, 2):
            os.close(fd)

    def begin(self, trial_id: str, attempt: int) -> None:
        """Say whose output follows. Few system calls: thousands of short trials a second begin with this."""
        try:
            size = self._size(1)
            if size is None or self._size(2) is None:
                self.open()  # the attempt before has closed or redirected them
                size = os.fstat(1).st_size
            self._begin(size, trial_logs.make_head(trial_id, attempt, trial_logs.now()))
        except OSError:
            pass  # a full disk, for example: no reason to fail a trial

    def _begin(self, size: int, head: bytes) -> None:
        if size > self._head_size > 0:  # printed by something that the attempt before has left behind
            try:
                self._move()
            except OSError:
                os.write(1, head)
                return
            size = self._head_size
        early = os.pread(1, trial_logs.COPY_BYTES, 0) if size and not self._head_size else b""
        if size and size != len(head):
            os.ftruncate(1, 0)
        # What is written through a descriptor that appends always goes to the end, also if a place is given.
        flags = fcntl.fcntl(1, fcntl.F_GETFL)
        fcntl.fcntl(1, fcntl.F_SETFL, flags & ~os.O_APPEND)
        try:
            os.pwrite(1, head + early, 0)
        finally:
            fcntl.fcntl(1, fcntl.F_SETFL, flags | os.O_APPEND)
        self._head_size = len(head)

    def end(self) -> None:
        """The attempt has ended: what it printed goes to its trial."""
        try:
            size = self._size(1)
            if size is None:
                size = os.stat(self._path).st_size
            if size > self._head_size > 0:
                self._move()
        except OSError:
            pass

    def _move(self) -> None:
        trial_logs.settle(self._path, self.limit)
        self.open()

    def _size(self, number: int) -> int | None:
        """Size of the file if the descriptor leads to it; None if user code has closed or redirected it."""
        try:
            facts = os.fstat(number)
        except OSError:
            return None
        return facts.st_size if (facts.st_dev, facts.st_ino) == self._inode else None
