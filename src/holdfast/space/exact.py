"""Python values that JSON and msgpack would flatten, as tagged plain data.

A config in the journal is readable without user code. What would come back as something else is tagged there:
``(1, 2)`` is ``{"__exact__": "tuple", "value": [1, 2]}``, and ``{1: "a"}`` is
``{"__exact__": "dict", "value": {"1": "a"}, "keys": {"1": 1}}``. Whoever hands a config to the user takes the tags
away again. Values that need code of the user's are no business of this file (see ``objects``).

Owns the tags. Must never pickle, and must never import a module of the user's.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from holdfast.errors import InvalidInputError

SCALARS = frozenset({int, float, str, bool, type(None)})
"""Exact types that are plain data; a subclass (an enum, a NumPy number) is more than its plain value."""

TAG = "__exact__"
VALUE = "value"
KEYS = "keys"

_MAPPINGS = {"dict": dict, "OrderedDict": OrderedDict}
_SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_LEAVES = frozenset({"int", "str", "complex", "Path"})
_STORABLE = range(-(1 << 63), 1 << 64)
_NUMPY = re.compile(r"float\d+|u?int\d+|bool_?|str_?|complex\d+")
_NUMPY_INTS = {
    **{f"int{bits}": range(-(1 << bits - 1), 1 << bits - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": range(1 << bits) for bits in (8, 16, 32, 64)},
}
_LONGEST_INT = 4300
"""Digits of the longest int that Python turns into text."""

_TOO_LARGE = 10**_LONGEST_INT

Object: TypeAlias = Callable[[Any, tuple[Any, ...]], Any]
"""(a value that no tag can hold, its path) -> what stands in its place."""


class Inside(str):
    """The step of a path from a tagged node to what is in it: a key like any other, but not part of a name."""

    __slots__ = ()


IN = Inside(VALUE)


def is_exact(node: Any) -> bool:
    """Whether a node is tagged."""
    return isinstance(node, dict) and TAG in node


def is_ours(node: Mapping[Any, Any]) -> bool:
    """Whether a dict is a tagged node that can be unpacked, and not a dict of the user's that has our key by chance."""
    kind, value = node.get(TAG), node.get(VALUE)
    if not isinstance(kind, str):
        return False
    if kind in _MAPPINGS:
        keys = node.get(KEYS)
        if len(node) != 3 or not isinstance(value, dict) or not isinstance(keys, dict):
            return False
        return _are_texts(value) and _are_texts(keys) and all(map(_is_hashable, keys.values()))
    if len(node) != 2 or VALUE not in node:
        return False
    if kind in _SEQUENCES:
        return isinstance(value, list) and (kind == "tuple" or all(map(_is_hashable, value)))
    return _is_numpy(kind[6:], value) if kind.startswith("numpy.") else _is_leaf(kind, value)


def _are_texts(keys: Iterable[Any]) -> bool:
    """Whether these are keys that ``pack_mapping`` makes."""
    return all(type(key) is str and key != TAG and _is_storable(key) for key in keys)


def _is_hashable(node: Any) -> bool:
    """Whether data, packed or not yet, stands for something that can be a key, or a member of a set."""
    if isinstance(node, tuple | frozenset):
        return all(map(_is_hashable, node))
    if not isinstance(node, dict):
        return not isinstance(node, list | set)
    if TAG not in node:
        return node.keys() == {"__object__", "type"}
    if not is_ours(node) or node[TAG] in _MAPPINGS or node[TAG] == "set":
        return False
    return node[TAG] != "tuple" or all(map(_is_hashable, node[VALUE]))


def _is_leaf(kind: str, value: Any) -> bool:
    if kind == "complex":
        return _is_complex(value)
    if kind not in _LEAVES or type(value) is not str:
        return False
    if kind == "Path":
        return True
    try:
        return abs(int(value, 16)) < _TOO_LARGE if kind == "int" else type(json.loads(value)) is str
    except (ValueError, RecursionError):
        return False


