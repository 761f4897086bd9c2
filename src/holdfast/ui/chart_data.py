"""The charts that the server computes, in the shape in which the page draws them: ids of trials instead of numbers.

Owns the translation of a request into a chart of `results.charts`, and of its data into what the page expects. Computes
nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core.state import Trial
from holdfast.results.charts.experiment_charts import chart, numbers
from holdfast.results.chronicle import OUTCOMES
from holdfast.space.exact import shown
from holdfast.ui.encoding import MAX_CELL_TEXT, shortened
from holdfast.ui.query import Query
from holdfast.ui.source import Source
from holdfast.views.results import flatten_result

MAX_PARETO = 20_000
_OUTCOME_WORDS = {"finished": "done", "errored": "failed"}
_INCIDENT_WORDS = {
    "killed": "driver_lost",
    "resumed": "resume",
    "error": "crash",
    "rejected": "rejected_checkpoint",
    "backlog": "lag",
    "storage": "storage_outage",
}
assert set(_OUTCOME_WORDS) <= set(OUTCOMES)

Chart = dict[str, Any]


def chart_data(source: Source, name: str, query: Query) -> Chart | None:
    """The data of one chart; None if there is no such chart. Where there is nothing to draw yet, a note says why.

    Raises:
        InvalidInputError: A parameter is wrong.
    """
    make = _CHARTS.get(name)
    if make is None:
        return None
    missing = _NEEDED[name](source, query) if name in _NEEDED else ""
    found: Chart = {"note": missing} if missing else shortened(make(source, query), MAX_CELL_TEXT)
    return found


def _no_metric(source: Source, query: Query) -> str:
    """Why the metric cannot be drawn: nobody asked for a wrong one, but there are no values yet."""
    objective = source.history.info.metric
    metric = query.text("metric", objective)
    known = source.follower.columns.metrics
    if metric is None:
        return "The experiment has no metric: choose one."
    return "" if metric in known or (known and metric != objective) else f"No trial has reported {metric[:80]} yet."


def _no_pair(source: Source, query: Query) -> str:
    if query.text("x") is None or query.text("y") is None or query.text("x") == query.text("y"):
        return "A contour needs two different parameters."
    return _no_metric(source, query)


def _no_metrics(source: Source, query: Query) -> str:
    if query.text("x") is None or query.text("y") is None or not source.follower.columns.metrics:
        return "A front needs trials that report two metrics."
    return ""


def _importance(source: Source, query: Query) -> Chart:
    found = chart(source.follower, "importance", metric=query.text("metric"))
    return {**found, "note": f"From {found['trials']:,} trials with a value of {found['metric'][:80]}."}


def _edf(source: Source, query: Query) -> Chart:
    found = chart(source.follower, "edf", metric=query.text("metric"))
    points = list(zip(found.pop("x"), found.pop("y"), strict=True))
    note = f"{len(points):,} of {found['count']:,} values are drawn." if found["thinned"] else None
    return {**found, "points": points, "note": note}


def _pareto(source: Source, query: Query) -> Chart:
    x, y = query.required("x"), query.required("y")
    modes = [query.text("x_mode", "min"), query.text("y_mode", "min")]
    front = dict.fromkeys(chart(source.follower, "pareto", metrics=[x, y], modes=modes)["front"])
    values = zip(numbers(source.follower, x)[1], numbers(source.follower, y)[1], strict=True)
    known = [(n, a, b) for n, (a, b) in enumerate(values) if a is not None and b is not None and a == a and b == b]
    stride = -(-len(known) // MAX_PARETO) or 1
    trials = source.history.state.trials
    points = [
        [trials[n].id, a, b, 1 if n in front else 0]
        for k, (n, a, b) in enumerate(known)
        if n in front or not k % stride
    ]
    note = f"All trials on the front, and {len(points):,} of {len(known):,} in all." if stride > 1 else None
    return {"x": x, "y": y, "x_mode": modes[0], "y_mode": modes[1], "points": points, "note": note}


def _contour(source: Source, query: Query) -> Chart:
    x, y = query.required("x"), query.required("y")
    found = chart(source.follower, "contour", x=x, y=y, metric=query.text("metric"))
    sides = {
        side: {"name": found[side]["name"], "log": found[side]["log"], "categories": found[side]["options"]}
        for side in ("x", "y")
    }
    ticks = {"xs": found["x"]["ticks"], "ys": found["y"]["ticks"]}
    note = "Cells without a trial are interpolated."
    return {**found, **sides, **ticks, "note": note} if found["trials"] else {**found, **sides, **ticks}


def _workers(source: Source, query: Query) -> Chart:
    found = chart(source.follower, "workers")
    trials = source.history.state.trials
    lanes = []
    for lane in found["workers"]:
        spans = [
            [start, end, trials[n].id if n >= 0 else "", attempt, _OUTCOME_WORDS.get(outcome, outcome), place]
            for n, attempt, start, end, outcome, place in lane["spans"]
        ]
        name = f"{lane['host']}:{lane['pid']}" if lane["host"] else "unknown"
        lanes.append({**lane, "name": name, "spans": spans})
    note = "Attempts that are close to each other are drawn as one." if found["thinned"] else None
    return {**found, "workers": lanes, "note": note}


def _lineage(source: Source, query: Query) -> Chart:
    found = chart(source.follower, "lineage")
    trials, ids = source.history.state.trials, found["ids"]
    schedules = {each["trial"]: each["schedule"] for each in found["trials"]}
    nodes = [
        {"trial_id": ids[n], "segments": _segments(trials[int(n)], schedules.get(int(n), [])[:])}
        for n in sorted(ids, key=int)
    ]
    edges = [
        {
            "time": copy["at"],
            "to": ids[str(copy["trial"])],
            "from": ids[str(copy["parent"])],
            "iteration": copy["iteration"],
            "checkpoint": copy["checkpoint"],
        }
        for copy in found["copies"]
    ]
    return {"nodes": nodes, "edges": edges, "params": found["params"]}


def _segments(trial: Trial, schedule: list[dict[str, Any]]) -> list[list[Any]]:
    """For how long, and for which iterations, each of a trial's configs held."""
    if not schedule:
        schedule = [{"at": 0.0, "iteration": 0, "config": _flat(trial)}]
    begin = trial.started_at or trial.created_at
    end = trial.ended_at if trial.final and trial.ended_at else None
    ends = [*((later["at"], later["iteration"]) for later in schedule[1:]), (end, trial.iteration)]
    return [
        [max(part["at"], begin), until, part["iteration"], iteration, part["config"]]
        for part, (until, iteration) in zip(schedule, ends, strict=True)
    ]


