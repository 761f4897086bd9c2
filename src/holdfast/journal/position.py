"""Places in the journal, and how one is written down so that a damaged note of it betrays itself.

Owns `Position` and its frame. Must never touch files.
"""

from __future__ import annotations

import msgspec

from holdfast.journal.frames import decode_header, encode_header


class Position(msgspec.Struct, frozen=True):
    """A place between two records of the journal.

    Attributes:
        segment: File name of the segment; empty before the first one.
        offset: Byte offset within it.
        next_seq: Number of the record that follows.
    """

    segment: str
    offset: int
    next_seq: int


_decode_position = msgspec.json.Decoder(Position).decode


START = Position("", 0, 1)


def encode_position(position: Position) -> bytes:
    """Return a position with a checksum."""
    return encode_header(msgspec.json.encode(position) + b"\n")


def decode_position(data: bytes) -> Position | None:
    """The inverse of `encode_position`; None for anything else."""
    frame = decode_header(data)
    try:
        return None if frame is None else _decode_position(frame.payload)
    except (ValueError, RecursionError):
        return None