def _is_complex(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(part) in (float, int) for part in value)


def _is_numpy(name: str, value: Any) -> bool:
    """Whether NumPy can make the value. It is not asked: importing it takes longer than most readers need."""
    if name in _NUMPY_INTS:
        return type(value) is int and value in _NUMPY_INTS[name]
    if not _NUMPY.fullmatch(name):
        return False
    if name.startswith("complex"):
        return _is_complex(value)
    if name.startswith("float"):
        return type(value) in (float, int)
    return type(value) is (bool if name.startswith("bool") else str if name.startswith("str") else int)


def misfit(node: Any) -> dict[str, Any] | None:
    """The first node in packed data whose tag cannot be taken away; None if there is none.

    Tags that this version does not know are not meant: they are shown as they are.
    """
    if isinstance(node, dict):
        if TAG in node and not is_ours(node) and not _is_unknown(node[TAG]):
            return node
        node = node.values()
    elif not isinstance(node, list):
        return None
    for child in node:
        if type(child) not in SCALARS and (found := misfit(child)) is not None:
            return found
    return None


def _is_unknown(kind: Any) -> bool:
    if not isinstance(kind, str) or kind in _MAPPINGS or kind in _SEQUENCES or kind in _LEAVES:
        return False
    return not (kind.startswith("numpy.") and _NUMPY.fullmatch(kind[6:]))


def is_mapping(node: Any) -> bool:
    """Whether a node is tagged and stands for a dict."""
    return isinstance(node, dict) and isinstance(node.get(TAG), str) and node[TAG] in _MAPPINGS


def tagged(kind: str, value: Any) -> dict[str, Any]:
    """The plain data that stands for a value of this kind."""
    return {TAG: kind, VALUE: value}


# --- there


def pack_mapping(
    node: Mapping[Any, Any], pack_value: Callable[[Any, Any], Any], pack_key: Callable[[Any, str], Any]
) -> dict[str, Any]:
    """A dict as plain data; tagged if its keys are not all strings, or it would be taken for something else.

    Args:
        node: The dict.
        pack_value: (value, the steps to it from the dict) -> plain data.
        pack_key: (key, its text) -> plain data.
    """
    kind = "OrderedDict" if type(node) is OrderedDict else "dict"
    if kind == "dict" and TAG not in node and all(type(key) is str for key in node) and _all_text(node):
        return {key: pack_value(value, (key,)) for key, value in node.items()}
    texts = _texts(node)
    return {
        TAG: kind,
        VALUE: {text: pack_value(value, (IN, text)) for text, value in zip(texts, node.values(), strict=True)},
        KEYS: {text: pack_key(key, text) for text, key in zip(texts, node, strict=True) if key is not text},
    }


def _all_text(keys: Mapping[Any, Any]) -> bool:
    return all(key.isascii() or _is_storable(key) for key in keys)


def _texts(node: Mapping[Any, Any]) -> list[str]:
    """A text for each key of a dict; no two are the same, and strings stand for themselves."""
    taken = {key for key in node if type(key) is str}
    texts = []
    for key in node:
        if type(key) is str and key != TAG and _is_storable(key):
            texts.append(key)
            continue
        text = _shown_key(key)
        if text in taken or text == TAG:
            text = f"{text} ({type(key).__name__})"
        count = 1
        stem = text
        while text in taken:
            count += 1
            text = f"{stem} {count}"
        taken.add(text)
        texts.append(text)
    return texts


def _shown_key(key: Any) -> str:
    kind: Any = type(key)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return str(kind.__name__)  # the default text has the object's address in it
    return str(key).encode("utf-8", "backslashreplace").decode()


