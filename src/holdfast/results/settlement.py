"""Running trials of a driver that is gone, shown as what the next driver will make of them; and how that is undone.

Changes nothing but the reader's state: the journal learns of it when somebody resumes. Then a follower takes it back,
because the records of the next driver follow what the journal says. Must never touch a file.
"""

from __future__ import annotations

import copy

from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State, Trial
from holdfast.core.transitions import apply

_CONTAINERS = ("counts", "pending", "paused", "running", "holds")


class Settlement:
    """The trials that were running, settled when this is made.

    Args:
        state: As the journal has it; changed.
        retention: The user's rule, which is part of the fold.

    Attributes:
        lost: The trials concerned.
    """

    def __init__(self, state: State, retention: Retention) -> None:
        self.lost = frozenset(state.running)
        self._trials = [copy.copy(state.trials[n]) for n in sorted(self.lost)]
        self._last_at, self._used = state.last_at, dict(state.used)
        self._containers = {name: copy.copy(getattr(state, name)) for name in _CONTAINERS} if self.lost else {}
        stopped = state.stopped
        for n in sorted(self.lost):
            apply(state, _end_of(state, state.trials[n], stopped), retention)

    def undo(self, state: State) -> None:
        """Put the state back to what the journal says. The trials stay the same objects."""
        for before in self._trials:
            trial = state.trials[before.n]
            for name in Trial.__struct_fields__:
                setattr(trial, name, getattr(before, name))
        for name, value in self._containers.items():
            setattr(state, name, value)
        state.last_at, state.used = self._last_at, self._used


def _end_of(state: State, trial: Trial, stopped: str) -> ev.AnyEvent:
    at, n = state.last_at, trial.n
    if trial.verdict == "stop" or state.stopping:
        return ev.TrialTerminated(at, n, trial.attempt, trial.why or state.stopping)
    if trial.verdict == "pause":
        return ev.TrialPaused(at, n, trial.attempt)
    return ev.AttemptInterrupted(at, n, trial.attempt, ev.Cause.DRIVER_LOST, stopped)
