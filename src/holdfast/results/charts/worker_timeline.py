"""Which worker ran which attempt, and when it had nothing to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core.state import WorkerFacts
from holdfast.results.chronicle import Attempt

MIN_GAP_S = 0.5
"""Shorter gaps are the change from one trial to the next."""

MAX_SPANS = 20_000
BLOCKS = 2000
"""Into so many pieces of the whole time neighbouring attempts are merged, if there are more than can be drawn."""


def worker_timeline(
    attempts: Iterable[Attempt],
    workers: Mapping[int, WorkerFacts],
    until: float,
    alive: Iterable[tuple[float, float]] = (),
) -> dict[str, Any]:
    """The attempts of each worker.

    Args:
        attempts: In the order of their start.
        workers: Where each worker ran.
        until: Where attempts end that still run.
        alive: When drivers lived: gaps outside are not idle time.

    Returns:
        ``start``, ``end``, ``thinned`` and ``workers``, by their first attempt: ``worker`` (0: nobody knows which),
        ``host``, ``pid``, ``spans`` ([trial, attempt, start, end, outcome]; trial -1 if several were merged), ``idle``
        ([start, end]), ``busy_s`` and ``idle_s``.
    """
    lanes: dict[int, list[list[Any]]] = {}
    total, start, end = 0, None, until
    for each in attempts:
        stop = each.end if each.end == each.end else max(until, each.start)
        lanes.setdefault(each.worker, []).append([each.n, each.attempt, each.start, stop, each.outcome])
        start = each.start if start is None else min(start, each.start)
        end, total = max(end, stop), total + 1
    begin = end if start is None else start
    lived = sorted(alive) or [(begin, end)]
    thinned = total > MAX_SPANS
    found = []
    for worker, spans in lanes.items():
        spans.sort(key=lambda span: span[2])
        idle = _gaps(spans, lived) if worker else []
        facts = workers.get(worker)
        found.append(
            {
                "worker": worker,
                "host": "" if facts is None else facts.host,
                "pid": 0 if facts is None else facts.pid,
                "spans": _merged(spans, (end - begin) / BLOCKS) if thinned else spans,
                "idle": idle,
                "busy_s": sum(span[3] - span[2] for span in spans),
                "idle_s": sum(b - a for a, b in idle),
            }
        )
    return {"start": begin, "end": end, "thinned": thinned, "workers": found}


def _gaps(spans: list[list[Any]], lived: list[tuple[float, float]]) -> list[list[float]]:
    """Times between attempts in which a driver lived."""
    gaps: list[list[float]] = []
    reach = spans[0][3]
    for span in spans[1:]:
        if span[2] - reach >= MIN_GAP_S:
            pieces = ([max(reach, a), min(span[2], b)] for a, b in lived if a < span[2] and b > reach)
            gaps += [piece for piece in pieces if piece[1] - piece[0] >= MIN_GAP_S]
        reach = max(reach, span[3])
    return gaps


def _merged(spans: list[list[Any]], gap_s: float) -> list[list[Any]]:
    """Neighbours that are nearer than a piece are one span."""
    merged: list[list[Any]] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last is not None and span[2] - last[3] < gap_s and span[3] - last[2] < 2 * gap_s:
            outcome = last[4] if last[4] == span[4] else "several"
            merged[-1] = [-1, 0, last[2], max(last[3], span[3]), outcome]
        else:
            merged.append(list(span))
    return merged
