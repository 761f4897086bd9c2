"""The states of one checkpoint on its way into a remote store: a table of states and steps.

``TRANSITIONS[(state, step)] -> state``. A missing key is illegal and raises. The diagram in the docs is generated from
this table.

A checkpoint may be *read back* in the mirror before it is uploaded: only one that was verified there may supersede an
older one that is still queued. Reading back and uploading exclude each other, because both finish the local commit; so
an upload whose turn comes while the checkpoint is read back waits until that is done.

Owns the table. Pure: knows neither jobs, nor threads, nor time.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.errors import InternalError


class CommitState(StrEnum):
    """How far a checkpoint is on its way."""

    STAGED = "staged"  # its record is safe on this machine; nothing has begun
    READING = "reading"  # it is committed in the mirror and read back
    PREPARED = "prepared"  # that has ended, and its upload may not begin yet
    HELD = "held"  # its upload may begin, as soon as the reading has ended
    UPLOADING = "uploading"  # its upload was begun, or waits to be tried again
    COMMITTED = "committed"  # the store has it
    FAILED = "failed"  # it is damaged, and will never be there
    SUPERSEDED = "superseded"  # a newer one has taken its place; what is left of it is deleted


class CommitStep(StrEnum):
    """What happens to it."""

    READ_BACK = "read back"  # somebody wants to know whether it is whole here
    READ = "read"  # that is known
    TURN = "its turn"  # its record is in the store, and so are the trial's checkpoints before it
    UPLOADED = "uploaded"
    DAMAGED = "damaged"
    GIVE_UP = "given up"  # it would be obsolete beside those that are whole


_S, _E = CommitState, CommitStep

TRANSITIONS: dict[tuple[CommitState, CommitStep], CommitState] = {
    (_S.STAGED, _E.READ_BACK): _S.READING,
    (_S.STAGED, _E.TURN): _S.UPLOADING,
    (_S.STAGED, _E.GIVE_UP): _S.SUPERSEDED,
    (_S.READING, _E.READ): _S.PREPARED,
    (_S.READING, _E.TURN): _S.HELD,
    (_S.READING, _E.GIVE_UP): _S.SUPERSEDED,
    (_S.PREPARED, _E.TURN): _S.UPLOADING,
    (_S.PREPARED, _E.GIVE_UP): _S.SUPERSEDED,
    (_S.HELD, _E.READ): _S.UPLOADING,
    (_S.HELD, _E.GIVE_UP): _S.SUPERSEDED,
    (_S.UPLOADING, _E.READ_BACK): _S.HELD,  # the job had not begun, and was taken back
    (_S.UPLOADING, _E.GIVE_UP): _S.SUPERSEDED,  # likewise
    (_S.UPLOADING, _E.UPLOADED): _S.COMMITTED,
    (_S.UPLOADING, _E.DAMAGED): _S.FAILED,
}


class RemoteCommit:
    """One checkpoint on its way.

    Attributes:
        state: Where it is.
        is_whole: What the mirror has of it, as far as it was read back: True, False (damaged, or not on this machine),
            None if nobody knows.
        may_be_stored: Whether something of it may be in the store: this driver has begun to upload it, or one before
            may have.
        is_queued: Whether it is in the queue of its trial's uploads.
    """

    __slots__ = ("is_queued", "is_whole", "may_be_stored", "state")

    def __init__(self, *, may_be_stored: bool = False, state: CommitState = CommitState.STAGED) -> None:
        self.state = state
        self.is_whole: bool | None = None
        self.may_be_stored = may_be_stored
        self.is_queued = False

    def take(self, step: CommitStep) -> CommitState:
        """Go one step further; returns the new state."""
        try:
            self.state = TRANSITIONS[self.state, step]
        except KeyError:
            raise InternalError(f"a checkpoint that is {self.state} cannot be {step}") from None
        return self.state
