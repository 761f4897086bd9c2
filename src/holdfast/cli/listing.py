"""``holdfast list``: the experiments below a directory."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.callbacks.progress_words import counts_text, one_line, plural, value_text
from holdfast.cli.facts import experiment_facts
from holdfast.cli.output import print_json, say, table_lines, when
from holdfast.controller.spec import PRIVATE, Root
from holdfast.errors import InvalidInputError, TuneError
from holdfast.results.history import open_history, plain_path

MAX_DEPTH = 4
"""How far below the directory experiments are looked for."""


def run(arguments: argparse.Namespace) -> int:
    """List experiments."""
    top = plain_path(arguments.path)
    found = [facts_or_damage(path) for path in experiments_below(top)]
    if arguments.json:
        print_json(found)
    elif not found:
        say(f"There is no experiment in {top}, nor up to {MAX_DEPTH} directories below it.")
    else:
        say(*_lines(top, found))
    return 0


def experiments_below(top: Path) -> Iterator[Path]:
    """Roots of experiments at or below ``top``, by name. An experiment's own directories are not searched."""
    if not top.is_dir():
        raise InvalidInputError(f"{top} is not a directory.")
    for directory, below, _ in os.walk(top):
        path = Path(directory)
        if Root(path).exists():
            yield path
            below.clear()
        elif len(path.relative_to(top).parts) >= MAX_DEPTH:
            below.clear()
        below[:] = sorted(name for name in below if name != PRIVATE)


def facts_or_damage(path: Path) -> dict[str, Any]:
    """What is known about an experiment; one that cannot be read says why."""
    try:
        return experiment_facts(open_history(path))
    except (TuneError, OSError) as error:
        return {"name": path.name, "path": str(path), "state": "unreadable", "why": str(error)}


def _lines(top: Path, found: list[dict[str, Any]]) -> list[str]:
    titles = ("experiment", "state", "trials", "best", "last event")
    return [*table_lines(titles, [_cells(top, facts) for facts in found]), plural(len(found), "experiment")]


def _cells(top: Path, facts: dict[str, Any]) -> tuple[str, ...]:
    name = os.path.relpath(facts["path"], top)
    name = facts["name"] if name == "." else name
    if facts["state"] == "unreadable":
        return (name, "unreadable", one_line(facts["why"], 60), "", "")
    best = facts["best"]
    shown = f"{best['metric']}={value_text(best['value'])}" if best else ""
    at = facts["last_event_at"]
    return (name, facts["state"], counts_text(facts["counts"]), shown, when(at) if at else "")
