"""The journal of an experiment in a remote store, as the loop sees it, and what must be uploaded before a part of it.

Owns the meaning of "durable" for an experiment in a store: a record is durable when it is in the store. Does not decide
how long to wait: the driver asks ``why_give_up``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from holdfast.checkpoints.jobs import DeleteJob, Job
from holdfast.controller.fenced_uploads import FencedUploads
from holdfast.errors import FencedError, JournalDamagedError, OwnershipError, StorageError, StoreDeniedError
from holdfast.journal.log import Journal
from holdfast.journal.reader import Position
from holdfast.shipping import parts
from holdfast.shipping.shipper import Shipper, ShippingTrouble
from holdfast.storage.layout import OBJECTS, Root
from holdfast.storage.store import Fetching, Replaced, Replacing, Sending, Stat, Store

DENIED_S = 60.0
"""A store that refuses for so long will not change its mind by itself."""

SYNC_REPLY_S = 5.0  # how long an append of durability="sync" waits before the loop says why nothing happens
SYNC_RETRY_S = 0.5  # and then, until the loop looks whether it was told to end


class ShippedJournal:
    """The journal of an experiment in a store, for the loop: what is in the store counts as synced."""

    def __init__(self, journal: Journal, shipper: Shipper, url: str, *, sync: bool) -> None:
        """Join the two.

        Args:
            journal: The mirror's.
            shipper: What ships it.
            url: The address that a person knows the experiment by.
            sync: Whether an append waits for the store.
        """
        self._journal = journal
        self._shipper = shipper
        self._url = url
        self._sync = sync
        self.hopeless: Callable[[], StorageError | None] = lambda: None
        """Asked while an append waits for the store: the error to end with, if there is no use in waiting."""
        self.unshipped: Callable[[], StorageError] = journal.left_behind
        """The error to end with, although the store has not everything."""

    @property
    def blocked(self) -> OSError | None:
        trouble = self._shipper.trouble
        if self._journal.blocked is None and trouble is not None and isinstance(trouble.error, OSError):
            return trouble.error
        return self._journal.blocked

    @property
    def fenced(self) -> bool:
        return self._journal.fenced or self._shipper.fenced

    @property
    def written_seq(self) -> int:
        return self._journal.written_seq

    @property
    def accepted_seq(self) -> int:
        return self.synced_seq if self._sync else self._journal.accepted_seq

    @property
    def local_seq(self) -> int:
        return self._journal.local_seq

    @property
    def synced_seq(self) -> int:
        return min(self._journal.synced_seq, self._shipper.shipped_seq)

    @property
    def durable_seq(self) -> int:
        return self.synced_seq

    @property
    def position(self) -> Position:
        return self._journal.position

    def append(self, payloads: Sequence[bytes]) -> int:
        try:
            seq = self._journal.append(payloads)
        except FencedError as error:
            error.place = self._url  # nobody should restore a mirror by its path
            raise
        if self._sync:
            self._journal.request_sync()
            # Whether it arrived in time is not asked: the loop answers nobody before `accepted_seq` says so, and while
            # the store is silent it must be able to listen to signals and to name the trouble.
            self._shipper.wait_shipped(seq, SYNC_REPLY_S)
        return seq

    def flush(self) -> bool:
        try:
            done = self._journal.flush()
        except FencedError as error:
            error.place = self._url  # nobody should restore a mirror by its path
            raise
        if self._shipper.fenced:
            raise taken_over(self._url)
        if not self._sync:
            return done
        if done and self._shipper.wait_shipped(self._journal.written_seq, SYNC_RETRY_S):
            return True
        hopeless = self.hopeless()
        if hopeless is not None:
            raise hopeless
        return False

    def left_behind(self) -> StorageError:
        return self._journal.left_behind() if self._journal.blocked is not None else self.unshipped()

    def request_sync(self) -> None:
        self._journal.request_sync()
        self._shipper.request(self._journal.written_seq)

    def request_durable(self, seq: int) -> None:
        self._shipper.request(seq)

    def wait_synced(self, seq: int, timeout: float | None = None) -> bool:
        return self._journal.wait_synced(seq, timeout) and self._shipper.wait_shipped(seq, timeout)


def taken_over(url: str) -> FencedError:
    """The error for a driver whose number of the next part was somebody else's."""
    return FencedError(place=url)


@contextmanager
def naming_the_address(url: str) -> Iterator[None]:
    """Let errors from a local mirror name the experiment's address: nobody should restore a mirror by its path."""
    try:
        yield
    except OwnershipError as error:
        error.place = url if error.place else ""
        raise
    except (StorageError, JournalDamagedError) as error:
        error.mirror_of = url
        raise


def in_words(trouble: ShippingTrouble) -> str:
    """What a store, or the way to it, is like."""
    return {
        "unreachable": "is unreachable, everything waits on the local disk",
        "denied": "is denied, everything waits on the local disk",
        "mirror": "gets nothing, because its mirror on this machine cannot be read",
        "bug": "gets nothing, because of a bug in holdfast; everything is on the local disk",
    }[trouble.kind]


def patience_s(error: Exception | None, timeout_s: float) -> float:
    """How long to wait for a store that says this: for one that refuses not for ever, whatever the user's patience."""
    return min(DENIED_S, timeout_s) if isinstance(error, StoreDeniedError) else timeout_s


