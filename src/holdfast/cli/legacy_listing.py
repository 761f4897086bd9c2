"""``holdfast list-trials`` and ``list-experiments``: the older listings, with their options."""

from __future__ import annotations

import argparse
import operator
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.cli.export import check_format, trial_row, write_rows
from holdfast.cli.listing import UNREADABLE, experiments_below, facts_or_damage
from holdfast.cli.printing import complain, say, table_lines, when
from holdfast.core.state import Status
from holdfast.display.tracker import UNSTARTED
from holdfast.display.words import one_line, plural, value_text, with_tuples
from holdfast.errors import InvalidInputError
from holdfast.results.history import open_history
from holdfast.space.value_names import named

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">=": operator.ge,
    "!=": operator.ne,
    ">": operator.gt,
}

_TRIAL_COLUMNS = ("trial_id", "status", "training_iteration", "time_total_s", "experiment_tag")


def run(arguments: argparse.Namespace) -> int:
    """List trials or experiments."""
    trials = arguments.kind == "list-trials"
    damaged: list[str] = []
    rows = _trial_rows(arguments.path) if trials else _experiment_rows(arguments.path, damaged)
    known = dict.fromkeys(key for row in rows for key in row)  # those that are filtered out have columns too
    columns = _columns(arguments, rows, known) if trials else _split(arguments.columns)
    if arguments.filter:
        rows = _filtered(rows, known, arguments.filter)
    for column in reversed(_split(arguments.sort)):
        _require(known, column)
        rows.sort(key=lambda row, key=column: _order(row.get(key)), reverse=arguments.desc)  # type: ignore[misc]
    if arguments.limit is not None:
        rows = rows[: max(0, arguments.limit)]
    if columns:
        for column in columns:
            _require(known, column)
        rows = [{column: row.get(column) for column in columns} for row in rows]
    if arguments.output:
        out = Path(arguments.output).expanduser()
        check_format(out, safe_csv=arguments.safe_csv)
        write_rows(out, rows, safe_csv=arguments.safe_csv)
        say(f"{plural(len(rows), 'row')} written to {out}")
    else:
        titles = columns or list(dict.fromkeys(key for row in rows for key in row))
        say(*table_lines(titles, [[value_text(row.get(title), 40) for title in titles] for row in rows]))
    for text in damaged:
        complain(text)
    return 1 if damaged else 0


def _columns(arguments: argparse.Namespace, rows: list[dict[str, Any]], known: dict[str, None]) -> list[str]:
    """The columns of a listing of trials: those asked for, else a few and the metrics that trials reported."""
    more = _split(arguments.result_columns)
    if arguments.columns:
        return list(dict.fromkeys([*_split(arguments.columns), *more]))
    unstarted = any(str(row["ended"]).startswith(UNSTARTED) for row in rows)
    columns = (*_TRIAL_COLUMNS[:2], "ended", *_TRIAL_COLUMNS[2:]) if unstarted else _TRIAL_COLUMNS
    usual = [key for key in columns if key in known] + [key for key in known if key.startswith("config/")]
    return list(dict.fromkeys([*usual, *more]))


def _trial_rows(path: str) -> list[dict[str, Any]]:
    history = open_history(path)
    names = history.info.value_names
    configs = (with_tuples(named(trial.config, names, value_text)) for trial in history.state.trials)
    return [trial_row(history, trial, config) for trial, config in zip(history.state.trials, configs, strict=True)]


def _experiment_rows(path: str, damaged: list[str]) -> list[dict[str, Any]]:
    """A row for each experiment; what is wrong with those that are damaged is added to the list."""
    rows = []
    for _, place in experiments_below(path):
        facts = facts_or_damage(place)
        why = facts["why"] if facts["state"] == UNREADABLE else (facts["journal_damage"] or {}).get("message", "")
        if why:
            damaged.append(f"{one_line(facts['name'], 80)}: {one_line(why, 400)}")
        counts = facts.get("counts", {})
        best, at = facts.get("best"), facts.get("last_event_at")
        rows.append(
            {
                "name": facts["name"],
                "status": f"DAMAGED, {facts['state']}" if facts["journal_damage"] else facts["state"],
                "total_trials": sum(counts.values()),
                "running_trials": counts.get(Status.RUNNING, 0),
                "terminated_trials": counts.get(Status.TERMINATED, 0),
                "error_trials": counts.get(Status.ERROR, 0),
                "best": best["value"] if best else None,
                "last_updated": when(at) if at else None,
            }
        )
    return rows


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


def _require(known: dict[str, None], column: str) -> None:
    if known and column not in known:
        raise InvalidInputError(f"There is no column {column!r}. The columns are: {', '.join(known)}.")


def _filtered(rows: list[dict[str, Any]], known: dict[str, None], text: str) -> list[dict[str, Any]]:
    parts = shlex.split(text)
    if len(parts) != 3 or parts[1] not in _OPERATORS:
        raise InvalidInputError(
            f'--filter {text!r} is not of the form "COLUMN OP VALUE" with OP one of {" ".join(_OPERATORS)}; '
            'for example --filter "loss < 0.5".'
        )
    column, sign, wanted = parts
    _require(known, column)
    return [row for row in rows if _matches(row.get(column), _OPERATORS[sign], wanted)]


def _matches(value: Any, compare: Callable[[Any, Any], bool], wanted: str) -> bool:
    if value is None:
        return False
    if isinstance(value, bool):
        return compare(str(value).lower(), wanted.lower())
    if isinstance(value, int | float):
        try:
            return compare(value, float(wanted))
        except ValueError:
            return False
    return compare(str(value), wanted)


def _order(value: Any) -> tuple[int, Any]:
    """Numbers before text, and what is missing last, so that any two values can be compared."""
    if value is None:
        return (2, 0)
    return (0, value) if isinstance(value, int | float) else (1, str(value))
