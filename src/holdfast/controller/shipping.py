"""What the loop sees of a journal that is shipped, and what must be in the store before a part of it may be.

Owns the meaning of "durable" for an experiment in a store: a record is when it is there. Decides nothing about waiting:
the driver asks ``why_give_up``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from holdfast.checkpoints.keeper import Delete, Job
from holdfast.errors import FencedError, OwnershipError, StorageError, StoreDeniedError
from holdfast.journal.log import Journal
from holdfast.journal.reader import Position
from holdfast.journal.shipper import Shipper
from holdfast.storage.store import Fetching, Sending, Stat, Store

DENIED_S = 60.0
"""A store that refuses for so long will not change its mind by itself."""

SYNC_REPLY_S = 5.0  # how long an append of durability="sync" waits before the loop says why nothing happens


class ShippedJournal:
    """The journal of an experiment in a store, for the loop: what is in the store counts as synced."""

    def __init__(self, journal: Journal, shipper: Shipper, place: tuple[str, str], *, sync: bool) -> None:
        """Join the two.

        Args:
            journal: The mirror's.
            shipper: What ships it.
            place: The mirror, and the address that a person knows the experiment by.
            sync: Whether an append waits for the store.
        """
        self._journal = journal
        self._shipper = shipper
        self._mirror, self._url = place
        self._sync = sync
        self.hopeless: Callable[[], StorageError | None] = lambda: None
        """Asked while an append waits for the store: the error to end with, if there is no use in waiting."""

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
            raise told_of(self._url, self._mirror, error) from None
        if self._sync:
            self._journal.request_sync()
            self._shipper.wait_shipped(seq, SYNC_REPLY_S)
        return seq

    def flush(self) -> bool:
        try:
            done = self._journal.flush()
        except FencedError as error:
            raise told_of(self._url, self._mirror, error) from None
        if self._shipper.fenced:
            raise taken_over(self._url)
        if not self._sync:
            return done
        if done and self._shipper.wait_shipped(self._journal.written_seq, SYNC_REPLY_S):
            return True
        hopeless = self.hopeless()
        if hopeless is not None:
            raise hopeless
        return False

    def request_sync(self) -> None:
        self._journal.request_sync()
        self._shipper.request(self._journal.written_seq)

    def wait_synced(self, seq: int, timeout: float | None = None) -> bool:
        return self._journal.wait_synced(seq, timeout) and self._shipper.wait_shipped(seq, timeout)


def taken_over(url: str) -> FencedError:
    """The error for a driver whose number of the next part was somebody else's."""
    return FencedError(f"The experiment {url} was taken over by a newer driver; this one must stop.")


E = TypeVar("E", bound=OwnershipError)


def told_of(url: str, mirror: str | os.PathLike[str], error: E) -> E:
    """The same error, in words of the experiment's address: nobody should restore a mirror by its path."""
    error.args = (str(error).replace(os.fspath(mirror), url), *error.args[1:])
    return error


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
    return f"the store has been {trouble.kind} for {lasted:.0f} s: {trouble.error}"


class Setbacks:
    """Checkpoints that the store does not take, or give: since when, and what it last said. For several threads."""

    def __init__(self) -> None:
        self._since: dict[tuple[int, int], float] = {}
        self._last: dict[tuple[int, int], tuple[float, StorageError]] = {}

    def note(self, job: Job, trouble: StorageError | None) -> None:
        """A job has ended, well or not."""
        key = (job.n, job.index)
        if trouble is None or isinstance(job, Delete):  # a deletion is left to the next driver
            self._last.pop(key, None)
            self._since.pop(key, None)
        else:
            now = time.monotonic()
            self._since.setdefault(key, now)
            self._last[key] = (now, trouble)

    def why_give_up(self, timeout_s: float) -> str:
        """Why it makes no sense to try again; "" if it does."""
        for key, (at, error) in list(self._last.items()):
            # Up to its last failure: one that was replaced by a newer checkpoint meanwhile is tried no more.
            lasted = at - self._since.get(key, at)
            if lasted >= patience_s(error, timeout_s):
                return f"the store has not done its part for a checkpoint for {lasted:.0f} s: {error}"
        return ""


class ObjectsFirst:
    """A store for the shipper: before a part is created, the files that its records refer to are there.

    Values of a search space and callbacks' states are files below ``.holdfast/objects``, written before the record that
    names them. Their number is small and they rarely change, so looking at all of them is cheap.
    """

    def __init__(self, store: Store, root: str | os.PathLike[str], directory: str = ".holdfast/objects") -> None:
        self._store = store
        self._root = os.fspath(root)
        self._directory = directory
        self._sent: dict[str, tuple[int, int]] = {}

    def create(self, key: str, data: bytes) -> bool:
        self._send_new(key)
        return self._store.create(key, data)

    def _send_new(self, part: str) -> None:
        """Send every file that has changed since it was last sent, unless the part is somebody else's by now."""
        found = self._scan()
        changed = [key for key, facts in found.items() if self._sent.get(key) != facts]
        if changed and self._store.stat(part) is None:
            self._store.send([Sending(os.path.join(self._root, key), key) for key in changed])
            self._sent.update((key, found[key]) for key in changed)

    def note_there(self) -> None:
        """Do not send again what the store has; a file that was replaced is sent by whoever replaced it."""
        there = {stat.key: stat.size for stat in self._store.list(f"{self._directory}/")}
        self._sent = {key: facts for key, facts in self._scan().items() if there.get(key) == facts[0]}

    def _scan(self) -> dict[str, tuple[int, int]]:
        found = {}
        try:
            with os.scandir(os.path.join(self._root, self._directory)) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                        facts = entry.stat(follow_symlinks=False)
                        found[f"{self._directory}/{entry.name}"] = (facts.st_size, facts.st_mtime_ns)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StorageError(f"{self._root}/{self._directory} cannot be read: {error}") from error
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

    def fetch(self, files: Sequence[Fetching]) -> Sequence[str]:
        return self._store.fetch(files)

    def abort_stale(self, prefix: str) -> int:
        return self._store.abort_stale(prefix)

    def close(self) -> None:
        self._store.close()
