"""Stoppers that end what no longer moves.

Owns: the plateau of one trial and that of the whole experiment.
Must never: keep more than a bounded number of values per trial.
"""

from __future__ import annotations

import bisect
from collections import deque
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.stopper.base import Stopper, deviation, finite, integer, lookup


class TrialPlateauStopper(Stopper):
    """Stops a trial whose metric no longer moves.

    Args:
        metric: Name of the metric; ``a/b`` for a nested one.
        std: The trial ends when the standard deviation of its last results is below this.
        num_results: How many last results are looked at.
        grace_period: Results that each trial gets in any case.
        metric_threshold: Only trials that are at least this good end; needs ``mode``.
        mode: "min" or "max".
    """

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: str | None = None,
    ) -> None:
        if mode not in ("min", "max") and (mode is not None or metric_threshold is not None):
            raise InvalidInputError(
                f"With a metric_threshold the mode must be one of ['min', 'max'], got {mode!r}: it says on which "
                "side of the threshold a trial is good."
            )
        self._metric = metric
        self._std = std
        self._num_results = integer("num_results", num_results, 1)
        self._grace_period = integer("grace_period", grace_period, 0)
        self._threshold = metric_threshold
        self._mode = mode
        self._counts: dict[str, int] = {}
        self._recent: dict[str, deque[float | None]] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        value = finite(lookup(result, self._metric))
        recent = self._recent.setdefault(trial_id, deque(maxlen=self._num_results))
        recent.append(value)
        self._counts[trial_id] = self._counts.get(trial_id, 0) + 1
        if self._counts[trial_id] < self._grace_period or len(recent) < self._num_results:
            return False
        if value is None or not self._good_enough(value):
            return False
        values = [v for v in recent if v is not None]
        return len(values) == len(recent) and deviation(values) < self._std

    def stop_all(self) -> bool:
        return False

    def rewind(self, trial_id: str, rows: int) -> None:
        """Forget what an abandoned attempt of the trial reported after its first ``rows`` results.

        Older values that those had pushed out are gone, so the trial needs new ones before it can stop.
        """
        void = self._counts.get(trial_id, 0) - rows
        if void > 0:
            self._counts[trial_id] = rows
            kept = list(self._recent[trial_id])[:-void]
            self._recent[trial_id] = deque(kept, maxlen=self._num_results)

    def get_state(self) -> dict[str, Any]:
        return {"counts": dict(self._counts), "recent": {key: list(values) for key, values in self._recent.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        self._counts = dict(state["counts"])
        self._recent = {key: deque(values, maxlen=self._num_results) for key, values in state["recent"].items()}

    def _good_enough(self, value: float) -> bool:
        if self._threshold is None:
            return True
        return value <= self._threshold if self._mode == "min" else value >= self._threshold


class ExperimentPlateauStopper(Stopper):
    """Stops the experiment when its best results no longer move.

    Args:
        metric: Name of the metric; ``a/b`` for a nested one.
        std: The plateau: the standard deviation of the best results is at most this.
        top: How many best results are looked at.
        mode: Whether small ("min") or large ("max") is better.
        patience: Results that the plateau may last without stopping.
    """

    def __init__(self, metric: str, std: float = 0.001, top: int = 10, mode: str = "min", patience: int = 0) -> None:
        if mode not in ("min", "max"):
            raise InvalidInputError(f"ExperimentPlateauStopper: mode must be one of ['min', 'max'], got {mode!r}.")
        width = None if isinstance(std, bool | str) else finite(std)
        if width is None or width <= 0:
            raise InvalidInputError(f"ExperimentPlateauStopper: std must be a float > 0, got {std!r}.")
        self._metric = metric
        self._std = width
        self._top = integer("top", top, 2)
        self._mode = mode
        self._patience = integer("patience", patience, 0)
        self._counts: dict[str, int] = {}
        # The best values in order, each with its trial and the number of its result there: a retry reports the
        # same result again, and one value counted twice would look like a plateau.
        self._best: list[tuple[float, str, int]] = []
        self._plateau_results = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        value = finite(lookup(result, self._metric))
        count = self._counts[trial_id] = self._counts.get(trial_id, 0) + 1
        if value is None:
            # Neither a missing nor a NaN value says anything about the best ones.
            return self.stop_all()
        bisect.insort(self._best, (value, trial_id, count))
        if len(self._best) > self._top:
            self._best.pop(-1 if self._mode == "min" else 0)
        self._plateau_results = self._plateau_results + 1 if self._on_plateau() else 0
        return self.stop_all()

    def stop_all(self) -> bool:
        return self._plateau_results > self._patience

    def rewind(self, trial_id: str, rows: int) -> None:
        """Forget what an abandoned attempt of the trial reported after its first ``rows`` results."""
        self._counts[trial_id] = min(self._counts.get(trial_id, 0), rows)
        self._best = [entry for entry in self._best if entry[1] != trial_id or entry[2] <= rows]
        if not self._on_plateau():
            self._plateau_results = 0

    def get_state(self) -> dict[str, Any]:
        best = [list(entry) for entry in self._best]
        return {"counts": dict(self._counts), "best": best, "plateau_results": self._plateau_results}

    def set_state(self, state: dict[str, Any]) -> None:
        self._counts = dict(state["counts"])
        self._best = [(value, trial_id, row) for value, trial_id, row in state["best"]]
        self._plateau_results = state["plateau_results"]

    def _on_plateau(self) -> bool:
        return len(self._best) == self._top and deviation([entry[0] for entry in self._best]) <= self._std
