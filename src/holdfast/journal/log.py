"""The journal as its driver sees it: append records, know which are accepted and which are durable.

Owns the thread that runs the group commit, the fence around every append, and the life of the claim. Must never
write from a forked child, and must never wait for the disk inside `append` (except with ``durability="sync"``,
at a rotation, and when too much waits for a sync that hangs).

What keeps the promise: a reply may leave the process when `accepted_seq` has reached its record. `append` looks
for a newer epoch before the write, to keep void bytes out of the file, and again after it: if nobody had claimed
the experiment when the bytes were in the file, whoever claims it later reads them. On a network file system another
machine reads what was synced: there a take-over from a living driver costs what a power cut would.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, Self

from holdfast.errors import InternalError, InvalidInputError, OwnershipError, StorageError, StorageFullError
from holdfast.journal import durable_mark
from holdfast.journal import epoch as epochs
from holdfast.journal.claims import Claim
from holdfast.journal.epoch import HEARTBEAT_S
from holdfast.journal.position import Position, encode_position
from holdfast.journal.reader import TornTail
from holdfast.journal.segment_writer import SegmentWriter
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.local import Disk, is_full
from holdfast.storage.mounts import disk_of

Durability = Literal["group", "sync"]

GROUP_COMMIT_S = 0.5
"""A sync of a written record begins at most this long after the write."""

_log = logging.getLogger("holdfast.journal")


class Journal:
    """The open journal of one driver. Made by `create_or_append`; one thread appends.

    Attributes:
        claim: The right under which it writes.
        fenced: Whether a newer driver was seen, by an append or by the sync thread's look every few seconds.
        on_synced: Called with `synced_seq`, from the sync thread, after that has grown.
    """

    def __init__(self, root: str, claim: Claim, durability: Durability, disk: Disk) -> None:
        self.claim = claim
        self.fenced = False
        self.on_synced: Callable[[int], None] | None = None
        self._root = root
        self._disk = disk
        self._durability = durability
        self._fence = epochs.fence_path(root, claim)
        self._pid = os.getpid()
        self._closed = False
        self._writer = SegmentWriter(root, disk, claim)
        # The lock guards the writer and what follows. A sync itself runs outside it: appends continue meanwhile.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._dirty_since = math.inf
        self._sync_requested = False
        self._stopping = False
        self._told = 0
        self._thread: threading.Thread | None = None
        self._bug: Exception | None = None

    @classmethod
    def create_or_append(
        cls,
        root: str | os.PathLike[str],
        claim: Claim,
        *,
        durability: Durability = "group",
        disk: Disk | None = None,
        threaded: bool = True,
    ) -> Self:
        """Open the journal of the experiment at ``root`` for appending, in a new segment.

        What other drivers wrote ends here: the history that `read_journal` returns after this call can only
        grow by this journal's appends.

        Args:
            root: The experiment's root.
            claim: From `claim_epoch`.
            durability: "group" syncs in the background; "sync" makes `append` wait until its records are durable.
            disk: Where the root is; None finds out.
            threaded: False leaves all syncs to explicit calls of `sync`.

        Raises:
            FencedError: A newer driver has taken over.
            JournalDamagedError: The newest segment is damaged. Nothing was written.
            StorageError: The new segment cannot be made.

        Durability:
            Everything that counts of the earlier segments survives a power cut when this returns.
        """
        if durability not in ("group", "sync"):
            raise InvalidInputError(
                f'durability must be "group" or "sync", not {durability!r}: "group" syncs at most '
                f'{GROUP_COMMIT_S} s after a write, "sync" before every reply.'
            )
        root = os.path.abspath(root)
        disk = disk or disk_of(root)
        journal = cls(root, claim, durability, disk)
        try:
            journal._writer.open()
        except OSError as error:
            if disk.exists(journal._fence):  # the newer driver tidies up while we make our segment
                raise epochs.fenced_error(journal._root, claim, disk=disk) from error
            raise _storage_error(error, f"The journal of {journal._root} cannot be opened for writing") from error
        journal._told = journal.synced_seq
        journal._publish()
        if threaded:
            thread = threading.Thread(target=journal._sync_loop, name="holdfast-journal", daemon=True)
            journal._thread = thread
            thread.start()
        return journal

    @property
    def written_seq(self) -> int:
        """Last record that is in the file: it survives the death of every process."""
        return self._writer.written_seq

    @property
    def synced_seq(self) -> int:
        """Last record that is durable: it survives a power cut."""
        return self._writer.synced_seq

    @property
    def local_seq(self) -> int:
        """Last record that is durable on this machine."""
        return self._writer.synced_seq

    @property
    def durable_seq(self) -> int:
        """Last record that is durable where the experiment lives: here."""
        return self._writer.synced_seq

    @property
    def accepted_seq(self) -> int:
        """Last record for which a reply may leave the process, by the durability that was asked for."""
        return self.synced_seq if self._durability == "sync" else self.written_seq

    @property
    def blocked(self) -> OSError | None:
        """Why records wait in memory, or None. `append` and `flush` try again."""
        return self._writer.blocked

    @property
    def torn(self) -> TornTail | None:
        """What the previous driver had left unfinished at its end, or None."""
        return self._writer.torn

    @property
    def vouched_by(self) -> int:
        """Epoch of the driver before, if it has said how far its history reached; else 0."""
        return self._writer.vouched_by

    @property
    def position(self) -> Position:
        """The place behind `written_seq`, for `read_journal` and for snapshots."""
        with self._lock:
            return self._writer.position

    def left_behind(self) -> StorageError:
        """Return the error for a driver that was told to end while records of it wait in memory."""
        return StorageFullError(
            f"the journal cannot be written ({self.blocked}) and this driver is shutting down. Reports that "
            "were not acknowledged are not recorded; everything else is safe. Free some space, then restore."
        )

    def append(self, payloads: Sequence[bytes]) -> int:
        """Write records, in one system call.

        Args:
            payloads: The records' content; the journal does not look into it.

        Returns:
            Number of the last one. If the disk does not take them, they wait in memory: `accepted_seq` stays
            behind and `blocked` says why.

        Raises:
            FencedError: A newer driver has taken over. Reply to nothing any more, and stop.
            OwnershipError: This process is a fork of the driver.
            StorageFullError: Too much waits in memory already; these records were not taken.

        Durability:
            Records up to `written_seq` survive any ``kill -9``; those up to `synced_seq` a power cut.
        """
        self._check_owner()
        writer = self._writer
        if not payloads:
            return writer.last_seq
        with self._lock:
            self._check_fence()
            if writer.wants_rotation:
                writer.rotate()
            writer.queue(payloads)
            writer.drain()
            self._check_fence()
            if self._dirty_since == math.inf and writer.dirty:
                self._dirty_since = time.monotonic()
                self._changed.notify_all()
        if self._durability == "sync" or writer.overdue:
            self._sync_fenced()
        return writer.last_seq

    def flush(self) -> bool:
        """Try once more to write what waits in memory.

        Returns:
            Whether nothing waits any more.

        Raises:
            FencedError: A newer driver has taken over.
        """
        self._check_owner()
        with self._lock:
            self._check_fence()
            done = self._writer.drain()
            self._check_fence()
        if self._durability == "sync":
            return self._sync_fenced() and done
        self.request_sync()
        return done

    def request_sync(self) -> None:
        """Let the sync thread make everything written so far durable now instead of soon."""
        self._check_owner()
        with self._lock:
            if self._writer.dirty:
                self._sync_requested = True
                self._changed.notify_all()

    def request_durable(self, seq: int) -> None:
        """Let record ``seq`` reach the place where the experiment lives: here, where `request_sync` does that."""

    def wait_synced(self, seq: int, timeout: float | None = None) -> bool:
        """Wait until record ``seq`` is durable.

        Args:
            seq: Number of the record.
            timeout: Longest wait in seconds; None waits for ever.

        Returns:
            Whether it is.
        """
        self._check_owner()
        if self._thread is None:
            self.sync()
            return self.synced_seq >= seq
        with self._lock:
            self._sync_requested = self._sync_requested or self._writer.dirty
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self.synced_seq >= seq or self._bug is not None, timeout)

    def sync(self) -> bool:
        """Make everything written so far durable, in the calling thread.

        Returns:
            Whether that worked. If not, the sync thread, or the next call, tries again.
        """
        self._check_owner()
        writer = self._writer
        with self._lock:
            target = writer.written_seq
            self._sync_requested = False
            self._dirty_since = math.inf
            ticket = writer.begin_sync()
            if ticket is None and writer.dirty:
                writer.replace()
        if ticket is not None:
            crashpoint("journal.before_sync")
            try:
                ticket.file.sync()
            except OSError as error:
                with self._lock:
                    writer.fail_sync(ticket, error)
            else:
                crashpoint("journal.after_sync")
                with self._lock:
                    writer.end_sync(ticket)
        with self._lock:
            if writer.dirty and self._dirty_since == math.inf:
                self._dirty_since = time.monotonic()
            self._changed.notify_all()
        if self._thread is None:
            self._tell()
        return writer.synced_seq >= target

    def _sync_fenced(self) -> bool:
        """Sync, and look for a successor once more: where others share the disk, they see only what was synced."""
        done = self.sync()
        self._check_fence()
        return done

    def close(self, *, release: bool = True) -> None:
        """Write and sync what is left, stop, and let the next driver in. Closing twice is allowed.

        Args:
            release: Whether to give up the claim too.

        Raises:
            StorageError: Some records could not be made durable; the message counts them.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self.fenced = self.fenced or self._disk.exists(self._fence)
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
            if not self.fenced:
                self._writer.drain()
        if self._thread is not None:
            self._thread.join()
        self.sync()
        self._tell()
        self._closed = True
        self._writer.close()
        if self.fenced:
            return
        if release:
            epochs.release(self._root, self.claim, end=self._end(), disk=self._disk)
        missing = self._writer.last_seq - self.synced_seq
        if missing:
            raise _storage_error(
                self.blocked, f"The last {missing} records of the journal of {self._root} are not durable"
            )

    def _check_owner(self) -> None:
        # A fork shares the file and its offset but not the thread and not what we know: it would write the
        # same record numbers a second time.
        if os.getpid() != self._pid:
            raise OwnershipError(
                f"Process {os.getpid()} is a fork of the driver {self._pid}: only the driver itself may write the "
                f"journal of {self._root}. Report results with tune.report() from the trial instead."
            )
        if self._closed or self._bug is not None:
            raise InternalError(
                f"The journal of {self._root} is not open for writing any more"
                + (f": {self._bug!r}. What was recorded is safe." if self._bug else ": it was closed.")
            ) from self._bug

    def _check_fence(self) -> None:
        if self.fenced or self._disk.exists(self._fence):
            self.fenced = True
            raise epochs.fenced_error(self._root, self.claim, disk=self._disk)

    def _sync_loop(self) -> None:
        beat_at = time.monotonic() + HEARTBEAT_S
        try:
            while True:
                with self._lock:
                    while not self._stopping and not self._sync_requested and self.synced_seq <= self._told:
                        pause = min(self._dirty_since + GROUP_COMMIT_S, beat_at) - time.monotonic()
                        if pause <= 0:
                            break
                        self._changed.wait(pause)
                    now = time.monotonic()
                    must_sync = self._sync_requested or now >= self._dirty_since + GROUP_COMMIT_S
                if self._stopping:
                    return
                if must_sync:
                    self.sync()
                self._tell()
                if now >= beat_at:
                    beat_at = now + HEARTBEAT_S
                    self._beat()
        except Exception as error:
            _log.exception("the journal's sync thread has failed; nothing more is written")
            with self._lock:
                self._bug = error
                self._changed.notify_all()

    def _tell(self) -> None:
        if self.synced_seq > self._told:
            self._told = self.synced_seq
            if self.on_synced is not None:
                self.on_synced(self._told)
            self._publish()

    def _publish(self) -> None:
        position = self._durable_position()
        if position is not None:
            durable_mark.publish(self._root, self.claim, position, self._disk)

    def _end(self) -> bytes:
        position = self._durable_position()
        return b"" if position is None else encode_position(position)

    def _durable_position(self) -> Position | None:
        with self._lock:
            position = self._writer.durable_position
        # Not while the name of a new segment may still be lost.
        return position if position.next_seq == self.synced_seq + 1 else None

    def _beat(self) -> None:
        try:
            self.fenced = self.fenced or self._disk.exists(self._fence)
            epochs.beat(self._root, self.claim, disk=self._disk)
        except OSError as error:
            # Only politeness suffers: on another machine we might be taken for dead.
            _log.debug("the heartbeat failed: %s", error)


def _storage_error(error: OSError | None, what: str) -> StorageError:
    kind = StorageFullError if error is not None and is_full(error) else StorageError
    return kind(
        f"{what}: {error}. Everything recorded before is safe. Free space or repair the disk, then restore the "
        f"experiment."
    )
