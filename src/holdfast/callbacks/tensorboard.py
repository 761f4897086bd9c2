"""TensorBoard event files, written without TensorBoard.

Owns the format: TFRecord frames (length, checksum of the length, data, checksum of the data; checksums are CRC-32C,
masked) around ``Event`` messages in protobuf's wire format, one per row, with a ``simple_value`` for each number. Must
never need a package that is not there.
"""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from operator import getitem, itemgetter, xor
from typing import TYPE_CHECKING, Any

from holdfast.callbacks.loggers import FileLogger, TrialLog
from holdfast.views.results import flatten_result, is_number

if TYPE_CHECKING:
    from holdfast.views.trials import TrialView

TAG_PREFIX = "ray/tune/"
MAX_SHAPES = 256
USES_BEFORE_TABLES = 16

_LEFT_OUT = frozenset({"config", "pid", "timestamp"})
_NUMBERS = frozenset({int, float})
_NUMBERS_AND_DICT = frozenset({int, float, dict})
_FAR_FUTURE = 1 << 62
_POLYNOMIAL = 0x82F63B78


# --- checksums


@functools.cache
def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


def _table_crc32c(data: bytes) -> int:
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@functools.cache
def _fast_crc32c() -> Callable[[bytes], int] | None:
    try:
        import google_crc32c
    except ImportError:
        return None
    if getattr(google_crc32c, "implementation", "") != "c":
        return None
    function: Callable[[bytes], int] = google_crc32c.value
    return function


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    return (_fast_crc32c() or _table_crc32c)(data)


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _hole_tables(holes: Sequence[int], length: int) -> list[array[int]]:
    """For each given position of a message of ``length`` bytes: what each byte there adds to the checksum.

    The checksum is linear, so that of a message with a few variable bytes is that of the message with zeros in their
    place, xor one number per variable byte. Looking those up is ten times as fast as going through all bytes.
    """
    table, wanted = _table(), set(holes)
    bits = [table[1 << bit] for bit in range(8)]
    found: dict[int, array[int]] = {}
    for position in reversed(range(length)):
        if position in wanted:
            values = [0]
            for bit in bits:
                values += [value ^ bit for value in values]
            found[position] = array("I", values)
        bits = [table[bit & 0xFF] ^ bit >> 8 for bit in bits]
    return [found[position] for position in holes]


# --- messages


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"%b%b%b%b" % (length, _checksum(length), data, _checksum(data))


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", _masked(crc32c(data)))


@functools.lru_cache(maxsize=8)
def file_head(wall_time: float) -> bytes:
    version = b"brain.Event:2"
    return framed(b"\x09" + struct.pack("<d", wall_time) + b"\x1a" + varint(len(version)) + version)


