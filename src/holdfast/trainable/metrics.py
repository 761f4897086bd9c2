"""Metrics as plain data: what a trial reports, copied and reduced to what the wire and the journal can hold.

Owns the conversion and its rules. Must never keep a reference to anything mutable that the user passed in: whatever
the user changes after ``report()`` was called changes nothing about the report.
"""

from __future__ import annotations

import datetime
import logging
import numbers
import os
from collections.abc import Callable, Mapping, Set
from decimal import Decimal
from fractions import Fraction
from typing import Any

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.messages.shortened import shortened
from holdfast.messages.warn import hint

log = logging.getLogger("holdfast")

MAX_DEPTH = 64

_ARRAYS = frozenset({"numpy", "jax", "jaxlib", "cupy"})
_ATOMS = frozenset({float, bool, type(None)})
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1  # what msgpack can hold


def plain_metrics(
    metrics: Any, warned: set[str], *, refuse_tensors: bool = True, tell: Callable[[str], None] = hint
) -> dict[str, Any]:
    """A copy of ``metrics`` made of dicts, lists, strings, numbers, booleans, None and bytes only.

    An object that is nothing of the kind becomes its ``repr``, an int of more than 64 bits a float, and the user is
    told so: a metric by the way must not end a trial that has trained for hours.

    Args:
        metrics: What the user reports.
        warned: Keys that the user was already warned about; grows.
        refuse_tensors: Whether a torch tensor of several elements is an error or becomes numbers like other arrays.
        tell: Shows the user a warning.

    Raises:
        InvalidTypeError: If it is not a dict, or a key of it is not a string.
        InvalidInputError: If it holds a torch tensor of several elements, or is nested too deeply.
    """
    if type(metrics) is dict:
        for key, value in metrics.items():
            kind = type(value)
            if type(key) is not str or not key.isascii():
                break
            if kind in _ATOMS or (kind is int and _SMALLEST <= value <= _LARGEST):
                continue
            if kind is not str or not value.isascii():
                break
        else:
            return metrics.copy()
    elif not isinstance(metrics, Mapping):
        raise InvalidTypeError(
            f"report() needs a dict of metrics, got {type(metrics).__name__}: {shortened(metrics)}. "
            'Write report({"loss": 0.5}).'
        )
    for key in metrics:
        if not isinstance(key, str):
            raise InvalidTypeError(
                f"metric names must be strings, got {shortened(key)} ({type(key).__name__}). "
                f"Write report({{{str(key)!r}: ...}})."
            )
    return _Converter(warned, refuse_tensors, tell).mapping(metrics, "", 1)


