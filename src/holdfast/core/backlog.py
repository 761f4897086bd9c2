"""The backlog: staged checkpoints that are not committed yet, and when trials must wait because of it.

While a store is slow or unreachable, checkpoints stay on the local disk and trials train on. What bounds that is bytes:
``Rules.max_backlog_bytes``, or a share of what the disk would have free without the backlog. Each trial may have one
uncommitted checkpoint whatever the others have, so that none of them starves.

Pure. Owns the bound. Must never drop a checkpoint: that is retention's (I3).
"""

from __future__ import annotations

from holdfast.core import events as ev
from holdfast.core.state import State, Trial
from holdfast.core.turn import Turn

SHARE = 4
"""One part in so many of the free space is the default bound."""

ALWAYS = 1
"""Uncommitted checkpoints that a trial may have even if the backlog is full."""

EASED = 2
"""A full backlog has eased when it is one part in so many of the bound: a slow store would fill it again at once."""


def limit_of(turn: Turn) -> int | None:
    """How many bytes may wait to be committed; None while that is not known."""
    chosen = turn.policies.rules.max_backlog_bytes
    return turn.memory.backlog_share if chosen is None else chosen


def share_of(free: int, waiting: int) -> int:
    """The default bound: what waits now takes space that would be free without it."""
    return (free + waiting) // SHARE


def is_full(turn: Turn) -> bool:
    """Whether more bytes wait to be committed than may."""
    limit = limit_of(turn)
    return limit is not None and turn.state.staged_bytes > limit


def must_wait(turn: Turn, trial: Trial, *, saved: bool) -> bool:
    """Whether a trial that has reported, and perhaps saved, must wait until commits have ended."""
    crowded, too_many = turn.memory.crowded, trial.uncommitted > turn.policies.rules.max_uncommitted
    if saved and trial.uncommitted > ALWAYS and not too_many and is_full(turn):
        crowded[trial.n] = None
        return True
    if crowded:
        crowded.pop(trial.n, None)
    return too_many


def may_start(turn: Turn) -> bool:
    """Whether another trial may start.

    Each may add a checkpoint, so trials that start one after the other would fill the disk: none starts while those
    that do not run have more than the bound. What running trials have waits for themselves, not for others.
    """
    limit, state = limit_of(turn), turn.state
    if limit is None or state.staged_bytes <= limit:
        return True
    return state.staged_bytes - sum(_waiting_bytes(state.trials[n]) for n in state.running) <= limit


def _waiting_bytes(trial: Trial) -> int:
    if not trial.uncommitted:
        return 0
    return sum(record.bytes for record in trial.checkpoints if record.stored == "staged")


def tell(turn: Turn) -> None:
    """Make a fact of a backlog that has become full, or has eased."""
    state, crowded = turn.state, turn.memory.crowded
    if not crowded and not state.full_since:
        return
    limit = limit_of(turn)
    if not state.full_since:
        assert limit is not None
        turn.add(ev.BacklogFilled(turn.at, len(state.staged), state.staged_bytes, limit))
    elif not crowded and (limit is None or state.staged_bytes <= limit // EASED):
        turn.add(ev.BacklogEased(turn.at, len(state.staged), state.staged_bytes))


def oldest(state: State) -> float | None:
    """When the checkpoint was staged that waits longest; None if none waits."""
    for n, index in state.staged:
        record = state.trials[n].find(index)
        return None if record is None else record.at
    return None