def _flat(trial: Trial) -> dict[str, Any]:
    return flatten_result(shown(trial.config))


def _recovery(source: Source, query: Query) -> Chart:
    found = chart(source.follower, "recovery")
    events = [
        {
            "time": each["at"],
            "end": each["until"],
            "kind": _INCIDENT_WORDS.get(each["kind"], each["kind"]),
            "trial_id": each["trial"],
            "text": each["text"],
            "lost_s": _lost(each),
        }
        for each in found["incidents"]
    ]
    unknown = {each["kind"] for each in events} - {each["kind"] for each in events if each["lost_s"] is not None}
    kinds = {}
    for kind, sums in found["kinds"].items():
        word, lost_s = _INCIDENT_WORDS.get(kind, kind), sums["down_s"] + sums["repeated_s"]
        kinds[word] = {"count": sums["count"], "lost_s": None if word in unknown else lost_s}
    note = f"{found['more']:,} more incidents are not drawn." if found["more"] else None
    lost = found["down_s"] + found["repeated_s"]
    del found["incidents"]
    return {**found, "events": events, "by_kind": kinds, "lost_s": lost, "note": note}


def _lost(incident: dict[str, Any]) -> float | None:
    """Seconds that it has cost; None if that is not known: a trial that failed for good may have cost all its time."""
    if incident["kind"] == "error" or (incident["kind"] == "killed" and incident["until"] is None):
        return None
    return float(incident["down_s"] + incident["repeated_s"])


_CHARTS: dict[str, Callable[[Source, Query], Chart]] = {
    "importance": _importance,
    "edf": _edf,
    "pareto": _pareto,
    "contour": _contour,
    "workers": _workers,
    "lineage": _lineage,
    "recovery": _recovery,
}

_NEEDED: dict[str, Callable[[Source, Query], str]] = {
    "importance": _no_metric,
    "edf": _no_metric,
    "pareto": _no_metrics,
    "contour": _no_pair,
}
