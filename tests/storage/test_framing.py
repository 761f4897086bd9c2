"""The framing that driver, workers and storage agent share: what is on the wire, and what is refused."""

from __future__ import annotations

import socket

import pytest

from holdfast.errors import InvalidInputError
from holdfast.storage import wire
from holdfast.storage.framing import FrameTooLargeError, Framing
from holdfast.trainable import worker_messages

SMALL = Framing(limit=10, byteorder="little")


def test_a_frame_is_four_bytes_of_length_and_the_message() -> None:
    assert Framing(limit=10, byteorder="little").encode(b"abc") == b"\3\0\0\0abc"
    assert Framing(limit=10, byteorder="big").encode(b"abc") == b"\0\0\0\3abc"


def test_workers_and_the_agent_keep_their_bytes_on_the_wire() -> None:
    assert worker_messages.frame(worker_messages.Quit()) == b"\6\0\0\0\x91\xa4quit"
    assert wire.frame(wire.AgentRequest(0, 0, wire.PING)) == b"\0\0\0\x09\x94\0\0\xa4ping\xc0"


def test_a_message_of_exactly_the_limit_passes() -> None:
    assert SMALL.decoder().feed(SMALL.encode(b"x" * 10)) == [b"x" * 10]


def test_an_empty_message_is_a_message() -> None:
    assert SMALL.decoder().feed(SMALL.encode(b"") + SMALL.encode(b"a")) == [b"", b"a"]


def test_a_message_over_the_limit_is_not_encoded() -> None:
    with pytest.raises(FrameTooLargeError, match="a message of 11 bytes is larger than the limit of 10") as failure:
        SMALL.encode(b"x" * 11)
    assert failure.value.size == 11


def test_a_stream_that_claims_more_than_the_limit_is_refused_before_it_has_arrived() -> None:
    with pytest.raises(ValueError, match="a frame claims 11 bytes: this is not our stream"):
        SMALL.decoder().feed(b"\x0b\0\0\0")


def test_a_length_that_arrives_in_pieces_is_checked_too() -> None:
    decoder = SMALL.decoder()
    assert decoder.feed(SMALL.encode(b"first") + b"\xff") == [b"first"]
    with pytest.raises(ValueError, match="not our stream"):
        decoder.feed(b"\xff\xff\xff")


def test_two_streams_of_one_framing_do_not_mix() -> None:
    one, two = SMALL.decoder(), SMALL.decoder()
    assert one.feed(SMALL.encode(b"abc")[:5]) == []
    assert two.feed(SMALL.encode(b"xyz")) == [b"xyz"]
    assert one.feed(b"bc") == [b"abc"]


def test_a_message_to_a_worker_that_is_too_large_says_where_large_values_belong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_messages, "_encode_frame", SMALL.encode)
    with pytest.raises(ValueError, match=r"than the limit of 10; large values belong in a checkpoint or in tune"):
        worker_messages.frame(worker_messages.Setup(1, "experiment", "/", "", "", is_class=False))


def test_a_request_to_the_agent_that_is_too_large_says_what_to_use_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FRAMING", SMALL)
    with pytest.raises(InvalidInputError, match=r"\(at most 10\)\. Write it into a file and use send or fetch\."):
        wire.frame(wire.AgentRequest(1, 1, "put", ("key", b"x" * 11)))


def test_an_agent_hears_no_more_from_a_stream_that_is_not_ours() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(wire.frame(wire.AgentRequest(7, 0, wire.PING)))
        bodies = wire.bodies(ours)
        assert wire.read_request(next(bodies)).number == 7
        theirs.sendall(b"HTTP/1.1 400 Bad Request")
        assert list(bodies) == []


def test_an_agent_hears_the_end_of_its_driver() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(wire.frame(wire.AgentRequest(7, 0, wire.PING)) + b"\0\0")
        theirs.close()
        assert [wire.read_request(body).number for body in wire.bodies(ours)] == [7]
