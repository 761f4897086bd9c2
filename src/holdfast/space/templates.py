"""Exact configurations out of those that JSON has flattened: a repair has nothing else once a journal is lost.

``params.json`` shows a tuple as a list and an object as text. Which of them an option of the space was is known when an
experiment is created. So its facts hold the space as a template. What is fixed stands there as configurations hold it;
``{"__choice__": [...]}`` stands for choices and grids, ``{"__number__": true}`` for ranges, ``{"__any__": true}`` for
whatever a function makes.

Owns that format. Must never unpickle, nor guess: what a template leaves open is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.space.exact import (
    KEYS,
    SCALARS,
    TAG,
    VALUE,
    is_mapping,
    pack_mapping,
    pack_scalar,
    shown,
    tagged,
    unpack,
)
from holdfast.space.nested import is_eval, is_grid
from holdfast.space.objects import is_marker

CHOICE = "__choice__"
NUMBER = "__number__"
ANY = "__any__"
OURS = frozenset({CHOICE, NUMBER, ANY})

MAX_BYTES = 1 << 16
"""Every reader of an experiment reads its facts: the template of a larger space is not kept."""


class _Fit(NamedTuple):
    """A value as a configuration holds it, and the names of what may have been something else."""

    value: Any
    unsure: tuple[str, ...] = ()


# --- there


def template_of(space: Mapping[str, Any]) -> dict[str, Any] | None:
    """A space without its objects as a template; None if it is too large, or has our keys."""
    try:
        template = {key: _template(value) for key, value in space.items()}
        return template if len(msgspec.json.encode(template)) <= MAX_BYTES else None
    except (_HasOurKeys, TypeError, ValueError, RecursionError):
        return None


class _HasOurKeys(Exception):
    """The user's own dict would be taken for a part of the template."""


def _template(node: Any) -> Any:
    from holdfast.space.bounds import option_list
    from holdfast.space.domains import Categorical, Domain, Float, Integer

    if type(node) in SCALARS:
        return node
    if isinstance(node, Categorical):
        return {CHOICE: [_template(option) for option in node.categories]}
    if isinstance(node, Domain):
        return {NUMBER: True} if isinstance(node, Float | Integer) else {ANY: True}
    if is_grid(node):
        return {CHOICE: [_template(option) for option in option_list(node["grid_search"], "grid_search")]}
    if isinstance(node, list):
        return [_template(value) for value in node]
    if not isinstance(node, dict) or is_eval(node):
        return {ANY: True}
    if OURS & node.keys():
        raise _HasOurKeys
    if TAG in node and not isinstance(node.get(VALUE), dict | list):
        return node
    return {key: value if key in (TAG, KEYS) else _template(value) for key, value in node.items()}


# --- and back


