"""Which trials no other one beats in every objective."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pareto_front(points: Sequence[Sequence[float | None]], modes: Sequence[str]) -> list[int]:
    """Indexes of the points that no other point dominates, by their first objective from the best on.

    A point dominates another if it is nowhere worse and somewhere better; of equal points all stay. Two objectives take
    n log n steps; more take n times the size of the front.

    Args:
        points: Those with a value that is None, NaN or infinite are left out.
        modes: "min" or "max" for each objective.
    """
    signs = [-1.0 if mode == "max" else 1.0 for mode in modes]
    costs: list[tuple[tuple[float, ...], int]] = []
    for n, point in enumerate(points):
        known = [value for value in point if value is not None and math.isfinite(value)]
        if len(known) == len(signs):
            costs.append((tuple(sign * value for sign, value in zip(signs, known, strict=True)), n))
    costs.sort()
    if len(signs) == 2:
        return _sweep(costs)
    front: list[tuple[tuple[float, ...], int]] = []
    for cost, n in costs:
        # Sorted, so that no later point dominates an earlier one.
        if not any(_dominates(other, cost) for other, _ in front):
            front.append((cost, n))
    return [n for _, n in front]


def _sweep(costs: list[tuple[tuple[float, ...], int]]) -> list[int]:
    front: list[int] = []
    best = math.inf
    last: tuple[float, ...] | None = None
    for cost, n in costs:
        if cost[1] < best or cost == last:
            front.append(n)
            best, last = cost[1], cost
    return front


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
