"""Runs a command that dies with the process that started it.

Owns: the step between `fork` and `exec`. It is a script of its own, because code between fork and exec inside a
test process with threads may deadlock; must never import anything but the standard library.

The kernel kills the command itself; a watcher in a session of its own ends the helper processes of the command, which
the kernel does not know about, and which may be stopped at that moment.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1


def watch(parent: int, server: int) -> None:
    """Wait until either process ends, then end the group of the server."""
    poller = select.poll()
    for pid in (parent, server):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            break
        poller.register(handle, select.POLLIN)
    else:
        poller.poll()
    try:
        os.killpg(server, signal.SIGKILL)
    except ProcessLookupError:
        pass


def start_watcher(parent: int) -> None:
    """Fork twice, so that the command gets no child that it does not know."""
    server = os.getpid()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            watch(parent, server)
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    start_watcher(parent)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above: nobody would tell us
        sys.exit(f"the starting process {parent} is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
