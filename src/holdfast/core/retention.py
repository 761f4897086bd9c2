"""Which checkpoints are kept: the latest of every trial, the best k, and whatever another trial starts from (I3).

Pure: it answers which indexes are obsolete; events record the answer, and only then anything is deleted.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from holdfast.core.state import CheckpointRecord, State, Trial

DEFAULT_METRIC = "_metric"
"""The key of a number that was returned or reported without a name."""

_WORST = -math.inf


def lookup(metrics: Mapping[str, Any], key: str) -> Any:
    """The value of ``key``: literally, else as a path ``a/b`` into nested dicts; None if absent."""
    if key in metrics:
        return metrics[key]
    value: Any = metrics
    for part in key.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


class Retention(msgspec.Struct, frozen=True):
    """The user's rule: how many to keep, by which score."""

    num_to_keep: int | None = None
    score_attribute: str | None = None
    score_order: str = "max"
    num_to_keep_overall: int | None = None

    def score(self, record: CheckpointRecord) -> float | None:
        """The checkpoint's score as reported, or None if it has none that can be compared."""
        return self._score(record)[0]

    def _score(self, record: CheckpointRecord) -> tuple[float | None, str]:
        attribute, order = self.score_attribute, self.score_order
        if attribute is None:
            return float(record.index), "max"
        value = self._value(record, attribute)
        if value is None and attribute[:4] in ("min-", "max-"):
            # Older configs name the direction in the attribute; a metric of that literal name wins.
            order, attribute = attribute[:3], attribute[4:]
            value = self._value(record, attribute)
        if isinstance(value, bool | int | float) and not math.isnan(value):
            return float(value), order
        return None, order

    @staticmethod
    def _value(record: CheckpointRecord, attribute: str) -> Any:
        value = lookup(record.metrics, attribute)
        if value is None and attribute == "training_iteration":
            return record.iteration
        if value is None and attribute == "time_total_s":
            return record.time_total
        return value

    def goodness(self, record: CheckpointRecord) -> float:
        """Larger is better; no score, or NaN, is worst."""
        value, order = self._score(record)
        if value is None:
            return _WORST
        return value if order == "max" else -value

    def ranked(self, trial: Trial) -> list[CheckpointRecord]:
        """The trial's existing checkpoints, worst to best; of equals the newer is better."""
        records = [record for record in trial.committed() if record.index >= trial.floor]
        return sorted(records, key=lambda record: (self.goodness(record), record.index))

    def best(self, trial: Trial) -> list[CheckpointRecord]:
        """At most ``num_to_keep`` checkpoints, worst to best."""
        ranked = self.ranked(trial)
        return ranked if self.num_to_keep is None else ranked[-self.num_to_keep :]

    def register(self, state: State, trial: Trial, record: CheckpointRecord) -> None:
        """A checkpoint was committed: enter it in the ranking of the whole experiment."""
        if self.num_to_keep_overall is not None and record.index >= trial.floor:
            insort(state.overall, self._entry(trial.n, record))

    def forget(self, state: State, n: int, record: CheckpointRecord) -> None:
        """A checkpoint is gone, or going."""
        if self.num_to_keep_overall is not None:
            entry = self._entry(n, record)
            place = bisect_left(state.overall, entry)
            if state.overall[place : place + 1] == [entry]:
                del state.overall[place]

    def rank_all(self, state: State) -> None:
        """Work out the ranking of the whole experiment from its trials (a scan: for opening only)."""
        if self.num_to_keep_overall is not None:
            state.overall = sorted(self._entry(trial.n, r) for trial in state.trials for r in self.ranked(trial))

    def _entry(self, n: int, record: CheckpointRecord) -> tuple[float, int, int]:
        return self.goodness(record), n, record.index

    def crowded_out(self, state: State) -> list[int]:
        """The trial whose checkpoint the experiment-wide limit has just ceased to keep, if any.

        One more checkpoint pushes one other out. Those behind it were out before, and are there only because their
        trials may still need them.
        """
        if self.num_to_keep_overall is None or len(state.overall) <= self.num_to_keep_overall:
            return []
        return [state.overall[-self.num_to_keep_overall - 1][1]]

    def obsolete(self, state: State, trial: Trial) -> tuple[int, ...]:
        """Indexes of the trial's checkpoints that nothing refers to."""
        if self.num_to_keep is None and self.num_to_keep_overall is None and not trial.floor:
            return ()
        committed = trial.committed()
        keep = {record.index for record in self.best(trial)}
        if self.num_to_keep_overall is not None:
            overall = {i for _, n, i in state.overall[-self.num_to_keep_overall :] if n == trial.n}
            keep &= overall
        latest, ended = trial.latest(), trial.status == "TERMINATED"
        if latest is not None and not (ended and self.num_to_keep_overall is not None):
            keep.add(latest.index)
        if trial.status == "RUNNING" and trial.source is not None and trial.source[0] == trial.n:
            keep.add(trial.source[1])  # the attempt may still read what it started from
        return tuple(
            record.index
            for record in committed
            if record.index not in keep and (trial.n, record.index) not in state.holds
        )
