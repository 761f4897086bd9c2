"""Points to evaluate: a search space with some of its variables replaced by given values.

Owns what a point may replace. Must never refuse a value for lying outside its domain: that may be what the
user wants to see tried, so it is only pointed out.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.messages.warn import warn_user
from holdfast.space.domains import Categorical, Domain
from holdfast.space.exact import IN, TAG, VALUE, is_exact, is_mapping, shown
from holdfast.space.nested import Path, Slot, carve, is_eval, is_grid, joined
from holdfast.space.objects import is_marker


def apply_point(
    space: Mapping[str, Any], point: Mapping[str, Any], settled: Container[str] = frozenset()
) -> dict[str, Any]:
    """A copy of the space with the values of the point in it.

    Args:
        space: The search space.
        point: Its values.
        settled: Names of objects that were compared with the space when they were stored; nobody can do it again.

    Raises:
        InvalidInputError: The point has a key that the space does not have.
    """
    merged: dict[str, Any] = _merge(dict(space), dict(point), (), settled)
    return merged


def _merge(space: Any, point: Any, path: Path, settled: Container[str]) -> Any:
    if is_exact(space) and _is_alike(space, point):
        inside = point[VALUE] if is_exact(point) else point
        return {**space, VALUE: _merge(space[VALUE], inside, (*path, IN), settled)}
    if _is_branch(space) and isinstance(point, dict) and not is_marker(point) and not is_grid(point):
        unknown = [key for key in point if key not in space]
        if unknown:
            raise InvalidInputError(
                f"points_to_evaluate sets {joined((*path, unknown[0]))!r}, which does not correspond to a valid key "
                f"in the search space; there are {list(space)}. Add it to param_space or drop it from the point."
            )
        return {
            key: _merge(value, point[key], (*path, key), settled) if key in point else value
            for key, value in space.items()
        }
    if isinstance(space, list | tuple) and isinstance(point, list) and len(space) == len(point):
        return [_merge(value, point[i], (*path, i), settled) for i, value in enumerate(space)]
    if not (is_marker(point) and point["__object__"] in settled):
        _check_value(space, point, path)
    return point


def _is_alike(space: Any, point: Any) -> bool:
    """Whether a point fills a tuple or a dict of the space; a list and a dict with strings for keys do, too."""
    if is_mapping(space):
        return is_mapping(point) or (_is_branch(point) and not is_exact(point))
    if space[TAG] != "tuple":
        return False
    items = point[VALUE] if is_exact(point) and point[TAG] == "tuple" else point
    return isinstance(items, list) and len(items) == len(space[VALUE])


def _is_branch(node: Any) -> bool:
    return isinstance(node, dict) and not (is_grid(node) or is_eval(node) or is_marker(node))


def _check_value(space: Any, value: Any, path: Path) -> None:
    variables: list[Slot] = []
    carve(value, path, variables)
    if variables or is_eval(space):
        return  # another domain in place of the first one: there is nothing to compare
    if isinstance(space, Domain):
        options = shown(space.categories) if isinstance(space, Categorical) else space.domain_str
        expected, known = f"not within {options}", space.is_valid(value) or _is_alike_option(space, value)
    elif is_grid(space):
        options = space["grid_search"]
        choice = Categorical(options)
        expected, known = f"none of {shown(options)}", choice.is_valid(value) or _is_alike_option(choice, value)
    else:
        known = Categorical([space]).is_valid(value) or shown(space) == shown(value)
        expected = f"not the constant {shown(space)!r}"
    if not known:
        warn_user(
            f"points_to_evaluate sets {joined(path)!r} to {shown(value)!r}, which is {expected} as the search space "
            f"has it. The value is used anyway."
        )


def _is_alike_option(space: Domain, value: Any) -> bool:
    """Whether a value is an option but for its type, as a list of a JSON file is for a tuple."""
    return isinstance(space, Categorical) and any(shown(option) == shown(value) for option in space.categories)
