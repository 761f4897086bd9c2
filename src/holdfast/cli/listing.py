"""``holdfast list``: the experiments below a directory or a prefix of a store."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from holdfast.cli.printing import print_json, say, table_lines, when
from holdfast.config.environment import default_storage_root
from holdfast.display.words import counts_text, one_line, plural, value_text
from holdfast.errors import InvalidInputError, TuneError
from holdfast.results.history import open_history
from holdfast.results.report_data import experiment_facts
from holdfast.shipping.parts import PREFIX as PARTS
from holdfast.storage.address import is_remote, parse
from holdfast.storage.layout import PRIVATE, REMOVING, SPEC, Root
from holdfast.storage.remote_root import Remote, remote_of

UNREADABLE = "unreadable"
MAX_DEPTH = 4
"""How far below it experiments are looked for."""


def run(arguments: argparse.Namespace) -> int:
    """List experiments."""
    places = _usual_places() if arguments.path is None else [arguments.path]
    found = {place: [(name, facts_or_damage(path)) for name, path in experiments_below(place)] for place in places}
    if arguments.json:
        print_json([facts for experiments in found.values() for _, facts in experiments])
    else:
        _say_all(places, found)
    every = [facts for experiments in found.values() for _, facts in experiments]
    return 1 if any(facts["state"] == UNREADABLE or facts["journal_damage"] for facts in every) else 0


def _say_all(places: list[str], found: dict[str, list[tuple[str, dict[str, Any]]]]) -> None:
    some = [place for place in places if found[place]]
    for place in some:
        say(*([f"{_shown(place)}:"] if len(places) > 1 else []), *_lines(found[place]))
    if not some:
        where = " or ".join(map(_shown, places))
        say(f"There is no experiment in {where}, nor up to {MAX_DEPTH} directories below it.")


def _usual_places() -> list[str]:
    """Where experiments are that nobody has named a place for: here, and in the default results directory."""
    root = default_storage_root()
    below = not is_remote(root) and Path(root).is_relative_to(os.getcwd())
    return ["."] if below or not (is_remote(root) or os.path.isdir(root)) else [".", root]


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
        raise InvalidInputError(f"{top} is not a directory." if top.exists() else f"There is no directory {top}.")
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
    for name in sorted(_stored_names(stat.key for stat in top.store.list(""))):
        if (inside and name.startswith(inside)) or name.count("/") >= MAX_DEPTH:
            continue
        inside = f"{name}/"
        yield name or ".", (top.below(name) if name else top).url


def _stored_names(keys: Iterable[str]) -> set[str]:
    """Where keys tell of an experiment, also of one that has lost the file that says so; not of one that is removed."""
    found: set[str] = set()
    going: set[str] = set()
    for key in keys:
        name, mark, rest = f"/{key}".partition(f"/{PRIVATE}/")
        file = f"{mark[1:]}{rest}"
        if file == SPEC or file.startswith(PARTS):
            found.add(name.strip("/"))
        elif file == REMOVING:
            going.add(name.strip("/"))
    return found - going


def facts_or_damage(place: str) -> dict[str, Any]:
    """What is known about an experiment; one that cannot be read says why."""
    try:
        return experiment_facts(open_history(place, tolerant=True))
    except Exception as error:  # whatever is wrong with one of them, the others are shown
        return unreadable_facts(place, error)


def unreadable_facts(place: str, error: Exception) -> dict[str, Any]:
    """What is known about an experiment that cannot be read."""
    name = place.partition("?")[0].rpartition("/")[2] if is_remote(place) else os.path.basename(place)
    return {"name": name, "path": place, "state": UNREADABLE, "why": _why(error), "journal_damage": None}


def _why(error: Exception) -> str:
    known = isinstance(error, TuneError | OSError)
    return str(error) if known else f"its records cannot be understood ({type(error).__name__}: {error})"


def _lines(found: list[tuple[str, dict[str, Any]]]) -> list[str]:
    titles = ("experiment", "state", "trials", "best", "last event")
    return [*table_lines(titles, [_cells(*each) for each in found]), plural(len(found), "experiment")]


def _cells(name: str, facts: dict[str, Any]) -> tuple[str, ...]:
    name = facts["name"] if name == "." else name
    if facts["state"] == UNREADABLE:
        why = facts["why"].replace(f"{facts['path']}/", "")  # the narrow column is for what is wrong
        return (name, UNREADABLE, one_line(why, 60), "", "")
    best = facts["best"]
    shown = f"{best['metric']}={value_text(best['value'])}" if best else ""
    at = facts["last_event_at"]
    state = f"{facts['state']} (damaged epoch file)" if facts["damage"] else facts["state"]
    state = f"DAMAGED, {state}" if facts["journal_damage"] else state
    return (name, state, counts_text(facts["counts"]), shown, when(at) if at else "")
