"""Starting the bridge to a cluster, as a process of its own or as a thread of this one.

Owns: the process or thread, and the first answer of the cluster. Must never: import the cluster's library itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.engines.cluster import bridge_messages as say
from holdfast.engines.cluster.driver_sockets import close_in_forks
from holdfast.engines.cluster.handshake import HandshakeError, frame, receive_frame
from holdfast.engines.cluster.joined import is_joined_to
from holdfast.errors import TuneError

JOIN_S = 90.0
"""How long joining a cluster may take; importing Ray alone takes up to two seconds."""


REJOIN_S = 60.0
"""How long a lost cluster is looked for before the run ends."""

REJOIN_PAUSE_S = 2.0


class BridgeProcess:
    """A bridge at work.

    Attributes:
        sock: The connection to it.
    """

    def __init__(self, sock: socket.socket, process: subprocess.Popen[bytes] | None) -> None:
        self.sock = close_in_forks(sock)
        self._process = process

    def close(self) -> None:
        """Hang up; the bridge gives back all that it occupies, and ends."""
        with contextlib.suppress(OSError):
            self.sock.close()
        if self._process is not None:
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def join_cluster(address: str | None, log: Path, within_s: float = JOIN_S) -> tuple[BridgeProcess, say.ClusterJoined]:
    """Start a bridge and have it join.

    Args:
        address: Of the cluster; None for the one that this process has joined.
        log: Where a bridge of its own prints.
        within_s: How long that may take.

    Raises:
        TuneError: It cannot be joined; says why and what to do.
    """
    here = is_joined_to(address)  # another cluster than that of this process needs a process of its own
    if address is None and not here:
        raise TuneError(
            'RunConfig(engine="ray") needs a cluster: call ray.init(address=...) before, or give its address, '
            "RunConfig(engine=RayEngine(address='HOST:6379')). No cluster is joined by accident. Nothing was run."
        )
    ours, theirs = socket.socketpair()
    bridge = BridgeProcess(ours, None if here else _start_process(theirs, log))
    if here:
        _start_thread(theirs)
    try:
        ours.settimeout(within_s)
        ours.sendall(frame(say.OpenCluster(address or "")))
        answer = say.decode_word(receive_frame(ours))
    except (OSError, HandshakeError) as error:
        bridge.close()
        raise TuneError(
            f"The Ray cluster at {address!r} could not be joined within {within_s:.0f} s ({error}); see {log}. "
            "Nothing was run."
        ) from error
    if isinstance(answer, say.Refused):
        bridge.close()
        raise TuneError(f"{answer.text} Nothing was run.")
    assert isinstance(answer, say.ClusterJoined)
    return bridge, answer


def rejoin_cluster(
    old: BridgeProcess | None, address: str | None, log: Path, is_over: Callable[[], bool]
) -> tuple[BridgeProcess, say.ClusterJoined] | None:
    """End the bridge to a cluster that was lost, and look for the cluster.

    Returns None if it did not come back in time, or nobody waits for it any more.
    """
    if old is not None:
        old.close()
    deadline = time.monotonic() + REJOIN_S
    while (left_s := deadline - time.monotonic()) > 0 and not is_over():
        try:
            return join_cluster(address, log, left_s)
        except (TuneError, OSError):
            time.sleep(min(REJOIN_PAUSE_S, left_s))
    return None


def _start_process(theirs: socket.socket, log: Path) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(filter(None, sys.path))
    with open(log, "ab") as output, theirs:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast.engines.cluster.bridge", str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl+C is the driver's to interpret
        )


def _start_thread(theirs: socket.socket) -> None:
    from holdfast.engines.cluster.bridge import Bridge

    threading.Thread(target=Bridge(close_in_forks(theirs)).serve, daemon=True, name="holdfast-bridge").start()
