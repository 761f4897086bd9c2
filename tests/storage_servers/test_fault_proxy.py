"""Every fault of the proxy, in front of a server that keeps count of what reaches it."""

from __future__ import annotations

import http.client
import http.server
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from servers.fault_proxy import Answer, Cut, Delay, DropAnswer, FaultProxy, Hold, Throttle
from servers.process import poll
from servers.seaweedfs import SeaweedFS

Proxies = Callable[..., FaultProxy]
BROKEN = (http.client.HTTPException, OSError)


@dataclass
class Backend:
    """A server that remembers the bodies that arrived whole, and answers a GET with the number in its path."""

    endpoint: str = ""
    bodies: list[bytes] = field(default_factory=list)
    whole_bytes: int = 0


@pytest.fixture
def backend() -> Iterator[Backend]:
    state = Backend()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            left, body = int(self.headers["Content-Length"]), b""
            while left:
                piece = self.rfile.read(min(left, 1 << 16))
                if not piece:
                    self.close_connection = True
                    return
                left -= len(piece)
                state.whole_bytes += len(piece)
                body = (body + piece)[:100]
            state.bodies.append(body)
            self.answer(200, b"stored")

        def do_GET(self) -> None:
            if self.path == "/chunked":
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.write(b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n")
            else:
                self.answer(200, b"x" * int(self.path.strip("/") or 0))

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    class QuietServer(http.server.ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Broken connections are what the tests are about."""

    server = QuietServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.endpoint = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def ask(proxy: FaultProxy, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=20)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_requests_pass_and_are_recorded(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    assert ask(proxy, "PUT", "/key?x=1", b"content") == (200, b"stored")
    assert ask(proxy, "GET", "/10") == (200, b"x" * 10)
    put, get = proxy.requests
    assert (put.method, put.path, put.status, put.sent_bytes, put.forwarded) == ("PUT", "/key?x=1", 200, 7, True)
    assert (get.method, get.path, get.status, get.received_bytes) == ("GET", "/10", 200, 10)
    assert put.headers["host"] == f"127.0.0.1:{proxy.port}"
    assert put.started <= get.started


def test_one_connection_carries_many_requests_of_every_framing(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=20)
    for method, path, expected in (("GET", "/chunked", b"abcdefg"), ("HEAD", "/1000", b""), ("GET", "/5", b"xxxxx")):
        connection.request(method, path)
        assert connection.getresponse().read() == expected
    connection.request("PUT", "/key", iter([b"one", b"two"]), {"Content-Length": "6", "Expect": "100-continue"})
    assert connection.getresponse().read() == b"stored"
    connection.close()
    assert backend.bodies == [b"onetwo"]


@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_an_answer_of_the_proxy_keeps_the_request_from_the_server(
    backend: Backend, fault_proxy: Proxies, status: int
) -> None:
    proxy = fault_proxy(backend.endpoint)
    proxy.rule(Answer(status, b"no", (("Retry-After", "1"),)), method="PUT", times=1)
    assert ask(proxy, "PUT", "/key", b"content") == (status, b"no")
    assert backend.bodies == []
    assert ask(proxy, "PUT", "/key", b"content")[0] == 200
    assert [(request.status, request.forwarded) for request in proxy.requests] == [(status, False), (200, True)]


def test_rules_choose_by_method_path_number_and_condition(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    by_number = proxy.rule(Answer(503), method="PUT", path=r"/man.fest$", nth={2, 3})
    by_header = proxy.rule(Answer(403), when=lambda request: request.path.startswith("/secret"))
    answers = [ask(proxy, "PUT", "/manifest", b"x")[0] for _ in range(4)]
    assert answers == [200, 503, 503, 200]
    assert [ask(proxy, "PUT", "/other", b"x")[0], ask(proxy, "GET", "/0")[0]] == [200, 200]
    assert ask(proxy, "PUT", "/secret", b"x")[0] == 403
    assert (by_number.seen, by_number.hits, by_header.seen, by_header.hits) == (4, 2, 1, 1)
    proxy.clear()
    assert ask(proxy, "PUT", "/secret", b"x")[0] == 200


def test_a_cut_before_forwarding_never_reaches_the_server(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    proxy.rule(Cut("before"), method="PUT")
    with pytest.raises(BROKEN):
        ask(proxy, "PUT", "/key", b"content")
    assert (proxy.requests[0].forwarded, proxy.requests[0].status, backend.whole_bytes) == (False, None, 0)


def test_a_cut_while_forwarding_gives_the_server_a_part(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    proxy.rule(Cut("while", body_bytes=100_000), method="PUT")
    with pytest.raises(BROKEN):
        ask(proxy, "PUT", "/key", b"x" * 1_000_000)
    poll(lambda: backend.whole_bytes > 0, 10, "the part")
    assert (proxy.requests[0].sent_bytes, backend.bodies) == (100_000, [])


def test_a_cut_after_forwarding_leaves_the_whole_request_with_the_server(
    backend: Backend, fault_proxy: Proxies
) -> None:
    proxy = fault_proxy(backend.endpoint)
    proxy.rule(Cut("after"), method="PUT")
    with pytest.raises(BROKEN):
        ask(proxy, "PUT", "/key", b"content")
    poll(lambda: backend.bodies == [b"content"], 10, "the request")
    assert proxy.requests[0].server_status is None


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_dropped_answer_comes_after_the_server_acted(backend: Backend, fault_proxy: Proxies, ending: str) -> None:
    proxy = fault_proxy(backend.endpoint)
    proxy.rule(DropAnswer(ending=ending), method="PUT", nth=1)
    expected = http.client.RemoteDisconnected if ending == "close" else ConnectionResetError
    with pytest.raises(expected):
        ask(proxy, "PUT", "/key", b"content")
    assert backend.bodies == [b"content"]
    assert (proxy.requests[0].server_status, proxy.requests[0].status) == (200, None)


def test_a_download_is_torn_after_so_many_bytes(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    proxy.rule(DropAnswer(body_bytes=70_000), method="GET")
    with pytest.raises(http.client.IncompleteRead) as torn:
        ask(proxy, "GET", "/200000")
    assert len(torn.value.partial) == 70_000


def test_delay_and_throttle_take_their_time(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    proxy.rule(Delay(0.2), path="delayed")
    proxy.rule(Throttle(1_000_000), path="slow|200000")
    for method, path, size in (("PUT", "/delayed", 1), ("PUT", "/slow", 200_000), ("GET", "/200000", 0)):
        assert ask(proxy, method, path, b"x" * size if method == "PUT" else None)[0] == 200
    poll(lambda: all(request.ended for request in proxy.requests), 10, "the ends")
    # A lower bound is no guess about the machine's speed: the proxy must not be faster than told.
    assert all(request.ended - request.started >= 0.19 for request in proxy.requests if request.ended)
    assert backend.whole_bytes == 200_001


def test_a_held_request_arrives_when_it_is_let_go(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    late = threading.Event()
    rule = proxy.rule(Hold(late), path="late", times=1)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(ask, proxy, "PUT", "/late", b"old")
        poll(lambda: rule.hits == 1, 10, "the request")
        assert ask(proxy, "PUT", "/late", b"new")[0] == 200
        assert backend.bodies == [b"new"]
        late.set()
        assert held.result(10)[0] == 200
    assert backend.bodies == [b"new", b"old"]


def test_nobody_listens_during_an_outage(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    with proxy.outage(), pytest.raises(ConnectionRefusedError):
        ask(proxy, "GET", "/1")
    assert ask(proxy, "GET", "/1") == (200, b"x")


def test_an_outage_breaks_connections_that_are_open(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    with socket.create_connection(("127.0.0.1", proxy.port)) as idle:
        idle.sendall(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(100)
        proxy.down("reset")
        idle.settimeout(10)
        try:
            while idle.recv(100):
                pass
        except ConnectionResetError:
            pass
    with pytest.raises(BROKEN):
        ask(proxy, "GET", "/1")
    proxy.up()
    assert ask(proxy, "GET", "/1") == (200, b"x")


def test_requests_hang_until_the_outage_ends(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    answers: list[tuple[int, bytes]] = []
    proxy.down("hang")
    asking = threading.Thread(target=lambda: answers.append(ask(proxy, "GET", "/1")))
    asking.start()
    proxy.wait_for(1)
    asking.join(0.1)
    assert answers == []
    proxy.up()
    asking.join(10)
    assert answers == [(200, b"x")]


def test_a_hanging_proxy_closes_at_once(backend: Backend) -> None:
    with FaultProxy(backend.endpoint) as proxy:
        proxy.down("hang")
        sock = socket.create_connection(("127.0.0.1", proxy.port))
        sock.sendall(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
        proxy.wait_for(1)
    sock.close()
    assert not [thread for thread in threading.enumerate() if str(proxy.port) in thread.name]


def test_a_server_that_is_down_breaks_the_connection_of_the_client(fault_proxy: Proxies) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(BROKEN):
        ask(fault_proxy(f"127.0.0.1:{port}"), "GET", "/1")


def test_the_busiest_second_is_counted_from_the_record(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    for _ in range(5):
        ask(proxy, "GET", "/1")
    for request, moment in zip(proxy.requests, [0.0, 0.5, 0.9, 1.6, 5.0], strict=True):
        request.started = moment
    assert proxy.busiest() == 3
    assert proxy.busiest(2.0) == 4
    assert proxy.busiest(method="PUT") == 0
    proxy.forget()
    assert proxy.requests == []


def test_large_bodies_pass_with_little_memory(backend: Backend, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(backend.endpoint)
    size, piece = 256 * 1024 * 1024, b"x" * (1 << 20)
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    connection.request("PUT", "/key", (piece for _ in range(size // len(piece))), {"Content-Length": str(size)})
    assert connection.getresponse().read() == b"stored"
    connection.close()
    assert backend.whole_bytes == size
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_a_lost_answer_makes_the_client_meet_its_own_object(
    seaweedfs: SeaweedFS, bucket_name: str, fault_proxy: Proxies
) -> None:
    """The client repeats a create-only put whose answer was lost, and is told that somebody was faster."""
    exceptions = pytest.importorskip("obstore.exceptions")
    proxy = fault_proxy(seaweedfs.endpoint)
    proxy.rule(DropAnswer(), method="PUT", path="manifest", nth=1)
    store = seaweedfs.store(seaweedfs.bucket(bucket_name), endpoint=proxy.endpoint)
    with pytest.raises(exceptions.AlreadyExistsError):
        store.put("manifest", b"mine", mode="create")
    assert bytes(store.get("manifest").bytes()) == b"mine"
    assert [request.server_status for request in proxy.matching("PUT")] == [200, 412]


def test_an_upload_that_was_cut_leaves_no_object(seaweedfs: SeaweedFS, bucket_name: str, fault_proxy: Proxies) -> None:
    exceptions = pytest.importorskip("obstore.exceptions")
    proxy = fault_proxy(seaweedfs.endpoint)
    proxy.rule(Cut("while", body_bytes=500_000), method="PUT")
    bucket = seaweedfs.bucket(bucket_name)
    store = seaweedfs.store(bucket, endpoint=proxy.endpoint, retry_config={"max_retries": 0})
    with pytest.raises(exceptions.BaseError):
        store.put("large", b"x" * 4_000_000, use_multipart=False)
    assert seaweedfs.store(bucket).list().collect() == []


def test_a_throttled_request_ends_when_the_proxy_closes(backend: Backend) -> None:
    proxy = FaultProxy(backend.endpoint).start()
    proxy.rule(Throttle(10))
    errors: list[BaseException] = []

    def send() -> None:
        try:
            ask(proxy, "PUT", "/key", b"x" * 10_000)
        except BROKEN as error:
            errors.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    proxy.wait_for(1)
    proxy.close()  # which itself insists that its threads end soon; the request would take a quarter of an hour
    sending.join(10)
    assert errors
