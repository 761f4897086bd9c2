"""Ending trials, and dropping checkpoints that nothing refers to: an intent before anything is deleted (I3)."""

from __future__ import annotations

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.state import Trial
from holdfast.core.turn import Turn

RETURNED = "returned"
"""The reason of a trial that came to its own end."""


def drop_obsolete(turn: Turn, trial: Trial, why: str = "") -> None:
    """Drop what the rule does not keep of the trial, and of the one that it has ceased to depend on."""
    _drop_own(turn, trial, why)
    drop_released(turn, trial.origin)


def drop_released(turn: Turn, origin: tuple[int, int] | None) -> None:
    """Nobody continues from this checkpoint any more? Then its own trial's rule says whether it stays."""
    if origin is not None and origin not in turn.state.holds:
        _drop_own(turn, turn.state.trials[origin[0]])


def _drop_own(turn: Turn, trial: Trial, why: str = "") -> None:
    indexes = turn.policies.rules.retention.obsolete(turn.state, trial)
    if indexes:
        turn.add(ev.CheckpointsDropped(turn.at, trial.n, indexes, why))
        turn.commands.extend(cmd.Delete(trial.n, index) for index in indexes)


def terminate(turn: Turn, trial: Trial, reason: str, worker: int = 0) -> None:
    """End a trial without an error, and drop the checkpoints that nobody needs any more."""
    turn.add(ev.TrialTerminated(turn.at, trial.n, trial.attempt, reason, worker))
    drop_obsolete(turn, trial)


def terminate_waiting(turn: Turn, reason: str) -> None:
    """End all trials that do not run."""
    state = turn.state
    for n in [*state.pending, *state.paused]:
        terminate(turn, state.trials[n], reason)
