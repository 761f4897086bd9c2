"""Adapts the user's ``Stopper`` to the questions that the core asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.state import Trial
from holdfast.stopper import CombinedStopper, DictStopper, NoopStopper, Stopper, TimeoutStopper, can_snapshot


class UserStopRule:
    """The stop criteria of ``RunConfig.stop`` and the time budget of ``TuneConfig.time_budget_s``."""

    def __init__(self, stopper: Stopper, time_budget_s: float | None = None) -> None:
        self._stopper = stopper
        self._budget_s = time_budget_s
        self._asks = not isinstance(stopper, NoopStopper)

    def why_stop(self, trial: Trial, result: Callable[[], dict[str, Any]]) -> str:
        if self._asks and self._stopper(trial.id, result()):
            return "stop criterion"
        return ""

    def why_stop_all(self, lived_s: float) -> str:
        if self._budget_s is not None and lived_s >= self._budget_s:
            return f"time budget of {self._budget_s:g} s used up"
        if not self._asks:
            return ""
        if isinstance(self._stopper, CombinedStopper | TimeoutStopper):
            self._stopper.advance(lived_s)
        return "stop criterion for the whole experiment" if self._stopper.stop_all() else ""

    def rewind(self, trial: Trial) -> None:
        """An attempt begins with ``trial.rows`` rows: a rule that counts rows must not count repeated ones twice."""
        rewind = getattr(self._stopper, "rewind", None)
        if rewind is not None:
            rewind(trial.id, trial.rows)

    @property
    def is_idle(self) -> bool:
        """Can the rule stop nothing, whatever is reported and however long it takes?"""
        return not self._asks and self._budget_s is None

    @property
    def has_memory(self) -> bool:
        """Does the rule remember results, so that it must be told them again after a crash?"""
        return self._asks and not isinstance(self._stopper, DictStopper)

    def get_state(self) -> bytes | None:
        """The rule's memory as plain data, or None if it cannot be had (then it is replayed)."""
        if not self.has_memory or not can_snapshot(self._stopper):
            return None
        return msgspec.msgpack.encode(self._stopper.get_state())  # type: ignore[attr-defined]

    def set_state(self, state: bytes) -> None:
        self._stopper.set_state(msgspec.msgpack.decode(state))  # type: ignore[attr-defined]
