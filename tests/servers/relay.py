"""One client connection of the fault proxy, in a thread of its own.

Owns: the two sockets, and the order of what happens to a request. What is to happen comes from the proxy.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

from servers.faults import Answer, Cut, Delay, DropAnswer, Ending, Fault, Hold, Request, Throttle
from servers.http_wire import Head, Wire

if TYPE_CHECKING:
    from servers.fault_proxy import FaultProxy

CONNECT_TIMEOUT_S = 10
DRAIN_S = 2.0
THROTTLE_STEPS_PER_S = 20

F = TypeVar("F", bound=Fault)


class _Break(Exception):
    """The client's connection is to be broken now."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


class Relay:
    """Passes the requests of one client connection to the server, one after the other."""

    def __init__(self, proxy: FaultProxy, client: socket.socket) -> None:
        self.proxy = proxy
        self.client = Wire(client)
        self.server: Wire | None = None
        self._early_answer: Head | None = None

    def run(self) -> None:
        client = self.client.sock
        if not self.proxy.adopt(client):
            _reset_at_close(client)
            client.close()
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if self.proxy.protocol == "tcp":
                self._pass_bytes()
            else:
                while self._one_request():
                    pass
        except _Break as told:
            if told.ending == "reset":
                _reset_at_close(client)
        except (OSError, ValueError):
            _reset_at_close(client)
        finally:
            self._leave_server()
            self.proxy.release(client)

    # HTTP.

    def _one_request(self) -> bool:
        """Handle the next request; False when the connection is done."""
        raw = self.client.head()
        if raw is None:
            return False
        head = Head.parse(raw)
        request = self.proxy.begin(head)
        try:
            return self._handle(head, request)
        finally:
            request.ended = time.monotonic()

    def _handle(self, head: Head, request: Request) -> bool:
        self.proxy.gate()
        if delay := _fault(request, Delay):
            self.proxy.pause(delay.seconds)
        if hold := _fault(request, Hold):
            self.proxy.hold(hold.until)
        cut = _fault(request, Cut)
        if cut and cut.when == "before":
            raise _Break(cut.ending)
        if head.headers.get("expect", "").lower() == "100-continue":
            self.client.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if answer := _fault(request, Answer):
            return self._answer(head, request, answer)
        whole = self._forward(head, request, cut)
        if cut:
            raise _Break(cut.ending)
        keeps = self._return_answer(request)
        if not (whole and keeps):
            self._leave_server()
            self._end_gently()
            return False
        return head.keeps_connection

    def _answer(self, head: Head, request: Request, answer: Answer) -> bool:
        for _ in self._paced(request, head.request_body(self.client)):
            pass
        request.status = answer.status
        phrase = HTTPStatus(answer.status).phrase
        lines = [f"HTTP/1.1 {answer.status} {phrase}", f"Content-Length: {len(answer.body)}"]
        lines += [f"{name}: {value}" for name, value in answer.headers]
        body = b"" if request.method == "HEAD" else answer.body
        self.client.sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
        return head.keeps_connection

    def _forward(self, head: Head, request: Request, cut: Cut | None) -> bool:
        """Pass the request on; False if the server answered before it had read all of it."""
        server = self._reach_server()
        server.sock.sendall(head.raw)
        request.forwarded = True
        allowed = cut.body_bytes if cut and cut.when == "while" else None
        for piece in self._paced(request, head.request_body(self.client)):
            if allowed is not None:
                piece = piece[: max(0, allowed - request.sent_bytes)]
                if not piece:
                    return False
            if _readable(server) and self._answered_early():
                return False
            try:
                server.sock.sendall(piece)
            except OSError:
                return False  # it answered and closed: the answer may still be there to read
            request.sent_bytes += len(piece)
        return True

    def _return_answer(self, request: Request) -> bool:
        """Pass the answer back; False if the connection ends with it."""
        assert self.server is not None
        answer = self._final_head()
        request.server_status = answer.status
        dropped = _fault(request, DropAnswer)
        body = answer.answer_body(self.server, request.method)
        if dropped and dropped.body_bytes is None:
            for piece in body:
                request.received_bytes += len(piece)
            raise _Break(dropped.ending)
        self.proxy.gate()
        request.status = answer.status  # written down before it is sent: a client that has it finds it on record
        self.client.sock.sendall(answer.raw)
        for piece in self._paced(request, body):
            if dropped and dropped.body_bytes is not None:
                piece = piece[: max(0, dropped.body_bytes - request.received_bytes)]
                if not piece:
                    return False
            request.received_bytes += len(piece)
            self.client.sock.sendall(piece)
        return answer.keeps_connection and not answer.answer_ends_with_connection(request.method)

    def _answered_early(self) -> bool:
        """Whether the server has answered already; `100 Continue` is none: the client has it from us."""
        assert self.server is not None
        raw = self.server.head()
        if raw is None:
            raise ConnectionResetError("the server closed the connection inside a request")
        head = Head.parse(raw)
        self._early_answer = head if head.status >= 200 else None
        return self._early_answer is not None

    def _final_head(self) -> Head:
        assert self.server is not None
        early, self._early_answer = self._early_answer, None
        if early is not None:
            return early
        while (raw := self.server.head()) is not None:
            head = Head.parse(raw)
            if head.status >= 200:
                return head
        raise ConnectionResetError("the server closed the connection without an answer")

    def _end_gently(self) -> None:
        """Close after the client had the chance to read the answer, even if it still sends."""
        with contextlib.suppress(OSError):
            self.client.sock.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + DRAIN_S
            while time.monotonic() < deadline and _readable(self.client, DRAIN_S):
                if not self.client.sock.recv(65536):
                    return

    def _paced(self, request: Request, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The pieces, no faster than the proxy lets them pass."""
        throttle = _fault(request, Throttle)
        start, passed = time.monotonic(), 0
        for piece in pieces:
            step = max(1, throttle.bytes_per_s // THROTTLE_STEPS_PER_S) if throttle else len(piece)
            for offset in range(0, len(piece), step):
                self.proxy.gate()
                part = piece[offset : offset + step]
                if throttle:
                    passed += len(part)
                    self.proxy.pause(start + passed / throttle.bytes_per_s - time.monotonic())
                yield part

    # The server's side.

    def _reach_server(self) -> Wire:
        if self.server is not None and _readable(self.server):
            self._leave_server()  # closed while idle: a restarted server
        if self.server is None:
            sock = socket.create_connection(self.proxy.upstream, timeout=CONNECT_TIMEOUT_S)
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self.proxy.adopt(sock):
                sock.close()
                raise _Break("reset")
            self.server = Wire(sock)
        return self.server

    def _leave_server(self) -> None:
        if self.server is not None:
            self.proxy.release(self.server.sock)
            self.server = None

    # Plain TCP.

    def _pass_bytes(self) -> None:
        request = self.proxy.begin(Head(b"", ("TCP", "", ""), {}))
        try:
            self.proxy.gate()
            if delay := _fault(request, Delay):
                self.proxy.pause(delay.seconds)
            if cut := _fault(request, Cut):
                raise _Break(cut.ending)
            server = self._reach_server()
            request.forwarded = True
            self._shuttle(request, server)
        finally:
            request.ended = time.monotonic()

    def _shuttle(self, request: Request, server: Wire) -> None:
        directions = {self.client.sock: server.sock, server.sock: self.client.sock}
        throttle = _fault(request, Throttle)
        step = max(1, throttle.bytes_per_s // THROTTLE_STEPS_PER_S) if throttle else 65536
        while directions:
            for source in _wait_readable(list(directions)):
                self.proxy.gate()
                piece = source.recv(step)
                if not piece:
                    directions.pop(source).shutdown(socket.SHUT_WR)
                    continue
                directions[source].sendall(piece)
                if source is self.client.sock:
                    request.sent_bytes += len(piece)
                else:
                    request.received_bytes += len(piece)
                if throttle:
                    self.proxy.pause(len(piece) / throttle.bytes_per_s)


def _fault(request: Request, kind: type[F]) -> F | None:
    return next((fault for fault in request.faults if isinstance(fault, kind)), None)


def _readable(wire: Wire, timeout_s: float = 0) -> bool:
    return bool(_wait_readable([wire.sock], timeout_s))


def _wait_readable(connections: list[socket.socket], timeout_s: float | None = None) -> list[socket.socket]:
    """Those that can be read, or are at their end. Unlike ``select`` this takes descriptors beyond 1,023."""
    by_number = {connection.fileno(): connection for connection in connections}
    poller = select.poll()
    for number in by_number:
        poller.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poller.poll(None if timeout_s is None else timeout_s * 1000)]


def _reset_at_close(connection: socket.socket) -> None:
    """Let the peer get RST instead of an orderly end, as from a machine that went away."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def wake_and_break(connection: socket.socket) -> None:
    """Break a connection that another thread waits on."""
    _reset_at_close(connection)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
