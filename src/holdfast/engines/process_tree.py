"""Processes below a process: finding them, attributing them, ending them.

Owns: reading /proc and the order of signals that lets no child slip through. Without /proc everything here finds
nothing, and callers fall back to process groups.
Must never: signal this process itself, or wait without a limit.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.engines.nanny_messages import RUN_VARIABLE, WORKER_VARIABLE

_MAX_WALKS = 20  # a tree that still grows after so many rounds is killed as far as it is known
_PAUSE_S = 0.005


class Process(NamedTuple):
    """One line of /proc/<pid>/stat."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int

    @property
    def ended(self) -> bool:
        return self.state in "ZX"


def look(pid: int) -> Process | None:
    """The process, or None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
        # The name stands in parentheses and may itself have spaces and parentheses.
        opening, closing = text.index("("), text.rindex(")")
        state, parent, group, session = text[closing + 2 :].split(" ", 4)[:4]
    except (OSError, ValueError):
        return None
    return Process(pid, text[opening + 1 : closing], state, int(parent), int(group), int(session))


def is_running(pid: int) -> bool:
    """Whether the process exists and is not just waiting to be reaped."""
    process = look(pid)
    return process is not None and not process.ended


def children(pid: int) -> list[int]:
    """Pids of the direct children, those that are not yet reaped included."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}"):
                return [p.pid for p in _everybody() if p.parent == pid]  # a kernel without this file
        except OSError:
            pass
    return found


def running_children(pid: int) -> list[Process]:
    """The direct children that have not ended."""
    processes = (look(child) for child in children(pid))
    return [process for process in processes if process is not None and not process.ended]


def own_children() -> list[Process]:
    """Direct children of this process that have not ended."""
    if hasattr(os, "waitid"):  # macOS has it since Python 3.13
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return []  # the usual case: one question to the kernel instead of a walk through /proc
    return running_children(os.getpid())


def kill_trees(roots: Iterable[int]) -> set[int]:
    """SIGKILL for each root and everything below it; returns who was killed.

    Everything is stopped before anything is killed: a killed parent would hand its children to someone else, and
    a running one could continue making new ones.
    """
    me = os.getpid()
    doomed = {root for root in roots if root != me and _signal(root, signal.SIGSTOP)}
    for _ in range(_MAX_WALKS):
        new = {pid for parent in doomed for pid in children(parent)} - doomed - {me}
        if not new:
            break
        doomed.update(pid for pid in new if _signal(pid, signal.SIGSTOP))
    for pid in doomed:
        _signal(pid, signal.SIGKILL)
    return doomed


def worker_mark(run: str, worker: int) -> str:
    """What ``WORKER_VARIABLE`` is for everything that this worker executes."""
    return f"{run}/{worker}"


def worker_name(worker: int) -> str:
    """The name of a worker process, which children made by a plain fork inherit."""
    return f"holdfast:{worker % 1_000_000}"


def orphans_of(adopter: int, run: str, worker: int, pid: int) -> list[int]:
    """Children of ``adopter`` that descend from a worker that was process ``pid`` and is dead.

    They are known by the worker's process group or session; if they left both (daemons do), by the environment
    they were executed with, or, if they were only forked, by the name they inherited.
    """
    mark, name = f"{WORKER_VARIABLE}={worker_mark(run, worker)}".encode(), worker_name(worker)
    return [
        p.pid
        for p in running_children(adopter)
        if pid in (p.group, p.session) or p.name == name or mark in _environment(p.pid)
    ]


def sweep(run: str, limit_s: float) -> bool:
    """Kill every process that a nanny of this name has left; False if some are still there after ``limit_s``."""
    mark = f"{RUN_VARIABLE}={run}".encode()
    me, deadline = os.getpid(), time.monotonic() + limit_s
    while True:
        left = [p.pid for p in _everybody() if p.pid != me and not p.ended and mark in _environment(p.pid)]
        if not left:
            return True
        kill_trees(left)
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)


def signal_group(pid: int, signum: signal.Signals) -> bool:
    """Signal the process group that ``pid`` leads."""
    try:
        os.killpg(pid, signum)
    except OSError:
        return False
    return True


def _signal(pid: int, signum: signal.Signals) -> bool:
    assert pid > 1, "signals to a group or to everybody are never meant here"
    try:
        os.kill(pid, signum)
    except OSError:
        return False
    return True


def _everybody() -> list[Process]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    processes = (look(int(name)) for name in names if name.isdigit())
    return [process for process in processes if process is not None]


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
