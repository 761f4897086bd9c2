"""A proxy in front of a server, which fails as told: per request, or wholly.

Owns: the listening port, the rules in force, and the record of what passed. It runs in threads of the test
process and needs nothing but the standard library. Requests pass unchanged, the Host header included, so that
signatures made for the proxy's address still verify. Must never decide by itself that something fails.

    with FaultProxy(server.endpoint) as proxy:
        proxy.rule(Answer(503), method="PUT", path=r"/manifest", nth=1)
        store = server.store(bucket, endpoint=proxy.endpoint)
        ...
        assert [request.status for request in proxy.matching(method="PUT")] == [503, 200]
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import urlsplit

from servers.faults import Answer, Cut, Delay, DropAnswer, Fault, Hold, OutageKind, Request, Rule, Throttle
from servers.http_wire import Head
from servers.process import HOST, Port, poll
from servers.relay import Relay, wake_and_break

BACKLOG = 128

__all__ = ["Answer", "Cut", "Delay", "DropAnswer", "Fault", "FaultProxy", "Hold", "Request", "Rule", "Throttle"]


@dataclass
class _State:
    """What the threads share, under one lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    rules: list[Rule] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    outage: OutageKind | None = None
    connections: set[socket.socket] = field(default_factory=set)
    threads: set[threading.Thread] = field(default_factory=set)


