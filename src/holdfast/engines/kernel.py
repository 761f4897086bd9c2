"""Small guarded calls into the kernel. Each returns False or None where the platform does not have it.

Owns: prctl, pidfd, oom_score_adj, limits. Must never: raise because something is missing.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_TRIALS_DIE_FIRST = b"500"

_libc: Any = None


def _prctl(option: int, argument: int | bytes) -> bool:
    global _libc
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes  # the driver imports this module too, and has no use for it

        if _libc is None:
            _libc = ctypes.CDLL(None)
        value = argument if isinstance(argument, bytes) else ctypes.c_ulong(argument)
        return bool(_libc.prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def adopt_orphans() -> bool:
    """Make this process the parent of every descendant whose own parent dies."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> bool:
    """Have this process killed when the *thread* that forked it ends; False if ``parent`` is gone already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def exit_without_parent(parent: int) -> None:
    """Have this process leave when process ``parent`` ends. Until ``stay_without_parent``."""

    def check(*_: object) -> None:
        # The signal also comes when only the thread that started this process has ended.
        if os.getppid() != parent:
            os._exit(1)

    signal.signal(signal.SIGUSR1, check)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    check()


def stay_without_parent() -> None:
    """Undo ``exit_without_parent``."""
    _prctl(_PR_SET_PDEATHSIG, 0)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def set_name(name: str) -> None:
    """Name this process (15 bytes); children that do not exec inherit it."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def offer_to_oom_killer() -> None:
    """Let the kernel choose a trial rather than the driver when memory runs out. Raising needs no rights."""
    try:
        with open("/proc/self/oom_score_adj", "wb") as file:
            file.write(_TRIALS_DIE_FIRST)
    except OSError:
        pass


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def thread_count() -> int:
    """Threads of this process, native ones included; 1 if that cannot be known."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def limit_data(limit_bytes: int) -> int | None:
    """Set the soft limit on private writable memory and return the old one.

    RLIMIT_DATA and not RLIMIT_AS: CUDA reserves address space far beyond any sensible limit.
    """
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
        return soft
    except (ImportError, OSError, ValueError):
        return None
