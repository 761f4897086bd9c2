"""Files that grow while the loop runs: bytes are queued by the loop and written by one thread behind its back.

Owns the thread, the order of changes to each file, and what happens when the disk refuses. Must never raise into the
loop because of a disk, lose bytes without saying so, or keep a file open (there may be 100,000 of them). Files written
here are projections of the journal: nothing is fsynced, a crash may tear them, and their owners repair them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from holdfast.errors import InternalError
from holdfast.storage.local import TEMP_PREFIX, is_full
from holdfast.storage.untrusted import is_mostly_holes

logger = logging.getLogger("holdfast")

LINGER_S = 0.25
"""How long bytes wait for company before they are written."""

MAX_WAITING_BYTES = 64 << 20
"""Above this the caller is slowed down until the disk has caught up."""

MAX_STALL_S = 2.0
"""The longest that one call is slowed down: a full disk must not stop the experiment, only hold it back."""

RETRY_S = 0.5
LOOK_EVERY_S = 0.1
OPENED_TOGETHER = 16
"""Files that are opened before one question about the fence, and written after its answer."""

_IN_PLACE = frozenset({errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR, errno.ENOTDIR, errno.EEXIST})
"""A link, a pipe or a directory is where the file belongs, or something else is where its directory belongs."""

_HOPELESS = _IN_PLACE | {errno.ENAMETOOLONG}
"""What no waiting helps against; the last are names that no file system takes."""


class Edit(NamedTuple):
    """What turns a file's content into its new content."""

    change: Callable[[bytes], bytes]
    size: int  # bytes of memory that it holds on to
    anew: bool = False  # in a new file, though the old one may only have to be shortened


Change: TypeAlias = bytes | Edit
"""Bytes to append, or an edit."""


