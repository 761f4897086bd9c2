"""What the page can ask about one experiment, as plain data or bytes: shared by the server and the report.

Each answer is a function of the experiment and the parameters. Runs in the thread that owns the experiment. Must never
return something whose size follows from a parameter without a limit.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeAlias

from holdfast.cli.show import find_trial
from holdfast.core.state import Trial
from holdfast.errors import InvalidInputError, TuneError
from holdfast.ui.chart_data import chart_data
from holdfast.ui.encoding import MAX_CELL_TEXT, json_bytes, shortened
from holdfast.ui.query import Query
from holdfast.ui.source import Source, needs_full_pass, timed
from holdfast.ui.trial_table import table

MAX_TRIAL_ROWS = 5000
MAX_POINTS = 2_000_000
DEFAULT_POINTS = 200_000
MAX_TRIALS_NAMED = 2000
MAX_STORY = 5000
UNREADABLE_STATES = ("unreadable", "newer format", "not found")
MAX_NAMED = 40
_MAY_COME = ("metric/", "best/", "min/", "max/", "config/")

Answer: TypeAlias = dict[str, Any] | list[Any] | bytes
"""Plain data, or bytes in the binary format of `encoding`."""


class NotHere(TuneError):
    """There is nothing of this name; the message says so in one sentence."""


def encoded(answer: Answer) -> bytes:
    """The body of a response."""
    return answer if isinstance(answer, bytes) else json_bytes(answer)


def overview(source: Source, identity: str, trouble: str = "", trouble_state: str = "") -> dict[str, Any]:
    """The experiment itself; ``trouble`` is why it cannot be read any more, and is no damage if it has a state."""
    facts = source.facts()
    if trouble_state:
        facts |= {"state": trouble_state, "why": trouble}
    damage = facts["journal_damage"]["message"] if facts["journal_damage"] else facts["damage"]
    columns = source.follower.columns
    return {
        **shortened(facts, 4000),
        "id": identity,
        "loading": None,
        "record": source.record,
        "space": shortened(source.space(), MAX_CELL_TEXT),
        "best": shortened(source.best(facts), 4000),
        "failures": shortened(source.failures(), 4000),
        "resume_command": facts["resume"],
        "repair_command": facts["repair"],
        "damage": damage if trouble_state else trouble or damage,
        "unreachable": source.unreachable or None,
        "backlog": {**facts["backlog"], "text": _backlog_text(facts)},
        "metrics": columns.metrics,
        "params": columns.params,
        "notes": timed(facts["notes"]),
        "live": facts["state"] == "running",
        "read_only": not source.can_act(),
    }


def summary(facts: dict[str, Any]) -> dict[str, Any]:
    """One line of the list of experiments, from what ``holdfast list --json`` knows."""
    counts = facts.get("counts") or {}
    damage = facts.get("journal_damage") or {}
    error = facts["why"] if facts["state"] in UNREADABLE_STATES else damage.get("message")
    line: dict[str, Any] = {
        "name": facts["name"],
        "path": facts["path"],
        "state": facts["state"],
        "counts": counts,
        "metric": facts.get("metric"),
        "mode": facts.get("mode"),
        "best": facts.get("best"),
        "trials": sum(counts.values()),
        "started": facts.get("started_at"),
        "updated": facts.get("last_event_at"),
    }
    line = shortened(line, 4000)
    return {**line, "error": error} if error else line


def _backlog_text(facts: dict[str, Any]) -> str:
    """What becomes of the checkpoints that are not where the experiment lives."""
    if not facts["backlog"]["checkpoints"]:
        return ""
    if facts["state"] == "running":
        return "checkpoints are being uploaded"
    return "checkpoints were not uploaded: the next driver uploads those that are still on its machine"


def trial_of(source: Source, identity: str) -> Trial:
    """The trial of this id or name, as ``holdfast show`` finds it.

    Raises:
        NotHere: There is none.
    """
    try:
        return find_trial(source.history, identity)
    except InvalidInputError as error:
        raise NotHere(f"There is no trial {identity[:200]!r} in {source.history.info.name}.") from error


def tags_of(source: Source, identity: Any) -> list[str]:
    """The tags of a trial; those of the experiment if none is named."""
    if not isinstance(identity, str):
        return list(source.history.state.tags)
    return list(trial_of(source, identity).tags)


def trial(source: Source, identity: str, query: Query) -> Answer:
    """One trial in detail."""
    answer: dict[str, Any] = shortened(source.trial(trial_of(source, identity)))
    return answer


def rows(source: Source, identity: str, query: Query) -> Answer:
    """The results of a trial that count."""
    offset = query.number("offset", 0, high=10**9)
    limit = query.number("limit", 1000, high=MAX_TRIAL_ROWS)
    found = source.rows(trial_of(source, identity))
    chosen = [{key: value for key, value in row.items() if key != "config"} for row in found[offset : offset + limit]]
    return {"total": len(found), "rows": shortened(chosen, 4000)}


def story(source: Source, identity: str, query: Query) -> Answer:
    """What happened to a trial."""
    return [
        {"time": line.at, "kind": line.kind, "text": line.text}
        for line in source.story(trial_of(source, identity))[-MAX_STORY:]
    ]


def columns(source: Source, query: Query) -> Answer:
    """Columns of the trial table; metrics and parameters that no trial has are left out, for they may come."""
    trials, names = query.names("trials", limit=MAX_TRIALS_NAMED), query.names("names")
    known = source.follower.columns.names
    for name in names:
        if name not in known and not name.startswith(_MAY_COME):
            raise InvalidInputError(_missing("column", name, known))
    return source.pack_columns(names, _numbers(source, trials) if trials else None)


def curves(source: Source, query: Query) -> Answer:
    """All learning curves of one metric."""
    metric = query.required("metric")
    known = {*source.follower.columns.metrics, *source.follower.curves.metrics}
    if known and metric not in known and metric != source.history.info.metric:
        raise InvalidInputError(_missing("metric", metric, sorted(known)))
    most = query.number("max_points", DEFAULT_POINTS, low=100, high=MAX_POINTS)
    trials = query.names("trials", limit=MAX_TRIALS_NAMED)
    return source.pack_curves(metric, most, _numbers(source, trials) if trials else None)


def _missing(what: str, name: str, known: list[str]) -> str:
    some = ", ".join(each[:80] for each in known[:MAX_NAMED]) + (", .." if len(known) > MAX_NAMED else "")
    close = difflib.get_close_matches(name, known, n=1)
    meant = f" Did you mean {close[0][:80]!r}?" if close else ""
    return f"There is no {what} {name[:200]!r}.{meant} The {what}s are: {some}."


def _numbers(source: Source, ids: list[str]) -> list[int]:
    by_id = source.history.state.by_id
    return sorted(by_id[identity] for identity in ids if identity in by_id)


def chart(source: Source, name: str, query: Query) -> Answer:
    """The data of a chart that is computed here."""
    found = chart_data(source, name, query)
    if found is None:
        raise NotHere(f"There is no chart {name[:80]!r}.")
    return found


def needs_all_reports(path: str, query: Query) -> bool:
    """Whether an answer needs more than the state: all reports are read before it, in slices, so that others go on."""
    if path == "columns":
        names = query.names("names")
        return not names or needs_full_pass(names)
    return path == "curves"


OF_EXPERIMENT: dict[str, Callable[[Source, Query], Answer]] = {
    "trials": table,
    "columns": columns,
    "curves": curves,
}

OF_TRIAL: dict[str, Callable[[Source, str, Query], Answer]] = {"": trial, "rows": rows, "story": story}

PARAMETERS: dict[str, tuple[str, ...]] = {
    "trials": ("filter", "sort", "desc", "offset", "limit", "columns"),
    "columns": ("names", "trials"),
    "curves": ("metric", "max_points", "trials"),
    "": (),
    "rows": ("offset", "limit"),
    "story": (),
}
"""What may stand in the address of each answer about an experiment or a trial."""

PARAMETERS_OF_CHARTS: dict[str, tuple[str, ...]] = {
    "importance": ("metric",),
    "edf": ("metric",),
    "pareto": ("x", "y", "x_mode", "y_mode"),
    "contour": ("x", "y", "metric"),
}
