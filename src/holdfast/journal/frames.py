"""The record frame: how opaque payloads become bytes that betray every cut and every flipped bit.

A frame is a 12-byte header (magic, low 16 bits of the record's number, payload length, CRC-32 of the payload
seeded with the record's number) and the payload. The seed makes a frame valid in one place of one sequence
only, so a frame that was copied, repeated or left out is as visible as a damaged one.

Owns encoding, scanning, and the judgement of what follows the last good frame. Must never touch files, and
must never know what a payload means.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal, NamedTuple
from zlib import crc32

FRAME_OVERHEAD = 12

# 0xC1 occurs neither in UTF-8 nor as a type byte of msgpack, so payloads rarely look like frames.
_RECORD = 0xF7C1
_HEADER = 0xF8C1
_MAGIC_BYTES = _RECORD.to_bytes(2, "little")
_LAYOUT = struct.Struct("<HHII")
_pack = _LAYOUT.pack
_unpack = _LAYOUT.unpack_from


class Tail(NamedTuple):
    """What follows the last good frame, if anything does.

    Attributes:
        kind: "torn": a write that was cut short, nothing valid behind it. "damaged": valid frames follow, so
            something that was once whole is not any more.
        size: Bytes from the end of the last good frame to the end of what was scanned.
        readable: Records behind the damage that still match their checksums.
    """

    kind: Literal["torn", "damaged"]
    size: int
    readable: int


class Scan(NamedTuple):
    """The good frames at the start of a buffer.

    Attributes:
        payloads: Their payloads, in order.
        offset: Where the last good frame ends.
        next_seq: Number of the record that would follow.
        crc: Checksum of the last good frame, None if there is none.
    """

    payloads: list[bytes]
    offset: int
    next_seq: int
    crc: int | None


class Header(NamedTuple):
    """The frame that a file begins with.

    Attributes:
        payload: Its text.
        end: Where the file's records begin.
        crc: Its checksum.
    """

    payload: bytes
    end: int
    crc: int


def encode_frames(first_seq: int, payloads: Sequence[bytes]) -> bytes:
    """Return the frames of consecutive records, the first one numbered ``first_seq``."""
    parts: list[bytes] = []
    seq = first_seq
    for payload in payloads:
        parts.append(_pack(_RECORD, seq & 0xFFFF, len(payload), crc32(payload, seq)))
        parts.append(payload)
        seq += 1
    return b"".join(parts)


def encode_header(payload: bytes) -> bytes:
    """Return the frame that a file begins with; no search for records ever takes it for one."""
    return _pack(_HEADER, 0, len(payload), crc32(payload)) + payload


def decode_header(buffer: bytes) -> Header | None:
    """Return the header frame at the start of ``buffer``, or None if it is missing, cut or damaged."""
    if len(buffer) < FRAME_OVERHEAD:
        return None
    magic, zero, size, crc = _unpack(buffer, 0)
    end = FRAME_OVERHEAD + size
    payload = buffer[FRAME_OVERHEAD:end]
    if magic != _HEADER or zero != 0 or len(payload) != size or crc32(payload) != crc:
        return None
    return Header(payload, end, crc)


def last_crc(frames: bytes) -> int:
    """Return the checksum of the last of some whole frames."""
    offset = 0
    crc = 0
    while offset < len(frames):
        _, _, size, crc = _unpack(frames, offset)
        offset += FRAME_OVERHEAD + size
    assert offset == len(frames)
    return crc


def scan(buffer: bytes, first_seq: int, start: int = 0, end: int | None = None) -> Scan:
    """Read frames from ``start`` until ``end`` or until the first byte that is not part of a good frame.

    Args:
        buffer: The bytes.
        first_seq: Number that the first record must have.
        start: Where to begin.
        end: Where to stop; the end of the buffer if None.
    """
    limit = len(buffer) if end is None else end
    payloads: list[bytes] = []
    keep = payloads.append
    seq = first_seq
    offset = start
    last: int | None = None
    while offset + FRAME_OVERHEAD <= limit:
        magic, low, size, crc = _unpack(buffer, offset)
        body = offset + FRAME_OVERHEAD
        stop = body + size
        if magic != _RECORD or low != seq & 0xFFFF or stop > limit:
            break
        payload = buffer[body:stop]
        if crc32(payload, seq) != crc:
            break
        keep(payload)
        last = crc
        offset = stop
        seq += 1
    return Scan(payloads, offset, seq, last)


def payload_at(buffer: bytes, offset: int, seq: int) -> bytes | None:
    """Return the payload of the frame at ``offset``, if that is record ``seq`` and all of it is there."""
    if offset + FRAME_OVERHEAD > len(buffer):
        return None
    magic, low, size, crc = _unpack(buffer, offset)
    body = offset + FRAME_OVERHEAD
    payload = buffer[body : body + size]
    if magic != _RECORD or low != seq & 0xFFFF or len(payload) != size or crc32(payload, seq) != crc:
        return None
    return payload


def frame_end(buffer: bytes, offset: int) -> int:
    """Return where the frame at ``offset`` ends, by its header; ``offset`` if not even that is there."""
    if offset + FRAME_OVERHEAD > len(buffer):
        return offset
    return offset + FRAME_OVERHEAD + int(_unpack(buffer, offset)[2])


def classify_tail(buffer: bytes, offset: int, seq: int, end: int | None = None) -> Tail | None:
    """Judge the bytes behind the last good frame.

    Args:
        buffer: The bytes.
        offset: Where the last good frame ends.
        seq: Number of the record expected there.
        end: Where the bytes that count end; the end of the buffer if None.

    Returns:
        None if nothing follows.
    """
    limit = len(buffer) if end is None else end
    if offset >= limit:
        return None
    readable = count_readable(buffer, offset, seq, limit)
    return Tail("damaged" if readable else "torn", limit - offset, readable)


def count_readable(buffer: bytes, offset: int, seq: int, end: int) -> int:
    """Count the records at and behind a damaged place that still match their checksums."""
    found = 0
    while (hit := find_frame(buffer, offset, seq, end)) is not None:
        good = scan(buffer, hit[1], hit[0], end)
        found += len(good.payloads)
        offset, seq = good.offset, good.next_seq
    return found


def count_unreadable(buffer: bytes, offset: int, seq: int, end: int, end_seq: int | None) -> int:
    """Count the records at and behind a damaged place that do not match their checksums, or are not there.

    ``end_seq`` is the number of the record behind the last one. If it is None, only gaps between good records count.
    """
    lost = 0
    while (hit := find_frame(buffer, offset, seq, end)) is not None:
        lost += hit[1] - seq
        good = scan(buffer, hit[1], hit[0], end)
        offset, seq = good.offset, good.next_seq
    return lost if end_seq is None else lost + max(0, end_seq - seq)


def find_frame(buffer: bytes, offset: int, seq: int, end: int) -> tuple[int, int] | None:
    """Find the first valid frame at or behind ``offset`` whose number is at least ``seq``.

    Returns:
        Its offset and number, or None. A number is plausible only if the frames before it would have fitted
        into the bytes that were skipped, which bounds the candidates for its upper bits.
    """
    place = buffer.find(_MAGIC_BYTES, offset, end)
    while place >= 0 and place + FRAME_OVERHEAD <= end:
        _, low, size, crc = _unpack(buffer, place)
        body = place + FRAME_OVERHEAD
        if body + size <= end:
            payload = buffer[body : body + size]
            highest = seq + (place - offset) // FRAME_OVERHEAD + 1
            for candidate in range(seq + ((low - seq) & 0xFFFF), highest + 1, 0x10000):
                if crc32(payload, candidate) == crc:
                    return place, candidate
        place = buffer.find(_MAGIC_BYTES, place + 1, end)
    return None
