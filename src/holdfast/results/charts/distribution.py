"""The empirical distribution of an objective: which share of the trials is at least as good."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

MAX_POINTS = 2000


def empirical_distribution(values: Iterable[float | None], max_points: int = MAX_POINTS) -> dict[str, Any]:
    """The share of values that are not above each of some values.

    Args:
        values: None, NaN and infinite ones are left out.
        max_points: More are thinned evenly; the smallest and the largest stay.

    Returns:
        ``x`` (ascending), ``y`` (shares up to 1), ``count`` and ``thinned``.
    """
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    count = len(known)
    places = list(range(count))
    thinned = count > max_points
    if thinned:
        places = sorted({round(k * (count - 1) / (max_points - 1)) for k in range(max_points)})
    return {
        "x": [known[place] for place in places],
        "y": [(place + 1) / count for place in places],
        "count": count,
        "thinned": thinned,
    }