class FileWriter:
    """Writes files in the background, in order, for ever trying.

    Durability: when ``flush`` returns True, everything queued before it has been handed to the operating system and
    survives the death of this process. A power cut may tear the files.

    Args:
        linger_s: How long bytes may wait for others before they are written.
        max_waiting_bytes: How many bytes may wait before callers are slowed down.
        max_stall_s: How long one call is slowed down at most.
        is_void: Asked before each write, when the file is open; True, once and for ever, means that the files belong to
            another driver now. What is queued is then dropped. A driver that takes files over replaces them: one that
            was stopped between this question and its write writes into a file that nobody has any more.
    """

    def __init__(
        self,
        *,
        linger_s: float = LINGER_S,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        max_stall_s: float = MAX_STALL_S,
        is_void: Callable[[], bool] = lambda: False,
    ) -> None:
        self.trouble = ""
        """Why files cannot be written at the moment; "" if they can."""

        self._linger_s = linger_s
        self._max_waiting = max_waiting_bytes
        self._max_stall_s = max_stall_s
        self._is_void = is_void
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # something to do, or a reason to hurry
        self._rest = threading.Condition(self._lock)  # something was done
        self._disk = threading.Lock()  # held while the changes of one file are carried out
        self._waiting: dict[str, list[Change]] = {}
        self._in_hand: dict[str, list[Change]] = {}
        self._written: set[str] | None = None  # since somebody last asked; None if nobody will
        self._torn: dict[str, int] = {}  # files with half an append at their end, and their size without it
        self._left_out: set[str] = set()  # files of which was said that they can never be written
        self._waiting_bytes = 0
        self._queued = 0
        self._settled = 0
        self._hurry = False
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def unwritten(self) -> int:
        """Number of files with changes that are not written yet."""
        with self._lock:
            return len(self._waiting.keys() | self._in_hand.keys())

    def take_written(self) -> set[str]:
        """Paths of the files that were written since the last call; the first call only begins to count."""
        with self._lock:
            written, self._written = self._written, set()
        return written or set()

    def append(self, path: str, data: bytes) -> None:
        """Add ``data`` to the end of the file, which is made if need be, with its directory."""
        self._queue(path, data, len(data))

    def replace(self, path: str, data: bytes) -> None:
        """Make ``data`` the file's whole content, atomically."""
        self._queue(path, Edit(lambda _: data, len(data), anew=True), len(data))

    def edit(self, path: str, change: Callable[[bytes], bytes], *, anew: bool = False) -> None:
        """Replace the file's content by a function of it, atomically.

        Args:
            path: The file; if there is none, its content counts as empty.
            change: Pure and total: it runs in the background, and again if the disk refuses.
            anew: Leave the old file to those who have it open. Without this, one that is only shortened stays the same
                file, and who follows it follows on.
        """
        self._queue(path, Edit(change, 0, anew), 0)

    def read(self, path: str) -> bytes | None:
        """The content that the file will have once everything queued is written; None if there will be no file."""
        with self._disk:
            with self._lock:
                changes = [*self._in_hand.get(path, ()), *self._waiting.get(path, ())]
                torn = self._torn.get(path)
            content = _content(path, torn)
        if content is None and not changes:
            return None
        return _changed(content or b"", changes)

    def flush(self, timeout_s: float = 30.0, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Write everything queued so far, now.

        Args:
            timeout_s: How long to wait for a disk that refuses.
            give_up: Asked now and then; True ends the wait.

        Returns:
            False if some of it could not be written within ``timeout_s``; ``trouble`` says why. It is tried again.
        """
        with self._lock:
            target = self._queued
            self._hurry = True
            self._work.notify()
            deadline = time.monotonic() + timeout_s
            while self._settled < target:
                left = deadline - time.monotonic()
                if left <= 0 or give_up():
                    return False
                self._rest.wait(min(left, LOOK_EVERY_S))
            return True

    def close(self, timeout_s: float = 30.0) -> bool:
        """Write what is queued and end the thread. Closing twice is allowed.

        Returns:
            False if something is left unwritten, which is then lost here and can be repaired from the journal.
        """
        written = self.flush(timeout_s)
        with self._lock:
            self._closed = True
            self._work.notify()
            thread, self._thread = self._thread, None
        if thread is not None and written:
            thread.join(timeout_s)
        if not written:
            count = self.unwritten
            files = "1 file is" if count == 1 else f"{count} files are"
            logger.warning("%s incomplete (%s).", files, self.trouble or "the disk is too slow")
        return written

    # --- the caller's side

    def _queue(self, path: str, change: Change, size: int) -> None:
        with self._lock:
            if self._closed:
                raise InternalError(f"{path} was to be changed after its writer had been closed")
            if self._waiting_bytes + size > self._max_waiting:
                self._slow_down()
            changes = self._waiting.get(path)
            if changes is not None:
                changes.append(change)
            else:
                self._waiting[path] = [change]
                if len(self._waiting) == 1:
                    self._wake()
            self._waiting_bytes += size
            self._queued += 1

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-files", daemon=True)
            self._thread.start()
        self._work.notify()

    def _slow_down(self) -> None:
        self._hurry = True
        self._work.notify()
        self._rest.wait_for(lambda: self._waiting_bytes < self._max_waiting, self._max_stall_s)

    # --- the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                self._work.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                self._linger()
                if self._closed and self.trouble:
                    return
                self._in_hand, self._waiting = self._waiting, {}
                target, size = self._queued, self._waiting_bytes
                self._hurry = False
            self._write_batch()
            with self._lock:
                self._put_back(target, size)

    def _linger(self) -> None:
        wait_s = RETRY_S if self.trouble else self._linger_s
        until = time.monotonic() + wait_s
        while not self._closed and (self.trouble or not self._hurry):
            left = until - time.monotonic()
            if left <= 0 or not self._work.wait(left):
                return

    def _write_batch(self) -> None:
        trouble = ""
        paths = list(self._in_hand)
        try:
            for start in range(0, len(paths), OPENED_TOGETHER):
                with self._disk:
                    trouble = self._write_group(paths[start : start + OPENED_TOGETHER]) or trouble
        except _Void:
            with self._lock:
                self._in_hand.clear()
        except _Full as full:
            trouble = str(full)
        if trouble and not self.trouble:
            logger.warning("%s", trouble)
        self.trouble = trouble

    def _write_group(self, paths: list[str]) -> str:
        """Write some files; returns why one of them could not be.

        They are opened first, then the fence is looked at, once for all: a driver that was taken over, and that was
        stopped anywhere in here, writes into files that its successor has replaced. The first look is a courtesy: what
        is opened may be created.
        """
        opened: dict[str, int] = {}
        trouble = ""
        self._look()
        try:
            for path in paths:
                with contextlib.suppress(OSError, ValueError):  # told when it is opened again, alone
                    self._open_ahead(path, opened)
            if opened:
                self._look()
            for path in paths:
                trouble = self._try_to_write(path, opened.pop(path, None)) or trouble
        finally:
            for fd in opened.values():
                os.close(fd)
        return trouble

    def _open_ahead(self, path: str, opened: dict[str, int]) -> None:
        """Open the file if writing it is no more than adding bytes to its end."""
        if path not in self._torn and all(isinstance(change, bytes) for change in self._in_hand[path]):
            opened[path] = _open(path, _APPENDING)

    def _try_to_write(self, path: str, fd: int | None) -> str:
        try:
            if fd is None:
                self._write(path, self._in_hand[path])
            else:
                self._fill(path, fd, _changed(b"", self._in_hand[path]))
        except _Void:
            raise
        except Exception as error:  # whatever it is, the thread must live
            if isinstance(error, ValueError) or getattr(error, "errno", None) in _HOPELESS:
                if path not in self._left_out:
                    self._left_out.add(path)
                    why = _why(error, path)
                    logger.warning("%r can never be written (%s) and is left out; the journal has it", path, why)
                with self._lock:
                    del self._in_hand[path]
                return ""
            trouble = f"{path} cannot be written: {error}; its content is kept and the write is retried"
            if isinstance(error, OSError) and is_full(error):
                raise _Full(trouble) from error
            return trouble
        with self._lock:
            del self._in_hand[path]
            if self._written is not None:
                self._written.add(path)
        return ""

    def _put_back(self, target: int, size: int) -> None:
        """What could not be written goes before what was queued meanwhile."""
        for path, changes in self._in_hand.items():
            size -= sum(len(change) if isinstance(change, bytes) else change.size for change in changes)
            self._waiting[path] = [*changes, *self._waiting.get(path, ())]
        if not self._in_hand:
            self._settled = target
        self._in_hand = {}
        self._waiting_bytes -= size
        self._rest.notify_all()

    def _write(self, path: str, changes: list[Change]) -> None:
        appended = [change for change in changes if isinstance(change, bytes)]
        if len(appended) == len(changes):
            self._append(path, b"".join(appended))
            return
        torn = self._torn.get(path)
        old = _content(path, torn)
        new = _changed(old or b"", changes)
        anew = any(isinstance(change, Edit) and change.anew for change in changes)
        if old is not None and old.startswith(new) and not anew:
            self._shorten(path, len(new))
        else:
            self._replace(path, new)
        self._torn.pop(path, None)

    def _shorten(self, path: str, size: int) -> None:
        fd = _open(path, os.O_WRONLY)
        try:
            self._look()
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def _append(self, path: str, data: bytes) -> None:
        fd = _open(path, _APPENDING)
        try:
            self._look()
            torn = self._torn.get(path)
            if torn is not None:
                os.ftruncate(fd, torn)
                del self._torn[path]
        except BaseException:
            os.close(fd)
            raise
        self._fill(path, fd, data)

    def _fill(self, path: str, fd: int, data: bytes) -> None:
        """Add bytes to a file that was opened before the fence was looked at, and close it."""
        try:
            done = os.write(fd, data)
            if done < len(data):
                self._append_rest(path, fd, data, done)
        finally:
            os.close(fd)

    def _append_rest(self, path: str, fd: int, data: bytes, done: int) -> None:
        """A short write: usually the disk is full, and half a row must not stay."""
        self._torn[path] = os.fstat(fd).st_size - done
        rest = memoryview(data)[done:]
        while rest:
            rest = rest[os.write(fd, rest) :]
        del self._torn[path]

    def _replace(self, path: str, data: bytes) -> None:
        temp = os.path.join(os.path.dirname(path), f"{TEMP_PREFIX}{os.path.basename(path)}")
        self._look()
        # Never the file that a driver before this one has open: what that one writes when it wakes would be in ours.
        with contextlib.suppress(FileNotFoundError):
            os.remove(temp)
        fd = _open(temp, _FRESH)
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            finally:
                os.close(fd)
            self._look()
            os.replace(temp, path)
        except (OSError, _Void):
            try:
                os.remove(temp)
            except OSError:
                pass
            raise

    def _look(self) -> None:
        if self._is_void():
            raise _Void


# Through a link these bytes would go elsewhere; a pipe would wait for somebody who reads it.
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


class _Void(Exception):
    """The files belong to another driver."""


class _Full(Exception):
    """The disk is full: the other files need not be tried."""


def _open(path: str, flags: int) -> int:
    flags |= _SAFE
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o644)


def _why(error: Exception, path: str) -> str:
    """What is wrong, without the temporary name that the error may have."""
    if not isinstance(error, OSError) or error.errno not in _IN_PLACE:
        return str(error)
    blocked = path if os.path.lexists(path) else os.path.dirname(path)
    return f"{error.strerror}; to have it written, move {blocked!r} away"


def _content(path: str, size: int | None) -> bytes | None:
    """What is in one of our files; None if there is none, or something in its place that we have not written.

    Such a thing (a link, a pipe, a directory, a file of holes) is never followed or read: the file is made anew from
    the journal.
    """
    try:
        fd = os.open(path, os.O_RDONLY | _SAFE)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _IN_PLACE:
            return None
        raise
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or is_mostly_holes(facts):
        os.close(fd)  # not by a file object, which refuses a directory and leaves it open
        return None
    with open(fd, "rb", buffering=0) as file:
        return file.read() if size is None else file.read(size)


def _changed(content: bytes, changes: list[Change]) -> bytes:
    parts = [content]
    for change in changes:
        if isinstance(change, bytes):
            parts.append(change)
        else:
            parts = [change.change(b"".join(parts))]
    return b"".join(parts)
