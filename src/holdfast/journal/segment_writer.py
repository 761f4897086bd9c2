"""The open segment: frames on their way into it, and a new segment when it is full or its disk fails.

Owns which bytes are written and which of those are durable. Knows neither threads nor time: `Journal` calls it
under its lock. Must never change a byte that was written, and must never trust a file after an error other than
"full": a failed fsync may have dropped the data and answer the next call with success, so what is not yet
durable is written once more, into a new segment that seals the old one before it. The same holds for what a dead
driver has left: it may have died of just such an error.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import StorageFullError
from holdfast.journal.claims import Claim
from holdfast.journal.durable_mark import published
from holdfast.journal.epoch import claim_path, fenced_error
from holdfast.journal.frames import FRAME_OVERHEAD, Scan, encode_frames, last_crc
from holdfast.journal.position import Position
from holdfast.journal.reach import NOTHING, DurableMark, End, newest_mark, shortfall, vouched_by
from holdfast.journal.reader import TornTail, chain_damage, check_links, read_link
from holdfast.journal.segments import (
    BrokenChain,
    SegmentLink,
    SegmentSeal,
    create_segment,
    journal_dir,
    read_chain,
    segment_path,
)
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.local import TEMP_PREFIX, AppendFile, Disk, is_full

SEGMENT_BYTES = 16 * 1024 * 1024
"""A segment that has grown to this size is followed by a new one."""

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Most bytes kept in memory because the disk does not take them, or does not confirm them."""

_log = logging.getLogger("holdfast.journal")


# The frames of one append, as plain tuples because this is the hot path: the number of the last record, the
# bytes, and, once they are in the segment, the offset behind them.
_Queued = tuple[int, bytes]
_Written = tuple[int, bytes, int]


class _Mark(NamedTuple):
    """Up to where the open segment is durable: last record, and what a successor's header would say.

    It is replaced as a whole, so that no exception from a signal handler can leave half of a new one.
    """

    seq: int
    seal: SegmentSeal


class SyncTicket(NamedTuple):
    """A sync that somebody is about to run: the file, and the last batch that it covers."""

    file: AppendFile
    batch: _Written


