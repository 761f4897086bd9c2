"""Nested dicts and lists as trees: paths, flat keys, and the nodes of a space that still need a value.

Owns what a path is and which node is a variable. Must never draw a value.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from holdfast.errors import InvalidInputError
from holdfast.space.exact import IN, VALUE, Inside, is_ours, pack_mapping, tagged
from holdfast.space.exact import SCALARS as SCALARS

if TYPE_CHECKING:
    from holdfast.space.domains import Domain

Path: TypeAlias = tuple[Hashable, ...]
"""Dict keys and list indexes from the root to a node; ``IN`` goes into a tagged node (see ``exact``)."""


class Pending:
    """Stands in a config where a value is still to come."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<not resolved yet>"


PENDING = Pending()


class Grid(NamedTuple):
    """A grid: every one of its options is tried."""

    options: list[Any]


class Slot(NamedTuple):
    """A place in a space that needs a value, and where the value comes from."""

    path: Path
    source: Domain | Grid


def is_grid(node: Any) -> bool:
    """Whether a node is ``{"grid_search": [...]}``."""
    return isinstance(node, dict) and len(node) == 1 and "grid_search" in node


def is_eval(node: Any) -> bool:
    """Whether a node is the legacy ``{"eval": "expression"}``."""
    return isinstance(node, dict) and len(node) == 1 and isinstance(node.get("eval"), str)


def joined(path: Path) -> str:
    """A path as one string."""
    return "/".join([str(part) for part in path if type(part) is not Inside])


def path_order(path: Path) -> list[tuple[int, int, str]]:
    """Sort key of paths: list indexes as numbers and before names, names as text."""
    return [(0, part, "") if isinstance(part, int) else (1, 0, str(part)) for part in path if type(part) is not Inside]


def carve(node: Any, path: Path, found: list[Slot]) -> Any:
    """Copy a tree with PENDING in place of every variable; the variables are appended to ``found``.

    Containers become new dicts and lists, tagged where that is not what they are (see ``exact``), so that the copy
    shares nothing that could be changed.
    """
    if type(node) in SCALARS:
        return node
    # Here and not above: those who only read experiments have trees without a domain in them.
    from holdfast.space.bounds import option_list
    from holdfast.space.domains import Domain
    from holdfast.space.expression import Expression

    if isinstance(node, Domain):
        found.append(Slot(path, node))
        return PENDING
    if isinstance(node, dict):
        if is_grid(node):
            found.append(Slot(path, Grid(option_list(node["grid_search"], f"grid_search at {joined(path)!r}"))))
            return PENDING
        if is_eval(node):
            found.append(Slot(path, Expression(node["eval"])))
            return PENDING
        if is_opaque(node):
            return node
        if is_ours(node):
            return {**node, VALUE: _carve_inside(node[VALUE], (*path, IN), found)}
        return pack_mapping(node, lambda value, steps: carve(value, (*path, *steps), found), lambda key, _: key)
    if isinstance(node, list):
        if is_opaque(node):
            return node
        return [carve(value, (*path, i), found) for i, value in enumerate(node)]
    if type(node) is tuple:
        return tagged("tuple", _carve_inside(node, (*path, IN), found))
    return node


def _carve_inside(value: Any, path: Path, found: list[Slot]) -> Any:
    """What is in a tagged node: its own dict or list is not to be tagged."""
    if isinstance(value, dict):
        return {text: carve(each, (*path, text), found) for text, each in value.items()}
    if isinstance(value, list | tuple):
        return [carve(each, (*path, i), found) for i, each in enumerate(value)]
    return value


def copy_tree(node: Any) -> Any:
    """Copy the dicts and lists of a carved tree; leaves are shared."""
    if isinstance(node, dict):
        return {k: v if type(v) in SCALARS else copy_tree(v) for k, v in node.items()}
    if isinstance(node, list):
        return [v if type(v) in SCALARS else copy_tree(v) for v in node]
    return node


def is_opaque(node: Any) -> bool:
    """Whether a dict or list is of a class of its own and has no variable in it: then it is a value like any other."""
    kind = type(node)
    if kind in (dict, list, OrderedDict) or getattr(kind, "is_view", False):
        return False
    return not has_variables(dict(node) if isinstance(node, dict) else list(node))


