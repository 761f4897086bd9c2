"""The history of an optimisation: the value of each trial, and the best one up to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def best_so_far(values: Sequence[float | None], mode: str, at: Sequence[float] | None = None) -> dict[str, Any]:
    """Trials in the order in which they ended, and the best value by then.

    Args:
        values: Of each trial; None, NaN and infinite ones are left out.
        mode: "min" or "max".
        at: When each trial ended; None takes them in the order of the values.

    Returns:
        ``trial`` (indexes into ``values``), ``at`` (None if not given), ``value`` and ``best``, all of one length.
    """
    chosen = [n for n, value in enumerate(values) if value is not None and math.isfinite(value)]
    if at is not None:
        known = at
        chosen = sorted((n for n in chosen if math.isfinite(known[n])), key=lambda n: (known[n], n))
    better = max if mode == "max" else min
    best: list[float] = []
    shown: list[float] = []
    for n in chosen:
        value = values[n]
        assert value is not None
        shown.append(value)
        best.append(value if not best else better(best[-1], value))
    return {"trial": chosen, "at": None if at is None else [at[n] for n in chosen], "value": shown, "best": best}
