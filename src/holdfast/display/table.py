"""The table of trials: which columns, and the text of each cell.

Owns the choice of columns (the user's, else what the search chose and the first few numbers that trials report) and how
they are fitted to a width, as plain text or as HTML in which everything is escaped. Knows no terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from holdfast.core.retention import lookup
from holdfast.core.state import Status
from holdfast.display.experiment_facts import DisplayOptions, TableRow
from holdfast.display.words import (
    at_path,
    clip,
    clip_front,
    duration,
    ended_words,
    in_space_order,
    one_line,
    short_names,
    value_text,
)
from holdfast.messages.visible import visible

GAP = 2
"""Characters between columns."""

HTML_COLOURS = {Status.RUNNING: "#06c", Status.TERMINATED: "#080", Status.ERROR: "#c00", Status.PAUSED: "#a60"}

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 10

MAX_DEPTH = 4
"""How deep nested metrics are searched for numbers."""

AUTOMATIC = frozenset(
    {
        "training_iteration",
        "time_this_iter_s",
        "time_total_s",
        "time_since_restore",
        "iterations_since_restore",
        "timesteps_since_restore",
        "timestamp",
        "pid",
        "done",
        "should_checkpoint",
        "warmup_time",
    }
)
"""Numbers in a result that say nothing about the trial's quality."""


class Column(msgspec.Struct, frozen=True):
    """One column: its title, where it stands (``order``), how soon it is given up (``rank``), and its cells."""

    title: str
    order: tuple[int, int]
    rank: int
    cell: Callable[[TableRow], str]
    numeric: bool = True


