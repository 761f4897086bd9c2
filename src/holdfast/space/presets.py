"""Points to evaluate: a search space with some of its variables replaced by given values.

Owns what a point may replace. Must never refuse a value for lying outside its domain: that may be what the
user wants to see tried, so it is only pointed out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.space.domains import Categorical, Domain
from holdfast.space.objects import is_marker
from holdfast.space.tree import Path, Slot, carve, is_eval, is_grid, joined
from holdfast.warn import warn_user


def apply_point(space: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the space with the values of the point in it.

    Raises:
        InvalidInputError: The point has a key that the space does not have.
    """
    merged: dict[str, Any] = _merge(dict(space), dict(point), ())
    return merged


def _merge(space: Any, point: Any, path: Path) -> Any:
    if _is_branch(space) and isinstance(point, dict) and not is_marker(point) and not is_grid(point):
        unknown = [key for key in point if key not in space]
        if unknown:
            raise InvalidInputError(
                f"points_to_evaluate sets {joined((*path, unknown[0]))!r}, which does not correspond to a valid key "
                f"in the search space; there are {list(space)}. Add it to param_space or drop it from the point."
            )
        return {key: _merge(value, point[key], (*path, key)) if key in point else value for key, value in space.items()}
    if isinstance(space, list | tuple) and isinstance(point, list) and len(space) == len(point):
        return [_merge(value, point[i], (*path, i)) for i, value in enumerate(space)]
    _check_value(space, point, path)
    return point


def _is_branch(node: Any) -> bool:
    return isinstance(node, dict) and not (is_grid(node) or is_eval(node) or is_marker(node))


def _check_value(space: Any, value: Any, path: Path) -> None:
    variables: list[Slot] = []
    carve(value, path, variables)
    if variables or is_eval(space):
        return  # another domain in place of the first one: there is nothing to compare
    if isinstance(space, Domain):
        expected, known = f"not within {space.domain_str}", space.is_valid(value)
    elif is_grid(space):
        expected, known = f"none of {space['grid_search']}", Categorical(space["grid_search"]).is_valid(value)
    else:
        expected, known = f"not the constant {space!r}", Categorical([space]).is_valid(value)
    if not known:
        warn_user(
            f"points_to_evaluate sets {joined(path)!r} to {value!r}, which is {expected} as the search space has it. "
            f"The value is used all the same."
        )
