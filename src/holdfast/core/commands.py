"""Commands: what an edge must do. Never journaled, and idempotent.

A command that was lost with its driver is not looked for: the next driver decides from the state what is still to be
done, and `resuming` and `plan` emit it again.

``GATED`` commands may leave the process only when the journal is fsynced up to the events that caused them (I3); for
the others the journal's ``write`` is enough (I1).
"""

from __future__ import annotations

from typing import Union

import msgspec


class Launch(msgspec.Struct, frozen=True):
    """Start this attempt; its trial's state says from where."""

    n: int
    attempt: int


class Reply(msgspec.Struct, frozen=True):
    """Answer a report: continue, stop, or pause; ``save`` asks for a checkpoint first.

    It answers all reports of the attempt up to this one. ``ahead`` more need not wait for theirs.
    """

    n: int
    attempt: int
    ordinal: int
    go: str = "go"  # "go", "stop", "pause"
    save: bool = False
    ahead: int = 0


class Halt(msgspec.Struct, frozen=True):
    """End the attempt's process tree, after ``grace_s`` for it to unwind by itself."""

    n: int
    attempt: int
    grace_s: float = 0.0


class SaveSoon(msgspec.Struct, frozen=True):
    """Tell the attempt that this driver will end soon, so that it saves what it can."""

    n: int
    attempt: int


class Commit(msgspec.Struct, frozen=True):
    """Finish the commit of a staged checkpoint."""

    n: int
    index: int


class Verify(msgspec.Struct, frozen=True):
    """Read a checkpoint and compare it with its manifest before a trial starts from it."""

    n: int
    index: int


class Delete(msgspec.Struct, frozen=True):
    """Delete a dropped checkpoint."""

    n: int
    index: int


class Propose(msgspec.Struct, frozen=True):
    """Ask the searcher for the next configurations."""

    count: int = 1


Command = Union[Launch, Reply, Halt, SaveSoon, Commit, Verify, Delete, Propose]

GATED = (Commit, Delete)
