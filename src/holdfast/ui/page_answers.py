"""What the page can ask about one experiment, as plain data or bytes: shared by the server and the report.

Each answer is a function of the experiment and the parameters. Runs in the thread that owns the experiment. Must never
return something whose size follows from a parameter without a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from holdfast.core.state import Trial
from holdfast.errors import TuneError
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

Answer: TypeAlias = dict[str, Any] | list[Any] | bytes
"""Plain data, or bytes in the binary format of `encoding`."""


class NotHere(TuneError):
    """There is nothing of this name; the message says so in one sentence."""


def encoded(answer: Answer) -> bytes:
    """The body of a response."""
    return answer if isinstance(answer, bytes) else json_bytes(answer)


def overview(source: Source, identity: str, trouble: str = "") -> dict[str, Any]:
    """The experiment itself."""
    facts = source.facts()
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
        "damage": trouble or damage,
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
    error = facts["why"] if facts["state"] == "unreadable" else damage.get("message")
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


def trial_of(source: Source, identity: str) -> Trial:
    """The trial of this id.

    Raises:
        NotHere: There is none.
    """
    state = source.history.state
    if identity not in state.by_id:
        raise NotHere(f"There is no trial {identity[:200]!r} in {source.history.info.name}.")
    return state.trials[state.by_id[identity]]


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
    found = source.history.rows(trial_of(source, identity).n)
    chosen = [{key: value for key, value in row.items() if key != "config"} for row in found[offset : offset + limit]]
    return {"total": len(found), "rows": shortened(chosen, 4000)}


def story(source: Source, identity: str, query: Query) -> Answer:
    """What happened to a trial."""
    return [
        {"time": line.at, "kind": line.kind, "text": line.text}
        for line in source.story(trial_of(source, identity))[-MAX_STORY:]
    ]


def columns(source: Source, query: Query) -> Answer:
    """Columns of the trial table; those that no trial has are left out, for they may come."""
    trials = query.names("trials", limit=MAX_TRIALS_NAMED)
    return source.pack_columns(query.names("names"), _numbers(source, trials) if trials else None)


def curves(source: Source, query: Query) -> Answer:
    """All learning curves of one metric."""
    metric = query.required("metric")
    most = query.number("max_points", DEFAULT_POINTS, low=100, high=MAX_POINTS)
    trials = query.names("trials", limit=MAX_TRIALS_NAMED)
    return source.pack_curves(metric, most, _numbers(source, trials) if trials else None)


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
