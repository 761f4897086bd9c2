"""Locks on local directories, between processes: held while a process works in them or reads them.

Owns how such a lock is taken, and the limit of every wait for one. A lock ends with its process. It only separates
cooperating processes, and some file systems do not support it: safety must never rely on it.
"""

from __future__ import annotations

import os
import time

POLL_S = 0.02


def lock(fd: int, *, shared: bool = False, limit_s: float = 0.0, without: bool = True) -> bool:
    """Lock an open directory until it is closed.

    Args:
        fd: The open directory.
        shared: Allow others who want to share it, too.
        limit_s: How long to wait for somebody else who has it.
        without: The answer where there are no locks.

    Returns:
        False if somebody else still has it.
    """
    try:
        import fcntl
    except ImportError:
        return without
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        except OSError:
            return without
        time.sleep(POLL_S)


def who_holds(fd: int) -> str:
    """The process that has locked an open directory, in words."""
    facts = os.fstat(fd)
    place = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    try:
        with open("/proc/locks") as file:
            found = [line.split() for line in file]
    except OSError:
        found = []
    pids = [fields[4] for fields in found if fields[1:2] == ["FLOCK"] and fields[5:6] == [place]]
    return f"pid {pids[0]}" if pids else "another process of this machine"
