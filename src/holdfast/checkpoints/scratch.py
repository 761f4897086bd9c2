"""Temporary directories of this process, outside of any experiment.

Owns one directory below the system's temporary directory that contains all of them. The process keeps it locked while
it runs; so the next process that needs one recognises what killed processes have left, and removes it. A directory with
another name is never removed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator

from holdfast.checkpoints import names
from holdfast.checkpoints.tree import remove_quietly
from holdfast.storage.locks import lock

PREFIX = "holdfast_scratch_"
MAX_SWEPT = 100
"""How many directories of dead processes one process removes, so that its own first one does not wait for long."""


class _ScratchDirectory:
    """The locked directory, and the process that has it."""

    def __init__(self) -> None:
        self.pid = 0
        self.path = ""
        self.fd = -1
        self.left = 0  # temporary directories in it
        self.mutex = threading.RLock()  # the collector of garbage may call ``remove`` in the middle of ``make``


_scratch = _ScratchDirectory()


def make(kind: str) -> str:
    """A new empty directory; whoever asked for it calls ``remove`` in the end.

    Raises:
        OSError: There can be none.
    """
    with _scratch.mutex:
        if _scratch.pid != os.getpid() or not os.path.isdir(_scratch.path):
            _sweep(tempfile.gettempdir())
            _begin()
        _scratch.left += 1
        try:
            return tempfile.mkdtemp(prefix=f"{kind}_", dir=_scratch.path)
        except BaseException:
            _leave()
            raise


def remove(path: str) -> None:
    """Remove what ``make`` made; does nothing in a fork of the process that made it."""
    with _scratch.mutex:
        if _scratch.pid == os.getpid():
            remove_quietly([path])
            if os.path.dirname(path) == _scratch.path:
                _leave()


def _leave() -> None:
    _scratch.left -= 1
    if not _scratch.left:
        remove_quietly([_scratch.path])
        os.close(_scratch.fd)
        _scratch.pid, _scratch.fd = 0, -1


@contextlib.contextmanager
def directory(kind: str) -> Iterator[str]:
    """A temporary directory while the block runs."""
    path = make(kind)
    try:
        yield path
    finally:
        remove(path)


def _begin() -> None:
    """Make this process's directory and lock it. Another process may take it for a dead one's before it is locked."""
    if _scratch.fd >= 0:
        os.close(_scratch.fd)  # of a directory that somebody has removed
        _scratch.pid, _scratch.fd = 0, -1
    while True:
        path = os.path.join(tempfile.gettempdir(), f"{PREFIX}{os.getuid()}_{names.unique()}")
        os.mkdir(path, 0o700)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if lock(fd) and _is_still(path, fd):
            _scratch.pid, _scratch.path, _scratch.fd, _scratch.left = os.getpid(), path, fd, 0
            return
        os.close(fd)


def _is_still(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _sweep(temporary: str) -> None:
    """Remove directories of this user whose process has ended."""
    try:
        with os.scandir(temporary) as found:
            mine = [entry.path for entry in found if entry.name.startswith(f"{PREFIX}{os.getuid()}_")]
    except OSError:
        return
    for path in mine[:MAX_SWEPT]:
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                # Without locks on this file system nothing is known, and all of them stay.
                if os.fstat(fd).st_uid == os.getuid() and lock(fd, without=False):
                    remove_quietly([path])
            finally:
                os.close(fd)


def _after_fork() -> None:
    """A fork shares its parent's lock, which ends only with both; it makes a directory of its own if it needs one."""
    _scratch.mutex = threading.RLock()
    if _scratch.fd >= 0:
        with contextlib.suppress(OSError):
            os.close(_scratch.fd)
    _scratch.pid, _scratch.fd = 0, -1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
