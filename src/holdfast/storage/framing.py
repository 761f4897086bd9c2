"""Messages on a byte stream: four bytes of length, then the message.

Owns how a stream is split into messages, for driver and workers and for driver and storage agent. Must never touch a
socket, or know what is in a message.
"""

from __future__ import annotations

from struct import Struct
from typing import Literal

READ_BYTES = 64 * 1024
"""How much to read from a socket at once: larger reads cost an mmap each."""

HEADER_BYTES = 4
"""What stands before each message."""


class FrameTooLargeError(ValueError):
    """A message is larger than the other side would accept.

    Attributes:
        size: Its bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a message of {size:,} bytes is larger than the limit of {limit:,}")
        self.size = size


class Framing:
    """What both ends of a stream have agreed on.

    Args:
        limit: No message is larger.
        byteorder: Of the length.
    """

    __slots__ = ("_length", "_pack", "limit")

    def __init__(self, limit: int, byteorder: Literal["little", "big"]) -> None:
        self.limit = limit
        self._length = Struct("<I" if byteorder == "little" else ">I")
        self._pack = self._length.pack

    def encode(self, payload: bytes) -> bytes:
        """The frame of a message.

        Raises:
            FrameTooLargeError: If it is larger than the limit.
        """
        size = len(payload)
        if size > self.limit:
            raise FrameTooLargeError(size, self.limit)
        return self._pack(size) + payload

    def length_of(self, header: bytes | bytearray) -> int:
        """How many bytes follow a header, for readers that must not take a byte more.

        Raises:
            ValueError: If it claims a message larger than the limit.
        """
        (length,) = self._length.unpack(header)
        if length > self.limit:
            raise ValueError(f"a frame claims {length:,} bytes: this is not our stream")
        return int(length)

    def decoder(self) -> FrameDecoder:
        """A decoder for one stream, from its beginning."""
        return FrameDecoder(self._length, self.limit)


class FrameDecoder:
    """Cuts a stream of bytes into messages, however it arrives in pieces.

    Pieces of a large frame are joined once, when the last one has arrived: joining as they come would cost the square
    of its size.
    """

    __slots__ = ("_have", "_limit", "_need", "_pieces", "_unpack")

    def __init__(self, length: Struct, limit: int) -> None:
        self._unpack = length.unpack_from
        self._limit = limit
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = HEADER_BYTES

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes, in order.

        Raises:
            ValueError: If the stream claims a message larger than the limit. It cannot be read any further.
        """
        if self._have:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()  # now, so that a large frame is not in memory three times
        payloads = []
        unpack, limit, size = self._unpack, self._limit, len(data)
        need = begin = HEADER_BYTES  # a message begins after its header
        while begin <= size:
            (length,) = unpack(data, begin - HEADER_BYTES)
            if length > limit:
                raise ValueError(f"a frame claims {length:,} bytes: this is not our stream")
            end = begin + length
            if end > size:
                need += length
                break
            payloads.append(data[begin:end])
            begin = end + HEADER_BYTES
        rest = begin - HEADER_BYTES
        self._need = need
        self._have = size - rest
        if self._have:
            self._pieces.append(data[rest:])
        return payloads
