"""The framing of HTTP/1.1 messages on a socket: heads, and bodies that are passed on piece by piece.

Owns: where a message starts and ends. Must never hold a body in memory, and never change a byte that it passes on:
a request that was signed for the proxy's address must reach the server as it was signed.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

PIECE_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_LINE_BYTES = 8 * 1024


class ConnectionEnded(OSError):
    """The other side closed the connection in the middle of a message."""


class Wire:
    """A socket with the bytes that were read from it too early."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._early = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def head(self) -> bytes | None:
        """The next head with its empty line; None if the connection ended between two messages."""
        while (end := self._early.find(b"\r\n\r\n")) < 0:
            if len(self._early) > MAX_HEAD_BYTES:
                raise ConnectionEnded(f"a head of more than {MAX_HEAD_BYTES} bytes")
            more = self.sock.recv(PIECE_BYTES)
            if not more:
                if self._early:
                    raise ConnectionEnded("the connection ended inside a head")
                return None
            self._early += more
        head, self._early = self._early[: end + 4], self._early[end + 4 :]
        return head

    def piece(self, limit: int) -> bytes:
        """At least one byte and at most `limit` of them."""
        if self._early:
            taken, self._early = self._early[:limit], self._early[limit:]
            return taken
        taken = self.sock.recv(min(limit, PIECE_BYTES))
        if not taken:
            raise ConnectionEnded("the connection ended inside a body")
        return taken

    def line(self) -> bytes:
        """One line with its end."""
        while (end := self._early.find(b"\r\n")) < 0:
            if len(self._early) > MAX_LINE_BYTES:
                raise ConnectionEnded(f"a chunk line of more than {MAX_LINE_BYTES} bytes")
            more = self.sock.recv(PIECE_BYTES)
            if not more:
                raise ConnectionEnded("the connection ended inside a body")
            self._early += more
        line, self._early = self._early[: end + 2], self._early[end + 2 :]
        return line

    def exactly(self, count: int) -> Iterator[bytes]:
        while count:
            taken = self.piece(count)
            count -= len(taken)
            yield taken

    def chunked(self) -> Iterator[bytes]:
        while True:
            line = self.line()
            yield line
            size = int(line.split(b";")[0], 16)
            if not size:
                break
            yield from self.exactly(size + 2)
        while True:  # trailers, up to and with the empty line
            line = self.line()
            yield line
            if line == b"\r\n":
                return

    def to_the_end(self) -> Iterator[bytes]:
        while taken := (self._early or self.sock.recv(PIECE_BYTES)):
            self._early = b""
            yield taken


@dataclass(frozen=True)
class Head:
    """What a head says about the message."""

    raw: bytes
    start: tuple[str, str, str]
    headers: dict[str, str]

    @classmethod
    def parse(cls, raw: bytes) -> Head:
        first, *lines = raw.decode("latin-1").split("\r\n")
        words = (first.split(" ", 2) + ["", ""])[:3]
        pairs = (line.partition(":") for line in lines if line)
        return cls(raw, (words[0], words[1], words[2]), {n.strip().lower(): v.strip() for n, _, v in pairs})

    @property
    def status(self) -> int:
        return int(self.start[1])

    @property
    def keeps_connection(self) -> bool:
        version = self.start[2] if self.start[2].startswith("HTTP/") else self.start[0]
        connection = self.headers.get("connection", "").lower()
        return "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)

    def length(self) -> int:
        """The announced length; 0 if none is announced."""
        return int(self.headers.get("content-length", "0"))

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    def request_body(self, wire: Wire) -> Iterator[bytes]:
        return wire.chunked() if self.is_chunked else wire.exactly(self.length())

    def answer_body(self, wire: Wire, method: str) -> Iterator[bytes]:
        if method == "HEAD" or self.status in (204, 304) or self.status < 200:
            return iter(())
        if self.is_chunked:
            return wire.chunked()
        return wire.exactly(self.length()) if "content-length" in self.headers else wire.to_the_end()

    def answer_ends_with_connection(self, method: str) -> bool:
        bodiless = method == "HEAD" or self.status in (204, 304)
        return not bodiless and not self.is_chunked and "content-length" not in self.headers
