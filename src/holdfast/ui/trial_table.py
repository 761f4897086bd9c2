"""The trial table: the rows that were asked for, sorted and filtered.

Owns the names: each key of a row can be asked for as a column, sorted by and filtered by, and means the same there.

Sorting and filtering use whole columns, and only the rows that are shown are built, so that a page of a hundred rows
costs little also among a hundred thousand trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from holdfast.cli.export import trial_row
from holdfast.core.state import Trial
from holdfast.errors import InvalidInputError
from holdfast.results.columns import ended_at
from holdfast.results.history import History
from holdfast.results.packing import MISSING
from holdfast.ui.encoding import MAX_CELL_TEXT, shortened
from holdfast.ui.filters import Filter
from holdfast.ui.query import Query
from holdfast.ui.source import Source

MAX_ROWS = 1000
MAX_NAMED = 40
Reader: TypeAlias = Callable[[int], Any]
"""Returns the value of one column for the trial of a number."""

_ALIASES = {"training_iteration": "iteration"}
_FACTS: dict[str, Callable[[History, Trial], Any]] = {
    "name": lambda history, trial: history.name(trial),
    "number": lambda history, trial: trial.n,
    "tags": lambda history, trial: ",".join(trial.tags) or None,
    "notes": lambda history, trial: "\n".join(note.text for note in trial.notes) or None,
    "error_type": lambda history, trial: trial.error.type if trial.error is not None else None,
    "error_message": lambda history, trial: trial.error.message if trial.error is not None else None,
}


def reader_of(source: Source, name: str) -> Reader | None:
    """How to read a column of this name; None if there is no such column."""
    history = source.history
    if name in _FACTS:
        fact, trials = _FACTS[name], history.state.trials
        return lambda n: fact(history, trials[n])
    known = source.resolve(_ALIASES.get(name, name))
    if known is None:
        return _result_reader(history, name)
    column = source.follower.columns.column(known)
    data, values = column.data, column.values
    if values is not None:
        return lambda n: None if data[n] == MISSING else values[data[n]]
    return lambda n: None if math.isnan(data[n]) else data[n]


def _result_reader(history: History, name: str) -> Reader | None:
    """How to read what holdfast adds to each result, such as the host; None if there is no such key."""
    trials = history.state.trials
    some = next((trial for trial in trials if trial.metrics is not None), None)
    if some is None or name not in history.last(some):
        return None
    return lambda n: None if trials[n].metrics is None else history.last(trials[n]).get(name)


def table(source: Source, query: Query) -> dict[str, Any]:
    """The rows that were asked for, and how many there are in all.

    Raises:
        InvalidInputError: A parameter is wrong; the message names it.
    """
    offset = query.number("offset", 0, high=10**9)
    limit = query.number("limit", 100, high=MAX_ROWS)
    columns = query.names("columns")
    numbers = _filtered(source, query.text("filter", "", limit=100_000) or "")
    sort = query.text("sort")
    if sort is not None:
        numbers = _sorted(numbers, _required(source, sort), descending=query.flag("desc"))
    elif query.flag("desc"):
        numbers = numbers[::-1]
    readers = {name: _required(source, name) for name in columns}
    trials = source.history.state.trials
    chosen = [trials[n] for n in numbers[offset : offset + limit]]
    rows = [_chosen(trial, readers) if columns else full_row(source.history, trial) for trial in chosen]
    return {"total": len(numbers), "rows": shortened(rows, MAX_CELL_TEXT)}


def full_row(history: History, trial: Trial) -> dict[str, Any]:
    """One trial in one row, as ``holdfast list-trials`` has it."""
    known = {
        "iteration": trial.iteration,
        "attempts": trial.attempt,
        "started_at": trial.started_at or None,
        "ended_at": ended_at(trial),
        "interrupted": trial.n in history.lost,
    }
    return {**known, **trial_row(history, trial)}


def _chosen(trial: Trial, readers: dict[str, Reader]) -> dict[str, Any]:
    return {"trial_id": trial.id, **{name: read(trial.n) for name, read in readers.items()}}


def _required(source: Source, name: str) -> Reader:
    reader = reader_of(source, name)
    if reader is None:
        some = list(dict.fromkeys([*source.follower.columns.names, *_FACTS]))
        known = ", ".join(each[:80] for each in some[:MAX_NAMED]) + (", .." if len(some) > MAX_NAMED else "")
        raise InvalidInputError(f"There is no column {name[:200]!r}. The columns are: {known}.")
    return reader


def _filtered(source: Source, text: str) -> list[int]:
    readers: dict[str, Reader] = {}

    def resolve(name: str) -> str | None:
        reader = reader_of(source, name)
        if reader is not None:
            readers[name] = reader
        return None if reader is None else name

    wanted, everything = Filter(text, resolve), range(len(source.history.state.trials))
    if not readers:
        return list(everything)
    return [n for n in everything if wanted.accepts(lambda name, n=n: readers[name](n))]  # type: ignore[misc]


def _sorted(numbers: list[int], read: Reader, *, descending: bool) -> list[int]:
    """By one column: numbers before text, and what is missing last in both directions."""
    having: list[tuple[tuple[bool, Any], int]] = []
    missing: list[int] = []
    for n in numbers:
        value = read(n)
        if value is None:
            missing.append(n)
        elif isinstance(value, int | float):
            having.append(((descending, value), n))
        else:
            having.append(((not descending, str(value)), n))
    having.sort(key=lambda pair: pair[0], reverse=descending)
    return [n for _, n in having] + missing
