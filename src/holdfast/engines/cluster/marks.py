"""Marks by which everything that a worker on another machine has started can be found, however it detached itself.

A worker there is not our child, so nobody can adopt its orphans. What it executes inherits an environment variable;
what it only forks inherits a mapping of a file that is named after the worker, which shows in /proc. Neither is lost by
changing the session, by closing descriptors or by forking twice.

Owns: setting and finding those marks. Must never: signal anything itself.
"""

from __future__ import annotations

import contextlib
import mmap
import os

from holdfast.engines import process_tree
from holdfast.engines.nanny_messages import WORKER_VARIABLE

_kept: list[mmap.mmap] = []  # for the life of the process


def run_on(run: str, node: str) -> str:
    """The name of a run on one node: a machine may be more than one node of a cluster."""
    return f"{run}.{node[:8]}"


def mark_this_process(folder: str, run: str, worker: int) -> None:
    """Mark this process, and everything that it starts from now on, as this worker's."""
    os.environ[WORKER_VARIABLE] = process_tree.worker_mark(run, worker)
    os.makedirs(folder, exist_ok=True)
    path = _file(folder, run, worker)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        _kept.append(mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ))
    finally:
        os.close(fd)


def unmark_this_process(folder: str, run: str, worker: int) -> None:
    """The worker has left, and its process runs on without it."""
    os.environ.pop(WORKER_VARIABLE, None)
    for mapping in _kept:
        with contextlib.suppress(BufferError):
            mapping.close()
    _kept.clear()
    with contextlib.suppress(OSError):
        os.unlink(_file(folder, run, worker))


def marked(folder: str, run: str, worker: int | None = None) -> list[int]:
    """Processes of one worker, or of all workers of a run, that have not ended."""
    wanted = process_tree.worker_mark(run, worker) if worker is not None else f"{run}/"
    variable = f"{WORKER_VARIABLE}={wanted}".encode()
    mapped = (_file(folder, run, worker) if worker is not None else f"{folder}/{run}-").encode()
    found = []
    for name in _numbers("/proc"):
        pid = int(name)
        if pid == os.getpid():
            continue
        if _has(f"/proc/{name}/environ", variable, exact=worker is not None) or _has(f"/proc/{name}/maps", mapped):
            process = process_tree.look(pid)
            if process is not None and not process.ended:
                found.append(pid)
    return found


def _file(folder: str, run: str, worker: int) -> str:
    return f"{folder}/{run}-{worker}.mark"


def _numbers(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []


def _has(path: str, mark: bytes, *, exact: bool = False) -> bool:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return False
    return mark + b"\0" in data + b"\0" if exact else mark in data
