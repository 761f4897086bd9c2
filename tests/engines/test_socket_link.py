"""The framed socket: nothing is lost, reordered or waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from engine_harness import open_fds

from holdfast.engines.link import SocketLink


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


@pytest.fixture
def links() -> Iterator[tuple[SocketLink, SocketLink]]:
    one, two = socket.socketpair()
    pair = SocketLink(one), SocketLink(two)
    yield pair
    for link in pair:
        link.close()


def read_all(link: SocketLink, other: SocketLink, count: int) -> list[bytes]:
    payloads: list[bytes] = []
    while len(payloads) < count:
        other.flush()
        more = link.receive()
        assert more is not None
        payloads += more
    return payloads


def test_messages_larger_than_the_socket_arrive_whole_and_in_order(links: tuple[SocketLink, SocketLink]) -> None:
    here, there = links
    sent = [bytes([i]) * (300_000 if i % 3 else 5) for i in range(9)]
    for message in sent:
        here.send(frame(message))
    assert here.waiting
    assert read_all(there, here, 9) == sent
    assert not here.waiting


def test_descriptors_travel_in_the_order_of_their_messages(links: tuple[SocketLink, SocketLink]) -> None:
    here, there = links
    before = open_fds()
    pipes = [os.pipe() for _ in range(3)]
    here.send(frame(b"x" * 400_000))
    for read_end, _ in pipes:
        here.send_with_fd(frame(b"start"), read_end)
    here.send(frame(b"end"))
    payloads: list[bytes] = []
    while len(payloads) < 5:
        here.flush()
        payloads += there.receive_with_fds() or []
    for _, write_end in pipes:
        os.write(write_end, str(write_end).encode())
        fd = there.take_fd()
        assert os.read(fd, 10) == str(write_end).encode()
        assert not os.get_inheritable(fd)
        os.close(fd)
        os.close(write_end)
    assert open_fds() == before


def test_a_peer_that_is_gone_is_told_by_receive_and_never_raised(links: tuple[SocketLink, SocketLink]) -> None:
    here, there = links
    before = open_fds()
    there.send(frame(b"last"))
    there.close()
    here.send(frame(b"into the void"))
    here.send_with_fd(frame(b"too"), os.open(os.devnull, os.O_RDONLY))
    assert not here.waiting
    assert here.receive() == [b"last"]
    assert here.receive() is None
    assert len(open_fds()) == len(before) - 1


def test_unsent_descriptors_are_closed_with_the_link() -> None:
    before = open_fds()
    one, two = socket.socketpair()
    link = SocketLink(one)
    link.send(b"x" * 5_000_000)
    link.send_with_fd(frame(b"x"), os.open(os.devnull, os.O_RDONLY))
    link.close()
    two.close()
    assert open_fds() == before


def test_the_rest_of_a_dead_peer_is_read_at_once(links: tuple[SocketLink, SocketLink]) -> None:
    here, there = links
    there.send(frame(b"a" * 100_000) + frame(b"b") + b"\x09\x00\x00\x00cut")
    there.close()
    assert here.receive_rest() == [b"a" * 100_000, b"b"]
