"""Which trial, row or checkpoint is best.

Owns scopes and the order of values: NaN is never best, ties go to the one that came first. Must never read a file: rows
come from ``History``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.core.retention import lookup
from holdfast.core.state import Status, Trial
from holdfast.errors import InvalidInputError, NoResultError
from holdfast.results.history import History

SCOPES = ("last", "all", "avg", "last-5-avg", "last-10-avg")
MODES = ("min", "max")
MAX_NAMED = 12
RETURNED_NUMBER = "_metric"

Item = TypeVar("Item")


def check_mode(mode: Any) -> str:
    """The mode, if it is one."""
    if mode not in MODES:
        raise InvalidInputError(f"`mode` must be one of {list(MODES)}, got {mode!r}.")
    return str(mode)


def check_scope(scope: Any) -> str:
    """The scope, if it is one."""
    if scope not in SCOPES:
        raise InvalidInputError(f"`scope` must be one of {list(SCOPES)}, got {scope!r}.")
    return str(scope)


def default_metric(history: History) -> str | None:
    """The experiment's metric; if only its mode was given, what is reported for trainables that return a number."""
    info = history.info
    if info.metric is not None or info.mode is None:
        return info.metric
    is_reported = any(RETURNED_NUMBER in (trial.metrics or ()) for trial in history.state.trials)
    return RETURNED_NUMBER if is_reported else None


def number(value: Any) -> float | None:
    """The value as something that can be compared, or None."""
    return value if isinstance(value, int | float) else None


def goodness(value: float | None, mode: str) -> float:
    """Larger is better; nothing, and NaN, are worse than everything."""
    if value is None or math.isnan(value):
        return -math.inf
    return value if mode == "max" else -value


def best_of(pairs: Iterable[tuple[float | None, Item]], mode: str, *, finite: bool = False) -> Item | None:
    """The item with the best value; of equals the first. None if no item has a value.

    Args:
        pairs: Values and items; None is no value.
        mode: "min" or "max".
        finite: Leave out NaN and infinite values.
    """
    best: Item | None = None
    best_rank: tuple[bool, float] | None = None
    for value, item in pairs:
        if value is None or (finite and not math.isfinite(value)):
            continue
        rank = (not math.isnan(value), goodness(value, mode))
        if best_rank is None or rank > best_rank:
            best, best_rank = item, rank
    return best


def best_row(rows: Sequence[Mapping[str, Any]], metric: str, mode: str) -> Mapping[str, Any] | None:
    """The row with the best finite value, or None if no row has one."""
    return best_of(((number(lookup(row, metric)), row) for row in rows), mode, finite=True)


def best_trial(
    history: History, trials: Iterable[Trial], metric: str, mode: str, scope: str = "last", finite: bool = True
) -> Trial | None:
    """The trial with the best value of ``metric`` in this scope, or None if no trial has one."""
    check_scope(scope)
    check_mode(mode)
    pairs = ((score(history, trial, metric, mode, scope, finite), trial) for trial in trials)
    return best_of(pairs, mode, finite=finite)


def score(history: History, trial: Trial, metric: str, mode: str, scope: str, finite: bool) -> float | None:
    """What a trial is compared by.

    ``last`` is the last value that the trial reported for the metric, which mostly costs no look at the journal.
    ``all`` is its best value; with ``finite`` its best finite one. An average that includes NaN is NaN.
    """
    if trial.metrics is None:
        return None
    if scope == "last":
        return _last(history, trial, metric)
    values = [v for v in (number(lookup(row, metric)) for row in history.rows(trial.n)) if v is not None]
    if not values:
        return None
    if scope == "all":
        return best_of(((value, value) for value in values), mode, finite=finite)
    if scope == "last-5-avg":
        values = values[-5:]
    elif scope == "last-10-avg":
        values = values[-10:]
    return sum(values) / len(values)


def _last(history: History, trial: Trial, metric: str) -> float | None:
    value = number(lookup(trial.metrics or {}, metric))
    if value is None:
        value = number(lookup(history.last(trial), metric))
    if value is None and trial.rows > 1:
        found = (number(lookup(row, metric)) for row in reversed(history.rows(trial.n)))
        value = next((each for each in found if each is not None), None)
    return value


def check_reported(history: History, trial: Trial, metric: str | None) -> None:
    """Refuse a metric that a trial has never reported, though it has reported others; None asks for nothing.

    Raises:
        NoResultError: It is one.
    """
    if metric is None or trial.metrics is None:
        return
    rows = (trial.metrics, history.last(trial)), history.rows(trial.n) if trial.rows > 1 else ()
    if not any(lookup(row, metric) is not None for some in rows for row in some):
        raise none_found(history, metric, finite=False)


def none_found(history: History, metric: str, finite: bool) -> NoResultError:
    """Nothing can be called best, and why."""
    trials = history.state.trials
    if trials and all(trial.status == Status.ERROR and trial.metrics is None for trial in trials):
        return NoResultError(
            f"There is no best trial: all {len(trials)} trials failed before they reported anything. Their errors are "
            "in ResultGrid.errors."
        )
    reported: dict[str, None] = {}
    for trial in history.state.trials:
        reported.update(dict.fromkeys(trial.metrics or ()))
        if len(reported) > MAX_NAMED:
            break
    why = "no trial has reported this metric"
    if finite:
        why += (
            ", or all values reported for this metric are NaN or infinite (filter_nan_and_inf=False lets those take "
            "part)"
        )
    named = ", ".join(map(repr, list(reported)[:MAX_NAMED]))
    shown = f" Reported were: {named}." if named else " No trial has reported anything yet."
    return NoResultError(f"No best trial found for the given metric: {metric}. This means that {why}.{shown}")
