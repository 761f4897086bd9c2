"""Points that other experiments have evaluated, for searchers that want to begin with them.

Owns reading them from a journal, whatever has become of the experiment's driver. Must never write to the experiment,
lock it, or need the user's code.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

from holdfast.core import events as ev
from holdfast.core.retention import Retention, lookup
from holdfast.core.state import State, Status, Trial
from holdfast.core.transitions import apply, check_known
from holdfast.errors import ExperimentNotFoundError, InvalidInputError
from holdfast.journal.records import read_events
from holdfast.space.exact import unpack
from holdfast.storage.address import is_remote, parse
from holdfast.storage.layout import SPEC
from holdfast.views.results import ResultBuilder, RowFolder


class EvaluatedPoint(NamedTuple):
    """A configuration and how it did, as ``Searcher.add_evaluated_point`` takes them."""

    parameters: dict[str, Any]
    value: float | list[float]  # a list for several objectives
    error: bool
    pruned: bool
    intermediate_values: list[float]


Metric = Union[str, Sequence[str]]


def evaluated_points(source: Any, metric: Metric) -> Iterator[EvaluatedPoint]:
    """Every trial of another experiment that has reported the metric, in the order of creation.

    Args:
        source: The experiment's path or URL, a ``ResultGrid``, an ``ExperimentAnalysis``, or trials of one.
        metric: What was optimised there; ``a/b`` reaches into nested metrics. Of several, a trial has reported all.

    Raises:
        InvalidInputError: ``source`` is none of these.
        ExperimentNotFoundError: There is no experiment at that path or URL.
        JournalDamagedError: Its journal is damaged.
        StorageError: The store refuses or does not answer.
    """
    if isinstance(source, str | os.PathLike):
        yield from _points_at(source, metric)
        return
    for result in _results(source):
        last = getattr(result, "metrics", None)
        if last is None:
            last = getattr(result, "last_result", None) or {}
        value = _value(last, metric)
        if value is not None:
            failed = getattr(result, "error", None) is not None or getattr(result, "status", "") == Status.ERROR
            config = getattr(result, "config", None) or {}
            yield EvaluatedPoint(config, value, failed, False, [])


def _results(source: Any) -> Iterable[Any]:
    trials = getattr(source, "trials", None)
    if trials is not None:
        return list(trials)
    if isinstance(source, Iterable):
        return list(source)
    if hasattr(source, "config"):
        return [source]
    raise InvalidInputError(
        f"Evaluated trials cannot be taken from {source!r} ({type(source).__name__}). Give the path or URL of an "
        "experiment, a ResultGrid, an ExperimentAnalysis, or a list of trials."
    )


def _value(metrics: Mapping[str, Any], metric: Metric) -> float | list[float] | None:
    """The metric, or all of several; None if a number is missing."""
    names = [metric] if isinstance(metric, str) else metric
    values = [lookup(metrics, name) for name in names]
    if not all(isinstance(value, int | float) for value in values):
        return None
    return float(values[0]) if isinstance(metric, str) else [float(value) for value in values]


# --- from a journal


def _points_at(place: str | os.PathLike[str], metric: Metric) -> Iterator[EvaluatedPoint]:
    if not is_remote(place):
        root = parse(place).path
        if not os.path.exists(os.path.join(root, SPEC)):
            raise ExperimentNotFoundError(_nothing_at(root))
        yield from _points_in(root, metric)
        return
    from holdfast.shipping.restore_mirror import restore_mirror
    from holdfast.storage.agent_client import connect

    store = connect(place)
    try:
        if store.stat(SPEC) is None:
            raise ExperimentNotFoundError(_nothing_at(store.url))
        # Not the mirror that a driver on this machine may have: a passing reader must not change it.
        with tempfile.TemporaryDirectory(prefix="holdfast-warm-start-") as directory:
            yield from _points_in(restore_mirror(store, os.path.join(directory, "mirror"), read_only=True).root, metric)
    finally:
        store.close()


def _nothing_at(place: str) -> str:
    return (
        f"There is no experiment at {place}: no experiment state file ({SPEC}) there. Give the path or URL of the "
        "experiment's own directory, <storage_path>/<name>."
    )


class _OnlyValue(ResultBuilder):
    """Makes rows of what is optimised, because nobody asks for the rest."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._metric = metric

    def of(self, state: State, trial: Trial, event: ev.Reported) -> dict[str, Any]:
        value = _value(event.metrics, self._metric)
        if value is None:  # perhaps one of the keys that are filled in for the user, such as time_total_s
            value = _value(super().of(state, trial, event), self._metric)
        return {"value": value}


def _points_in(root: str, metric: Metric) -> Iterator[EvaluatedPoint]:
    # How checkpoints are ranked makes no difference to results, so the experiment's own rule is not needed.
    state, retention, folder = State(), Retention(), RowFolder(_OnlyValue(metric))
    events = read_events(root)
    with events.folding():
        for event in events:
            check_known(state, event)
            folder.feed(state, event)
            apply(state, event, retention)
    for trial in state.trials:
        values = [row["value"] for row in folder.rows.get(trial.n, ()) if row["value"] is not None]
        if values:
            steps = values if isinstance(metric, str) else []
            yield EvaluatedPoint(unpack(trial.config), values[-1], trial.status == Status.ERROR, False, steps)