class Table(msgspec.Struct, frozen=True):
    """Cells as text, clipped and fitted."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    widths: tuple[int, ...]

    def lines(self) -> list[str]:
        """The table as plain text."""
        rule = tuple("-" * width for width in self.widths)
        return [self._line(cells) for cells in (self.titles, rule, *self.rows)]

    def _line(self, cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(cells, self.widths, self.numeric, strict=True)
        )
        return (" " * GAP).join(padded).rstrip()


class TableMaker:
    """Makes tables with stable columns: once a metric was inferred it stays, so that nothing jumps about."""

    def __init__(self, options: DisplayOptions, *, sparks: bool = False) -> None:
        self.options = options
        self.sparks = sparks  # whether what shows the table has such characters
        self._inferred: dict[str, None] = {}

    def make(self, rows: Sequence[TableRow], metric: str | None, width: int | None = None) -> Table:
        """The table of ``rows``; with a ``width``, only as many columns as fit."""
        self._infer(rows, metric)
        columns = sorted(self._columns(rows, metric), key=lambda column: column.rank)
        cut = self.options.max_column_length
        kept: list[tuple[Column, list[str], int]] = []
        used = -GAP
        for column in columns:
            title = clip_front(one_line(column.title, 200), cut)
            cells = [title, *(column.cell(row) for row in rows)]
            size = max(map(len, cells))
            if width is not None and kept and used + GAP + size > width:
                continue
            if not any(cells[1:]) and rows:
                continue
            used += GAP + size
            kept.append((column, cells, size))
        kept.sort(key=lambda each: each[0].order)
        return Table(
            titles=tuple(cells[0] for _, cells, _ in kept),
            rows=tuple(zip(*(cells[1:] for _, cells, _ in kept), strict=True)),
            numeric=tuple(column.numeric for column, _, _ in kept),
            widths=tuple(size for _, _, size in kept),
        )

    def _infer(self, rows: Sequence[TableRow], metric: str | None) -> None:
        if not self.options.infer_metrics:
            return
        explicit = self.options.metric_columns
        for row in rows:
            for name in numbers(row.metrics):
                if len(self._inferred) >= self.options.infer_limit:
                    return
                if name != metric and name not in explicit:
                    self._inferred[name] = None

    def _columns(self, rows: Sequence[TableRow], metric: str | None) -> Iterator[Column]:
        cut = self.options.max_column_length
        if any(row.rank for row in rows):
            yield Column("#", (0, 0), 9, lambda row: str(row.rank) if row.rank else "")
        yield Column("Trial", (0, 1), 0, lambda row: clip_front(one_line(row.name, 200), cut), numeric=False)
        yield Column("Status", (1, 0), 1, lambda row: row.status, numeric=False)
        metrics = dict(self.options.metric_columns)
        if metric is not None:
            title = metrics.pop(metric, metric)
            yield self._metric(metric, title, (2, 0), 2)
            if self.sparks:
                yield Column("", (2, 1), 6, lambda row: sparkline(row.trend), numeric=False)
        yield Column("Iter", (4, 0), 3, lambda row: str(row.iteration) if row.iteration else "")
        yield Column("Time", (4, 1), 8, lambda row: duration(row.time_s))
        yield Column("Ended", (6, 0), 7, lambda row: clip(ended_words(row.ended), max(cut, 28)), numeric=False)
        if any(row.tags or row.note for row in rows):
            yield Column("Tags", (6, 1), 6, lambda row: clip(one_line(row.tags), max(cut, 28)), numeric=False)
            yield Column("Note", (6, 2), 12_000, lambda row: clip(one_line(row.note), max(cut, 28)), numeric=False)
        yield Column("Place", (7, 0), 20_000, lambda row: clip_front(one_line(row.place), max(cut, 21)), numeric=False)
        metrics.update((name, name) for name in self._inferred)
        # Parameters and metrics give way in turns, so that a narrow terminal shows some of both. What is the same in
        # all rows tells least, and goes first.
        params = self._params(rows)
        for i, (param, measure) in enumerate(zip_longest(params.items(), metrics.items())):
            if param is not None:
                rank = 10_000 + i if self._is_constant(rows, param[0]) else 4 + 2 * i
                yield self._param(param[0], param[1], (3, i), rank)
            if measure is not None:
                rank = 15_000 + i if self._never_changes(rows, measure[0]) else 5 + 2 * i
                yield self._metric(measure[0], measure[1], (5, i + 1), rank)

    def _params(self, rows: Sequence[TableRow]) -> Mapping[str, str]:
        if self.options.parameter_columns is not None:
            return self.options.parameter_columns
        paths = {path: None for row in rows for path in row.params}
        return short_names(in_space_order(paths, rows[0].config if rows else {}))

    @staticmethod
    def _is_constant(rows: Sequence[TableRow], path: str) -> bool:
        first = at_path(rows[0].config, path) if rows else None
        return len(rows) > 1 and all(at_path(row.config, path) == first for row in rows)

    @staticmethod
    def _never_changes(rows: Sequence[TableRow], metric: str) -> bool:
        values = [lookup(row.metrics, metric) for row in rows if row.metrics]
        return len(values) > 1 and all(value == values[0] for value in values)

    def _param(self, path: str, title: str, order: tuple[int, int], rank: int) -> Column:
        cut = self.options.max_column_length
        return Column(title, order, rank, lambda row: value_text(at_path(row.config, path), cut))

    def _metric(self, name: str, title: str, order: tuple[int, int], rank: int) -> Column:
        cut = self.options.max_column_length

        def cell(row: TableRow) -> str:
            value = lookup(row.metrics, name)
            if value is None and name in ("training_iteration", "time_total_s"):
                value = row.iteration if name == "training_iteration" else row.time_s
            return value_text(value, cut)

        return Column(title, order, rank, cell)


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """A small curve of all values; the last one is the latest."""
    if len(values) < 2:
        return ""
    last = len(values) - 1
    count = min(width, len(values))
    shown = [values[round(i * last / (count - 1))] for i in range(count)]
    low, span = min(shown), max(shown) - min(shown)
    steps = len(SPARKS) - 1
    return "".join(SPARKS[round((value - low) / span * steps) if span else 0] for value in shown)


def numbers(metrics: Mapping[str, Any], prefix: str = "", depth: int = MAX_DEPTH) -> Iterator[str]:
    """Names of the numbers in a result, nested ones as ``a/b``."""
    for name, value in metrics.items():
        if isinstance(value, bool) or not isinstance(name, str) or (not prefix and name in AUTOMATIC):
            continue
        if isinstance(value, int | float):
            yield prefix + name
        elif isinstance(value, Mapping) and depth and name != "config":
            yield from numbers(value, f"{prefix}{name}/", depth - 1)


def escape(text: str) -> str:
    """Text as HTML that shows exactly this text."""
    from html import escape as escaped  # its table of entities is large, and seldom needed

    return escaped(visible(text))


def table_html(table: Table) -> str:
    """A table; every cell is escaped."""
    head = "".join(f"<th>{escape(title)}</th>" for title in table.titles)
    body = "".join(f"<tr>{''.join(map(_cell, cells))}</tr>" for cells in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(text: str) -> str:
    colour = HTML_COLOURS.get(text)
    style = f' style="color:{colour}"' if colour else ""
    return f"<td{style}>{escape(text)}</td>"
