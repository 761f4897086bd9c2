"""The charts of an experiment that is followed: which columns, curves and facts each of them needs.

    chart(follower, "importance", metric="loss")       # a dict that JSON can hold
    chart(follower, "contour", x="lr", y="layers")
    chart(follower, "pareto", metrics=["loss", "latency"], modes=["min", "min"])

Owns names and defaults of charts: ``history``, ``importance``, ``edf``, ``pareto``, ``contour``, ``workers``,
``lineage``, ``recovery``. ``metric`` and ``mode`` default to those of the experiment. Must never compute by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.results.charts.best_so_far import best_so_far
from holdfast.results.charts.contour import contour
from holdfast.results.charts.distribution import empirical_distribution
from holdfast.results.charts.importance import importance
from holdfast.results.charts.lineage import lineage
from holdfast.results.charts.pareto import pareto_front
from holdfast.results.charts.recovery_timeline import recovery_timeline
from holdfast.results.charts.worker_timeline import worker_timeline
from holdfast.results.chronicle import Incident
from holdfast.results.follow import Follower
from holdfast.results.packing import MISSING, NONE
from holdfast.results.report_data import Phase, phase_of


def chart(follower: Follower, name: str, **options: Any) -> dict[str, Any]:
    """The data of one chart.

    Raises:
        InvalidInputError: There is no such chart, metric or parameter, or the experiment has no metric to take.
    """
    make = _CHARTS.get(name)
    if make is None:
        raise InvalidInputError(f"There is no chart {name!r}. The charts are: {', '.join(_CHARTS)}.")
    try:
        found: dict[str, Any] = make(follower, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error) and "required" not in str(error):
            raise
        raise InvalidInputError(f"The chart {name!r} cannot be made like this: {error}.") from None
    cleaned: dict[str, Any] = _clean(found)
    return cleaned


def numbers(follower: Follower, metric: str | None, kind: str = "metric") -> tuple[str, list[float | None]]:
    """The metric that was asked for, or the experiment's, and its value in each trial."""
    name = metric or follower.history.info.metric
    if name is None:
        raise InvalidInputError("The experiment has no metric: name one.")
    if name not in follower.columns.metrics:
        known = ", ".join(follower.columns.metrics[:50]) or "none yet"
        raise InvalidInputError(f"No trial has reported {name!r}. The metrics are: {known}.")
    column = follower.columns.column(f"{kind}/{name}")
    if column.values is not None:
        return name, [None] * len(column.data)
    return name, list(column.data)


def values_of(follower: Follower, param: str) -> list[Any]:
    """The value of a parameter in each trial; None if it does not have it, `NONE` if its value is None."""
    if param not in follower.columns.params:
        known = ", ".join(follower.columns.params[:50]) or "none"
        raise InvalidInputError(f"No trial has the parameter {param!r}. The parameters are: {known}.")
    column = follower.columns.column(f"config/{param}")
    if column.values is None:
        return [None if value != value else value for value in column.data]
    values = [NONE if value is None else value for value in column.values]
    return [None if code == MISSING else values[code] for code in column.data]


def _history(follower: Follower, metric: str | None = None, mode: str | None = None) -> dict[str, Any]:
    name, values = numbers(follower, metric)
    mode = mode or follower.history.info.mode or "min"
    ended = follower.columns.column("ended_at").data
    started = follower.columns.column("started_at").data
    at = [end if end == end else start for end, start in zip(ended, started, strict=True)]
    return {"metric": name, "mode": mode, **best_so_far(values, mode, at)}


def _importance(follower: Follower, metric: str | None = None) -> dict[str, Any]:
    name, values = numbers(follower, metric)
    params = {param: values_of(follower, param) for param in follower.columns.params}
    return {"metric": name, **importance(params, values)}


def _edf(follower: Follower, metric: str | None = None) -> dict[str, Any]:
    name, values = numbers(follower, metric)
    return {"metric": name, **empirical_distribution(values)}


def _pareto(follower: Follower, metrics: Sequence[str], modes: Sequence[str] | None = None) -> dict[str, Any]:
    if len(metrics) < 2:
        raise InvalidInputError("A Pareto front needs at least two metrics.")
    modes = list(modes or [follower.history.info.mode or "min"] * len(metrics))
    if len(modes) != len(metrics) or any(mode not in ("min", "max") for mode in modes):
        raise InvalidInputError(f"A Pareto front needs 'min' or 'max' for each metric, got {modes!r}.")
    points = list(zip(*(numbers(follower, metric)[1] for metric in metrics), strict=True))
    front = pareto_front(points, modes)
    return {"metrics": list(metrics), "modes": modes, "front": front, "points": [points[n] for n in front]}


def _contour(follower: Follower, x: str, y: str, metric: str | None = None) -> dict[str, Any]:
    name, values = numbers(follower, metric)
    space = follower.history.spec.space or {}
    log = (bool(space.get(x, {}).get("log")), bool(space.get(y, {}).get("log")))
    return {"metric": name, **contour((x, values_of(follower, x)), (y, values_of(follower, y)), values, log)}


def _until(follower: Follower) -> float:
    """The present of an experiment that runs; the end of what is known of one that does not."""
    last = follower.chronicle.last_at
    return max(last, time.time()) if phase_of(follower.history) == Phase.RUNNING else last


def _workers(follower: Follower) -> dict[str, Any]:
    chronicle, until = follower.chronicle, _until(follower)
    lived = [(driver.at, driver.until) for driver in chronicle.drivers[:-1]]
    lived += [(driver.at, until) for driver in chronicle.drivers[-1:]]
    return worker_timeline(chronicle.attempts(), chronicle.workers, until, lived)


def _lineage(follower: Follower) -> dict[str, Any]:
    chronicle, trials = follower.chronicle, follower.history.state.trials
    schedules = {n: chronicle.configs(n) for n in chronicle.reconfigured}
    return lineage(chronicle.copies, schedules, [trial.id for trial in trials])


def _recovery(follower: Follower) -> dict[str, Any]:
    chronicle, trials = follower.chronicle, follower.history.state.trials
    ids = [trial.id for trial in trials]
    incidents = [*chronicle.incidents, *_unresumed(follower)]
    return recovery_timeline(incidents, chronicle.drivers, ids, _until(follower), chronicle.more_incidents)


def _unresumed(follower: Follower) -> list[Incident]:
    """The death of the last driver, if nobody has resumed the experiment since: no record tells of it."""
    chronicle, history = follower.chronicle, follower.history
    owner = history.owner
    if not chronicle.drivers or chronicle.drivers[-1].reason or owner is None or owner.alive:
        return []
    last = chronicle.drivers[-1]
    text = (
        f"Driver {last.epoch} (pid {last.pid} on {last.host}) exited without shutting down, and nobody has resumed the "
        "experiment."
    )
    return [Incident(chronicle.last_at, math.nan, "killed", -1, text, trials=len(history.lost))]


def _clean(node: Any) -> Any:
    """The same with None for numbers that JSON cannot hold."""
    if isinstance(node, float):
        return node if math.isfinite(node) else None
    if isinstance(node, dict):
        return {key: _clean(value) for key, value in node.items()}
    return [_clean(value) for value in node] if isinstance(node, list | tuple) else node


_CHARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "history": _history,
    "importance": _importance,
    "edf": _edf,
    "pareto": _pareto,
    "contour": _contour,
    "workers": _workers,
    "lineage": _lineage,
    "recovery": _recovery,
}
