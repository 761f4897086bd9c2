"""``holdfast export``: results as a file, which appears whole or not at all. CSV and JSON need nothing but Python.

Trackers and Optuna have modules of their own, which are imported when they are asked for.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.cli.printing import say, to_json
from holdfast.core.state import Trial
from holdfast.display.tracker import ended_reason
from holdfast.display.words import plural
from holdfast.errors import InvalidInputError
from holdfast.results.dataframes import flat_row, require_pandas
from holdfast.results.history import History, open_history
from holdfast.results.output_file import written_whole
from holdfast.space.exact import pack, shown

FORMATS = (".csv", ".json", ".parquet", ".pkl")

_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What makes a spreadsheet compute a cell, at its beginning."""


def run(arguments: argparse.Namespace) -> int:
    """Write the file, or log to a tracker."""
    check_arguments(arguments)
    if arguments.to is not None:
        return int(import_module("holdfast.cli.export_to").run(arguments))
    out = Path(arguments.out).expanduser()
    if arguments.format == "optuna":
        return _write_study(arguments, out)
    check_format(out, safe_csv=arguments.safe_csv)
    history = open_history(arguments.path)
    rows = ResultRows(history) if arguments.rows else [trial_row(history, trial) for trial in history.state.trials]
    written = write_rows(out, rows, safe_csv=arguments.safe_csv)
    say(f"{plural(written, 'row')} written to {out}")
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse what does not go together."""
    if arguments.to is None and arguments.out is None:
        raise InvalidInputError("Name the file to write, or a tracker with --to. See: holdfast export --help")
    if arguments.to is None and arguments.set:
        raise InvalidInputError("--set is an argument for a tracker: name that with --to, or leave --set out.")
    if (arguments.to or arguments.format) and (arguments.rows or arguments.safe_csv):
        raise InvalidInputError("--rows and --safe-csv are for files with rows: leave them out.")
    if (arguments.metric or arguments.mode) and not arguments.format:
        raise InvalidInputError("--metric and --mode are for --format optuna: leave them out.")
    if arguments.to and arguments.format:
        raise InvalidInputError("--to and --format exclude each other: give one of them.")


def _write_study(arguments: argparse.Namespace, out: Path) -> int:
    from holdfast.results.optuna_study import write_study

    written = write_study(open_history(arguments.path), out, arguments.metric, arguments.mode)
    say(f"an Optuna study with {plural(written, 'trial')} written to {out}")
    return 0


def check_format(out: Path, *, safe_csv: bool = False) -> None:
    """Refuse a file whose ending names no format, or none that has formulas."""
    if out.suffix.lower() not in FORMATS:
        raise InvalidInputError(
            f"{str(out)!r}: the file extension selects the format; use one of {', '.join(FORMATS)}."
        )
    if safe_csv and out.suffix.lower() != ".csv":
        raise InvalidInputError(f"--safe-csv is only for .csv files, and {str(out)!r} is not one: leave it out.")


def trial_row(history: History, trial: Trial, config: Any = None) -> dict[str, Any]:
    """One trial in one row: who it is, its last result, its parameters, or ``config`` as it stands in their place."""
    known: dict[str, Any] = {"trial_id": trial.id, "name": history.name(trial), "status": trial.status}
    known["ended"] = ended_reason(trial) or None
    last = history.last(trial) if trial.metrics is not None else {}
    result = {**last, "config": shown(trial.config) if config is None else config}
    error = {}
    if trial.error is not None:
        error = {"error_type": trial.error.type, "error_message": trial.error.message}
    said = {}
    if trial.tags:
        said["tags"] = ",".join(trial.tags)
    if trial.notes:
        said["notes"] = "\n".join(note.text for note in trial.notes)
    return {**known, **flat_row(result), "failures": trial.total_failures, **error, **said, **known}


class ResultRows:
    """Every result that counts, trial by trial, in order. Each iteration reads them again; none is kept."""

    def __init__(self, history: History) -> None:
        self._history = history

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for trial in self._history.state.trials:
            config: Any = None
            flat_config: dict[str, Any] = {}
            for row in self._history.rows(trial.n):
                if row["config"] is not config:  # rows share theirs until a scheduler changes it
                    config = row["config"]
                    # As text and numbers: a file has no tuples, and not every format takes an object.
                    flat_config = flat_row({"config": shown(pack(config, lambda value, _: repr(value)))})
                yield {**flat_row({**row, "config": {}}), **flat_config}


def write_rows(out: Path, rows: Iterable[Mapping[str, Any]], *, safe_csv: bool = False) -> int:
    """Write rows in the format that the file's ending names.

    Args:
        out: The file.
        rows: What to write. For CSV they may be gone through more than once.
        safe_csv: In CSV, put an apostrophe before text that a spreadsheet would take for a formula.

    Returns:
        How many rows there are.
    """
    kind = out.suffix.lower()
    with written_whole(out) as file:
        if kind == ".csv":
            return _write_csv(rows, file, _harmless if safe_csv else _cell)
        if kind == ".json":
            return _write_json(rows, file)
        rows = list(rows)
        if kind == ".parquet":
            _write_parquet(rows, file)
        else:
            _pandas().DataFrame(rows).to_pickle(file)
        return len(rows)


def _write_parquet(rows: Iterable[Mapping[str, Any]], file: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InvalidInputError(
            "Parquet files need pyarrow, which is not installed: pip install pyarrow. "
            "Or choose .csv or .json, which need no other package."
        ) from None
    parquet.write_table(pyarrow.table(columns_of(rows)), file)


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The rows as columns of one type each, as Parquet wants them: what is mixed or nested becomes text."""
    rows = list(rows)
    names = dict.fromkeys(key for row in rows for key in row)
    return {name: _one_type([row.get(name) for row in rows]) for name in names}