class SegmentWriter:
    """The journal's files as their one writer sees them.

    Attributes:
        written_seq: Last record that is in the file as a whole.
        synced_seq: Last record that is durable.
        blocked: Why records wait in memory, or None.
        torn: What the opening left out at the end of the previous segment.
        vouched_by: Epoch of the driver before, if it has said how far its history reached; else 0.
    """

    def __init__(self, root: str, disk: Disk, claim: Claim) -> None:
        self.written_seq = 0
        self.synced_seq = 0
        self.blocked: OSError | None = None
        self.torn: TornTail | None = None
        self.vouched_by = 0
        self._root = root
        self._disk = disk
        self._claim = claim
        self._file: AppendFile | None = None
        self._offset = 0
        self._safe = _Mark(0, SegmentSeal("", 0, 0))
        self._unsynced: deque[_Written] = deque()
        self._pending: deque[_Queued] = deque()
        self._pending_bytes = 0
        self._partly = 0  # bytes of the first pending batch that are in the file
        self._in_write = False
        self._broken = False  # the segment must not be written or synced any more

    # ------------------------------------------------------------------------------------------- opening

    def open(self) -> None:
        """Seal the newest segment where its last good record ends, and begin a new one behind it.

        Raises:
            FencedError: The newest segment belongs to a newer epoch.
            JournalDamagedError: The newest segment is damaged; nothing was written.
            OSError: The disk does not do it; nothing counts yet.
        """
        self._sweep()
        mark = newest_mark(self._root, self._disk)
        try:
            links, stumps = read_chain(self._root, self._disk)
        except BrokenChain as broken:
            raise chain_damage(self._root, self._disk, broken) from None
        if stumps:
            self.torn = TornTail(stumps[0].name.file, 0, stumps[0].size)
        if not links:
            if (short := shortfall(self._root, self._disk, mark, [], NOTHING)) is not None:
                raise short
            self._start(1, None)
            return
        if links[-1].name.epoch > self._claim.epoch:
            raise fenced_error(self._root, self._claim, disk=self._disk)
        # A snapshot would spare this driver the older segments: it would continue a history that nobody can read.
        check_links(self._root, self._disk, links)
        self._continue(links[-1], mark)

    def _continue(self, head: SegmentLink, mark: DurableMark | None) -> None:
        found, torn, damage = read_link(self._root, self._disk, [head], head.body, head.name.first_seq)
        end = End(
            Position(head.name.file, head.body + found.offset, found.next_seq),
            found.payloads[-1] if found.payloads else None,
        )
        damage = damage or shortfall(self._root, self._disk, mark, [head], end)
        if damage is not None:
            raise damage
        self.torn = torn or self.torn
        self.vouched_by = vouched_by(mark, head)
        self.written_seq = found.next_seq - 1
        sure = self._known_durable(head, found) if self._sync_old(head) else None
        if sure is None:
            self._start(head.name.first_seq, head.header.prev, encode_frames(head.name.first_seq, found.payloads))
            return
        carry = encode_frames(sure.seq + 1, found.payloads[sure.seq + 1 - head.name.first_seq :])
        self._start(sure.seq + 1, sure.seal, carry)

    def _sync_old(self, head: SegmentLink) -> bool:
        """Sync the dead driver's segment: its last writes, or a copied root, may be in the page cache alone.

        A seal behind bytes that a power cut then takes away would turn them into damage.
        """
        try:
            file = self._disk.open_append(segment_path(self._root, head.name.file))
            try:
                file.sync()
            finally:
                file.close()
        except OSError as error:
            _log.warning("fsync of %s failed (%s): its records are copied", head.name.file, error)
            return False
        return True

    def _known_durable(self, head: SegmentLink, found: Scan) -> _Mark:
        """Up to where the dead driver itself knew its segment to be durable.

        That our own sync has succeeded proves nothing: if the dead driver's sync had failed before, the kernel may have
        marked the pages as written, and says so to us. What that driver was sure of is what it made the segment with,
        and what it said it had synced. Each record is carried once at most, because whoever carries it is sure of it.
        """
        said = published(self._root, head.name.epoch, self._disk)
        sure = said.next_seq if said is not None and said.segment == head.name.file else 0
        first = seq = head.name.first_seq
        length = head.body
        for payload in found.payloads:
            end = length + FRAME_OVERHEAD + len(payload)
            if seq >= sure and end > head.body + head.header.carried:
                break
            seq, length = seq + 1, end
        crc = head.header_crc if seq == first else last_crc(encode_frames(seq - 1, [found.payloads[seq - 1 - first]]))
        return _Mark(seq - 1, SegmentSeal(head.name.file, length, crc))

    def _sweep(self) -> None:
        """Remove the temporary files of earlier drivers, which are older than our claim.

        A younger one may be a successor's, who took over while we were on our way here: without it, the successor
        could not make its segment. Both times come from the clock of the file system.
        """
        try:
            claimed_at = self._disk.mtime(claim_path(self._root, self._claim))
        except FileNotFoundError:  # without a claim nothing proves that they are left-overs
            return
        directory = journal_dir(self._root)
        for name in self._disk.list(directory):
            path = os.path.join(directory, name)
            if name.startswith(TEMP_PREFIX) and _is_older(self._disk, path, claimed_at):
                self._disk.remove(path)

    # ------------------------------------------------------------------------------------------- writing

    @property
    def last_seq(self) -> int:
        """Number of the last record that was queued."""
        return self._pending[-1][0] if self._pending else self.written_seq

    @property
    def position(self) -> Position:
        """The place behind `written_seq`."""
        return Position(self._safe.seal.segment, self._offset, self.written_seq + 1)

    @property
    def durable_position(self) -> Position:
        """The place behind the last record that is known to be durable."""
        return Position(self._safe.seal.segment, self._safe.seal.length, self._safe.seq + 1)

    @property
    def dirty(self) -> bool:
        """Whether a sync has something to do."""
        return bool(self._unsynced) or self._broken

    @property
    def overdue(self) -> bool:
        """Whether so much waits for a sync that the next append should run it itself."""
        return self._offset - self._safe.seal.length > MAX_WAITING_BYTES

    def queue(self, payloads: Sequence[bytes]) -> None:
        """Give records their numbers and put them behind those that wait.

        Raises:
            StorageFullError: Too much waits already; the records were not taken.
        """
        if self._pending_bytes > MAX_WAITING_BYTES:
            raise StorageFullError(
                f"{self._pending_bytes} bytes of records wait for space on the disk of {self._root}, more than "
                f"the {MAX_WAITING_BYTES} that are kept in memory: {self.blocked}. The records written so far are "
                f"safe. Free some space; then restore the experiment if it has stopped."
            )
        first = self.last_seq + 1
        frames = encode_frames(first, payloads)
        self._pending_bytes += len(frames)
        self._pending.append((first + len(payloads) - 1, frames))

    def drain(self) -> bool:
        """Write what waits, continuing exactly where the last attempt stopped.

        Returns:
            Whether nothing waits any more; if not, `blocked` says why.
        """
        if self._in_write:
            self._recover_from_interrupt()
        if self._broken and not self.replace():
            return False
        file = self._file
        assert file is not None
        while self._pending:
            seq, frames = self._pending[0]
            rest = memoryview(frames)[self._partly :] if self._partly else frames
            # An exception from a signal handler may arrive between the write and the note of it.
            self._in_write = True
            crashpoint("journal.before_write")
            try:
                size = file.write(rest)
            except OSError as error:
                self._in_write = False
                self._broken = not is_full(error)
                self.blocked = error
                return False
            crashpoint("journal.after_write")
            if size == len(rest):
                self._note_written(seq, frames)
            else:
                self._partly += size
            self._in_write = False
            if size == 0:
                self.blocked = OSError(errno.EIO, "the disk took none of the bytes and gave no reason")
                return False
        self.blocked = None
        return True

    def _note_written(self, seq: int, frames: bytes) -> None:
        end = self._offset + len(frames)
        self._unsynced.append((seq, frames, end))
        self.written_seq = seq
        self._offset = end
        self._partly = 0
        self._pending.popleft()
        self._pending_bytes -= len(frames)

    def _recover_from_interrupt(self) -> None:
        """Bring the books in order after a write of which nobody knows how far it went.

        The steps of `_note_written` are ordered so that each half-done state can be told; what the file may hold
        too much is left behind by continuing in a new segment.
        """
        if self._unsynced:
            self.written_seq = max(self.written_seq, self._unsynced[-1][0])
        while self._pending and self._pending[0][0] <= self.written_seq:
            self._pending.popleft()
        self._pending_bytes = sum(len(frames) for _, frames in self._pending)
        self._partly = 0
        self._in_write = False
        self._broken = True

    # ------------------------------------------------------------------------------------------- syncing

    def begin_sync(self) -> SyncTicket | None:
        """Return what a sync should cover now, or None if there is nothing to sync or no file to trust."""
        if not self._unsynced or self._broken or self._file is None:
            return None
        return SyncTicket(self._file, self._unsynced[-1])

    def end_sync(self, ticket: SyncTicket) -> None:
        """Note that a sync has succeeded."""
        seq, frames, end = ticket.batch
        if seq <= self._safe.seq:  # another sync, or a new segment, was faster
            return
        while self._unsynced and self._unsynced[0][0] <= seq:
            self._unsynced.popleft()
        self._safe = _Mark(seq, SegmentSeal(self._safe.seal.segment, end, last_crc(frames)))
        self.synced_seq = seq

    def fail_sync(self, ticket: SyncTicket, error: OSError) -> None:
        """Note that a sync has failed, and write once more, elsewhere, what it should have covered."""
        if ticket.file is not self._file or self._broken:
            return  # the segment was given up meanwhile
        _log.warning(
            "fsync of %s failed (%s): every record from %d on is written again into a new segment",
            segment_path(self._root, self._safe.seal.segment),
            error,
            self._safe.seq + 1,
        )
        self._broken = True
        self.replace()

    # ------------------------------------------------------------------------------------------- segments

    @property
    def wants_rotation(self) -> bool:
        """Whether the segment has reached its size and can end here."""
        return self._offset >= SEGMENT_BYTES and not self._pending and not self._broken

    def rotate(self) -> None:
        """Begin the next segment. If the disk refuses, records wait until it does not."""
        ticket = self.begin_sync()
        if ticket is not None:
            # The seal must not promise bytes that a power cut can still take away.
            try:
                ticket.file.sync()
            except OSError as error:
                self.fail_sync(ticket, error)
                return
            self.end_sync(ticket)
        self.replace()

    def replace(self) -> bool:
        """Continue in a new segment that holds everything not known to be durable in the old one.

        Returns:
            Whether that worked; if not, `blocked` says why and the next attempt begins here again.
        """
        if self._in_write:
            self._recover_from_interrupt()
        carry = b"".join(frames for seq, frames, _ in self._unsynced if seq > self._safe.seq)
        try:
            self._start(self._safe.seq + 1, self._safe.seal, carry)
        except OSError as error:
            self.blocked = error
            return False
        self._partly = 0
        if not self._pending:
            self.blocked = None
        return True

    def _start(self, first_seq: int, prev: SegmentSeal | None, carry: bytes = b"") -> None:
        # Nothing may be written to the old segment from here on, whatever fails: the new one seals it, and also
        # a creation that reports an error may have taken place.
        self._broken = True
        link = create_segment(self._root, self._disk, self._claim, first_seq=first_seq, prev=prev, carry=carry)
        length = link.body + len(carry)
        crc = last_crc(carry) if carry else link.header_crc
        self._safe = _Mark(self.written_seq, SegmentSeal(link.name.file, length, crc))
        self._offset = length
        self._unsynced.clear()
        self.close()
        self._disk.sync_dir(journal_dir(self._root))
        crashpoint("journal.rotate.synced")
        self._file = self._disk.open_append(segment_path(self._root, link.name.file))
        self._broken = False
        self.synced_seq = self.written_seq

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                # Whatever it held was synced, or is carried over; some file systems still complain here.
                _log.debug("closing a segment failed: %s", error)


def _is_older(disk: Disk, path: str, moment: float) -> bool:
    try:
        return disk.mtime(path) < moment
    except FileNotFoundError:  # its writer was faster
        return False
