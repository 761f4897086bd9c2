"""The shipper: uploads the durable part of the local journal to the store, part by part.

A part is created under the next number, create-only. If another driver has taken that number, this one was taken over:
the successor's epoch file is put into the mirror, and the local fence stops this driver at its next append (I4).

Owns the thread, the numbers and the retries. It never stops retrying by itself: `Shipper.trouble` says what is wrong
and since when, and the driver decides how long to wait. Must never upload what is not fsynced locally, and must never
rebuild a part after it was offered to the store: only identical bytes distinguish a lost answer from another driver's
part.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from holdfast.core.backoff import Backoff
from holdfast.errors import (
    DamageError,
    FencedError,
    NewerFormatError,
    ObjectMissingError,
    StorageError,
    StoreDeniedError,
)
from holdfast.journal import epoch as epochs
from holdfast.journal.claims import Claim
from holdfast.journal.identity import uid_of
from holdfast.shipping import parts
from holdfast.shipping.merging import KEPT, MERGED, Merger
from holdfast.shipping.parts import PartHeader, Piece
from holdfast.shipping.pending import Batch, PendingRecords
from holdfast.shipping.progress_file import Shipped, write_note
from holdfast.shipping.remote_holder import SHIPPED_BEAT_S
from holdfast.shipping.takeover import let_in
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.digest import digest_of
from holdfast.storage.local import REAL_DISK, Disk
from holdfast.storage.store import Store, create_once

PERIOD_S = 1.0
"""Records wait this long for company, unless somebody waits for them."""

HEARTBEAT_S = SHIPPED_BEAT_S
"""A part is created at least this often, to show that the driver lives."""

MARK_S = 600.0
"""How often an object says which parts there are, besides at the end."""

LEAVING_S = 30.0
RETRY = Backoff(first_s=0.5, longest_s=8.0)

_LOOKS = 4  # a period; how often the local journal is asked whether there is something new
_MAX_MARKS = 512
_log = logging.getLogger("holdfast.journal")


class ShipperClock(Protocol):
    """Time that never runs backwards, and a way to let it pass."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class MonotonicClock:
    """The machine's."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ShippableJournal(Protocol):
    """What the shipper has to know of the local journal."""

    @property
    def synced_seq(self) -> int:
        """Last record that is durable on the local disk."""


class ShipStart(NamedTuple):
    """Where a driver that has claimed the experiment begins to ship.

    Attributes:
        root: The mirror.
        claim: The right under which it ships.
        shipped: What is in the store, its claim included.
    """

    root: str
    claim: Claim
    shipped: Shipped


class ShippingTrouble(NamedTuple):
    """Why nothing arrives in the store.

    Attributes:
        kind: "unreachable" (wait), "denied" (somebody has to act), "mirror" (the local journal cannot be read), "bug".
        since: When it began, by the shipper's clock.
        error: The latest one.
    """

    kind: Literal["unreachable", "denied", "mirror", "bug"]
    since: float
    error: Exception


class _Outgoing(NamedTuple):
    header: PartHeader
    data: bytes
    batch: Batch


class Shipper:
    """Ships one experiment for one driver, from `claim_remote` to `close`.

    Attributes:
        fenced: Whether a newer driver has taken over.
        trouble: What is wrong at present, or None.
        on_shipped: Called with `shipped_seq` after that has grown.
        on_fenced: Called once, with the successor's claim if it is known.
        on_trouble: Called with `trouble` when that has begun, changed its kind, or ended (None).

    The three are called from the shipper's thread.
    """

    def __init__(
        self,
        store: Store,
        journal: ShippableJournal,
        start: ShipStart,
        *,
        period_s: float = PERIOD_S,
        heartbeat_s: float = HEARTBEAT_S,
        merging: tuple[int, int] = (MERGED, KEPT),
        clock: ShipperClock | None = None,
        disk: Disk = REAL_DISK,
    ) -> None:
        """Take up the work where the claim has left it. `start` begins the thread.

        Args:
            store: Where to.
            journal: The local journal, open for writing under the same claim.
            start: From `claim_remote`.
            period_s: Longest time that a record waits for company.
            heartbeat_s: Longest time without a part.
            merging: How many parts are merged at a time, and how many of the newest stay single.
            clock: Whose time counts.
            disk: Where the mirror is.

        Raises:
            JournalDamagedError: The local journal is damaged.
        """
        self.fenced = False
        self.trouble: ShippingTrouble | None = None
        self.on_shipped: Callable[[int], None] | None = None
        self.on_fenced: Callable[[Claim | None], None] | None = None
        self.on_trouble: Callable[[ShippingTrouble | None], None] | None = None
        self._store = store
        self._journal = journal
        self._root = start.root
        self._claim = start.claim
        self._period_s = period_s
        self._heartbeat_s = heartbeat_s
        self._clock = clock or MonotonicClock()
        self._disk = disk
        self._merge_every = merging[0]
        self._merger = Merger(store, start.root, size=merging[0], kept=merging[1])
        self._merging: threading.Thread | None = None
        self._pending = PendingRecords(start.root, disk, start.claim, start.shipped)
        self._number = start.shipped.number
        self._prev = start.shipped.prev
        self._outgoing: _Outgoing | None = None
        self._more = False
        self._uid = uid_of(start.root, disk)
        self._marked = 0  # the part of which this driver has said last that it is there
        self._marked_at = self._last_put = self._clock.now()
        self._retry_at, self._failures = -math.inf, 0  # failures in a row
        self._marks: list[tuple[int, float]] = []  # up to which record the journal was synced, and when that was seen
        # The lock guards what other threads ask and tell: `shipped_seq`, `_wanted`, `_news`, `_marks`, `_stopping`.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._shipped_seq = self._pending.seq
        self._wanted = 0
        self._news = False
        self._stopping = False
        self._released = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    # ------------------------------------------------------------------------------------------- asking

    @property
    def shipped_seq(self) -> int:
        """Last record that is in the store: it survives the loss of this machine."""
        return self._shipped_seq

    @property
    def lag_s(self) -> float:
        """How long the oldest record that is durable here has been waiting to be in the store."""
        with self._lock:
            waiting = next((at for seq, at in self._marks if seq > self._shipped_seq), None)
        return 0.0 if waiting is None else max(0.0, self._clock.now() - waiting)

    def request(self, seq: int) -> None:
        """Let everything up to record ``seq`` be shipped as soon as it is durable here, instead of soon."""
        with self._lock:
            self._wanted = max(self._wanted, seq)
        self.look()

    def look(self) -> None:
        """Tell the thread that more is durable here: what somebody waits for need not wait until it looks by itself."""
        with self._lock:
            self._news = True
            self._changed.notify_all()

    def wait_shipped(self, seq: int, timeout: float | None = None) -> bool:
        """Wait until record ``seq`` is in the store. Let the journal sync it first.

        Args:
            seq: Number of the record.
            timeout: Longest wait in seconds; None waits for ever.

        Returns:
            Whether it is. False before the time is over if it never will be: fenced, closed, or a bug.
        """
        self.request(seq)
        with self._lock:
            self._changed.wait_for(
                lambda: self._shipped_seq >= seq or self.fenced or self._stopping or self._is_bug(), timeout
            )
            return self._shipped_seq >= seq

    @property
    def next_key(self) -> str:
        """The key of the next part; if there is one, somebody else has continued."""
        return parts.part_key(self._number + 1)

    def is_overtaken(self) -> bool:
        """Ask the store whether somebody else has continued: for what is written there without a number.

        Raises:
            StorageError: The store does not answer, or refuses.
        """
        number = self._number + 1
        while not self.fenced:
            key = parts.part_key(number)
            try:
                found = parts.decode_parts(self._store.get(key), key)
            except ObjectMissingError:
                # Our own may have arrived without an answer, and have been merged and deleted since; a claim never is.
                return self._store.stat(parts.part_key(number + 1)) is not None
            except (DamageError, NewerFormatError):
                return True  # ours would be readable
            if found[0].header.by.writer != self._claim.writer:
                return True
            number += 1  # our own, whose answer has not come yet: whoever was let in meanwhile is behind it
        return True

    # ------------------------------------------------------------------------------------------- working

    def start(self) -> None:
        """Begin the thread."""
        self._thread = threading.Thread(target=self._loop, name="holdfast-shipper", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        try:
            while not self._stopping:
                with self._lock:
                    self._news = False
                pause = self.step()
                with self._lock:
                    # Others notify too, of what was shipped; only news from outside is worth a step.
                    self._changed.wait_for(lambda: self._stopping or self._news, min(pause, threading.TIMEOUT_MAX))
        except Exception as error:
            _log.exception("nothing more is shipped to %s; its mirror %s is complete", self._store.url, self._root)
            self._set_trouble(ShippingTrouble("bug", self._clock.now(), error))
            with self._lock:
                self._changed.notify_all()

    def step(self) -> float:
        """Create the next part if it is time for it.

        Returns:
            How many seconds there will be nothing to do, if nobody requests something.

        Durability:
            What `shipped_seq` counts is in the store.
        """
        if self.fenced or self._released:
            return math.inf
        now = self._clock.now()
        synced = self._journal.synced_seq
        self._mark(synced, now)
        if now < self._retry_at:
            return self._retry_at - now
        if self._outgoing is None and not self._is_due(synced, now):
            return self._pause(synced, now)
        self._attempt(synced)
        now = self._clock.now()
        return max(0.0, self._retry_at - now) if self.trouble is not None else self._pause(synced, now)

    def close(self, *, release: bool = True, deadline_s: float = LEAVING_S) -> bool:
        """Ship what is left, tell the next driver that it may come, and stop. Closing twice is allowed.

        Close the journal first: what it syncs later is not shipped.

        Args:
            release: Whether to let go of the experiment too.
            deadline_s: How long to try. A request under way may take longer.

        Returns:
            Whether everything that is durable here is in the store.
        """
        if os.getpid() != self._pid:
            return False
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(deadline_s)
            if self._thread.is_alive():  # in a request that the store does not answer
                return False
            self._thread = None
        end = self._clock.now() + deadline_s
        while not self.fenced and not self._released and not self._is_bug():
            synced = self._journal.synced_seq
            self._mark(synced, self._clock.now())
            if self._outgoing is None and synced <= self._shipped_seq and not release:
                break
            self._attempt(synced, release=release)
            if self.trouble is not None:
                if self._retry_at > end:
                    break
                self._clock.sleep(max(0.0, self._retry_at - self._clock.now()))
        if self._merging is not None:
            self._merging.join(max(0.0, end - self._clock.now()))
        return not self.fenced and self._shipped_seq >= self._journal.synced_seq

    def _is_due(self, synced: int, now: float) -> bool:
        if now >= self._last_put + self._heartbeat_s:
            return True
        if synced <= self._shipped_seq:
            return False
        return self._more or self._wanted > self._shipped_seq or now >= self._last_put + self._period_s

    def _pause(self, synced: int, now: float) -> float:
        if self._is_due(synced, now):
            return 0.0
        look = self._period_s / _LOOKS
        if self._wanted > self._shipped_seq:
            look /= _LOOKS
        due = self._heartbeat_s if synced <= self._shipped_seq else self._period_s
        return max(0.0, min(look, self._last_put + due - now))

    def _mark(self, synced: int, now: float) -> None:
        with self._lock:
            marks = [mark for mark in self._marks if mark[0] > self._shipped_seq]
            if synced > (marks[-1][0] if marks else self._shipped_seq):
                marks.append((synced, now))
            if len(marks) > _MAX_MARKS:  # a long outage: keep half of them, and rather say "older"
                marks = [(late[0], early[1]) for early, late in zip(marks[::2], marks[1::2], strict=False)] + (
                    marks[-1:] if len(marks) % 2 else []
                )
            self._marks = marks

    def _attempt(self, synced: int, *, release: bool = False) -> None:
        try:
            # The same bytes each time: after a lost answer, other ones would make our own part look a successor's.
            if self._outgoing is None:
                self._outgoing = self._pack(synced, release)
            self._put(self._outgoing)
        except FencedError:
            self._be_fenced(None)
        except (DamageError, NewerFormatError, OSError) as error:
            self._stumble(error)
        else:
            self._failures, self._retry_at = 0, -math.inf
            self._set_trouble(None)

    def _pack(self, synced: int, release: bool) -> _Outgoing:
        if self._disk.exists(epochs.fence_path(self._root, self._claim)):
            raise epochs.fenced_error(self._root, self._claim, disk=self._disk)
        batch = self._pending.collect(synced)
        pieces = batch.pieces
        release = release and not batch.more
        if release:
            # The mirror's own mark comes later, or never if the disk is full.
            pieces = [*pieces, Piece(f".holdfast/epochs/{self._claim.epoch:08d}.released", 0, 0)]
        header = PartHeader(
            number=self._number + 1,
            by=self._claim,
            at=time.time(),
            prev=self._prev,
            seq=batch.seq,
            released=release,
            pieces=pieces,
            uid=self._uid,
        )
        return _Outgoing(header, parts.encode_part(header, batch.body), batch)

    def _put(self, outgoing: _Outgoing) -> None:
        header, data, batch = outgoing
        crashpoint("ship.before_put")
        foreign = create_once(self._store, parts.part_key(header.number), data)
        if foreign is not None:
            self._outgoing = None
            self._be_fenced(foreign)
            return
        crashpoint("ship.after_put")
        self._outgoing = None
        self._number, self._prev = header.number, digest_of(data)
        self._last_put = self._clock.now()
        self._more = batch.more
        self._released = header.released
        self._pending.shipped(batch)
        crashpoint("ship.before_note")
        # After the part, never before it: a note of a part that is not in the store says that the store has lost it.
        write_note(self._root, Shipped(self._number, self._prev, self._pending.seq, self._pending.files))
        grown = self._pending.seq > self._shipped_seq
        with self._lock:
            self._shipped_seq = self._pending.seq
            self._changed.notify_all()
        if grown and self.on_shipped is not None:
            self.on_shipped(self._shipped_seq)
        if header.released or self._last_put >= self._marked_at + MARK_S:
            self._say_which()
        if self._number % self._merge_every == 0:
            self._merge()

    def _say_which(self) -> None:
        """Say that the newest part is there, so that it is missed if it ever is not. If that fails, nobody is told."""
        before, self._marked_at = self._marked, self._clock.now()
        try:
            # The older mark goes last: two of them do no harm, and without any nobody would notice that parts are lost.
            self._store.put(parts.mark_key(self._number), b"")
            self._marked = self._number
            if before:
                self._store.delete([parts.mark_key(before)])
        except OSError as error:
            _log.debug("the newest part of %s is not marked: %s", self._store.url, error)

    # ------------------------------------------------------------------------------------------- trouble

    def _stumble(self, error: DamageError | NewerFormatError | OSError) -> None:
        now = self._clock.now()
        kind: Literal["unreachable", "denied", "mirror"] = "mirror"
        if isinstance(error, StoreDeniedError):
            kind = "denied"
        elif isinstance(error, StorageError):
            kind = "unreachable"
        since = self.trouble.since if self.trouble is not None and self.trouble.kind == kind else now
        self._failures += 1
        self._retry_at = now + RETRY.delay_s(self._failures)
        self._set_trouble(ShippingTrouble(kind, since, error))

    def _set_trouble(self, trouble: ShippingTrouble | None) -> None:
        before, self.trouble = self.trouble, trouble
        if (before and before.kind) != (trouble and trouble.kind) and self.on_trouble is not None:
            self.on_trouble(trouble)

    def _is_bug(self) -> bool:
        return self.trouble is not None and self.trouble.kind == "bug"

    def _be_fenced(self, foreign: bytes | None) -> None:
        successor = None
        if foreign is not None:
            try:
                successor = let_in(self._root, self._claim, foreign, parts.part_key(self._number + 1), self._disk)
            except OSError as error:
                text = "%s was taken over, and its mirror %s does not take the successor's claim: %s"
                _log.error(text, self._store.url, self._root, error)
        with self._lock:
            self.fenced = True
            self._changed.notify_all()
        if self.on_fenced is not None:
            self.on_fenced(successor)

    def _merge(self) -> None:
        if self._thread is None:
            self._merge_now()
        elif self._merging is None or not self._merging.is_alive():
            self._merging = threading.Thread(target=self._merge_now, name="holdfast-merger", daemon=True)
            self._merging.start()

    def _merge_now(self) -> None:
        try:
            self._merger.run()
        except (DamageError, NewerFormatError, OSError) as error:
            _log.warning("the parts in %s could not be merged, nothing is lost: %s", self._store.url, error)
