"""Where in the journal each trial's records stand, so that one trial's history is read without that of the others.

Owns an index in memory: sixteen bytes a record, made in one pass that decodes no report. Must never write, and must
never keep what records say: a million reports of others are none of a reader's business.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from itertools import count

from holdfast.core import events as ev
from holdfast.errors import JournalDamagedError
from holdfast.journal.frames import FRAME_OVERHEAD, frame_end, payload_at
from holdfast.journal.reader import Position, read_journal
from holdfast.journal.records import Events, decode_record
from holdfast.journal.segments import relative_path, segment_path
from holdfast.storage.local import REAL_DISK, Disk

_SEGMENT = 1 << 48
"""A place is the number of a segment times this, and an offset in it."""

MAX_GAP = 1 << 16
"""Bytes of others between two records that are read along: opening the file again costs as much."""

MAX_RUN = 1 << 20
"""Bytes that are read at once."""

LAST = 1 << 12
"""Bytes that are read of the last record; what is larger takes a second call."""

EXPERIMENT = -1
"""Stands for a trial's number where drivers and what they did for all trials are meant."""

_NOBODY = -2
_SHARED = (ev.EpochStarted, ev.BudgetRenewed, ev.DriverStopped)


class TrialIndex:
    """The places of all records up to a position.

    Args:
        root: The experiment's root.
        end: Where the history ends for this reader; None: where it ends.
        epoch: The last driver that this reader knows of: what later ones wrote is left out. None: all count.
        disk: Where the root is.

    Attributes:
        donors: Of trials that continued from checkpoints of others, or as their copies: which others.

    Raises:
        JournalDamagedError: As `read_journal` does.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        end: Position | None = None,
        epoch: int | None = None,
        disk: Disk = REAL_DISK,
    ) -> None:
        self.donors: dict[int, set[int]] = {}
        self._root = os.path.abspath(root)
        self._disk = disk
        self._epoch = epoch
        self._files: list[str] = []
        self._places: dict[int, array[int]] = {}  # place, number of the record, place, number ...
        self._workers: dict[int, list[tuple[int, ev.WorkerJoined]]] = {}
        self._fill(end)

    def __len__(self) -> int:
        """How many trials there are at most."""
        return len(self._places) - (EXPERIMENT in self._places)

    def worker(self, number: int, seq: int) -> ev.WorkerJoined | None:
        """Who had this number when record ``seq`` was written."""
        joined = self._workers.get(number, ())
        return next((event for at, event in reversed(joined) if at < seq), None)

    def kin(self, n: int) -> set[int]:
        """The trial and all from which it has its counters: those that it continued from, and theirs."""
        found, new = {n}, [n]
        while new:
            more = self.donors.get(new.pop(), set()) - found
            found |= more
            new += more
        return found

    def events(self, numbers: Iterable[int]) -> Events:
        """The events of these trials, in order; ``EXPERIMENT`` adds when drivers came and left."""
        wanted = [self._places[n] for n in numbers if n in self._places]
        pairs = [(each[i], each[i + 1]) for each in wanted for i in range(0, len(each), 2)]
        return Events(self._root, self._records(sorted(pairs) if len(wanted) > 1 else pairs))

    # --- filling

    def _fill(self, end: Position | None) -> None:
        last = None if end is None else end.next_seq
        for part in read_journal(self._root, disk=self._disk).parts():
            place = len(self._files) * _SEGMENT + part.start
            self._files.append(part.file)
            places, subject = self._places, ev.subject
            for seq, payload in zip(count(part.seq), part.payloads, strict=False):
                if seq == last:
                    return
                n = subject(payload)
                if n is None:
                    event = decode_record(self._root, seq, payload)
                    if self._is_later(event):
                        return
                    n = self._take(seq, event)
                if n != _NOBODY:
                    own = places.get(n)
                    if own is None:
                        own = places[n] = array("Q")
                    own.append(place)
                    own.append(seq)
                place += FRAME_OVERHEAD + len(payload)

    def _is_later(self, event: ev.AnyEvent) -> bool:
        return isinstance(event, ev.EpochStarted) and self._epoch is not None and event.epoch > self._epoch

    def _take(self, seq: int, event: ev.AnyEvent) -> int:
        """Keep what an event says about other trials than its own; the trial that it belongs to."""
        if isinstance(event, _SHARED):
            return EXPERIMENT
        if isinstance(event, ev.WorkerJoined):
            self._workers.setdefault(event.worker, []).append((seq, event))
        elif isinstance(event, ev.TrialStarted):
            self._refer(event.n, event.source)
        elif isinstance(event, ev.TrialReconfigured) and event.donor is not None:
            self._refer(event.n, event.donor, (event.parent, 0) if event.parent >= 0 else None)
        n: int = getattr(event, "n", _NOBODY)
        return n if n >= 0 else _NOBODY

    def _refer(self, n: int, *sources: tuple[int, int] | None) -> None:
        others = {source[0] for source in sources if source is not None} - {n}
        if others:
            self.donors.setdefault(n, set()).update(others)

    # --- reading

    def _records(self, pairs: list[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        at = 0
        while at < len(pairs):
            behind = at + 1
            first = pairs[at][0]
            while (
                behind < len(pairs)
                and pairs[behind][0] - pairs[behind - 1][0] <= MAX_GAP
                and pairs[behind][0] - first <= MAX_RUN
            ):
                behind += 1
            yield from self._run(pairs[at:behind])
            at = behind

    def _run(self, pairs: list[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        """Read records that stand near each other in one segment."""
        first, last = pairs[0][0], pairs[-1][0]
        number, start = divmod(first, _SEGMENT)
        path = segment_path(self._root, self._files[number])
        buffer = self._disk.read(path, start, last - first + LAST)
        missing = frame_end(buffer, last - first) - len(buffer)
        if missing > 0:
            buffer += self._disk.read(path, start + len(buffer), missing)
        for place, seq in pairs:
            payload = payload_at(buffer, place - first, seq)
            if payload is None:
                raise self._changed(number, start + place - first, seq)
            yield seq, payload

    def _changed(self, number: int, offset: int, seq: int) -> JournalDamagedError:
        file = relative_path(self._files[number])
        return JournalDamagedError(
            f"The journal of {self._root} was changed while it was read: {file} had record {seq} at byte {offset}. "
            f"Open the experiment again; `holdfast verify {self._root}` lists all damage.",
            file=file,
            offset=offset,
            seq=seq,
        )
