"""Values that are not plain data: kept apart from the space, with a marker in their place.

A config in the journal must be readable without user code, so an object (a dataset, a class, an array, an enum)
is replaced by ``{"__object__": path, "type": "module.Class"}``. The path names the place in the space and
the index of the option, so an experiment restored with a space that was written anew finds the new i-th
option where the old one was.

Owns the markers. Must never pickle: whoever stores an experiment stores the objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import partial
from typing import Any

from holdfast.errors import InvalidInputError, MissingObjectError
from holdfast.space.exact import IN, Inside, Object, is_ours, pack_leaf, pack_mapping, pack_scalar, tagged, unpack
from holdfast.space.nested import SCALARS, Path, has_variables, is_grid, is_opaque, joined

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
    return "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in path if type(part) is not Inside)


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

    Plain are int, float, str, bool, None, dict, list, domains and grids. Tuples, sets, NumPy numbers, paths and dicts
    with other keys than strings are tagged (see ``exact``). Objects are also found among the options of choices and
    grids, and among keys.

    Args:
        space: The space as the user wrote it; it is not changed.

    Returns:
        The space with markers in place of objects and tags where they are needed, and the objects by the path in
        their marker.

    Example:
        >>> extract_objects({"lr": 0.1, "data": b"train"})
        ({'lr': 0.1, 'data': {'__object__': 'data', 'type': 'builtins.bytes'}}, {'data': b'train'})
    """
    objects: dict[str, Any] = {}
    return _extract(dict(space), (), partial(_keep, objects, {})), objects


def pack_space(space: Mapping[str, Any]) -> dict[str, Any]:
    """The space with tags where they are needed, and its objects still inside."""
    packed: dict[str, Any] = _extract(dict(space), (), lambda node, _: node)
    return packed


def unpack_space(space: Mapping[str, Any]) -> dict[str, Any]:
    """The space as the user wrote it, but for its objects: those stay markers."""
    from holdfast.space.domains import Categorical

    def with_options(node: Any) -> Any:
        if not isinstance(node, Categorical):
            return node
        shown = copy(node)
        shown.categories = [unpack(option, with_options) for option in node.categories]
        return shown

    unpacked: dict[str, Any] = unpack(dict(space), with_options)
    return unpacked


def extract_point(point: Mapping[str, Any], n: int, objects: dict[str, Any]) -> dict[str, Any]:
    """Take the objects out of the n-th point to evaluate; new ones are added to ``objects``.

    An object that is already known keeps the marker it has in the space, so that the point names the same option.
    """
    known = names_of(objects)
    plain: dict[str, Any] = _extract(dict(point), ("points_to_evaluate", n), partial(_keep, objects, known))
    return plain


def names_of(objects: Mapping[str, Any]) -> dict[int, str]:
    """The name of each object by its identity; the mapping is only good while ``objects`` lives."""
    return {id(value): name for name, value in objects.items()}


def _extract(node: Any, path: Path, on_object: Object) -> Any:
    # Here and not above: those who only read experiments have markers, and no domains.
    from holdfast.space.bounds import option_list
    from holdfast.space.domains import Categorical, Domain

    def below(value: Any, *steps: Any) -> Any:
        return _extract(value, (*path, *steps), on_object)

    if type(node) in SCALARS:
        return pack_scalar(node)
    if isinstance(node, Categorical):
        options = [below(option, i) for i, option in enumerate(node.categories)]
        if all(new is old for new, old in zip(options, node.categories, strict=True)):
            return node
        replaced = copy(node)
        replaced.categories = options
        return replaced
    if isinstance(node, Domain):
        return node
    if is_grid(node):
        values = option_list(node["grid_search"], f"grid_search at {joined(path)!r}")
        return {"grid_search": [below(option, i) for i, option in enumerate(values)]}
    if is_marker(node) or (isinstance(node, dict) and is_ours(node)):
        return node
    if isinstance(node, dict) and not is_opaque(node):
        return pack_mapping(
            node, lambda value, steps: below(value, *steps), lambda key, text: below(key, f"{text}~key")
        )
    if isinstance(node, list) and not is_opaque(node):
        return [below(value, i) for i, value in enumerate(node)]
    if type(node) is tuple:
        return tagged("tuple", [below(value, IN, i) for i, value in enumerate(node)])
    return pack_leaf(node) or on_object(node, path)


def _keep(objects: dict[str, Any], known: Mapping[int, str], node: Any, path: Path) -> dict[str, str]:
    if getattr(node, "__module__", "") == "holdfast.space.primitives":
        raise InvalidInputError(
            f"The search space has the function {node.__name__} itself at {joined(path)!r}. "
            f"Call it: {node.__name__}(...)."
        )
    if isinstance(node, tuple) and has_variables(tuple(node)):
        raise InvalidInputError(
            f"The search space has a {type(node).__name__} with something to choose in it at {joined(path)!r}: "
            f"{node!r}. Domains and grids are found in dicts, lists and tuples only. Use one of these, and make the "
            f"{type(node).__name__} in the trainable or with tune.sample_from(...)."
        )
    name = known.get(id(node)) or next((name for name in known.values() if _is_equal(objects[name], node)), "")
    kind: Any = type(node)
    if not name or kind.__eq__ is object.__eq__:
        # Once both were stored and loaded, nobody can tell that two objects which only equal themselves were one.
        objects[pointer(path)] = node
    if name:
        return make_marker(name, node)
    return make_marker(pointer(path), node)


def _is_equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    try:
        return bool(one == other)
    except Exception:  # arrays answer with an array, whose truth is an error
        return False


def restore_objects(config: Any, objects: Mapping[str, Any]) -> Any:
    """Put the values back that a config stands for: a copy of it with every tag and marker replaced.

    Args:
        config: A config, or any part of one.
        objects: What ``extract_objects`` took out.

    Raises:
        InvalidInputError: An object is missing.
    """
    return unpack(config, lambda node: find_object(node, objects) if is_marker(node) else node)


def known_objects(config: Any, objects: Mapping[str, Any] | None) -> Any:
    """A copy of a config with its values put back; where an object is not known any more its marker stays."""
    if not objects:
        return unpack(config)

    def found(node: Any) -> Any:
        return objects.get(node["__object__"], dict(node)) if is_marker(node) else node

    return unpack(config, found)


def find_object(marker: Mapping[str, str], objects: Mapping[str, Any]) -> Any:
    """The object that a marker stands for.

    Raises:
        MissingObjectError: It was not kept.
    """
    try:
        return objects[marker["__object__"]]
    except KeyError:
        # What to do comes first: displays cut messages.
        raise MissingObjectError(
            f"Give param_space= to Tuner.restore() again: the value of {marker['__object__']!r} (a {marker['type']}) "
            "is needed, and it was not kept with the experiment."
        ) from None
