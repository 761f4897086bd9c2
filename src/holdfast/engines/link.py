"""A non-blocking, framed Unix socket that can carry file descriptors.

Owns: the unsent rest of what was given to ``send``, so that a peer that does not read can never stop its sender.
Must never: block, know what a message means, or raise because the peer is gone (``receive`` tells that).
"""

from __future__ import annotations

import os
import socket
from collections import deque

from holdfast.storage.framing import READ_BYTES
from holdfast.trainable.worker_messages import FRAMING

_MAX_FDS = 64  # as many descriptors as one read takes over


class SocketLink:
    """One end of a connection.

    Attributes:
        waiting: Something could not be sent yet; call ``flush`` when the socket becomes writable.
        unread: The peer ended without having read everything that was sent (known on Linux only).
    """

    __slots__ = ("_arrived_fds", "_frames", "_outgoing", "socket", "unread", "waiting")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.waiting = False
        self.unread = False
        self._frames = FRAMING.decoder()
        self._outgoing: deque[tuple[memoryview, int]] = deque()
        self._arrived_fds: deque[int] = deque()

    def fileno(self) -> int:
        return self.socket.fileno()

    def unsent(self) -> int:
        """How many bytes are kept, for senders that can wait."""
        return sum(len(data) for data, _ in self._outgoing)

    def send(self, data: bytes) -> None:
        """Send now what the socket takes and keep the rest."""
        if self._outgoing:
            self._outgoing.append((memoryview(data), -1))
            return
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return
        if sent < len(data):
            self._outgoing.append((memoryview(data)[sent:], -1))
            self.waiting = True

    def send_with_fd(self, data: bytes, fd: int) -> None:
        """Like ``send``, with a descriptor that becomes the link's own and is closed once it has left."""
        self._outgoing.append((memoryview(data), fd))
        self.flush()

    def flush(self) -> None:
        """Continue sending what is kept."""
        while self._outgoing:
            data, fd = self._outgoing[0]
            try:
                if fd >= 0:
                    sent = socket.send_fds(self.socket, [data], [fd])
                else:
                    sent = self.socket.send(data)
            except BlockingIOError:
                break
            except OSError:
                self._forget_outgoing()
                break
            if fd >= 0:
                os.close(fd)
            if sent == len(data):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (data[sent:], -1)
        self.waiting = bool(self._outgoing)

    def receive(self) -> list[bytes] | None:
        """The payloads that one read completes; None when the peer is gone.

        Raises:
            ValueError: If the bytes are not frames.
        """
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            self.unread = True
            return None
        except OSError:
            return None
        return self._frames.feed(data) if data else None

    def receive_rest(self) -> list[bytes]:
        """The payloads of everything that has arrived; for a peer that is known to be dead.

        Raises:
            ValueError: If the bytes are not frames.
        """
        payloads: list[bytes] = []
        try:
            while data := self.socket.recv(READ_BYTES):
                payloads.extend(self._frames.feed(data))
        except ConnectionResetError:
            self.unread = True
        except OSError:
            pass
        return payloads

    def receive_with_fds(self) -> list[bytes] | None:
        """Like ``receive``; descriptors that came along wait for ``take_fd``."""
        try:
            data, fds, flags, _ = socket.recv_fds(self.socket, READ_BYTES, _MAX_FDS)
        except BlockingIOError:
            return []
        except OSError:
            return None
        for fd in fds:
            os.set_inheritable(fd, False)
        if flags & socket.MSG_CTRUNC and not fds:
            fds = [-1]  # this process may open no more files, so the kernel has dropped it
        self._arrived_fds.extend(fds)
        return self._frames.feed(data) if data else None

    def take_fd(self) -> int:
        """The oldest descriptor that arrived, -1 for one that was lost; in the order of their messages."""
        return self._arrived_fds.popleft()

    def close(self) -> None:
        """Close this process's copy of everything; a copy in another process stays open."""
        self._forget_outgoing()
        while self._arrived_fds:
            if (fd := self._arrived_fds.popleft()) >= 0:
                os.close(fd)
        self.socket.close()

    def _forget_outgoing(self) -> None:
        for _, fd in self._outgoing:
            if fd >= 0:
                os.close(fd)
        self._outgoing.clear()
        self.waiting = False
