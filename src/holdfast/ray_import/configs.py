"""Configurations of Ray Tune as plain data: objects in them become named placeholders.

Owns that translation. Must never load an object: a placeholder tells its class, and a restore is given it again.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.ray_import import inert
from holdfast.space.exact import pack
from holdfast.space.objects import is_marker, pointer

_PICKLED = "CLOUDPICKLE_FALLBACK"
MAX_VALUES = 10_000
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def plain_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config as it is journaled."""
    plain: dict[str, Any] = _plain(config, ())
    return plain


def _plain(node: Any, path: tuple[Any, ...]) -> Any:
    if isinstance(node, dict):
        if node.get("_type") == _PICKLED and isinstance(node.get("value"), str):
            return _unpickled(node["value"], path)
        return {key: _plain(value, (*path, key)) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value, (*path, place)) for place, value in enumerate(node)]
    return pack(node, lambda value, _: str(value))  # a number that is too large for a record, or half a character


def _unpickled(text: str, path: tuple[Any, ...]) -> Any:
    try:
        value = inert.load(bytes.fromhex(text))
    except (inert.Unreadable, ValueError):
        return _placeholder("an object that cannot be read", path)
    if isinstance(value, inert.Record | inert.Named) or not is_small(value):
        return _placeholder(inert.type_name(value), path)
    return pack(value, lambda inner, steps: _placeholder(inert.type_name(inner), (*path, *steps)))


def is_small(value: Any) -> bool:
    """Whether it can be written out: a pickle of a few bytes may hold the same list within itself many times over."""
    left, pending = MAX_VALUES, [value]
    while pending and left:
        left -= 1
        node = pending.pop()
        if isinstance(node, dict):
            pending += [*node.keys(), *node.values()][: left + 1]
        elif isinstance(node, list | tuple | set | frozenset):
            pending += list(node)[: left + 1]
    return not pending


def _placeholder(kind: str, path: tuple[Any, ...]) -> dict[str, str]:
    return {"__object__": pointer(path), "type": kind}


def placeholders(node: Any) -> list[dict[str, str]]:
    """All placeholders in a config."""
    if is_marker(node):
        return [node]
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [found for child in children for found in placeholders(child)]


def of_row(config: dict[str, Any], row: Any) -> dict[str, Any]:
    """The config that a result tells, which knows objects as text only; those stay as they are in ``config``."""
    if not isinstance(row, dict):
        return config
    merged: dict[str, Any] = _merged(config, row)
    return merged


def _merged(known: Any, told: Any) -> Any:
    if is_marker(known) or (isinstance(known, dict) and "__exact__" in known):
        return known
    if isinstance(known, dict) and isinstance(told, dict):
        return {key: _merged(known[key], value) if key in known else _plain(value, ()) for key, value in told.items()}
    if isinstance(known, list) and isinstance(told, list) and len(known) == len(told):
        return [_merged(one, other) for one, other in zip(known, told, strict=True)]
    if isinstance(known, str) and isinstance(told, str) and _ADDRESS.sub("", known) == _ADDRESS.sub("", told):
        return known  # the text of an object, which differs by its place in memory alone
    return _plain(told, ())
