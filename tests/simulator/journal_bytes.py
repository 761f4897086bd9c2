"""The journal's history, read from its bytes by other code than the journal's own.

Owns a second opinion on the format: frames, headers, seals, the chain. Must never import ``holdfast.journal``.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.core import events as ev
from simulator.ledger import Violation

_FRAME = struct.Struct("<HHII")
_RECORD, _HEADER = 0xF7C1, 0xF8C1
_NAME = re.compile(r".*/\.holdfast/journal/(\d{8})-(\d{12})(?:\.(\d+))?\.hfj")


class Entry(NamedTuple):
    """One record of the history."""

    seq: int
    epoch: int
    payload: bytes

    @property
    def event(self) -> ev.AnyEvent:
        return ev.decode(self.payload)


def read_history(files: Mapping[str, bytes]) -> list[Entry]:
    """The records that count, oldest first.

    Args:
        files: Content of every file on the disk, by path.

    Raises:
        Violation: The bytes do not form one history (I4).
    """
    segments = {}
    for path in files:
        match = _NAME.fullmatch(path)
        if match:
            segments[int(match[1]), int(match[2]), int(match[3] or 0)] = path
    chain: list[tuple[str, dict[str, Any], int, int | None]] = []  # path, header, body, end
    for name in sorted(segments, reverse=True):
        head = _header(files[segments[name]])
        if head is not None:
            chain = _follow(files, segments[name], *head)
            break
    entries: list[Entry] = []
    for path, header, body, end in chain:
        entries += _records(bytes(files[path]), header, body, end, path)
    for number, entry in enumerate(entries, 1):
        if entry.seq != number:
            raise Violation("I4", f"record {number} of the history is numbered {entry.seq}")
    return entries


def _header(data: bytes) -> tuple[dict[str, Any], int] | None:
    if len(data) < _FRAME.size:
        return None
    magic, _, size, crc = _FRAME.unpack_from(data)
    text = bytes(data[_FRAME.size : _FRAME.size + size])
    if magic != _HEADER or len(text) != size or zlib.crc32(text) != crc:
        return None
    return msgspec.json.decode(text), _FRAME.size + size


def _follow(
    files: Mapping[str, bytes], path: str, header: dict[str, Any], body: int
) -> list[tuple[str, dict[str, Any], int, int | None]]:
    chain: list[tuple[str, dict[str, Any], int, int | None]] = [(path, header, body, None)]
    while header["prev"] is not None:
        seal = header["prev"]
        path = path.rpartition("/")[0] + "/" + seal["segment"]
        found = _header(files[path]) if path in files else None
        if found is None:
            raise Violation("I4", f"{path} is part of the history and is missing or damaged")
        if found[0]["epoch"] > header["epoch"]:
            raise Violation("I4", f"{path} of epoch {found[0]['epoch']} stands before one of epoch {header['epoch']}")
        header, body = found
        chain.append((path, header, body, seal["length"]))
    return chain[::-1]


def _records(data: bytes, header: dict[str, Any], offset: int, end: int | None, path: str) -> list[Entry]:
    entries = []
    seq = header["first_seq"]
    limit = len(data) if end is None else end
    while offset + _FRAME.size <= limit:
        magic, low, size, crc = _FRAME.unpack_from(data, offset)
        payload = data[offset + _FRAME.size : offset + _FRAME.size + size]
        if magic != _RECORD or low != seq & 0xFFFF or len(payload) != size or zlib.crc32(payload, seq) != crc:
            break
        entries.append(Entry(seq, header["epoch"], payload))
        offset += _FRAME.size + size
        seq += 1
    if end is not None and offset != end:
        raise Violation("I4", f"{path} is sealed at byte {end} but its last good record ends at {offset}")
    return entries
