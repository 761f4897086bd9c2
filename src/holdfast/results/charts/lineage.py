"""Population-based training: who copied whom, from which checkpoint, and which parameters held when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from holdfast.results.chronicle import Copy
from holdfast.space.exact import shown
from holdfast.views.results import flatten_result

Schedule = Sequence[tuple[float, int, Mapping[Any, Any]]]
"""Configs of a trial: since when, from which iteration on, and the config."""


def lineage(copies: Iterable[Copy], schedules: Mapping[int, Schedule], ids: Sequence[str]) -> dict[str, Any]:
    """The lineage of a population.

    Args:
        copies: In the order in which they were made.
        schedules: The configs of the trials whose config was changed, by number.
        ids: Of all trials.

    Returns:
        ``copies``: ``at``, ``trial``, ``parent``, ``donor`` (who made the checkpoint), ``checkpoint`` (its number) and
        ``iteration`` (of the trial, before the copy); ``trials``: ``trial``, ``id`` and ``schedule`` (``at``,
        ``iteration``, ``config``); ``params``: the names of those that changed; ``ids``: of all that are named.
    """
    told: list[dict[str, Any]] = [
        {
            "at": copy.at,
            "trial": copy.n,
            "parent": copy.parent,
            "donor": copy.donor,
            "checkpoint": copy.checkpoint,
            "iteration": copy.iteration,
        }
        for copy in copies
    ]
    trials, changed = [], dict[str, None]()
    for n, schedule in sorted(schedules.items()):
        flat = [(at, iteration, flatten_result(shown(dict(config)))) for at, iteration, config in schedule]
        trials.append(
            {
                "trial": n,
                "id": ids[n],
                "schedule": [{"at": at, "iteration": step, "config": config} for at, step, config in flat],
            }
        )
        for (_, _, before), (_, _, after) in pairwise(flat):
            changed.update((key, None) for key in after if before.get(key) != after[key])
    named = sorted({n for copy in told for n in (copy["trial"], copy["parent"], copy["donor"])} | set(schedules))
    return {"copies": told, "trials": trials, "params": list(changed), "ids": {str(n): ids[n] for n in named}}
