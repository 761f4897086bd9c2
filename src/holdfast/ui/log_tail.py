"""The end of what a trial printed, as `holdfast logs --tail` shows it."""

from __future__ import annotations

from collections import deque
from typing import Any

from holdfast.cli.log_places import LogPlaces
from holdfast.cli.logs import LogReader
from holdfast.core.state import Trial
from holdfast.results.history import History

MAX_LINE = 10_000


def log_tail(history: History, trial: Trial, tail: int) -> dict[str, Any]:
    """The last lines of a trial's output, and whether there are more before them."""
    with LogPlaces(history) as places:
        places.refresh(history, trial)
        return read_tail(places, history, trial, tail)


def read_tail(places: LogPlaces, history: History, trial: Trial, tail: int) -> dict[str, Any]:
    """The same from logs that are on this machine."""
    reader = LogReader(places.folders(), only={trial.id})
    if trial.attempt and places.streams():
        reader.others[trial.id] = places.files_of(history, trial)
    kept: deque[str] = deque(maxlen=tail)
    count = attempt = 0
    for line in reader.read(final=True):
        if line.attempt > 1 and line.attempt != attempt:
            kept.append(f"--- attempt {line.attempt} ---")
            count += 1
        attempt = line.attempt
        kept.append(line.text[:MAX_LINE])
        count += 1
    return {"lines": list(kept), "truncated": count > len(kept)}