def has_variables(node: Any) -> bool:
    """Whether there is anything in a node that needs a value."""
    found: list[Slot] = []
    carve(node, (), found)
    return bool(found)


def check_names(space: Mapping[Any, Any]) -> None:
    """Refuse two values of one name if one of them is to be chosen: nobody could tell which.

    Raises:
        InvalidInputError: There are such values, for example ``{"a/b": uniform(0, 1), "a": {"b": 1}}``.
    """
    first: dict[str, tuple[str, bool]] = {}
    for name, where, is_variable in _named(dict(space), "", ""):
        other, was_variable = first.setdefault(name, (where, is_variable))
        if other != where and (is_variable or was_variable):
            raise InvalidInputError(
                f"param_space has two values named {name!r}: {other} and {where}. Keys are joined by '/' in results, "
                "tags and searchers, so they could not be distinguished. Rename one of the keys."
            )


def _named(node: Any, name: str, where: str) -> Iterator[tuple[str, str, bool]]:
    """Every value of a space: its name, where it is as code, and whether it is to be chosen."""
    from holdfast.space.domains import Domain

    if isinstance(node, Domain) or is_grid(node) or is_eval(node):
        yield name, where, True
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _named(value, f"{name}/{key}" if where else str(key), f"{where}[{key!r}]")
    elif isinstance(node, list | tuple) and has_variables(node):
        for i, value in enumerate(node):
            yield from _named(value, f"{name}/{i}", f"{where}[{i}]")
    else:
        yield name, where, False


def find_variables(space: Mapping[str, Any]) -> list[Slot]:
    """Everything in a space that needs a value, ordered by path; empty for a space of constants."""
    found: list[Slot] = []
    carve(dict(space), (), found)
    return sorted(found, key=lambda slot: path_order(slot.path))


def get_at(tree: Any, path: Path) -> Any:
    """The node at a path."""
    for part in path:
        tree = tree[part]
    return tree


def put_at(tree: Any, path: Path, value: Any) -> None:
    """Replace the node at a path, whose parent exists."""
    for part in path[:-1]:
        tree = tree[part]
    tree[path[-1]] = value


def flatten_dict(
    dt: Mapping[Any, Any], delimiter: str = "/", prevent_delimiter: bool = False, flatten_list: bool = False
) -> dict[str, Any]:
    """Flatten nested dicts into one, joining keys. Empty dicts vanish; lists stay unless asked otherwise.

    Args:
        dt: The nested dict; it is not changed.
        delimiter: What joins two keys.
        prevent_delimiter: Refuse keys that contain the delimiter, because they could not be distinguished.
        flatten_list: Flatten lists too, by index.

    Example:
        >>> flatten_dict({"a": {"b": 1, "c": {}}, "d": [1]})
        {'a/b': 1, 'd': [1]}
    """
    flat: dict[str, Any] = {}
    kinds = (dict, list) if flatten_list else dict

    def walk(node: Any, prefix: str) -> None:
        pairs = enumerate(node) if isinstance(node, list) else node.items()
        for key, value in pairs:
            if prevent_delimiter and delimiter in str(key):
                raise InvalidInputError(
                    f"The key {key!r} contains {delimiter!r}, which joins nested keys. Rename the key."
                )
            if isinstance(value, kinds):
                walk(value, f"{prefix}{key}{delimiter}")
            else:
                flat[f"{prefix}{key}"] = value

    walk(dt, "")
    return flat


def unflatten_dict(dt: Mapping[str, Any], delimiter: str = "/") -> dict[str, Any]:
    """Nest the keys of a flat dict again.

    Example:
        >>> unflatten_dict({"a/b": 1, "d": [1]})
        {'a': {'b': 1}, 'd': [1]}
    """
    nested: dict[str, Any] = {}
    for key, value in dt.items():
        *parents, last = key.split(delimiter)
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise InvalidInputError(f"{key!r} needs {parent!r} to be a dict, but it has the value {node!r} too.")
        if isinstance(node.get(last), dict):
            raise InvalidInputError(f"{key!r} has the value {value!r}, but there are keys below it too. Rename one.")
        node[last] = value
    return nested
