"""Files on a local or network file system: the few safe ways to make, replace and grow one.

Owns the order of system calls that makes a write survive a crash, and the `Disk` protocol through which the
journal touches files, so that a test can put a faulty disk in its place. Must never interpret what it stores,
retry, or hide an `OSError`: whoever asked decides what a failure means.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Protocol

from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.untrusted import not_regular, read_regular

TEMP_PREFIX = ".tmp-"

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK})
# fdatasync leaves out the time stamps, which saves a journal transaction of the file system; not every
# platform has it.
_sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def is_full(error: OSError) -> bool:
    """Tell whether an error means "no space left": worth waiting for, nothing is broken."""
    return error.errno in _FULL


def free_bytes(path: str) -> int:
    """Return how many bytes this user may still write on the file system that holds, or would hold, ``path``."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    if hasattr(os, "statvfs"):
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize
    import shutil

    return shutil.disk_usage(path).free


def fsync_dir(path: str) -> None:
    """Make the names inside a directory durable.

    Durability:
        Names made or renamed in ``path`` before the call survive a power cut when it returns.
    """
    if os.name == "nt":  # a directory cannot be opened there, and its entries are written through
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def look_anew(directory: str | os.PathLike[str]) -> None:
    """Let names in a directory be looked for by the server, where other machines may have made or removed some.

    A client of a network file system believes for up to a minute what it knows of names, the missing ones too. That
    hangs on what it knows of their directory, and opening one makes it ask (close-to-open consistency).

    Raises:
        OSError: The directory cannot be read, or is not there.
    """
    if os.name == "nt":  # a directory cannot be opened there
        os.stat(directory)
    else:
        os.close(os.open(directory, os.O_RDONLY))


def write_atomic(path: str, data: bytes, *, label: str = "") -> None:
    """Replace the file ``path``, or make it, so that a reader sees the old bytes or the new, never a mixture.

    Args:
        path: The file. Missing parent directories are made.
        data: Its new content.
        label: Prefix of the two crash points around the rename, for example ``snapshot``.

    Durability:
        When this returns, content and name survive a power cut.
    """
    temp = _write_temp(path, data)
    try:
        crashpoint(label + ".before_rename")
        os.replace(temp, path)
        crashpoint(label + ".after_rename")
    except BaseException:
        _remove_quietly(temp)
        raise
    fsync_dir(os.path.dirname(path) or ".")


def create_exclusive(path: str, data: bytes) -> bool:
    """Make the file ``path`` with this content unless it exists; of any number of callers exactly one makes it.

    ``link(2)`` of a complete temporary file is atomic on NFS too, where ``O_EXCL`` long was not, and never
    shows a half-written file. Where links are not supported, ``O_EXCL`` is what is left.

    Args:
        path: The file. Missing parent directories are made.
        data: Its content.

    Returns:
        True if this call made the file, False if it was there already.

    Durability:
        The content survives a power cut when this returns True; the name does after `fsync_dir` of its parent.
    """
    temp = _write_temp(path, data)
    try:
        os.link(temp, path)
    except FileExistsError:
        # NFS may have carried out the link and lost the answer; its repetition then finds our own file.
        return os.stat(temp).st_nlink == 2
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_without_link(path, data)
    finally:
        _remove_quietly(temp)
    return True


def _create_without_link(path: str, data: bytes) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    _write_all_and_close(fd, data)
    return True


def _write_temp(path: str, data: bytes) -> str:
    parent = os.path.dirname(path)
    temp = os.path.join(parent, f"{TEMP_PREFIX}{os.getpid()}-{os.urandom(6).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        fd = os.open(temp, flags, 0o644)
    except FileNotFoundError:
        make_dirs(parent)
        fd = os.open(temp, flags, 0o644)
    try:
        _write_all_and_close(fd, data)
    except BaseException:
        _remove_quietly(temp)
        raise
    return temp


def _write_all_and_close(fd: int, data: bytes) -> None:
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(path: str) -> None:
    """Make a directory and its missing parents, each one's name durable."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_dirs(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    fsync_dir(parent)


def _remove_quietly(path: str) -> None:
    try:
        os.remove(path)
    except OSError:
        pass


class AppendFile(Protocol):
    """A file open for appending by its one writer."""

    def write(self, data: bytes | memoryview) -> int:
        """Append as much of ``data`` as fits, in one system call, and return how many bytes that was."""

    def sync(self) -> None:
        """Make what was written survive a power cut. After an `OSError` it may never, whatever later calls say."""

    def close(self) -> None:
        """Let go of the file. Closing twice is allowed."""


class Disk(Protocol):
    """Everything the journal does to files. Paths are absolute; failures are `OSError`."""

    def open_append(self, path: str) -> AppendFile:
        """Open an existing file for appending."""

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        """Return up to ``size`` bytes (-1: all) from ``offset``; `FileNotFoundError` if there is no such file.

        What is no regular file, or far too large, is not read: `DamageError`.
        """

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, in any order; empty if there is no such directory."""

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file. Costs one system call: this is the fence of every append."""

    def create_exclusive(self, path: str, data: bytes) -> bool:
        """As the function `create_exclusive`."""

    def write_atomic(self, path: str, data: bytes, *, label: str = "") -> None:
        """As the function `write_atomic`."""

    def overwrite(self, path: str, data: bytes) -> None:
        """Write ``data`` over the start of a file, or make it: cheap, not atomic, not durable."""

    def remove(self, path: str) -> None:
        """Remove a file if it is there."""

    def sync_dir(self, path: str) -> None:
        """As the function `fsync_dir`."""

    def touch(self, path: str) -> None:
        """Set a file's modification time to now, by the file system's own clock."""

    def mtime(self, path: str) -> float:
        """Return a file's modification time in seconds since 1970."""


class _RealAppendFile:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)

    def write(self, data: bytes | memoryview) -> int:
        return os.write(self._fd, data)

    def sync(self) -> None:
        if self._fd < 0:  # os.fdatasync itself would raise ValueError
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        _sync_data(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """The `Disk` of the operating system."""

    def open_append(self, path: str) -> AppendFile:
        return _RealAppendFile(path)

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        try:
            return read_regular(path, offset, size)
        except IsADirectoryError:
            raise not_regular(path) from None

    def list(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        # os.stat costs three times as much here: it builds an exception for the usual answer, "no".
        return os.access(path, os.F_OK)

    def create_exclusive(self, path: str, data: bytes) -> bool:
        return create_exclusive(path, data)

    def write_atomic(self, path: str, data: bytes, *, label: str = "") -> None:
        write_atomic(path, data, label=label)

    def overwrite(self, path: str, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    def remove(self, path: str) -> None:
        try:
            os.remove(path)
        except FileNotFoundError:
            pass

    def sync_dir(self, path: str) -> None:
        fsync_dir(path)

    def touch(self, path: str) -> None:
        os.utime(path)

    def mtime(self, path: str) -> float:
        return os.stat(path).st_mtime


REAL_DISK: Disk = RealDisk()
