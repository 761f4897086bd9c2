"""How long a trial waits before it is started again, if starting it has not helped so far.

Owns the two reasons for such a wait, each with its own count of failures. Must never start or end a trial.
"""

from __future__ import annotations

from holdfast.core.backoff import Backoff
from holdfast.core.state import Trial
from holdfast.core.turn import Turn

NO_PROGRESS = Backoff(first_s=1.0, longest_s=60.0)  # between attempts that are cut short without progress
FULL_DISK = Backoff(first_s=1.0, longest_s=15.0)


def hold_back(turn: Turn, trial: Trial) -> None:
    """An interruption is free, but one that repeats without progress waits longer each time."""
    if trial.cuts > 1:
        turn.memory.held_until[trial.n] = turn.at + NO_PROGRESS.delay_s(trial.cuts - 1)


MAX_DOUBTFUL = 10
"""Attempts that may end with a full disk although there is space, before one counts as the trial's failure."""


def has_waited_in_vain(turn: Turn, trial: Trial) -> bool:
    """Whether a trial that says that the disk is full, which it is not, has been started again often enough."""
    return turn.memory.full_disk.get(trial.n, 0) >= MAX_DOUBTFUL


def wait_for_space(turn: Turn, trial: Trial) -> None:
    """Reports since the last checkpoint are no progress here: the next attempt repeats them and fills the disk more."""
    memory = turn.memory
    tries = memory.full_disk.get(trial.n, 0)
    memory.full_disk[trial.n] = tries + 1
    if tries:
        until = turn.at + FULL_DISK.delay_s(tries)
        memory.held_until[trial.n] = max(memory.held_until.get(trial.n, 0.0), until)