class _Frame:
    """A record of fixed length: everything but the time, the step and the values is known."""

    def __init__(self, prefixes: list[bytes], step_size: int) -> None:
        summary_size = sum(len(prefix) + 4 for prefix in prefixes)
        self._middle = b"\x2a" + varint(summary_size)
        size = 10 + step_size + len(self._middle) + summary_size
        length = struct.pack("<Q", size)
        self._start = length + _checksum(length) + b"\x09"
        parts = "".join(f"{len(prefix)}sf" for prefix in prefixes)
        self._record = struct.Struct(f"<13sd{1 + step_size + len(self._middle)}s{parts}I")
        self._variable = struct.Struct(f"<d{step_size}s{len(prefixes)}f")
        self._values: list[Any] = [part for prefix in prefixes for part in (prefix, 0.0)]
        self._holes = [*range(1, 9), *range(10, 10 + step_size)]
        at = 10 + step_size + len(self._middle)
        for prefix in prefixes:
            at += len(prefix)
            self._holes += range(at, at + 4)
            at += 4
        self._size = size
        self._uses = 0
        self._tables: list[array[int]] = []
        self._base = 0

    def pack(self, wall_time: float, step: bytes, values: Sequence[float]) -> bytes:
        filled = self._values
        filled[1::2] = values
        middle = b"\x10" + step + self._middle
        if not self._tables:
            record = self._record.pack(self._start, wall_time, middle, *filled, 0)
            self._learn()
            return record[:-4] + _checksum(record[12:-4])
        variable = self._variable.pack(wall_time, step, *values)
        crc = functools.reduce(xor, map(getitem, self._tables, variable), self._base)
        return self._record.pack(self._start, wall_time, middle, *filled, _masked(crc))

    def _learn(self) -> None:
        self._uses += 1
        if self._uses < USES_BEFORE_TABLES or _fast_crc32c() is not None:
            return
        zeros = [0.0] * (len(self._values) // 2)
        self._values[1::2] = zeros
        middle = b"\x10" + bytes(len(self._holes) - 8 - 4 * len(zeros)) + self._middle
        record = self._record.pack(self._start, 0.0, middle, *self._values, 0)
        self._base = _table_crc32c(record[12:-4])
        self._tables = _hole_tables(self._holes, self._size)


class _Shape:
    """Which keys of a result of ``size`` keys are numbers. Trials that report the same share one."""

    def __init__(self, size: int, numbers: tuple[str, ...], others: tuple[str, ...]) -> None:
        self.size = size
        self.numbers = _getter(numbers)
        self.others = _getter(others)
        self._prefixes = [_value_prefix(key) for key in numbers]
        self._frames: dict[int, _Frame] = {}

    def record(self, wall_time: float, step: int, values: Sequence[float]) -> bytes:
        encoded = varint(step)
        frame = self._frames.get(len(encoded))
        if frame is None:
            frame = self._frames[len(encoded)] = _Frame(self._prefixes, len(encoded))
        try:
            return frame.pack(wall_time, encoded, values)
        except (OverflowError, struct.error):
            return frame.pack(wall_time, encoded, [_single(value) for value in values])


def _getter(keys: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda result: tuple(result[key] for key in keys)


def _value_prefix(key: str) -> bytes:
    """A ``Summary.Value`` inside its ``Summary``, up to the four bytes of its number."""
    tag = (TAG_PREFIX + key).encode("utf-8", "backslashreplace")
    tagged = b"\x0a" + varint(len(tag)) + tag + b"\x15"
    return b"\x0a" + varint(len(tagged) + 4) + tagged


def _single(value: float) -> float:
    """The number in single precision; what is too large is infinite."""
    try:
        single: float = struct.unpack("<f", struct.pack("<f", value))[0]
        return single
    except (OverflowError, struct.error):  # the latter for an int
        return float("inf") if value > 0 else float("-inf")


# --- reading back


def _record_ends(data: bytes) -> list[int]:
    """Where each whole record ends."""
    ends, at = [], 0
    while at + 16 <= len(data):
        length = data[at : at + 8]
        end = at + 16 + int.from_bytes(length, "little")
        if end > len(data) or data[at + 8 : at + 12] != _checksum(length):
            break
        ends.append(end)
        at = end
    # Checking all data would cost as much as writing it; only what was written last can be torn.
    if ends:
        start = ends[-2] if len(ends) > 1 else 0
        if data[ends[-1] - 4 : ends[-1]] != _checksum(data[start + 12 : ends[-1] - 4]):
            ends.pop()
    return ends


def _fields(message: bytes) -> list[tuple[int, Any]]:
    """The fields of a message that has doubles, floats, varints and bytes only; raises ValueError for anything else."""
    fields: list[tuple[int, Any]] = []
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind == 0:
            value: Any
            value, at = _read_varint(message, at)
        elif kind == 2:
            size, at = _read_varint(message, at)
            value, at = message[at : at + size], at + size
        elif kind in (1, 5):
            layout = "<d" if kind == 1 else "<f"
            value = struct.unpack_from(layout, message, at)[0]
            at += struct.calcsize(layout)
        else:
            raise ValueError(f"wire type {kind}")
        fields.append((key >> 3, value))
    return fields


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return number, at


# --- the logger


class TBXLoggerCallback(FileLogger):
    """Writes every number of each result to a TensorBoard event file, as ``ray/tune/<flattened key>``.

    The step is ``timesteps_total`` if the trial reports it, else ``training_iteration``.
    """

    def _reset(self) -> None:
        super()._reset()
        self._shapes: dict[tuple[int, tuple[str, ...], tuple[str, ...]], _Shape] = {}
        self._recent: _Shape | None = None

    def filename(self, trial: TrialView) -> str:
        return f"events.out.tfevents.{int(trial.record.created_at)}.{trial.trial_id}"

    def encode(self, log: TrialLog, trial: TrialView, result: Mapping[str, Any]) -> bytes:
        shape: _Shape | None = log.extra or self._recent  # trials tend to report the same keys
        values = self._fast_values(shape, result) if shape is not None else None
        if shape is None or values is None:
            shape, values = self._slow_values(result)
            self._recent = shape
        log.extra = shape
        step = result.get("timesteps_total") or result.get("training_iteration")
        if type(step) is not int or not 0 <= step < _FAR_FUTURE:
            step = log.rows + 1
        wall_time: Any = result.get("timestamp")
        if type(wall_time) not in _NUMBERS or not abs(wall_time) < _FAR_FUTURE:
            wall_time = trial.record.last_at
        record = shape.record(wall_time, step, values)
        return record if log.rows else file_head(wall_time) + record

    @staticmethod
    def _fast_values(shape: _Shape, result: Mapping[str, Any]) -> Sequence[float] | None:
        """The numbers of a flat result with the keys and kinds of values of the one before; None for any other."""
        if len(result) != shape.size:
            return None
        try:
            values, others = shape.numbers(result), shape.others(result)
        except KeyError:
            return None
        if _NUMBERS.issuperset(map(type, values)) and _NUMBERS_AND_DICT.isdisjoint(map(type, others)):
            return values
        return None

    def _slow_values(self, result: Mapping[str, Any]) -> tuple[_Shape, Sequence[float]]:
        flat = flatten_result({key: value for key, value in result.items() if key not in _LEFT_OUT})
        numbers = {key: value for key, value in flat.items() if is_number(value)}
        # If a dict was flattened, keys of the result are not looked at here; then the next may not take the fast way.
        is_flat = len(flat) + sum(key in result for key in _LEFT_OUT) == len(result)
        key = (len(result) if is_flat else -1, tuple(numbers), tuple(key for key in flat if key not in numbers))
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            shape = self._shapes[key] = _Shape(*key)
        return shape, list(numbers.values())

    def row_ends(self, data: bytes) -> list[int]:
        return _record_ends(data)[1:]

    def decode(self, data: bytes, start: int, end: int) -> dict[str, Any]:
        try:
            if not start:
                start = 16 + int.from_bytes(data[:8], "little")  # after the file's head
            event = dict(_fields(data[start + 12 : end - 4]))
            values = [dict(_fields(value)) for _, value in _fields(event[5])]
            return {value[1].decode().removeprefix(TAG_PREFIX): value[2] for value in values}
        except (ValueError, KeyError, IndexError, struct.error):
            return {}

    def cell(self, value: Any) -> Any:
        return _single(value) if isinstance(value, int | float) else value
