"""Why a worker process ended, in words and as a ``Cause``; and the evidence for it.

Owns: the reading of exit statuses, out-of-memory counters and the tail of a log.
Must never: guess without saying so.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterable

from holdfast.core.events import Cause
from holdfast.storage.trial_logs import is_note

TAIL_LINES = 20
TAIL_BYTES = 4096

_RECENT_S = 10.0


def explain(status: int, *, halted: bool, oom: bool, peak_kib: int) -> tuple[str, str]:
    """Cause and detail for a worker that ended in the middle of an attempt.

    Args:
        status: As from ``waitpid``.
        halted: The driver had asked for this end.
        oom: The kernel killed some process for lack of memory at about that time.
        peak_kib: The most memory that the process had in use.
    """
    code = os.waitstatus_to_exitcode(status)
    if halted:
        return Cause.SIGNAL, "ended at the driver's request"
    if code >= 0:
        return Cause.EXIT, f"exit code {code} before the trial had finished"
    name = _signal_name(-code)
    if -code == signal.SIGTERM:
        return Cause.PREEMPTED, f"{name} from another process: the worker was preempted"
    if -code == signal.SIGKILL and oom:
        return Cause.OUT_OF_MEMORY, (
            f"probably out of memory: killed by {name} when the kernel ran out of memory; "
            f"this process had used up to {peak_kib / 1024:,.0f} MiB"
        )
    if -code == signal.SIGKILL:
        return Cause.SIGNAL, f"killed by {name}, which holdfast did not send"
    return Cause.SIGNAL, f"killed by {name}"


def cause_of_failed_start(error: OSError) -> str:
    """Whose fault it is that a worker process could not be started.

    Too many open files, or a file of ours that cannot be opened, is nothing that a trial has done. Without memory for a
    process it is not known: trials may be what has used it.
    """
    unknown = error.errno in (None, errno.EAGAIN, errno.ENOMEM)
    return Cause.EXIT if unknown else Cause.STORAGE


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class OomWitness:
    """Tells whether the kernel's out-of-memory killer may have caused a death.

    Its counters do not say whom it killed: a recent kill that explains no other death is evidence, not proof.
    """

    def __init__(self, counters: Iterable[str] | None = None) -> None:
        files = counters if counters is not None else _counter_files()
        self._known = {file: _oom_kills(file) for file in files}
        self._unexplained = 0
        self._rose_at = float("-inf")

    def look(self) -> None:
        """Read the counters. Kills that went by unclaimed are forgotten after some seconds."""
        now = time.monotonic()
        if now - self._rose_at > _RECENT_S:
            self._unexplained = 0
        counts = {file: _oom_kills(file) for file in self._known}
        rise = max((counts[file] - known for file, known in self._known.items()), default=0)
        if rise > 0:  # the same kill shows in several counters
            self._unexplained += rise
            self._rose_at = now
        self._known = counts

    def explains(self) -> bool:
        """Whether a death that happened just now can be one of the kills; each of them explains one death."""
        self.look()
        if not self._unexplained:
            return False
        self._unexplained -= 1
        return True


def _counter_files() -> list[str]:
    """The machine's counter, and that of the cgroup whose limit may be reached long before the machine's."""
    files = ["/proc/vmstat"]
    for controllers, path in cgroup_paths():
        if controllers == "":
            files.append(f"/sys/fs/cgroup{path}/memory.events")
        elif "memory" in controllers.split(","):
            files.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    return [file for file in files if os.path.exists(file)]


def cgroup_paths() -> list[tuple[str, str]]:
    """(controllers, path) of the cgroups of this process; controllers are "" for version 2."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            parts = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    return [(part[1], part[2].rstrip("/")) for part in parts if len(part) == 3]


def _oom_kills(file: str) -> int:
    try:
        with open(file, encoding="ascii", errors="replace") as lines:
            for line in lines:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def size_of(path: str) -> int:
    """Size of a file in bytes; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def tail(path: str, offset: int) -> str:
    """The last lines that were written to ``path`` from ``offset`` on, without those that we wrote there."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            if end < offset:
                offset = 0  # it was cut meanwhile
            file.seek(max(offset, end - TAIL_BYTES, 0))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join([line for line in text.splitlines() if not is_note(line)][-TAIL_LINES:])
