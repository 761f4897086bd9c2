"""Columns of numbers and categories as bytes that a browser can use without parsing them.

``uint32``, little-endian: length of the head. The head, JSON in UTF-8. Zero bytes up to a multiple of 8. Then the
arrays one after the other, each padded to a multiple of 8. The head is an object with ``rows``, what the caller adds,
and ``columns``: name, type (``f32``, ``f64``, ``i32``, or ``category``: ``uint32`` codes into ``values``, where
0xFFFFFFFF is missing). NaN is missing.

Owns that format. Must never know where columns come from.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

MISSING = 0xFFFFFFFF


class _NoneValue:
    """Shown as what it stands for."""

    def __repr__(self) -> str:
        return "None"


NONE = _NoneValue()
"""Stands for a value that is None (null in ``values``), where None stands for one that is missing."""

TYPES = {"f": "f32", "d": "f64", "i": "i32", "I": "category"}
_CODES = {name: code for code, name in TYPES.items()}


class PackedColumn(NamedTuple):
    """One column.

    Attributes:
        name: What it is called.
        data: Its values: doubles, floats, 32-bit integers, or 32-bit codes of ``values``.
        values: What the codes stand for; None for numbers.
    """

    name: str
    data: array[Any]
    values: list[Any] | None = None


def pack(columns: Iterable[PackedColumn], rows: int, **head: Any) -> bytes:
    """The columns as one piece; all have ``rows`` values."""
    described: list[dict[str, Any]] = []
    bodies: list[bytes] = []
    for column in columns:
        assert len(column.data) == rows, f"{column.name} has {len(column.data)} values, expected {rows}"
        about: dict[str, Any] = {"name": column.name, "type": TYPES[column.data.typecode]}
        if column.values is not None:
            about["values"] = [_json_value(value) for value in column.values]
        described.append(about)
        bodies.append(_little(column.data))
    text = json.dumps({"rows": rows, **head, "columns": described}, separators=(",", ":"), allow_nan=False).encode()
    pieces = [struct.pack("<I", len(text)), text, bytes(-(4 + len(text)) % 8)]
    for body in bodies:
        pieces += [body, bytes(-len(body) % 8)]
    return b"".join(pieces)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, PackedColumn]]:
    """The inverse of ``pack``: the head, and the columns by name."""
    (size,) = struct.unpack_from("<I", data)
    head: dict[str, Any] = json.loads(data[4 : 4 + size])
    at = 4 + size + -(4 + size) % 8
    found: dict[str, PackedColumn] = {}
    for about in head["columns"]:
        values: array[Any] = array(_CODES[about["type"]])
        length = head["rows"] * values.itemsize
        values.frombytes(data[at : at + length])
        if sys.byteorder == "big":
            values.byteswap()
        found[about["name"]] = PackedColumn(about["name"], values, about.get("values"))
        at += length + -length % 8
    return head, found


def _little(data: array[Any]) -> bytes:
    if sys.byteorder == "big":
        data = data[:]
        data.byteswap()
    return data.tobytes()


def _json_value(value: Any) -> Any:
    """NaN and infinities have no spelling in JSON."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
