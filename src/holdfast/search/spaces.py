"""Search spaces as searchers see them: what has to be chosen, by path, and the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.space.domains import Domain, Float, Function, Integer
from holdfast.space.exact import TAG, VALUE, is_exact, is_mapping
from holdfast.space.nested import PENDING, Grid, Path, carve, copy_tree, joined, put_at


def domains_of(space: Mapping[str, Any], who: str) -> dict[str, Domain]:
    """The domains of a space by path, in the order in which they are written.

    Raises:
        InvalidInputError: It holds a grid or a function, which only ``BasicVariantGenerator`` can do.
    """
    slots: list[Any] = []
    carve(dict(space), (), slots)
    domains = {}
    for slot in slots:
        path = joined(slot.path)
        if isinstance(slot.source, Grid):
            raise InvalidInputError(
                f"{who} cannot search over grid_search at {path!r}: a grid has no neighbours to learn from. Use "
                "tune.choice(...) there, or leave search_alg out to try the whole grid."
            )
        if isinstance(slot.source, Function):
            raise InvalidInputError(
                f"{who} cannot search over sample_from at {path!r}: it does not know what a function may return. Use a "
                "domain such as tune.uniform(...), or leave search_alg out to sample at random."
            )
        domains[path] = slot.source
    return domains


def has_domains(space: Mapping[str, Any]) -> bool:
    """Is there anything to choose in this space?"""
    slots: list[Any] = []
    carve(dict(space), (), slots)
    return bool(slots)


class Filler:
    """Puts what a searcher chose into the constants of a space.

    Args:
        space: The space, its objects replaced by markers.
        who: The searcher's name, for messages.
    """

    def __init__(self, space: Mapping[str, Any], who: str) -> None:
        self._slots: list[Any] = []
        self._template = carve(dict(space), (), self._slots)
        self._paths: dict[str, Path] = {joined(slot.path): slot.path for slot in self._slots}
        self._who = who

    def config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The whole config.

        Args:
            values: Nested as the space is, or flat with paths as keys.

        Raises:
            InvalidInputError: Something that has to be chosen was not.
        """
        config: dict[str, Any] = copy_tree(self._template)
        values = values[VALUE] if is_mapping(values) else values
        for key, value in values.items():
            path = self._paths.get(key)
            if path is not None:
                put_at(config, path, value)
            else:
                _merge(config, key, value)
        for path, source in self._slots:
            value = _at(config, path)
            if value is PENDING:
                raise InvalidInputError(
                    f"{self._who} did not suggest a value for {joined(path)!r} of the search space; it suggested "
                    f"{dict(values)!r}."
                )
            if type(value) is dict and isinstance(source, Float | Integer):
                put_at(config, path, _as_number(value))
        return config


def _as_number(node: dict[str, Any]) -> Any:
    """What a domain of numbers yields is a number of Python's, whatever the searcher computes with."""
    return node[VALUE] if is_exact(node) and str(node[TAG]).startswith("numpy.") else node


def _merge(into: dict[str, Any], key: str, value: Any) -> None:
    """A value under its key; nested dicts are merged; a key ``a/b`` reaches into ``a`` if that is a dict."""
    into = into[VALUE] if is_mapping(into) else into
    value = value[VALUE] if is_mapping(value) and is_mapping(into.get(key)) else value
    head, slash, rest = key.partition("/")
    if slash and key not in into and isinstance(into.get(head), dict):
        _merge(into[head], rest, value)
    elif isinstance(value, dict) and isinstance(into.get(key), dict):
        for below, each in value.items():
            _merge(into[key], below, each)
    else:
        into[key] = value


def _at(tree: Any, path: Path) -> Any:
    for part in path:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return None  # a whole branch was replaced by something else
    return tree
