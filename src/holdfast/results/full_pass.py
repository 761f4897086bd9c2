"""The pass over all records of a journal, in slices, for what the state does not hold: curves and the chronicle.

It reads from the first record up to where its follower stands, and tells how far it got. Then the follower feeds it.
Owns the place of that reading. Must never run ahead of the follower.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.controller.opening import collector_paused
from holdfast.core import events as ev
from holdfast.errors import FencedError, IllegalTransitionError
from holdfast.journal.reader import START, Position
from holdfast.journal.records import ReadEvents, read_events
from holdfast.results.chronicle import Chronicle
from holdfast.results.curves import Curves

SLICE = 50_000
"""Records of one slice: some tens of milliseconds."""
BATCH = 256
"""Records that are decoded and folded together: few enough to stay in the processor's cache."""


class Loading(NamedTuple):
    """How far a pass got, in records."""

    read: int
    total: int


class FullPass:
    """Fills curves and a chronicle.

    Args:
        root: The experiment's root on this machine.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.curves = Curves()
        self.chronicle = Chronicle(self.curves)
        self._root = root
        self._next = START.next_seq
        self._after: Position | None = None
        self._events: ReadEvents | None = None

    def load(self, end: Position | None, records: int = SLICE) -> Loading | None:
        """Read one slice of what stands before ``end``; None once there is nothing left.

        Raises:
            JournalDamagedError: As ``read_events`` does.
            FencedError: The journal was cut while it was read: make a new pass.
        """
        until = (end or START).next_seq
        left = min(records, until - self._next)
        with collector_paused():
            while left > 0:
                events = self._events or self._open()
                found = events.take(min(left, BATCH))
                with events.folding():
                    self._fold(found, events)
                self._next += len(found)
                left -= len(found)
                if not found:  # the journal has grown since it was opened
                    self._events = None
                    if events.contents.position == self._after:
                        raise FencedError("The journal became shorter while it was read. Read it again.")
                    self._after = events.contents.position
        return self.progress(end)

    def progress(self, end: Position | None) -> Loading | None:
        """How far it got on its way to ``end``; None if it is there."""
        if self.is_at(end):
            return None
        return Loading(self._next - START.next_seq, (end or START).next_seq - START.next_seq)

    def feed(self, event: ev.AnyEvent) -> None:
        """Take an event that the follower has just read, if the pass got there."""
        self._fold((event,))
        self._next += 1

    def is_at(self, position: Position | None) -> bool:
        """Whether everything before a place was taken in."""
        return self._next == (position or START).next_seq

    def _fold(self, found: Sequence[ev.AnyEvent], events: ReadEvents | None = None) -> None:
        try:
            self.curves.fold(found, self.chronicle)
        except (IllegalTransitionError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            if events is not None:
                events.seq -= len(found) - 1 - self.curves.in_hand
            if isinstance(error, IllegalTransitionError):
                raise
            text = f"an event does not fit those before it: {type(error).__name__}: {error}"
            raise IllegalTransitionError(text) from error

    def _open(self) -> ReadEvents:
        self._events = read_events(self._root, after=self._after)
        return self._events
