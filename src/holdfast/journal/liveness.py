"""What can be known, in another container or after a reboot, about the process that made a claim.

A pid means something only within its pid namespace. Across namespaces there are two kinds of evidence:

- A lock. A driver holds a shared ``flock`` on the directory of the epochs while it lives. On one kernel the lock is
  seen through every namespace, and the kernel drops it with the last process that has it. So a free lock proves that
  the driver is gone. A lock that is held proves nothing: forks inherit it. The claim names the directory by device and
  inode, because a copy of the experiment, or a mirror made from a store, holds the claim but not the lock. Network file
  systems and FUSE are left out: their locks may be lost, or be kept per mount.
- Silence. A driver touches its epoch file every few seconds.

Owns that evidence. Safety never depends on it: epochs fence. It only decides how long an accidental second start is
refused. A driver that is wrongly taken for dead would be fenced, so whatever is not proven waits for silence.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

from holdfast.storage.mounts import is_own

_TRIES = 50
_PAUSE_S = 0.002
_BOOT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_held: dict[str, int] = {}  # open directories by the writer of the claim


def hold_lock(directory: str, writer: str) -> str:
    """Hold the lock that ends with this process, until ``drop_lock``.

    Returns:
        The mark of the directory, for the claim; "" if nobody could rely on a lock there.
    """
    try:
        import fcntl

        if not is_own(directory):
            return ""
        fd = os.open(directory, os.O_RDONLY)
    except (ImportError, OSError):
        return ""
    for _ in range(_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody looks whether it is free, which takes microseconds
            time.sleep(_PAUSE_S)
            continue
        except OSError:
            break
        _held[writer] = fd
        return _mark(fd)
    os.close(fd)
    return ""


def drop_lock(writer: str) -> None:
    """Let go of the lock of this process for a claim; nothing if it has none."""
    fd = _held.pop(writer, None)
    if fd is not None:
        with contextlib.suppress(OSError):
            os.close(fd)


def is_unlocked(directory: str, mark: str) -> bool:
    """Tell whether this is the locked directory, and no process of this kernel holds its lock any more."""
    try:
        import fcntl

        fd = os.open(directory, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        if _mark(fd) != mark or not is_own(directory):
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def is_same_place(directory: str, mark: str) -> bool:
    """Tell whether a directory is the one that was locked, and only one kernel at a time can have it."""
    try:
        fd = os.open(directory, os.O_RDONLY)
    except OSError:
        return False
    try:
        return _mark(fd) == mark and is_own(directory)
    finally:
        os.close(fd)


def is_elsewhere(directory: str, mark: str) -> bool:
    """Tell whether another directory was locked: this one is a copy of it, and its driver never looks here.

    False if that is not certain.
    """
    try:
        fd = os.open(directory, os.O_RDONLY)
    except OSError:
        return False
    try:
        return bool(mark) and _mark(fd) != mark and is_own(directory)
    finally:
        os.close(fd)


def _mark(fd: int) -> str:
    found = os.fstat(fd)
    return f"{found.st_dev}:{found.st_ino}"


def boot_of(machine: str) -> str:
    """The boot id in the name of a machine; "" if it has none."""
    boot = machine.partition(" ")[0]
    return boot if _BOOT.fullmatch(boot) else ""


def namespace_age_s() -> float | None:
    """How long ago the first process of this pid namespace began; None if that cannot be known."""
    try:
        with open("/proc/1/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
