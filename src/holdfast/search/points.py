"""Points to evaluate, for searchers that remember parameters: what of a point is a parameter, and what is not.

Must never refuse a value for lying outside of its domain: that may be what the user wants to see tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.errors import InvalidInputError
from holdfast.search.parameters import Parameters, has_objects
from holdfast.space.exact import VALUE, Inside, is_exact, is_mapping, pack
from holdfast.space.nested import Path, joined
from holdfast.space.objects import is_marker, pack_space
from holdfast.space.presets import apply_point


class Point(NamedTuple):
    """A configuration to try, which may leave values out."""

    values: dict[str, Any]
    """Parameters with values of their domains; of a choice, the number of the option."""

    config: dict[str, Any]
    """What the user wrote, by path: it stands in the config as it is."""

    is_outside: bool
    """Has it values that no parameter can have?"""


def read_point(space: Mapping[str, Any], parameters: Parameters, point: Mapping[str, Any], who: str) -> Point:
    """A point of ``points_to_evaluate``.

    Args:
        space: The search space.
        parameters: Those of the space.
        point: Nested as the space is, or flat with paths as keys.
        who: The searcher's name, for messages.

    Raises:
        InvalidInputError: It has a key that the space does not have, or an object.
    """
    if has_objects(point):
        raise InvalidInputError(
            f"points_to_evaluate of {who} may hold plain values only, got {dict(point)!r}. Leave the object out: {who} "
            "then chooses among those of the space."
        )
    space = pack_space(space)
    inside, given = _inside(space), _inside(pack(dict(point), lambda value, _: value))
    nested: dict[str, Any] = {}
    for key, value in given.items():
        path = parameters.path_of(key)
        if key in inside or path is None or not all(isinstance(part, str) for part in path):
            nested[key] = value
        else:
            _put(nested, path, value)
    merged = apply_point(inside, nested)  # says what is wrong with it
    reading = parameters.read({**space, VALUE: merged} if is_mapping(space) else merged)
    config: dict[str, Any] = {}
    _collect(nested, (), parameters, config)
    return Point(reading.values, config, bool(reading.outside))


def _inside(node: dict[str, Any]) -> dict[str, Any]:
    """A dict by the texts of its keys, if it is tagged."""
    return node[VALUE] if is_mapping(node) else node


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:
    for part in path[:-1]:
        if type(part) is not Inside:
            tree = tree.setdefault(str(part), {})
    tree[str(path[-1])] = value


def _collect(node: Any, path: Path, parameters: Parameters, found: dict[str, Any]) -> None:
    """What stands at the places of parameters, and all other leaves."""
    name = joined(path)
    if parameters.path_of(name) is None and not is_marker(node):
        if is_exact(node) and not parameters.has_below(name):
            found[name] = node
            return
        node = node[VALUE] if is_exact(node) else node
        if isinstance(node, dict) and (node or not path):
            for key, value in node.items():
                _collect(value, (*path, key), parameters, found)
            return
        if isinstance(node, list | tuple) and parameters.has_below(name):
            for index, value in enumerate(node):
                _collect(value, (*path, index), parameters, found)
            return
    found[name] = node