def pack_scalar(value: Any) -> Any:
    """An int, float, str, bool or None as plain data: tagged if it is beyond what msgpack can hold.

    Raises:
        InvalidInputError: No reader could show it.
    """
    if _is_storable(value):
        return value
    if type(value) is int and abs(value) >= _TOO_LARGE:
        raise InvalidInputError(
            f"A parameter is an int of more than {_LONGEST_INT} digits, which Python does not turn into text. Give it "
            "as text, or as its exponent, and compute the int in the trainable."
        )
    return tagged("int", hex(value)) if type(value) is int else tagged("str", json.dumps(value))


def _is_storable(value: Any) -> bool:
    if type(value) is int:
        return value in _STORABLE
    if type(value) is not str or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def pack_leaf(value: Any) -> dict[str, Any] | None:
    """A value of the standard library or of NumPy as tagged data; None if it is no such value."""
    kind = type(value)
    if kind is complex:
        return tagged("complex", [value.real, value.imag])
    if isinstance(value, pathlib.PurePath):
        shared = kind is type(pathlib.Path()) and _is_storable(str(value))
        return tagged("Path", str(value)) if shared else None
    if kind is set or kind is frozenset:
        items = [_simple(item) for item in value]
        # Sets have no order, and it differs between processes; what is stored must not.
        return tagged(kind.__name__, sorted(items, key=repr)) if _ABSENT not in items else None
    return _numpy(value)


_ABSENT = object()


def _simple(value: Any) -> Any:
    """A member of a set as plain data; _ABSENT if it cannot be."""
    if type(value) in SCALARS:
        return pack_scalar(value)
    if type(value) is tuple:
        items = [_simple(item) for item in value]
        return tagged("tuple", items) if _ABSENT not in items else _ABSENT
    found = pack_leaf(value)
    return _ABSENT if found is None else found


def _numpy(value: Any) -> dict[str, Any] | None:
    kind = type(value)
    if kind.__module__ != "numpy" or getattr(value, "shape", None) != () or not hasattr(value, "item"):
        return None
    if hasattr(value, "__array_finalize__"):
        return None  # an array without dimensions, which is not a number
    name, item = kind.__name__, value.item()
    if not _NUMPY.fullmatch(name) or name.startswith(("float128", "float96")):
        return None
    if type(item) is complex:
        return tagged(f"numpy.{name}", [item.real, item.imag])
    return tagged(f"numpy.{name}", item) if type(item) in SCALARS and _is_storable(item) else None


def pack(node: Any, on_object: Object, path: tuple[Any, ...] = ()) -> Any:
    """Any value as plain data. What is plain already, tagged or not, stays as it is.

    Args:
        node: The value.
        on_object: What to do with a value that no tag can hold.
        path: Where the node is.
    """
    kind = type(node)
    if kind in SCALARS:
        return pack_scalar(node)
    if kind is dict or kind is OrderedDict:
        if kind is dict and is_ours(node):
            packed = {**node, VALUE: _pack_inside(node[VALUE], on_object, path)}
            if KEYS in node:
                packed[KEYS] = {t: pack(key, on_object, (*path, f"{t}~key")) for t, key in node[KEYS].items()}
            return packed
        if node.keys() == {"__object__", "type"}:
            return node
        return pack_mapping(
            node,
            lambda value, steps: pack(value, on_object, (*path, *steps)),
            lambda key, text: pack(key, on_object, (*path, f"{text}~key")),
        )
    if kind is list:
        return [pack(value, on_object, (*path, i)) for i, value in enumerate(node)]
    if kind is tuple:
        return tagged("tuple", [pack(value, on_object, (*path, IN, i)) for i, value in enumerate(node)])
    found = pack_leaf(node)
    return on_object(node, path) if found is None else found


def _pack_inside(value: Any, on_object: Object, path: tuple[Any, ...]) -> Any:
    """What is in a tagged node: its own dict or list is not to be tagged."""
    if isinstance(value, dict):
        return {text: pack(each, on_object, (*path, IN, text)) for text, each in value.items()}
    if isinstance(value, list):
        return [pack(each, on_object, (*path, IN, i)) for i, each in enumerate(value)]
    return value


