"""How values that are not plain data are shown: names that their authors would recognise, as text.

Reading an experiment loads none of its objects, so the names are made while the objects are at hand, and are kept among
the experiment's plain facts, by the path in the object's marker.

Owns which objects have a name. Must never fail, or take long: an object's own ``repr`` may be slow, or as large as the
data in it.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.space.nested import SCALARS
from holdfast.space.objects import is_marker

MAX_NAME = 60
MAX_PARTS = 16
"""Most items or attributes of an object whose ``repr`` is asked for."""

MAX_TEXT = 200
"""Longest text or number of digits in such an object."""


class ValueName(str):
    """A name that is shown without quotes, also in a tuple."""

    __repr__ = str.__str__


def value_names(objects: Mapping[str, Any]) -> dict[str, str]:
    """The names of those objects that have one, by the same keys.

    Example:
        >>> value_names({"act": max, "dtype": complex, "data": object()})
        {'act': 'max', 'dtype': 'complex'}
    """
    names = ((path, _name(value)) for path, value in objects.items())
    return {path: name for path, name in names if name}


def named(node: Any, names: Mapping[str, str], unnamed: Callable[[Any], Any] = lambda marker: marker) -> Any:
    """A copy of a config with names in place of markers; ``unnamed`` says what an object without a name becomes."""
    if is_marker(node):
        name = names.get(node["__object__"])
        return ValueName(name) if name else unnamed(node)
    if isinstance(node, dict):
        return {key: named(value, names, unnamed) for key, value in node.items()}
    if isinstance(node, list):
        return [named(value, names, unnamed) for value in node]
    return node


def _name(value: Any) -> str:
    try:
        name = _text(value)
    except Exception:  # the user's code: nobody should lose an experiment because an object cannot be shown
        return ""
    return name if len(name) <= MAX_NAME and name.isprintable() and " at 0x" not in name else ""


def _text(value: Any) -> str:
    kind: Any = type(value)
    if isinstance(value, enum.Enum):
        return f"{kind.__name__}.{value.name}" if value.name else repr(value)
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return str(value.__qualname__).rpartition("<locals>.")[2]
    if kind.__repr__ is object.__repr__ or not _is_small(value):
        return ""
    return repr(value)


def _is_small(value: Any) -> bool:
    """Whether its ``repr`` must be short."""
    parts = getattr(value, "__dict__", {})
    if len(parts) > MAX_PARTS or not all(map(_is_small_scalar, parts.values())):
        return False
    if not hasattr(type(value), "__len__"):
        return True
    return len(value) <= MAX_PARTS and (isinstance(value, bytes) or all(map(_is_small_scalar, value)))


def _is_small_scalar(part: Any) -> bool:
    return type(part) in SCALARS and (not isinstance(part, str) or len(part) <= MAX_TEXT)
