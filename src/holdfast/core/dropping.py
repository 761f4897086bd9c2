"""Dropping checkpoints that nothing refers to any more. The intent is a fact before anything is deleted (I3)."""

from __future__ import annotations

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.state import Trial
from holdfast.core.turn import Turn


def drop_obsolete(turn: Turn, trial: Trial) -> None:
    """Drop what the rule does not keep of the trial, and of the one that it has ceased to depend on."""
    _drop_own(turn, trial)
    if trial.origin is not None and not trial.origin_held:
        _drop_own(turn, turn.state.trials[trial.origin[0]])


def _drop_own(turn: Turn, trial: Trial) -> None:
    indexes = turn.policies.rules.retention.obsolete(turn.state, trial)
    if indexes:
        turn.add(ev.CheckpointsDropped(turn.at, trial.n, indexes))
        turn.commands.extend(cmd.Delete(trial.n, index) for index in indexes)


def terminate(turn: Turn, trial: Trial, reason: str) -> None:
    """End a trial in order."""
    turn.add(ev.TrialTerminated(turn.at, trial.n, trial.attempt, reason))
    drop_obsolete(turn, trial)
