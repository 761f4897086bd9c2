"""How much each parameter matters: the share of the objective's variance that it explains by itself.

Values are replaced by their ranks, so that one diverged trial does not decide everything. The trials are then sorted
into groups by one parameter: at most ten of the same size for numbers, one per option otherwise, and one for trials
that do not have it. The variance between the groups, divided by that of all trials, is what the parameter explains
(eta squared); what so many groups would explain by chance is taken off (epsilon squared). The importances are these
shares, scaled to a sum of 1.

This sees what a parameter does by itself, not what two do only together. It needs no model and no random numbers, and
takes n log n steps a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.results.packing import NONE

MAX_GROUPS = 10
MIN_TRIALS = 4
MAX_TRIALS = 20_000
"""Of more trials, so many are taken evenly: the shares do not change in the digits that anybody reads."""


def importance(params: Mapping[str, Sequence[Any]], values: Sequence[float | None]) -> dict[str, Any]:
    """The importance of each parameter for an objective.

    Args:
        params: The value that each trial has, by the name of the parameter; None if it does not have it, `NONE` if its
            value is None.
        values: The objective of each trial; None, NaN and infinite ones are left out.

    Returns:
        ``trials`` (how many counted) and ``params``: ``name``, ``importance`` (they sum up to 1, or are all 0) and
        ``explained`` (share of the variance), the most important first.
    """
    chosen = [n for n, value in enumerate(values) if value is not None and math.isfinite(value)]
    if len(chosen) > MAX_TRIALS:
        chosen = [chosen[k * len(chosen) // MAX_TRIALS] for k in range(MAX_TRIALS)]
    ranks = _ranks([float(values[n] or 0.0) for n in chosen])
    found = {name: _explained([column[n] for n in chosen], ranks) for name, column in params.items()}
    total = sum(found.values())
    return {
        "trials": len(chosen),
        "params": [
            {"name": name, "importance": share / total if total else 0.0, "explained": share}
            for name, share in sorted(found.items(), key=lambda item: (-item[1], item[0]))
        ],
    }


def _ranks(values: list[float]) -> list[float]:
    """The place of each value in their order; equal ones share the middle of their places."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + end - 1) / 2
        start = end
    return ranks


def _explained(column: list[Any], ranks: list[float]) -> float:
    count = len(ranks)
    if count < MIN_TRIALS:
        return 0.0
    mean = sum(ranks) / count
    total = sum((rank - mean) ** 2 for rank in ranks)
    groups = _groups(column)
    if total == 0.0 or len(groups) < 2 or len(groups) >= count:
        return 0.0
    between = 0.0
    for members in groups:
        inside = sum(ranks[n] for n in members) / len(members)
        between += len(members) * (inside - mean) ** 2
    chance = (len(groups) - 1) * (total - between) / (count - len(groups))
    return max(0.0, (between - chance) / total)


def _groups(column: list[Any]) -> list[list[int]]:
    """The trials by the value of one parameter."""
    absent = [n for n, value in enumerate(column) if value is None]
    nones = [n for n, value in enumerate(column) if value is NONE]
    present = [n for n, value in enumerate(column) if value is not None and value is not NONE]
    numbers = all(type(column[n]) in (int, float) and math.isfinite(column[n]) for n in present)
    if numbers and len({column[n] for n in present}) > MAX_GROUPS:
        groups = _quantiles(present, column)
    else:
        by_value: dict[str, list[int]] = {}
        for n in present:
            by_value.setdefault(repr(column[n]), []).append(n)
        groups = list(by_value.values())
    return [group for group in (*groups, nones, absent) if group]


def _quantiles(present: list[int], column: list[Any]) -> list[list[int]]:
    """Groups of about the same size; equal values are never in two of them."""
    order = sorted(present, key=column.__getitem__)
    wanted = min(MAX_GROUPS, max(2, math.isqrt(len(order))))
    groups: list[list[int]] = [[]]
    for place, n in enumerate(order):
        is_full = len(groups[-1]) and place * wanted // len(order) >= len(groups)
        if is_full and column[n] != column[groups[-1][-1]]:
            groups.append([])
        groups[-1].append(n)
    return groups
