"""A search space as plain data, for people and tools that must not unpickle it.

``{"lr": {"kind": "float", "lower": 1e-05, "upper": 0.1, "log": True}, "opt": {"kind": "choice", "options": [...]}}``;
nested places are called ``a/b``. Kinds: ``float``, ``int`` (``upper`` is not a value of it unless there is a step),
``normal`` (``mean``, ``sd``), ``choice``, ``grid`` (all options are tried), ``function``, ``other``. ``step`` is there
if values are multiples of it. Options that are not plain data are texts. Constants are left out.

The places inside the options of a choice or a grid are listed as well, ``opt/momentum``, with ``within``: the name of
the choice without which they do not exist. If its options differ about such a place, all their values are the options
of it, or its kind is ``other``.

Owns that format: keys are only ever added. Must never change what is searched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.space.domains import Categorical, Domain, Float, Integer, LogUniform, Normal, Quantized
from holdfast.space.exact import SCALARS, VALUE, is_exact, is_mapping, shown
from holdfast.space.nested import Grid, Slot, carve, is_eval, is_grid, joined
from holdfast.space.objects import is_marker

MAX_OPTIONS = 1000
MAX_TEXT = 200


def describe_space(space: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The variables of a space by name."""
    slots: list[Slot] = []
    carve(dict(space), (), slots)
    found = {joined(slot.path): _described(slot.source) for slot in slots}
    for slot in slots:
        name = joined(slot.path)
        for place, inside in _inside(slot.source, name).items():
            found.setdefault(place, {**inside, "within": name})
    return found


def _inside(source: Domain | Grid, name: str) -> dict[str, dict[str, Any]]:
    """What the options of a choice or a grid leave open or say, by place."""
    options = (
        source.options if isinstance(source, Grid) else source.categories if isinstance(source, Categorical) else ()
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for option in options[:MAX_OPTIONS]:
        for place, about in _leaves(option, name, is_option=True):
            found.setdefault(place, []).append(about)
    return {place: _merged(abouts) for place, abouts in found.items()}


def _leaves(node: Any, place: str, *, is_option: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """The leaves of an option, where a chosen dict has its values. The option itself is no place of its own."""
    node = node[VALUE] if is_mapping(node) else node
    source = Grid(list(node["grid_search"])) if is_grid(node) else node
    if isinstance(source, Domain | Grid):
        if not is_option:
            yield place, _described(source)
        yield from _inside(source, place).items()
    elif isinstance(node, dict) and node and not (is_eval(node) or is_marker(node) or is_exact(node)):
        for key, below in node.items():
            yield from _leaves(below, f"{place}/{key}")
    elif not is_option:
        yield place, {"kind": "function"} if is_eval(node) else {"kind": "choice", **_options([node])}


def _merged(abouts: list[dict[str, Any]]) -> dict[str, Any]:
    """One description of a place that several options have."""
    if all(about == abouts[0] for about in abouts):
        return abouts[0]
    if any("options" not in about or "more" in about for about in abouts):
        return {"kind": "other"}
    options = {(type(option), option): option for about in abouts for option in about["options"]}
    return {"kind": "choice", **_options(options.values())}


def _described(source: Domain | Grid) -> dict[str, Any]:
    if isinstance(source, Grid):
        return {"kind": "grid", **_options(source.options)}
    if isinstance(source, Categorical):
        return {"kind": "choice", **_options(source.categories)}
    if isinstance(source, Float | Integer):
        return _range(source)
    return {"kind": "function" if source.is_function() else "other"}


def _range(domain: Float | Integer) -> dict[str, Any]:
    sampler = domain.get_sampler()
    step = {"step": sampler.q} if isinstance(sampler, Quantized) else {}
    inner = sampler.get_sampler() if isinstance(sampler, Quantized) else sampler
    if isinstance(inner, Normal):
        return {"kind": "normal", "mean": inner.mean, "sd": inner.sd, **step}
    kind = "int" if isinstance(domain, Integer) else "float"
    bounds = {"lower": _finite(domain.lower), "upper": _finite(domain.upper)}
    return {"kind": kind, **bounds, "log": isinstance(inner, LogUniform), **step}


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None


def _options(options: Iterable[Any]) -> dict[str, Any]:
    listed = list(options)
    cut = {"more": len(listed) - MAX_OPTIONS} if len(listed) > MAX_OPTIONS else {}
    return {"options": [_plain(option) for option in listed[:MAX_OPTIONS]], **cut}


def _plain(option: Any) -> Any:
    option = shown(option)
    if isinstance(option, float) and not math.isfinite(option):
        return str(option)
    if type(option) is int and not -(1 << 63) <= option < 1 << 63:
        return str(option)
    if type(option) in SCALARS:
        return option if not isinstance(option, str) else _short(option)
    if isinstance(option, dict) and option.keys() == {"__object__", "type"}:
        return f"<{_short(str(option['type']))}>"
    return _short(str(option))


def _short(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
