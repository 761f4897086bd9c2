"""Who may speak to the driver: those who know the secret, and nobody else."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.engines.cluster import handshake
from holdfast.engines.cluster.door import Door
from holdfast.engines.link import SocketLink


class Doorman:
    """A driver that does nothing but open its door."""

    def __init__(self) -> None:
        self.secret = handshake.new_secret()
        self.came_in: list[handshake.Greeting] = []
        self.links: list[SocketLink] = []
        self._selector = selectors.DefaultSelector()
        sock = socket.create_server(("127.0.0.1", 0))
        self.address = sock.getsockname()
        self.door = Door(sock, self.secret, self._selector, self._welcome)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _welcome(self, link: SocketLink, greeting: handshake.Greeting) -> None:
        self.links.append(link)
        self.came_in.append(greeting)

    def _serve(self) -> None:
        while not self._over.is_set():
            for key, mask in self._selector.select(0.05):
                key.data(mask)
            self.door.drop_silent()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.door.close()
        for link in self.links:
            link.close()
        self._selector.close()


@pytest.fixture
def doorman() -> Iterator[Doorman]:
    doorman = Doorman()
    yield doorman
    doorman.close()


def greeting() -> handshake.Greeting:
    return handshake.greeting_of("worker", 7, "node", "127.0.0.1", gpus=("1", "3"))


def test_who_knows_the_secret_comes_in(doorman: Doorman) -> None:
    with handshake.dial([doorman.address], doorman.secret, greeting()) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        while not doorman.came_in:
            time.sleep(0.001)
        assert (doorman.came_in[0].number, doorman.came_in[0].gpus) == (7, ("1", "3"))


def test_who_does_not_is_cut_off(doorman: Doorman) -> None:
    with pytest.raises((handshake.HandshakeError, OSError)):
        handshake.dial([doorman.address], handshake.new_secret(), greeting())
    assert doorman.came_in == []


def test_a_stranger_who_says_something_else_is_cut_off(doorman: Doorman) -> None:
    with socket.create_connection(doorman.address, 10) as sock:
        handshake.receive_frame(sock)
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(100) == b""
    assert doorman.came_in == []


def test_a_silent_stranger_is_cut_off(doorman: Doorman, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.01)
    with socket.create_connection(doorman.address, 10) as sock:
        handshake.receive_frame(sock)
        assert sock.recv(100) == b""


def test_a_recorded_greeting_does_not_open_the_door_again(doorman: Doorman) -> None:
    with socket.create_connection(doorman.address, 10) as first:
        challenge = handshake.Challenge(handshake.receive_frame(first)[-32:])
        hello = greeting()
        signed = handshake.Greeting(
            **{name: getattr(hello, name) for name in hello.__struct_fields__ if name != "proof"},
            proof=handshake.proof_of(doorman.secret, challenge.nonce, hello),
        )
        first.sendall(handshake.frame(signed))
        handshake.receive_frame(first)
    with socket.create_connection(doorman.address, 10) as second:
        handshake.receive_frame(second)
        second.sendall(handshake.frame(signed))
        assert second.recv(100) == b""
    assert len(doorman.came_in) == 1


def test_an_impostor_of_the_driver_is_not_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def impostor() -> None:
            sock, _ = server.accept()
            with sock:
                sock.sendall(handshake.frame(handshake.new_challenge()))
                handshake.receive_frame(sock)
                sock.sendall(handshake.frame(handshake.Welcome(b"x" * 32)))

        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(handshake.HandshakeError, match="not this experiment's driver"):
            handshake.dial([server.getsockname()], handshake.new_secret(), greeting())
        thread.join()


def test_an_unreachable_driver_is_named_with_both_addresses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match=rf"cannot be reached from .*127\.0\.0\.1.*127\.0\.0\.1:{port}"):
        handshake.dial([("127.0.0.1", port)], handshake.new_secret(), greeting())


def test_finding_the_own_addresses_asks_no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not answer would delay every start by ten seconds."""

    def ask(*args: object, **settings: object) -> None:
        raise AssertionError(f"asked a name server: {args}")

    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "getfqdn"):
        monkeypatch.setattr(socket, name, ask)
    found = handshake.own_addresses()
    assert found[-1] == "127.0.0.1"
    assert len(found) == len(set(found))
