"""``holdfast list``: the experiments below a directory or a prefix of a store."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.callbacks.progress_words import counts_text, one_line, plural, value_text
from holdfast.cli.facts import experiment_facts
from holdfast.cli.output import print_json, say, table_lines, when
from holdfast.controller.remote import SPEC, Remote, remote_of
from holdfast.controller.spec import PRIVATE, Root
from holdfast.errors import InvalidInputError, TuneError
from holdfast.results.history import open_history
from holdfast.storage.address import is_remote, parse

MAX_DEPTH = 4
"""How far below it experiments are looked for."""


def run(arguments: argparse.Namespace) -> int:
    """List experiments."""
    found = [(name, facts_or_damage(place)) for name, place in experiments_below(arguments.path)]
    if arguments.json:
        print_json([facts for _, facts in found])
    elif not found:
        say(f"There is no experiment in {_shown(arguments.path)}, nor up to {MAX_DEPTH} directories below it.")
    else:
        say(*_lines(found))
    return 0


def _shown(path: str) -> str:
    remote = remote_of(path)
    return parse(path).path if remote is None else remote.url


def experiments_below(path: str) -> Iterator[tuple[str, str]]:
    """Experiments at or below a directory or a prefix of a store, by name: names relative to it, and where they are.

    An experiment's own directories are not searched.
    """
    remote = remote_of(path)
    if remote is None:
        return _local_experiments(Path(parse(path).path))
    return _stored_experiments(remote)


def _local_experiments(top: Path) -> Iterator[tuple[str, str]]:
    if not top.is_dir():
        raise InvalidInputError(f"{top} is not a directory.")
    for directory, below, _ in os.walk(top):
        path = Path(directory)
        if Root(path).exists():
            yield str(path.relative_to(top)), str(path)
            below.clear()
        elif len(path.relative_to(top).parts) >= MAX_DEPTH:
            below.clear()
        below[:] = sorted(name for name in below if name != PRIVATE)


def _stored_experiments(top: Remote) -> Iterator[tuple[str, str]]:
    inside = ""
    for key in sorted(stat.key for stat in top.store.list("") if f"/{stat.key}".endswith(f"/{SPEC}")):
        name = key.removesuffix(SPEC).rstrip("/")
        if (inside and name.startswith(inside)) or name.count("/") >= MAX_DEPTH:
            continue
        inside = f"{name}/"
        yield name or ".", (top.below(name) if name else top).url


def facts_or_damage(place: str) -> dict[str, Any]:
    """What is known about an experiment; one that cannot be read says why."""
    try:
        return experiment_facts(open_history(place))
    except (TuneError, OSError) as error:
        name = place.partition("?")[0].rpartition("/")[2] if is_remote(place) else os.path.basename(place)
        return {"name": name, "path": place, "state": "unreadable", "why": str(error)}


def _lines(found: list[tuple[str, dict[str, Any]]]) -> list[str]:
    titles = ("experiment", "state", "trials", "best", "last event")
    return [*table_lines(titles, [_cells(*each) for each in found]), plural(len(found), "experiment")]


def _cells(name: str, facts: dict[str, Any]) -> tuple[str, ...]:
    name = facts["name"] if name == "." else name
    if facts["state"] == "unreadable":
        return (name, "unreadable", one_line(facts["why"], 60), "", "")
    best = facts["best"]
    shown = f"{best['metric']}={value_text(best['value'])}" if best else ""
    at = facts["last_event_at"]
    return (name, facts["state"], counts_text(facts["counts"]), shown, when(at) if at else "")
