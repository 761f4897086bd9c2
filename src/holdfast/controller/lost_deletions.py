"""Checkpoints that the journal still knows and that are not there: deleted by the rule, or really missing.

A journal that has lost its end may lack the records by which checkpoints were dropped and deleted. Such a checkpoint is
told from one that should be there by the rule for keeping checkpoints, by a newer snapshot, or because its trial has
repeated the steps since.

Owns that judgement. Must never write.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from holdfast.checkpoints.names import checkpoint_name
from holdfast.core.retention import Retention
from holdfast.core.state import CheckpointRecord, State, Status, Stored, Trial


class Absent(NamedTuple):
    """Checkpoints of one trial that are not there, by index.

    Attributes:
        deleted: Nothing refers to them any more: whoever removed them was right to.
        missing: They are committed and should be there.
    """

    deleted: tuple[int, ...]
    missing: tuple[int, ...]


def absent_checkpoints(
    state: State,
    trial: Trial,
    retention: Retention,
    there: Collection[str],
    *,
    snapshot: Trial | None,
    left: Collection[int],
) -> Absent:
    """Judge the checkpoints of a trial that are not there, once everything that is there is in its history.

    Args:
        state: The rebuilt history.
        trial: One of its trials.
        retention: The user's rule for keeping checkpoints.
        there: Names of all that is in the trial's directory.
        snapshot: The trial as a snapshot knows it; None if it does not.
        left: Checkpoints of steps that the trial has since repeated from an earlier one.
    """
    wanted = (Stored.COMMITTED, Stored.STAGED)
    known = [each for each in trial.checkpoints if each.stored in wanted]
    absent = [each for each in known if checkpoint_name(each.index) not in there and each.sealed not in there]
    if not absent:
        return Absent((), ())
    # As if it had ended, because the record of its end may be lost too: the limit for the whole experiment may then
    # have taken its newest checkpoint.
    ended = msgspec.structs.replace(trial, status=Status.TERMINATED)
    obsolete = {*retention.obsolete(state, ended), *left}
    # A staged one may have been committed before it was dropped. It must not push out one that surely was there.
    ended.checkpoints = [msgspec.structs.replace(each, stored=Stored.COMMITTED) for each in known]
    if_committed = {*retention.obsolete(state, ended), *left}
    deleted, missing = [], []
    for each in absent:
        if each.index in (obsolete if each.stored == Stored.COMMITTED else if_committed) or _was_dropped(
            each, snapshot
        ):
            deleted.append(each.index)
        elif each.stored == Stored.COMMITTED:
            missing.append(each.index)
    return Absent(tuple(deleted), tuple(missing))


def _was_dropped(record: CheckpointRecord, snapshot: Trial | None) -> bool:
    """Whether a snapshot has seen a checkpoint come and go."""
    if snapshot is None or snapshot.next_index <= record.index:
        return False
    later = snapshot.find(record.index)
    return later is None or later.stored not in (Stored.COMMITTED, Stored.STAGED)
