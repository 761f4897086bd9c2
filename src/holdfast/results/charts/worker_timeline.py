"""Which worker ran which attempt, and when nothing was run.

Attempts are placed in lanes, as many as ran at the same time: a lane is a place for a worker, whichever process stands
there. So idle time counts between two processes as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core.state import WorkerFacts
from holdfast.results.chronicle import Attempt

MIN_GAP_S = 0.5
"""Shorter gaps are the change from one trial to the next: they count as idle time, but are not listed."""

MAX_SPANS = 20_000
BLOCKS = 2000
"""Into so many pieces of the whole time neighbouring attempts are merged, if there are more than can be drawn."""

_START, _END, _LANE = 2, 3, 5


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
        ``start``, ``end``, ``thinned``, ``lanes`` (how many attempts ran at the same time at most), ``busy_s``,
        ``idle_s`` and ``workers``, by their first attempt: ``worker`` (0: nobody knows which), ``host``, ``pid``,
        ``spans`` ([trial, attempt, start, end, outcome, lane]; trial -1 if several were merged), ``idle`` ([start, end,
        lane], after its spans), ``busy_s`` and ``idle_s``.
    """
    spans: list[tuple[int, list[Any]]] = []
    for each in attempts:
        stop = each.end if each.end == each.end else max(until, each.start)
        spans.append((each.worker, [each.n, each.attempt, each.start, stop, each.outcome, 0]))
    spans.sort(key=lambda pair: pair[1][_START])
    begin = spans[0][1][_START] if spans else until
    end = max([until, *(span[_END] for _, span in spans)])
    lanes = _place(spans)
    of_worker: dict[int, list[list[Any]]] = {}
    for worker, span in spans:
        of_worker.setdefault(worker, []).append(span)
    idle: dict[int, list[list[Any]]] = {worker: [] for worker in of_worker}
    lived = [(max(a, begin), min(b, end)) for a, b in sorted(alive) or [(begin, end)] if a < end and b > begin]
    for number, lane in enumerate(lanes):
        for worker, start, stop in _gaps(lane, lived):
            idle[worker].append([start, stop, number])
    thinned = len(spans) > MAX_SPANS
    found = [
        {
            "worker": worker,
            "host": workers[worker].host if worker in workers else "",
            "pid": workers[worker].pid if worker in workers else 0,
            "spans": _merged(own, (end - begin) / BLOCKS) if thinned else own,
            "idle": [gap for gap in idle[worker] if gap[1] - gap[0] >= MIN_GAP_S],
            "busy_s": sum(span[_END] - span[_START] for span in own),
            "idle_s": sum(gap[1] - gap[0] for gap in idle[worker]),
        }
        for worker, own in of_worker.items()
    ]
    return {
        "start": begin,
        "end": end,
        "thinned": thinned,
        "lanes": len(lanes),
        "busy_s": sum(each["busy_s"] for each in found),
        "idle_s": sum(each["idle_s"] for each in found),
        "workers": found,
    }


def _place(spans: list[tuple[int, list[Any]]]) -> list[list[tuple[int, list[Any]]]]:
    """Give each span, by start, a free lane: that of its worker if it is free, else the smallest."""
    lanes: list[list[tuple[int, list[Any]]]] = []
    taken: list[tuple[float, int]] = []
    free: set[int] = set()
    latest: dict[int, int] = {}
    for worker, span in spans:
        while taken and taken[0][0] <= span[_START]:
            free.add(heapq.heappop(taken)[1])
        lane = latest.get(worker, -1)
        if lane not in free:
            lane = min(free, default=len(lanes))
        free.discard(lane)
        if lane == len(lanes):
            lanes.append([])
        span[_LANE] = latest[worker] = lane
        lanes[lane].append((worker, span))
        heapq.heappush(taken, (span[_END], lane))
    return lanes


def _gaps(lane: list[tuple[int, list[Any]]], lived: list[tuple[float, float]]) -> list[tuple[int, float, float]]:
    """Times in which a driver lived and nothing ran, each with the worker that was there before (or came first)."""
    gaps: list[tuple[int, float, float]] = []
    place, worker = 0, lane[0][0]
    for start, stop in lived:
        reach = start
        while place < len(lane) and lane[place][1][_START] < stop:
            after, span = lane[place]
            if span[_START] > reach:
                gaps.append((worker, reach, span[_START]))
            reach, worker = max(reach, span[_END]), after
            if span[_END] > stop:  # it reaches into the life of the next driver
                break
            place += 1
        if reach < stop:
            gaps.append((worker, reach, stop))
    return gaps


def _merged(spans: list[list[Any]], gap_s: float) -> list[list[Any]]:
    """Neighbours in a lane that are nearer than a piece are one span."""
    merged: list[list[Any]] = []
    for span in spans:
        last = merged[-1] if merged else None
        is_near = last is not None and span[_START] - last[_END] < gap_s and span[_END] - last[_START] < 2 * gap_s
        if last is not None and is_near and last[_LANE] == span[_LANE]:
            outcome = last[4] if last[4] == span[4] else "several"
            merged[-1] = [-1, 0, last[_START], max(last[_END], span[_END]), outcome, span[_LANE]]
        else:
            merged.append(list(span))
    return merged
