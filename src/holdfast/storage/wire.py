"""What driver and storage agent say to each other: frames on a socket, msgpack inside.

Owns the messages and their framing. Must never know what a verb does.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast import errors
from holdfast.storage.options import StoreOptions

MAX_FRAME_BYTES = 512 * 1024 * 1024
_READ_BYTES = 64 * 1024
_LENGTH = struct.Struct("!I")

OPEN = "open"
PING = "ping"


class StoreSpec(msgspec.Struct, array_like=True, frozen=True):
    """What the agent needs to open a store.

    Attributes:
        address: The URL; a path inside ``filesystem`` if there is one.
        options: Its limits.
        filesystem: A pickled file system object, or empty.
    """

    address: str
    options: StoreOptions
    filesystem: bytes = b""


class Request(msgspec.Struct, array_like=True):
    """One call. Answers come in any order and carry its number."""

    number: int
    store: int
    verb: str
    arguments: Any = None


class Reply(msgspec.Struct, array_like=True):
    """The answer: a value, or the name of an exception's class and its message."""

    number: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    message: str = ""


_encoder = msgspec.msgpack.Encoder()
_request = msgspec.msgpack.Decoder(Request)
_reply = msgspec.msgpack.Decoder(Reply)


def frame(message: Request | Reply) -> bytes:
    """Encode a message together with its length.

    Raises:
        InvalidInputError: If it is larger than any frame may be.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise errors.InvalidInputError(
            f"An object of {len(body)} bytes is too large for put, create and get (at most {MAX_FRAME_BYTES}). "
            f"Write it into a file and use send or fetch."
        )
    return _LENGTH.pack(len(body)) + body


def value(of: Any) -> msgspec.Raw:
    """Encode the value of a reply."""
    return msgspec.Raw(_encoder.encode(of))


def read_request(body: bytes) -> Request:
    """Decode a request."""
    return _request.decode(body)


def read_reply(body: bytes) -> Reply:
    """Decode a reply."""
    return _reply.decode(body)


def bodies(sock: socket.socket) -> Iterator[bytes]:
    """Yield what arrives, message by message, until the other side is gone."""
    buffer = bytearray()
    while True:
        try:
            data = sock.recv(_READ_BYTES)
        except OSError:
            return
        if not data:
            return
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(buffer, start)[0]
            if len(buffer) < end:
                break
            yield bytes(memoryview(buffer)[start + _LENGTH.size : end])
            start = end
        del buffer[:start]


def error_name(error: BaseException) -> str:
    """Return under which name an exception travels; "" if it is not one of ours."""
    name = type(error).__name__
    return name if getattr(errors, name, None) is type(error) else ""


def rebuild_error(name: str, message: str) -> errors.TuneError:
    """Make the exception that a reply tells of."""
    made: errors.TuneError = getattr(errors, name, errors.InternalError)(message)
    return made
