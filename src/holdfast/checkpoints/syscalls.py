"""Linux system calls that Python does not offer, with fallbacks where they are missing.

Owns the ctypes declarations. Decides nothing about checkpoints.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
from functools import cache
from typing import Any

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_FALLOC_FL_KEEP_SIZE = 1
_FICLONE = 0x40049409
_SYNC_FILE_RANGE_WAIT_BEFORE = 1

# What kernels and file systems answer to a call or flag that they do not know.
UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EPERM})


@cache
def _function(name: str) -> Any:
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), name, None)


def rename_noreplace(source: str, target: str) -> None:
    """Rename, unless ``target`` exists: then ``FileExistsError``, and both are as they were.

    Where the file system cannot promise that (NFS, other systems than Linux) the target is looked for first. One
    process renames checkpoints of an experiment, so the gap between the two steps harms nobody.
    """
    call = _function("renameat2")
    if call is not None:
        if not call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE):
            return
        code = ctypes.get_errno()
        if code not in UNSUPPORTED:
            raise OSError(code, os.strerror(code), source, None, target)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, target)
    os.rename(source, target)


def reserve(fd: int, size: int) -> None:
    """Allocate room for ``size`` bytes, so that a full disk shows now; does nothing where this is not offered.

    ``os.posix_fallocate`` is no substitute: where the file system cannot, it writes to every block.
    """
    call = _function("fallocate")
    if call is None:
        return
    if call(fd, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size)):
        code = ctypes.get_errno()
        if code not in UNSUPPORTED and code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def clone(source: int, target: int) -> bool:
    """Make ``target`` share all blocks of ``source``, copy on write; False where the file system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    import fcntl

    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return False
        raise
    return True


def can_sync_at_once() -> bool:
    """Whether ``sync_file_system`` and ``raise_write_error`` are there, and report what could not be written."""
    return _kernel() >= (5, 8) and _function("syncfs") is not None and _function("sync_file_range") is not None


def sync_file_system(fd: int) -> None:
    """Make everything on the file system of an open file or directory survive a loss of power.

    Raises:
        OSError: Something could not be written; whose it was is not said.
    """
    _call("syncfs", fd)


def raise_write_error(fd: int) -> None:
    """Raise what went wrong when the kernel wrote this file, if nobody has been told yet; waits for writes under way.

    As ``os.fsync`` would, but without a flush of the disk.
    """
    _call("sync_file_range", fd, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WAIT_BEFORE)


def _call(name: str, *arguments: Any) -> None:
    if _function(name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@cache
def _kernel() -> tuple[int, ...]:
    if not sys.platform.startswith("linux"):
        return ()
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