class FaultProxy:
    """A faulty way to `upstream` (a URL or `host:port`). `protocol="tcp"` passes bytes without reading them.

    With "tcp" each connection counts as one request with the method "TCP" and an empty path, and of the faults only
    Delay, Throttle and Cut("before") have a meaning.
    """

    def __init__(self, upstream: str, protocol: Literal["http", "tcp"] = "http") -> None:
        parts = urlsplit(upstream if "//" in upstream else f"//{upstream}")
        assert parts.hostname, f"upstream must be a URL or host:port, got {upstream!r}"
        self.upstream = (parts.hostname, parts.port or 80)
        self.protocol = protocol
        self._upstream_path = parts.path
        self._port = Port()
        self._state = _State()
        self._closing = threading.Event()
        self._passable = threading.Event()
        self._passable.set()
        self._listener: socket.socket | None = None

    # Life.

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def endpoint(self) -> str:
        """The URL that takes the place of the server's, with the same path (Azurite's has one)."""
        return f"http://{HOST}:{self.port}{self._upstream_path}"

    def start(self) -> Self:
        self._listen()
        return self

    def close(self) -> None:
        """Break all connections and wait for the threads."""
        self._closing.set()
        self._passable.set()
        self._stop_listening()
        self._break_connections()
        with self._state.lock:
            threads = list(self._state.threads)
        for thread in threads:
            thread.join(timeout=10)
            assert not thread.is_alive(), f"{thread.name} did not end"
        self._port.release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # What fails.

    def rule(
        self,
        *faults: Fault,
        method: str | None = None,
        path: str | None = None,
        nth: int | set[int] | None = None,
        times: int | None = None,
        when: Callable[[Request], bool] | None = None,
    ) -> Rule:
        """Let faults meet the requests that match all of the conditions.

        Args:
            faults: What happens; several are combined (Delay and Answer, Throttle and DropAnswer).
            method: The method, in capitals.
            path: A regular expression that is searched in the path with its query.
            nth: Only the match of this number (the first is 1), or of these numbers.
            times: At most so many requests.
            when: Any other condition. It runs under a lock: it must be short.

        Returns:
            The rule, whose counters tests may read. The first rule that chooses a request has it; all rules count.
        """
        pattern = re.compile(path) if path else None

        def matches(request: Request) -> bool:
            return (
                (method is None or request.method == method)
                and (pattern is None or pattern.search(request.path) is not None)
                and (when is None or when(request))
            )

        numbers = frozenset({nth}) if isinstance(nth, int) else frozenset(nth) if nth else None
        rule = Rule(faults, matches, numbers, times)
        with self._state.lock:
            self._state.rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forget all rules; the record stays."""
        with self._state.lock:
            self._state.rules.clear()

    def down(self, kind: OutageKind = "refuse") -> None:
        """Begin an outage, also for the requests under way.

        `refuse`: nobody listens. `reset`: connections are accepted and reset. `hang`: they are accepted, and nothing
        moves until `up`.
        """
        with self._state.lock:
            self._state.outage = kind
        if kind == "hang":
            self._passable.clear()
            return
        if kind == "refuse":
            self._stop_listening()
        self._break_connections()

    def up(self) -> None:
        """End the outage."""
        with self._state.lock:
            self._state.outage = None
        self._passable.set()
        if self._listener is None:
            self._listen()

    @contextlib.contextmanager
    def outage(self, kind: OutageKind = "refuse") -> Iterator[None]:
        """`with proxy.outage(): ...`."""
        self.down(kind)
        try:
            yield
        finally:
            self.up()

    # What passed.

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in the order of arrival, those under way included."""
        with self._state.lock:
            return list(self._state.requests)

    def matching(self, method: str | None = None, path: str | None = None) -> list[Request]:
        """The recorded requests with this method and a path in which this regular expression is found."""
        return [
            request
            for request in self.requests
            if (method is None or request.method == method) and (path is None or re.search(path, request.path))
        ]

    def wait_for(self, count: int, timeout_s: float = 10, **which: str) -> list[Request]:
        """Wait until so many requests have `matching(**which)`, and return them."""
        poll(lambda: len(self.matching(**which)) >= count, timeout_s, f"{count} requests {which}")
        return self.matching(**which)

    def busiest(self, window_s: float = 1.0, **which: str) -> int:
        """The largest number of `matching(**which)` requests that began within any window of this length."""
        times = sorted(request.started for request in self.matching(**which))
        first = most = 0
        for last, moment in enumerate(times):
            while times[first] <= moment - window_s:
                first += 1
            most = max(most, last - first + 1)
        return most

    def forget(self) -> None:
        """Empty the record."""
        with self._state.lock:
            self._state.requests.clear()

    # The inside.

    def _listen(self) -> None:
        listener = socket.create_server((HOST, self.port), backlog=BACKLOG)
        self._listener = listener
        self._spawn(lambda: self._accept(listener), "accept")

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept(), which close() alone does not
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._spawn(Relay(self, client).run, "relay")

    def _spawn(self, work: Callable[[], None], name: str) -> None:
        def run() -> None:
            try:
                work()
            finally:
                with self._state.lock:
                    self._state.threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"fault-proxy-{name}-{self.port}", daemon=True)
        with self._state.lock:
            self._state.threads.add(thread)
        thread.start()

    def _break_connections(self) -> None:
        with self._state.lock:
            for connection in self._state.connections:
                wake_and_break(connection)

    def begin(self, head: Head) -> Request:
        """Record a request, and decide what meets it."""
        request = Request(head.start[0], head.start[1], head.headers, time.monotonic())
        with self._state.lock:
            self._state.requests.append(request)
            for rule in self._state.rules:
                if rule.choose(request) and not request.faults:
                    request.faults = rule.faults
        return request

    def adopt(self, connection: socket.socket) -> bool:
        """Take a connection into the set that an outage breaks; False while one resets everything."""
        with self._state.lock:
            if self._closing.is_set() or self._state.outage in ("reset", "refuse"):
                return False
            self._state.connections.add(connection)
            return True

    def release(self, connection: socket.socket) -> None:
        """Close a connection for good."""
        with self._state.lock:
            self._state.connections.discard(connection)
            connection.close()

    def gate(self) -> None:
        """Wait while the proxy hangs."""
        self._passable.wait()
        if self._closing.is_set():
            raise OSError("the proxy closes")

    def hold(self, until: threading.Event) -> None:
        """Wait for the event, or for the end of the proxy."""
        while not until.wait(0.01) and not self._closing.is_set():
            pass

    def pause(self, seconds: float) -> None:
        """Wait so long, or until the proxy closes."""
        if seconds > 0 and self._closing.wait(seconds):
            raise OSError("the proxy closes")
