"""The protocol between driver and storage agent: frames on a socket, msgpack inside.

Owns the messages and their maximum size. Must never know what a verb does.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast import errors
from holdfast.storage.framing import READ_BYTES, FrameTooLargeError, Framing
from holdfast.storage.options import StoreOptions

FRAMING = Framing(limit=512 * 1024 * 1024, byteorder="big")

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


msgspec.json.Decoder(StoreSpec)  # resolves its types now, not in two threads at once, see CONTRIBUTING.md


class AgentRequest(msgspec.Struct, array_like=True):
    """One call. Answers come in any order and carry its number."""

    number: int
    store: int
    verb: str
    arguments: Any = None


class AgentReply(msgspec.Struct, array_like=True):
    """The answer: a value, or the name of an exception's class and its message."""

    number: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    message: str = ""


_encoder = msgspec.msgpack.Encoder()
_request = msgspec.msgpack.Decoder(AgentRequest)
_reply = msgspec.msgpack.Decoder(AgentReply)


def frame(message: AgentRequest | AgentReply) -> bytes:
    """Encode a message together with its length.

    Raises:
        InvalidInputError: If it is larger than any frame may be.
    """
    try:
        return FRAMING.encode(_encoder.encode(message))
    except FrameTooLargeError as error:
        raise errors.InvalidInputError(
            f"An object of {error.size} bytes is too large for put, create and get (at most {FRAMING.limit}). "
            f"Write it into a file and use send or fetch."
        ) from None


def value(of: Any) -> msgspec.Raw:
    """Encode the value of a reply."""
    return msgspec.Raw(_encoder.encode(of))


def read_request(body: bytes) -> AgentRequest:
    """Decode a request."""
    return _request.decode(body)


def read_reply(body: bytes) -> AgentReply:
    """Decode a reply."""
    return _reply.decode(body)


def bodies(sock: socket.socket) -> Iterator[bytes]:
    """Yield what arrives, message by message, until the other side is gone or sends what is no message."""
    frames = FRAMING.decoder()
    while True:
        try:
            data = sock.recv(READ_BYTES)
            arrived = frames.feed(data)
        except (OSError, ValueError):
            return
        if not data:
            return
        yield from arrived


def error_name(error: BaseException) -> str:
    """Return under which name an exception travels; "" if it is not one of ours."""
    name = type(error).__name__
    return name if getattr(errors, name, None) is type(error) else ""


def rebuild_error(name: str, message: str) -> errors.TuneError:
    """Make the exception that a reply tells of."""
    made: errors.TuneError = getattr(errors, name, errors.InternalError)(message)
    return made