def encodable(text: str) -> str:
    """The same text, with what UTF-8 cannot hold (lone surrogates) spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


class _Converter:
    """The slow path: anything that is not a flat dict of simple values."""

    __slots__ = ("refuse_tensors", "tell", "warned")

    def __init__(self, warned: set[str], refuse_tensors: bool, tell: Callable[[str], None]) -> None:
        self.warned = warned
        self.refuse_tensors = refuse_tensors
        self.tell = tell

    def mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        plain = {
            encodable(str(key)): self.convert(item, f"{path}/{key}" if path else str(key), depth)
            for key, item in value.items()
        }
        if len(plain) < len(value):
            texts = [encodable(str(key)) for key in value]
            twice = next(text for text in texts if texts.count(text) > 1)
            raise InvalidInputError(
                f"the metric {f'{path}/{twice}' if path else twice!r} is there twice: two keys of its dict are the "
                "same as text. Use strings as keys."
            )
        return plain

    def convert(self, value: Any, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise InvalidInputError(
                f"the metric {shortened(path[:100])} is nested more than {MAX_DEPTH} levels deep, or contains itself"
            )
        kind = type(value)
        if kind in _ATOMS:
            return value
        if isinstance(value, str):
            return encodable(str.__str__(value))
        if isinstance(value, (int, float, Decimal, Fraction)):
            return self._number(value, path)
        if isinstance(value, Mapping):
            return self.mapping(value, path, depth + 1)
        if isinstance(value, (list, tuple)):
            return [self.convert(item, path, depth + 1) for item in value]
        if isinstance(value, Set):
            return [self.convert(item, path, depth + 1) for item in _in_stable_order(value)]
        return self._other(value, path, depth)

    def _number(self, value: Any, path: str) -> int | float:
        if isinstance(value, bool):
            return bool(value)
        if isinstance(value, int):
            number = int(value)
            if _SMALLEST <= number <= _LARGEST:
                return number
            # What the wire cannot hold becomes a float: text would keep every digit, but could not be compared.
            self._warn(path, "is an int of more than 64 bits, which is stored as a float")
        return _as_float(value)

    def _other(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
            return value.isoformat()
        if isinstance(value, datetime.timedelta):
            return value.total_seconds()
        if isinstance(value, os.PathLike):
            return encodable(str(value))
        if _is_tensor(value):
            number = only_number(value)
            if number is not None:
                return self.convert(number, path, depth + 1)
            if self.refuse_tensors:
                raise InvalidInputError(
                    f"the metric {path!r} is a Torch tensor{_shape(value)}, of which only those with one element are "
                    f"numbers. Report a number (`{path.rpartition('/')[2]}.mean()`, for example), a list "
                    f"(`{path.rpartition('/')[2]}.tolist()`), or put the tensor into a checkpoint: "
                    "report(metrics, checkpoint=...)."
                )
        number = _only_item(value)
        return self._array(value, path, depth) if number is None else self.convert(number, path, depth + 1)

    def _array(self, value: Any, path: str, depth: int) -> Any:
        """Whatever array libraries offer (numpy, jax, tensorflow, pandas), else the object's ``repr``."""
        for method in ("tolist", "numpy"):
            function = getattr(value, method, None)
            if not callable(function):
                continue
            try:
                unpacked = function()
            except Exception as error:
                log.debug("metric %r: %s() failed: %s", path, method, error)
                continue
            if type(unpacked) is not type(value):
                return self.convert(unpacked, path, depth + 1)
        if isinstance(value, numbers.Real):  # numpy's long doubles unpack to themselves
            return _as_float(value)
        self._warn(path, f"is a {type(value).__qualname__}, which is stored as text (its repr)")
        return encodable(shortened(value))

    def _warn(self, path: str, what: str) -> None:
        if path not in self.warned:
            self.warned.add(path)
            self.tell(
                f"The metric {path!r} {what}. Report numbers, strings, lists and dicts; put objects into a checkpoint."
            )


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _in_stable_order(values: Set[Any]) -> list[Any]:
    """Sets have no order, and it differs between processes: sort, so that equal reports are equal."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=shortened)


def only_number(value: Any) -> int | float | None:
    """The number in a torch tensor of one element, on whatever device; None if it is no such tensor."""
    if not _is_tensor(value):
        return None
    try:
        number = value.item() if value.numel() == 1 else None
    except Exception as error:  # a tensor without data, for example
        log.debug("%s.item() failed: %s", type(value).__name__, error)
        return None
    return number if isinstance(number, int | float) else None


def _only_item(value: Any) -> int | float | None:
    """The number in an array of one element, of whichever library of arrays; None if it is no such array."""
    if getattr(value, "size", None) != 1 or type(value).__module__.split(".")[0] not in _ARRAYS:
        return None
    try:
        number = value.item()
    except Exception as error:
        log.debug("%s.item() failed: %s", type(value).__name__, error)
        return None
    return number if isinstance(number, int | float) else None


def _shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f" of shape {tuple(shape)}" if isinstance(shape, tuple) else ""


def _is_tensor(value: Any) -> bool:
    """By name, because torch is not imported here and a value can only be a tensor if the user has imported it."""
    return any(c.__name__ == "Tensor" and c.__module__.split(".")[0] == "torch" for c in type(value).__mro__)
