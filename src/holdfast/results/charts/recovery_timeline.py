"""Everything that went wrong on one time axis, and what it has cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.results.chronicle import DriverSpan, Incident


def recovery_timeline(
    incidents: Iterable[Incident], drivers: Sequence[DriverSpan], ids: Sequence[str], until: float, more: int = 0
) -> dict[str, Any]:
    """The incidents of an experiment.

    Args:
        incidents: See `Incident`.
        drivers: All drivers, in order.
        ids: Of all trials.
        until: Where incidents end that are not over, and the last driver if it lives.
        more: How many incidents were only counted.

    Returns:
        ``start``, ``end``; ``incidents``: ``at``, ``until`` (None if it is not over), ``kind``, ``trial`` (None for the
        experiment), ``text``, ``down_s``, ``repeated_s``, ``trials``; ``drivers``: ``epoch``, ``host``, ``pid``,
        ``at``, ``until``, ``reason``; ``kinds``: ``count``, ``down_s``, ``repeated_s`` by kind; ``down_s`` and
        ``repeated_s`` in sum, without those of incidents that another one has caused (they are its seconds); ``more``.
    """
    told: list[dict[str, Any]] = []
    kinds: dict[str, dict[str, Any]] = {}
    down_s = repeated_s = 0.0
    for each in incidents:
        is_open = math.isnan(each.until)
        # One that is not over costs more with every second; retries wait for their turn, which costs nothing yet.
        down = max(0.0, until - each.at) if is_open and each.kind in ("backlog", "storage") else each.down_s
        told.append(
            {
                "at": each.at,
                "until": None if is_open else each.until,
                "kind": each.kind,
                "trial": None if each.n < 0 else ids[each.n],
                "text": each.text,
                "down_s": down,
                "repeated_s": each.repeated_s,
                "trials": each.trials,
            }
        )
        sums = kinds.setdefault(each.kind, {"count": 0, "down_s": 0.0, "repeated_s": 0.0})
        sums["count"] += 1
        sums["down_s"] += down
        sums["repeated_s"] += each.repeated_s
        if not each.is_consequence:
            down_s, repeated_s = down_s + down, repeated_s + each.repeated_s
    told.sort(key=lambda incident: incident["at"])
    last = len(drivers) - 1
    return {
        "start": drivers[0].at if drivers else until,
        "end": until,
        "incidents": told,
        "drivers": [
            {
                "epoch": driver.epoch,
                "host": driver.host,
                "pid": driver.pid,
                "at": driver.at,
                "until": max(driver.until, until) if k == last and not driver.reason else driver.until,
                "reason": driver.reason,
            }
            for k, driver in enumerate(drivers)
        ],
        "kinds": kinds,
        "down_s": down_s,
        "repeated_s": repeated_s,
        "more": more,
    }
