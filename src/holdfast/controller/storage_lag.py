"""When durability lags: how long the oldest record that a power cut, or the loss of the machine, could take has waited.

Owns the judgement that a lag has begun and ended, which becomes two events, so that a later reader can tell an outage
of storage from a slow trial. Must never wait. Costs a comparison in each turn while nothing lags.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from holdfast.controller.watches import LISTENING_S
from holdfast.core import observations as ob

LAG_S = 5.0
"""A lag that is worth an event: ten times what a healthy disk takes, and five times what a store does."""

SAMPLE_S = 1.0


class LaggingJournal(Protocol):
    """What has to be known of a journal."""

    @property
    def blocked(self) -> OSError | None: ...

    @property
    def written_seq(self) -> int: ...

    @property
    def synced_seq(self) -> int: ...


class StorageLagWatch:
    """Looked at once per turn."""

    def __init__(self, journal: LaggingJournal) -> None:
        self._journal = journal
        self._waiting: deque[tuple[int, float]] = deque()  # records that are not synced, and when they were seen first
        self._looked_at: float | None = None
        self._since: float | None = None  # of the lag that was told
        self._found: list[ob.Observation] = []

    def look(self, at: float) -> list[ob.Observation]:
        """What has begun or ended since the last look."""
        found, self._found = self._found, []
        self._forgive_absence(at)
        journal, waiting = self._journal, self._waiting
        synced, written = journal.synced_seq, journal.written_seq
        while waiting and waiting[0][0] <= synced:
            waiting.popleft()
        if written > synced and (not waiting or (written > waiting[-1][0] and at - waiting[-1][1] >= SAMPLE_S)):
            waiting.append((written, at))
        if self._since is None:
            if waiting and at - waiting[0][1] > LAG_S:
                self._since = waiting[0][1]
                found.append(ob.StorageLag(self._since, _words(journal.blocked)))
        elif not waiting or at - waiting[0][1] < LAG_S / 2:
            found.append(ob.StorageLagOver(self._since))
            self._since = None
        return found

    def was_blocked(self, since: float, at: float, error: OSError | None) -> None:
        """The journal could not be written at all in this time, so that nothing could be told."""
        if at - since > LAG_S and self._since is None:
            self._found += [ob.StorageLag(since, _words(error)), ob.StorageLagOver(since)]
        self._looked_at = at

    def _forgive_absence(self, at: float) -> None:
        absent = at - self._looked_at - LISTENING_S if self._looked_at is not None else 0.0
        self._looked_at = at
        if absent > 0.0:
            self._waiting = deque((seq, min(at, seen + absent)) for seq, seen in self._waiting)


def _words(error: OSError | None) -> str:
    return "" if error is None else str(error)[:400]
