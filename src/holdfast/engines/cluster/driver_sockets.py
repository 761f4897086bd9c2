"""Connections of the driver that no fork of it keeps: whoever is at the other end waits for their end.

A callback may fork, or use multiprocessing. Its child would hold copies of all sockets: if the driver is killed, the
bridge, porters and workers would live on until that child has ended.

Owns: which sockets those are. Must never: touch a socket in the process that has opened it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref

_ours: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_forks(sock: socket.socket) -> socket.socket:
    """Have forks of this process close their copy of the socket. Returns the socket."""
    _ours.add(sock)
    return sock


def _after_fork() -> None:
    for sock in list(_ours):
        with contextlib.suppress(OSError):
            sock.close()
    _ours.clear()


os.register_at_fork(after_in_child=_after_fork)
