"""Values that are not plain data: kept apart from the space, with a marker in their place.

A config in the journal must be readable without user code, so an object (a dataset, a class, an array)
is replaced by ``{"__object__": path, "type": "module.Class"}``. The path names the place in the space and
the index of the option, so an experiment restored with a space that was written anew finds the new i-th
option where the old one was.

Owns the markers. Must never pickle: whoever stores an experiment stores the objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.space.tree import SCALARS, Path, is_grid, joined

_KEYS = {"__object__", "type"}


def is_marker(node: Any) -> bool:
    """Whether a node of a config stands for an object."""
    return isinstance(node, dict) and node.keys() == _KEYS


def make_marker(path: str, value: Any) -> dict[str, str]:
    """The plain data that stands for ``value``."""
    kind = type(value)
    return {"__object__": path, "type": f"{kind.__module__}.{kind.__qualname__}"}


def pointer(path: Path) -> str:
    """A path as text that no other path shares, even if keys contain "/"."""
    return "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in path)


def plain_scalar(value: Any) -> Any:
    """A NumPy number or string as the Python value it stands for; anything else as it is."""
    kind = type(value)
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        item = value.item()
        if type(item) in SCALARS:
            return item
    return value


def extract_objects(space: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take everything that is not plain data out of a space.

    Plain are int, float, str, bool, None, dict, list, tuple, domains and grids; NumPy numbers become Python
    numbers. Objects are also found among the options of choices and grids.

    Args:
        space: The space as the user wrote it; it is not changed.

    Returns:
        The space with markers in place of objects, and the objects by the path in their marker.

    Example:
        >>> extract_objects({"lr": 0.1, "data": b"train"})
        ({'lr': 0.1, 'data': {'__object__': 'data', 'type': 'builtins.bytes'}}, {'data': b'train'})
    """
    objects: dict[str, Any] = {}
    return _extract(dict(space), (), objects, {}), objects


def extract_point(point: Mapping[str, Any], n: int, objects: dict[str, Any]) -> dict[str, Any]:
    """Take the objects out of the n-th point to evaluate; new ones are added to ``objects``.

    An object that is already known keeps the marker it has in the space, so that the point names the same option.
    """
    known = names_of(objects)
    plain: dict[str, Any] = _extract(dict(point), ("points_to_evaluate", n), objects, known)
    return plain


def names_of(objects: Mapping[str, Any]) -> dict[int, str]:
    """The name of each object by its identity; the mapping is only good while ``objects`` lives."""
    return {id(value): name for name, value in objects.items()}


def _extract(node: Any, path: Path, objects: dict[str, Any], known: Mapping[int, str]) -> Any:
    # Here and not above: those who only read experiments have markers, and no domains.
    from holdfast.space.bounds import option_list
    from holdfast.space.domains import Categorical, Domain

    if type(node) in SCALARS:
        return node
    if isinstance(node, Categorical):
        options = [_extract(option, (*path, i), objects, known) for i, option in enumerate(node.categories)]
        if all(new is old for new, old in zip(options, node.categories, strict=True)):
            return node
        replaced = copy(node)
        replaced.categories = options
        return replaced
    if isinstance(node, Domain):
        return node
    if is_grid(node):
        values = option_list(node["grid_search"], f"grid_search at {joined(path)!r}")
        return {"grid_search": [_extract(option, (*path, i), objects, known) for i, option in enumerate(values)]}
    if is_marker(node):
        return node
    if isinstance(node, dict):
        return {key: _extract(value, (*path, key), objects, known) for key, value in node.items()}
    if isinstance(node, list) or type(node) is tuple:
        return [_extract(value, (*path, i), objects, known) for i, value in enumerate(node)]
    node = plain_scalar(node)
    if type(node) in SCALARS:
        return node
    if getattr(node, "__module__", "") == "holdfast.space.primitives":
        raise InvalidInputError(
            f"The search space has the function {node.__name__} itself at {joined(path)!r}. "
            f"Call it: {node.__name__}(...)."
        )
    name = known.get(id(node)) or pointer(path)
    objects[name] = node
    return make_marker(name, node)


def restore_objects(config: Any, objects: Mapping[str, Any]) -> Any:
    """Put the objects back: a copy of ``config`` with every marker replaced.

    Args:
        config: A config, or any part of one.
        objects: What ``extract_objects`` took out.

    Raises:
        InvalidInputError: An object is missing.
    """
    if type(config) in SCALARS:
        return config
    if is_marker(config):
        return find_object(config, objects)
    if isinstance(config, dict):
        return {key: restore_objects(value, objects) for key, value in config.items()}
    if isinstance(config, list):
        return [restore_objects(value, objects) for value in config]
    return config


def find_object(marker: Mapping[str, str], objects: Mapping[str, Any]) -> Any:
    """The object that a marker stands for.

    Raises:
        InvalidInputError: It is missing.
    """
    try:
        return objects[marker["__object__"]]
    except KeyError:
        raise InvalidInputError(
            f"The value of {marker['__object__']!r} (a {marker['type']}) is needed, but it was not kept with the "
            f"experiment. Pass the search space again: Tuner.restore(path, trainable, param_space=...)."
        ) from None