def _one_type(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int} and not all(value is None or -(2**63) <= value < 2**63 for value in values):
        kinds = set()
    if len(kinds) == 1 and kinds <= {bool, int, float, str}:
        return values
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [
        value if value is None or isinstance(value, str) else to_json(value, indent=False).decode() for value in values
    ]


def _pandas() -> Any:
    try:
        return require_pandas()
    except ImportError as error:
        raise InvalidInputError(f"{error} Or choose .csv or .json, which need no other package.") from None


def _write_csv(rows: Iterable[Mapping[str, Any]], file: Path, cell: Callable[[Any], Any]) -> int:
    """Write with the columns of the first row; if others have more, again with all of them."""
    columns = dict.fromkeys(next(iter(rows), {}))
    while True:
        known, written = list(columns), 0
        with open(file, "w", encoding="utf-8", newline="") as text:
            writer = csv.writer(text)
            writer.writerow(map(cell, known))
            for row in rows:
                if not row.keys() <= columns.keys():
                    columns.update(dict.fromkeys(row))
                if len(columns) == len(known):
                    writer.writerow([cell(row[column]) if column in row else "" for column in known])
                written += 1
        if len(columns) == len(known):
            return written


def _write_json(rows: Iterable[Mapping[str, Any]], file: Path) -> int:
    """Write a list as ``to_json`` spells it, but row by row."""
    written = 0
    with open(file, "wb") as text:
        text.write(b"[")
        for row in rows:
            text.write(b",\n  " if written else b"\n  ")
            text.write(to_json(row).replace(b"\n", b"\n  "))
            written += 1
        text.write(b"\n]\n" if written else b"]\n")
    return written


def _harmless(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula; numbers are what they are."""
    text = _cell(value)
    if not isinstance(text, str) or not text.startswith(_FORMULAS):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def _cell(value: Any) -> Any:
    return to_json(value, indent=False).decode() if isinstance(value, dict | list | tuple) else value