def why_give_up(shipper: Shipper, now: float, timeout_s: float) -> str:
    """Why it makes no sense to wait for the store any longer; "" if it does."""
    trouble = shipper.trouble
    if trouble is None:
        return ""
    lasted = now - trouble.since
    limit = timeout_s if trouble.kind == "unreachable" else DENIED_S if trouble.kind == "denied" else 0.0
    if lasted < limit:
        return ""
    if trouble.kind in ("unreachable", "denied"):
        return f"the store has been {trouble.kind} for {lasted:.0f} s: {trouble.error}"
    return f"the store {in_words(trouble)}: {trouble.error}"


class Setbacks:
    """Checkpoints that the store does not take, or give: since when, and what it last said. For several threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: dict[tuple[int, int], float] = {}
        self._last: dict[tuple[int, int], tuple[float, StorageError]] = {}

    def note(self, job: Job, trouble: StorageError | None) -> None:
        """A job has ended, well or not."""
        key = (job.n, job.index)
        if trouble is None or isinstance(job, DeleteJob):  # a deletion is left to the next driver
            self._last.pop(key, None)
            self._since.pop(key, None)
        else:
            now = self._now()
            self._since.setdefault(key, now)
            self._last[key] = (now, trouble)

    def why_give_up(self, timeout_s: float) -> str:
        """Why it makes no sense to try again; "" if it does."""
        for key, (at, error) in list(self._last.items()):
            # Up to its last failure: one that was replaced by a newer checkpoint meanwhile is tried no more.
            lasted = at - self._since.get(key, at)
            if lasted >= patience_s(error, timeout_s):
                return f"the store has not accepted a checkpoint for {lasted:.0f} s: {error}"
        return ""


class ObjectsFirst:
    """A store for the shipper: before a part is created, the files that its records refer to are there.

    Values of a search space and callbacks' states are files below ``.holdfast/objects``, written before the record that
    names them. Whoever writes one says so (`Root.object_written`), because there may be as many as trials: looking at
    all of them is for the beginning. May be used from several threads.
    """

    def __init__(self, store: Store, root: Root) -> None:
        self._store = store
        self._uploads = FencedUploads(store)
        self._root = root
        self._sent: dict[str, tuple[int, int]] = {}  # as they were when the store was seen to have them
        self._unsent: set[str] = set()
        self._one_at_a_time = threading.Lock()

    def create(self, key: str, data: bytes) -> bool:
        self.send_new(unless=key)
        return self._store.create(key, data)

    def send_new(self, *, unless: str) -> bool:
        """Send what was written since it was last sent, unless there is a part ``unless``. Whether nothing is left.

        The one after it is looked for too: a part of our own whose answer was lost may have been merged and deleted
        since, but never the claim of a successor.
        """
        new = self._root.new_objects
        with self._one_at_a_time:
            while new:
                self._unsent.add(new.popleft())
            found = [(name, self._root.objects / name) for name in sorted(self._unsent)]
            # A name stays unsent until an upload has returned: after one that failed, the next call sends it again.
            # One that somebody has removed must not keep everything else from being shipped.
            files = [Sending(str(path), f"{OBJECTS}/{name}") for name, path in found if path.is_file()]
            if self._uploads.send(files, is_void=lambda: self._has_one_of(unless, parts.next_key(unless))):
                self._unsent.clear()
            return not self._unsent

    def _has_one_of(self, *keys: str) -> bool:
        return any(self._store.stat(key) is not None for key in keys)

    def note_sent(self) -> None:
        """Do not send again what the store has; a file that was replaced is sent by whoever replaced it."""
        stored = {stat.key.rpartition("/")[2]: stat.size for stat in self._store.list(f"{OBJECTS}/")}
        self._sent = {name: facts for name, facts in self._scan().items() if stored.get(name) == facts[0]}

    def find_unsent(self) -> None:
        """Find what the store lacks: from a driver that was killed, or written since ``note_sent``."""
        self._unsent.update(name for name, facts in self._scan().items() if self._sent.get(name) != facts)
        self._sent.clear()

    def _scan(self) -> dict[str, tuple[int, int]]:
        found = {}
        try:
            with os.scandir(self._root.objects) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                        facts = entry.stat(follow_symlinks=False)
                        found[entry.name] = (facts.st_size, facts.st_mtime_ns)
        except FileNotFoundError:
            return {}
        except OSError as error:
            with naming_the_address(self.url):
                raise StorageError(f"{self._root.objects} cannot be read: {error}") from error
        return found

    @property
    def url(self) -> str:
        return self._store.url

    def put(self, key: str, data: bytes) -> None:
        self._store.put(key, data)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def stat(self, key: str) -> Stat | None:
        return self._store.stat(key)

    def list(self, prefix: str) -> list[Stat]:
        return self._store.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._store.delete(keys)

    def send(self, files: Sequence[Sending]) -> Sequence[str]:
        return self._store.send(files)

    def replace(self, files: Sequence[Replacing]) -> Sequence[Replaced]:
        return self._store.replace(files)

    def fetch(self, files: Sequence[Fetching]) -> Sequence[str]:
        return self._store.fetch(files)

    def abort_stale(self, prefix: str) -> int:
        return self._store.abort_stale(prefix)

    def close(self) -> None:
        self._store.close()
