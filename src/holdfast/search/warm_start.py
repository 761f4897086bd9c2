"""Points that other experiments have evaluated, for searchers that want to begin with them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from holdfast.core.retention import lookup
from holdfast.errors import InvalidInputError


class EvaluatedPoint(NamedTuple):
    """A configuration and how it did, as ``Searcher.add_evaluated_point`` takes them."""

    parameters: dict[str, Any]
    value: float
    error: bool
    pruned: bool
    intermediate_values: list[float]


def evaluated_points(source: Any, metric: str) -> Iterator[EvaluatedPoint]:
    """Every trial of another experiment that has reported the metric, in the order of creation.

    Args:
        source: The experiment's path or URL, a ``ResultGrid``, an ``ExperimentAnalysis``, or trials of one.
        metric: What was optimised there; ``a/b`` reaches into nested metrics.

    Raises:
        InvalidInputError: ``source`` is none of these.
    """
    for result in _results(source):
        last = getattr(result, "metrics", None)
        if last is None:
            last = getattr(result, "last_result", None) or {}
        value = lookup(last, metric)
        if isinstance(value, bool | int | float):
            failed = getattr(result, "error", None) is not None
            config = getattr(result, "config", None) or {}
            yield EvaluatedPoint(config, float(value), failed, False, [])


def _results(source: Any) -> Iterable[Any]:
    if isinstance(source, str | os.PathLike):
        raise InvalidInputError(
            f"{os.fspath(source)!r} is a path: open it first, ExperimentAnalysis({os.fspath(source)!r}) or "
            "Tuner.restore(path).get_results()."
        )
    trials = getattr(source, "trials", None)
    if trials is not None:
        return list(trials)
    if isinstance(source, Iterable):
        return list(source)
    return [source]