# --- and back


def unpack(node: Any, on_leaf: Callable[[Any], Any] | None = None) -> Any:
    """A copy of packed data with the values that its tags stand for.

    Args:
        node: A config, or any part of one.
        on_leaf: Called with every marker, and with whatever is no plain data; None leaves them as they are.
    """
    kind = type(node)
    if kind in SCALARS:
        return node
    if kind is list:
        return [value if type(value) in SCALARS else unpack(value, on_leaf) for value in node]
    if kind is not dict:
        return node if on_leaf is None else on_leaf(node)
    if len(node) == 2 and "__object__" in node and "type" in node:
        return dict(node) if on_leaf is None else on_leaf(node)
    if TAG in node:
        return _unpack_tagged(node, on_leaf)
    return {key: value if type(value) in SCALARS else unpack(value, on_leaf) for key, value in node.items()}


def _unpack_tagged(node: dict[str, Any], on_leaf: Callable[[Any], Any] | None) -> Any:
    kind: Any = node[TAG]
    value: Any = node.get(VALUE)
    try:
        if kind in _MAPPINGS:
            keys = _real_keys(node, on_leaf)
            return _MAPPINGS[kind]((keys.get(text, text), unpack(each, on_leaf)) for text, each in value.items())
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](unpack(each, on_leaf) for each in value)
        return _unpack_leaf(kind, value)
    except (TypeError, ValueError, AttributeError, LookupError, ImportError):
        # Of a newer version, or written by somebody else: readers must be able to show it all the same.
        return {key: unpack(each, on_leaf) for key, each in node.items()}


def _real_keys(node: dict[str, Any], on_leaf: Callable[[Any], Any] | None) -> dict[str, Any]:
    """The keys of a dict that are no strings, by their text; those that need the user's code stay texts without it."""
    keys = {text: unpack(key, on_leaf) for text, key in node.get(KEYS, {}).items()}
    return {text: key for text, key in keys.items() if _has_hash(key)}


def _has_hash(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:  # a marker, or a tuple with one in it
        return False
    return True


def _unpack_leaf(kind: str, value: Any) -> Any:
    if kind == "complex":
        return complex(*value)
    if kind == "int":
        return int(value, 16)
    if kind == "str":
        return str(json.loads(value))
    if kind == "Path":
        return pathlib.Path(value)
    package, _, name = kind.partition(".")
    if package != "numpy" or not _NUMPY.fullmatch(name):
        raise LookupError(kind)
    try:
        import numpy
    except ImportError:
        return value
    return getattr(numpy, name)(complex(*value) if name.startswith("complex") else value)


def shown(node: Any) -> Any:
    """Packed data as JSON would have it, for people: tuples and sets as lists, keys as text. Markers stay."""
    if type(node) in SCALARS:
        return node
    if isinstance(node, list):
        return [shown(value) for value in node]
    if not isinstance(node, dict):
        return node
    if TAG not in node or not (is_ours(node) or _is_unknown(node[TAG])):
        return {key: shown(value) for key, value in node.items()}
    value = node.get(VALUE)
    kind = str(node[TAG])
    if kind == "int":
        return _unpack_tagged(node, None)
    if kind in ("str", "complex") or kind.startswith("numpy.complex"):
        return str(_unpack_tagged(node, None)).encode("utf-8", "backslashreplace").decode()
    return shown(value)


def children(node: Any) -> Any:
    """What is in a node, tagged or not: a dict by the real keys, or a list; None if it has nothing inside."""
    if is_mapping(node):
        keys = _real_keys(node, None)
        return {keys.get(text, text): value for text, value in node[VALUE].items()}
    if is_exact(node):
        return node[VALUE] if node[TAG] == "tuple" else None
    return node if isinstance(node, dict | list) else None
