"""An objective over two parameters, on a grid.

Trials are averaged in the cells of a grid; cells without one get the mean of the others, weighted by the inverse square
of their distance. So the cost depends on the grid, and a million trials cost one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import Any, NamedTuple

from holdfast.results.packing import NONE

CELLS = 32
MAX_POINTS = 5000
MAX_OPTIONS = 50


class _Axis(NamedTuple):
    """Where values of one parameter stand: ``low`` to ``high`` on its scale, or one place for each option."""

    name: str
    log: bool
    low: float
    high: float
    options: list[str | None] | None

    @property
    def cells(self) -> int:
        return CELLS if self.options is None else len(self.options)

    def cell(self, place: float) -> int:
        if self.options is not None:
            return int(place)
        width = (self.high - self.low) or 1.0
        return min(self.cells - 1, max(0, int((place - self.low) / width * self.cells)))

    def described(self) -> dict[str, Any]:
        if self.options is not None:
            return {"name": self.name, "log": False, "ticks": list(range(self.cells)), "options": self.options}
        width = (self.high - self.low) / self.cells
        ticks = [self.low + (k + 0.5) * width for k in range(self.cells)]
        return {"name": self.name, "log": self.log, "ticks": [_back(t, self.log) for t in ticks], "options": None}


def contour(
    x: tuple[str, Sequence[Any]],
    y: tuple[str, Sequence[Any]],
    values: Sequence[float | None],
    log: tuple[bool, bool] = (False, False),
) -> dict[str, Any]:
    """The objective over two parameters.

    Args:
        x: Name of the first parameter, and its value in each trial.
        y: The second one.
        values: The objective of each trial; trials without it, or without one of the parameters, are left out.
        log: Whether each parameter has a logarithmic scale; it is linear all the same if a value is not positive.

    Returns:
        ``x`` and ``y`` (``name``, ``log``, ``ticks``: the middles of the cells, ``options``: their texts, or None; None
        among them is the option None), ``z`` (a row for each cell of y), ``points`` ([x, y, value] with option numbers
        for options, at most 5,000) and ``trials``.
    """
    chosen = [
        n
        for n, value in enumerate(values)
        if value is not None and math.isfinite(value) and x[1][n] is not None and y[1][n] is not None
    ]
    first, xs = _axis(x[0], [x[1][n] for n in chosen], log[0])
    second, ys = _axis(y[0], [y[1][n] for n in chosen], log[1])
    sums: dict[tuple[int, int], list[float]] = {}
    for place_x, place_y, n in zip(xs, ys, chosen, strict=True):
        cell = sums.setdefault((first.cell(place_x), second.cell(place_y)), [0.0, 0.0])
        cell[0] += values[n] or 0.0
        cell[1] += 1.0
    means = {cell: total / count for cell, (total, count) in sums.items()}
    stride = max(1, -(-len(chosen) // MAX_POINTS))
    shown = [
        [_back(xs[k], first.log), _back(ys[k], second.log), values[chosen[k]]] for k in range(0, len(chosen), stride)
    ]
    return {
        "x": first.described(),
        "y": second.described(),
        "z": _filled(means, first, second),
        "points": shown,
        "trials": len(chosen),
    }


def _axis(name: str, values: list[Any], log: bool) -> tuple[_Axis, list[float]]:
    if all(type(value) in (int, float) and math.isfinite(value) for value in values):
        log = log and all(value > 0 for value in values)
        places = [math.log10(value) if log else float(value) for value in values]
        return _Axis(name, log, min(places, default=0.0), max(places, default=1.0), None), places
    texts = [None if value is NONE else str(value) for value in values]
    options = list(dict.fromkeys(texts))[:MAX_OPTIONS]
    number = {text: k for k, text in enumerate(options)}
    return _Axis(name, False, 0.0, 1.0, options), [float(number.get(text, len(options) - 1)) for text in texts]


def _filled(means: dict[tuple[int, int], float], first: _Axis, second: _Axis) -> list[list[float | None]]:
    """The mean of each cell; cells without a trial get that of the others by distance, a column of them at a time.

    The square of a distance is a sum of a part along x and one along y, and those are few: each is computed once.
    """
    rows: list[list[float | None]] = [[means.get((i, j)) for i in range(first.cells)] for j in range(second.cells)]
    if not means or len(means) == first.cells * second.cells:
        return rows
    by_column: dict[int, tuple[list[int], list[float]]] = {}
    for (a, b), value in means.items():
        lines, values = by_column.setdefault(a, ([], []))
        lines.append(b)
        values.append(value)
    across = [(k / first.cells) ** 2 for k in range(first.cells)]
    along = [(k / second.cells) ** 2 for k in range(second.cells)]
    for j, row in enumerate(rows):
        if None not in row:
            continue
        near = [(a, [along[abs(b - j)] for b in lines], values) for a, (lines, values) in by_column.items()]
        for i, known in enumerate(row):
            if known is not None:
                continue
            total = weights = 0.0
            for a, parts, values in near:
                part = across[abs(a - i)]
                shares = [1.0 / (part + each) for each in parts]
                weights += sum(shares)
                total += sum(map(mul, shares, values))
            row[i] = total / weights
    return rows


def _back(place: float, log: bool) -> float:
    return 10.0**place if log else place