def exact_config(template: Mapping[str, Any] | None, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A configuration that was read from JSON, as the journal holds it.

    Args:
        template: Of the space; None if it is not known.
        config: As JSON has it.

    Returns:
        The configuration, and the names of the parameters whose values may have been of another type.

    Raises:
        RecursionError: No trial has had this one.

    Example:
        >>> exact_config({"size": {"__choice__": [{"__exact__": "tuple", "value": [1, 2]}]}}, {"size": [1, 2]})
        ({'size': {'__exact__': 'tuple', 'value': [1, 2]}}, [])
    """
    try:
        found = _merge({} if template is None else template, config, "")
    except (TypeError, KeyError, AttributeError):  # the template is none of ours
        found = _merge({}, config, "")
    return found.value, list(found.unsure)


def _merge(template: Mapping[str, Any], config: Mapping[str, Any], place: str) -> _Fit:
    """A dict that is not the user's choice: what fits its template, and the rest as it is."""
    unsure: list[str] = []

    def value(node: Any, steps: Any) -> Any:
        name, below = _name(place, steps[-1]), template.get(steps[-1], {ANY: True})
        found = _merge(below, node, name) if _is_plain(below) and _is_plain(node) else _fit(below, node, name)
        found = _unknown(node, name) if found is None else found
        unsure.extend(found.unsure)
        return found.value

    packed = pack_mapping(config, value, lambda key, text: pack_scalar(key))
    return _Fit(packed, tuple(unsure))


def _fit(template: Any, node: Any, place: str) -> _Fit | None:
    """The value that JSON shows as ``node``, if ``template`` has one."""
    if isinstance(template, list):
        return _fit_items(template, node, place)
    if not isinstance(template, dict):
        return _Fit(template) if _is_same(template, node) else None
    if CHOICE in template:
        return _fit_choice(template[CHOICE], node, place)
    if NUMBER in template:
        return _Fit(node) if type(node) in (int, float) else None
    if ANY in template:
        return _unknown(node, place)
    if is_marker(template):
        return _Fit(template)
    return _fit_tagged(template, node, place) if TAG in template else _fit_dict(template, node, place)


def _fit_choice(options: list[Any], node: Any, place: str) -> _Fit | None:
    found = {repr(fit.value): fit for option in options if not is_marker(option) and (fit := _fit(option, node, place))}
    if len(found) > 1:
        return _unknown(node, place)._replace(unsure=(place,))
    if not found:  # JSON has some text of an object: it is told by there being only one
        found = {repr(option): _Fit(option) for option in options if is_marker(option)}
    return next(iter(found.values())) if len(found) == 1 else None


def _fit_items(templates: list[Any], node: Any, place: str) -> _Fit | None:
    if not isinstance(node, list) or len(node) != len(templates):
        return None
    return _gathered(range(len(node)), [_fit(*pair, place) for pair in zip(templates, node, strict=True)], list)


def _fit_dict(template: dict[str, Any], node: Any, place: str) -> _Fit | None:
    if not isinstance(node, dict) or node.keys() != template.keys():
        return None
    return _gathered(template, [_fit(each, node[key], _name(place, key)) for key, each in template.items()], dict)


def _fit_tagged(template: dict[str, Any], node: Any, place: str) -> _Fit | None:
    kind, value = template[TAG], template.get(VALUE)
    if is_mapping(template):
        found = _fit_dict(template[VALUE], node, place)
        return None if found is None else found._replace(value={**template, VALUE: found.value})
    if kind == "tuple" and isinstance(value, list):
        found = _fit_items(value, node, place)
        return None if found is None else found._replace(value=tagged(kind, found.value))
    if kind in ("set", "frozenset"):  # they have no order
        same = isinstance(node, list) and sorted(map(repr, node)) == sorted(map(repr, shown(template)))
    else:
        same = _is_same(shown(template), node) or node == repr(unpack(template))
    return _Fit(template) if same else None


def _gathered(
    keys: Iterable[Any], found: list[_Fit | None], kind: type[list[Any]] | type[dict[Any, Any]]
) -> _Fit | None:
    fits = [fit for fit in found if fit is not None]
    if len(fits) < len(found):
        return None
    values = [fit.value for fit in fits]
    unsure = tuple(name for fit in fits for name in fit.unsure)
    return _Fit(values if kind is list else dict(zip(keys, values, strict=True)), unsure)


def _unknown(node: Any, place: str) -> _Fit:
    """A value of which nothing but its JSON is known."""
    doubtful = isinstance(node, list | dict) or (isinstance(node, str) and node.endswith((">", ")")))
    return _Fit(_packed(node), (place,) if doubtful and not is_marker(node) else ())


def _packed(node: Any) -> Any:
    if isinstance(node, list):
        return [_packed(value) for value in node]
    if is_marker(node):
        return node
    if isinstance(node, dict):
        return pack_mapping(node, lambda value, _: _packed(value), lambda key, _: pack_scalar(key))
    return pack_scalar(node)


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or (one != one and other != other))


def _is_plain(node: Any) -> bool:
    """Whether a dict is no choice, no tag and no marker."""
    return isinstance(node, dict) and not (OURS & node.keys() or TAG in node or is_marker(node))


def _name(place: str, step: Any) -> str:
    return f"{place}/{step}" if place else str(step)
