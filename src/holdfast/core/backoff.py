"""How long a trial waits before it is tried again, if that has not helped so far."""

from __future__ import annotations

from holdfast.core.state import Trial
from holdfast.core.turn import Turn

MAX_BACKOFF_S = 60.0  # between attempts that are cut short without progress
MAX_WAIT_FOR_SPACE_S = 15.0


def hold_back(turn: Turn, trial: Trial) -> None:
    """An interruption is free, but one that repeats without progress waits longer each time."""
    if trial.cuts > 1:
        delay = min(MAX_BACKOFF_S, 2.0 ** min(trial.cuts - 2, 10))
        turn.state.session.held_until[trial.n] = turn.at + delay


def wait_for_space(turn: Turn, trial: Trial) -> None:
    """Reports since the last checkpoint are no progress here: the next attempt repeats them and fills the disk more."""
    session = turn.state.session
    tries = session.full_disk.get(trial.n, 0)
    session.full_disk[trial.n] = tries + 1
    if tries:
        delay = min(MAX_WAIT_FOR_SPACE_S, 2.0 ** min(tries - 1, 10))
        session.held_until[trial.n] = max(session.held_until.get(trial.n, 0.0), turn.at + delay)
