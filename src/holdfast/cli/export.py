"""``holdfast export``: results as a file, which appears whole or not at all. CSV and JSON need nothing but Python."""

from __future__ import annotations

import argparse
import csv
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.callbacks.progress_words import one_line, plural
from holdfast.cli.output import say, to_json
from holdfast.core.state import Trial
from holdfast.errors import InvalidInputError
from holdfast.results.frames import flat_row, require_pandas
from holdfast.results.history import History, open_history

FORMATS = (".csv", ".json", ".parquet", ".pkl")


def run(arguments: argparse.Namespace) -> int:
    """Write the file."""
    out = Path(arguments.out).expanduser()
    check_format(out)
    history = open_history(arguments.path)
    rows = result_rows(history) if arguments.rows else [trial_row(history, trial) for trial in history.state.trials]
    write_rows(out, rows)
    say(f"{plural(len(rows), 'row')} written to {out}")
    return 0


def check_format(out: Path) -> None:
    """Refuse a file whose ending names no format."""
    if out.suffix.lower() not in FORMATS:
        raise InvalidInputError(
            f"{str(out)!r}: the ending of the file says the format; use one of {', '.join(FORMATS)}."
        )


def trial_row(history: History, trial: Trial) -> dict[str, Any]:
    """One trial in one row: who it is, its last result, its parameters."""
    known = {"trial_id": trial.id, "name": history.name(trial), "status": trial.status}
    result = history.last(trial) if trial.metrics is not None else {"config": trial.config}
    error = {}
    if trial.error is not None:
        error = {"error_type": trial.error.type, "error_message": trial.error.message}
    return {**known, **flat_row(result), "failures": trial.total_failures, **error, **known}


def result_rows(history: History) -> list[dict[str, Any]]:
    """Every result that counts, trial by trial, in order."""
    return [flat_row(row) for trial in history.state.trials for row in history.rows(trial.n)]


def write_rows(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows in the format that the file's ending names."""
    kind = out.suffix.lower()
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        if kind == ".csv":
            temporary.write_text(_csv(rows), encoding="utf-8", newline="")
        elif kind == ".json":
            temporary.write_bytes(to_json(rows) + b"\n")
        else:
            frame = _pandas().DataFrame(rows)
            _write_frame(frame, temporary, kind)
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)


def _write_frame(frame: Any, file: Path, kind: str) -> None:
    if kind == ".pkl":
        frame.to_pickle(file)
        return
    try:
        frame.to_parquet(file)
    except ImportError as error:
        raise InvalidInputError(f"Parquet files need pyarrow: pip install pyarrow. ({one_line(str(error))})") from None


def _pandas() -> Any:
    try:
        return require_pandas()
    except ImportError as error:
        raise InvalidInputError(f"{error} Or choose .csv or .json, which need nothing more.") from None


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _cell(value) for key, value in row.items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    return to_json(value, indent=False).decode() if isinstance(value, dict | list) else value
