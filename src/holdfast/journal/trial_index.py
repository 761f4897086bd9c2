"""Where in the journal each trial's records stand, so that one trial's history is read without that of the others.

Owns an index in memory: twelve bytes a record, made in one pass that decodes no report. The records of one trial are a
chain from the last one back. Must never write, and must never keep what records say: a million reports of others are
none of a reader's business.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from itertools import count

from holdfast.core import events as ev
from holdfast.errors import JournalDamagedError
from holdfast.journal.frames import FRAME_OVERHEAD, frame_end, payload_at
from holdfast.journal.reader import START, Position, read_journal
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
        self._places = array("Q")  # of all records, in order
        self._before = array("i")  # the record of the same trial before it, or -1
        self._last = array("i")  # the last record of each trial
        self._others: dict[int, int] = {}  # the same, of the experiment and of trials that were never created
        self._workers: dict[int, list[tuple[int, ev.WorkerJoined]]] = {}
        self._read_to: Position | None = None
        self._fill(end)

    def __len__(self) -> int:
        """How many trials there are at most."""
        return len(self._last) + len(self._others) - (EXPERIMENT in self._others)

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
        pairs: list[tuple[int, int]] = []
        wanted = list(numbers)
        for n in wanted:
            at = self._last[n] if 0 <= n < len(self._last) else self._others.get(n, -1)
            while at >= 0:
                pairs.append((self._places[at], at + START.next_seq))
                at = self._before[at]
        pairs.reverse()
        return Events(self._root, self._records(sorted(pairs) if len(wanted) > 1 else pairs))

    def advance(self, end: Position | None, epoch: int | None = None) -> None:
        """Take in what was written since, up to ``end``, at the price of just that.

        Raises:
            FencedError: As `read_journal` does: make a new index.
            JournalDamagedError: As `read_journal` does.
        """
        self._epoch = epoch
        if end is None or self._read_to is None or end.next_seq > self._read_to.next_seq:
            self._fill(end)

    # --- filling

    def _fill(self, end: Position | None) -> None:
        last = None if end is None else end.next_seq
        for part in read_journal(self._root, after=self._read_to, disk=self._disk).parts():
            if not self._files or self._files[-1] != part.file:
                self._files.append(part.file)
            base = (len(self._files) - 1) * _SEGMENT
            place, seq = base + part.start, part.seq - 1
            places, before, last_of, subject = self._places, self._before, self._last, ev.subject
            for seq, payload in zip(count(part.seq), part.payloads, strict=False):
                if seq == last:
                    self._read_to = Position(part.file, place - base, seq)
                    return
                n = subject(payload)
                if n is None:
                    event = decode_record(self._root, seq, payload)
                    if self._is_later(event):
                        self._read_to = Position(part.file, place - base, seq)
                        return
                    n = self._take(seq, event)
                if 0 <= n < len(last_of):
                    before.append(last_of[n])
                    last_of[n] = len(places)
                else:
                    before.append(self._chain(n, len(places)))
                places.append(place)
                place += FRAME_OVERHEAD + len(payload)
            self._read_to = Position(part.file, place - base, seq + 1)

    def _chain(self, n: int, at: int) -> int:
        """Note the last record of a new trial, or of none; what stood there before."""
        if n == len(self._last):
            self._last.append(at)
            return self._others.pop(n, -1)
        if n == _NOBODY:
            return -1
        before = self._others.get(n, -1)
        self._others[n] = at
        return before

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
