"""Stop rules and a scheduler whose answers a checker can work out by itself.

Each answer is a simple function of the trial's surviving rows, so that a rule which forgot, or was told twice, or was
told a row of an abandoned attempt, is seen at once (I5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.policies import Verdict
from holdfast.core.state import DriverMemory, State, Trial
from holdfast.schedulers.fifo import FirstInFirstOut
from holdfast.stopper import Stopper

GOOD_SCORE = 0.0
PAUSES = 2  # attempts that may be paused


def is_good(metrics: Mapping[str, Any]) -> bool:
    """Does this row count for a ``GoodRowsStopper``?"""
    return bool(metrics.get("score", -1.0) > GOOD_SCORE)


class GoodRowsStopper(Stopper):
    """Ends a trial after so many good rows, and the experiment after so many rows of any kind.

    Args:
        good: Good rows of a trial.
        in_all: Rows of all trials; 0 for never.
    """

    def __init__(self, good: int, in_all: int) -> None:
        self._good = good
        self._in_all = in_all
        self._rows: dict[str, list[bool | None]] = {}  # of each trial: was it good; None if nobody asked

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        rows = self._rows.setdefault(trial_id, [])
        rows.append(is_good(result))
        return rows.count(True) >= self._good

    def stop_all(self) -> bool:
        told = sum(row is not None for rows in self._rows.values() for row in rows)
        return bool(self._in_all) and told >= self._in_all

    def rewind(self, trial_id: str, rows: int) -> None:
        """Forget what an abandoned attempt reported."""
        known = self._rows.get(trial_id, [])[:rows]
        self._rows[trial_id] = known + [None] * (rows - len(known))


class StoredGoodRowsStopper(GoodRowsStopper):
    """The same, with a memory that snapshots can hold."""

    def get_state(self) -> dict[str, Any]:
        return dict(self._rows)

    def set_state(self, state: dict[str, Any]) -> None:
        self._rows = {trial: list(rows) for trial, rows in state.items()}


class PausingScheduler(FirstInFirstOut):
    """Pauses the first attempts of each trial at an iteration.

    Args:
        iteration: Where.
    """

    def __init__(self, iteration: int) -> None:
        self._iteration = iteration

    def judge(
        self, state: State, memory: DriverMemory, trial: Trial, result: Callable[[], dict[str, Any]]
    ) -> tuple[str, str]:
        if trial.iteration + 1 == self._iteration and trial.attempt <= PAUSES:
            return Verdict.PAUSE, "a pause"
        return Verdict.CONTINUE, ""
