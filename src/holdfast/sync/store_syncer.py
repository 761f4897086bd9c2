"""A syncer over the built-in stores: what ``storage_path`` accepts, as ``sync_up``, ``sync_down`` and ``delete``.

For users who copy directories themselves; an experiment needs no syncer to be in a store. Owns which files of a
directory are known to be unchanged in the remote copy. Must never delete what it was not asked to.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, Self

from holdfast.errors import InvalidInputError, SyncError
from holdfast.space.naming import is_inside
from holdfast.storage.address import Address, join_address, parse
from holdfast.storage.agent_client import connect
from holdfast.storage.store import Fetching, Sending, Stat, Store
from holdfast.sync.directories import delete_by_address
from holdfast.sync.syncer import BackgroundSyncer

BATCH = 256
"""Files that are sent or fetched before it is looked whether the copy was given up."""


_Facts = tuple[int, int, int, int]
"""What tells whether a local file is still the one that was copied: inode, size, and both times of its last change,
because anybody can set back the one that tools show."""


class StoreSyncer(BackgroundSyncer):
    """Copies to and from object stores and plain directories, by the addresses that ``storage_path`` takes.

    A file that this object has copied, and that has not changed since at either end, is not copied again. Links are
    followed. Nothing is deleted by a copy.

    Example:
        >>> syncer = StoreSyncer()
        >>> syncer.sync_up("checkpoints", f"{tmp}/backup")
        True
        >>> syncer.wait()

    Args:
        sync_period: As for `Syncer`.
        sync_timeout: As for `Syncer`.
    """

    _same: dict[tuple[str, str], dict[str, tuple[_Facts, Stat]]]
    _stores: dict[str, Store]
    _pid: int
    _transient = BackgroundSyncer._transient | {"_same", "_stores", "_pid"}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._same = {}
        self._stores = {}
        self._pid = os.getpid()
        return self

    def copy_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None) -> None:
        """Upload what has changed."""
        directory = os.path.abspath(local_dir)
        if not os.path.isdir(directory):
            raise SyncError(f"{local_dir} is not a directory, so nothing was copied to {remote_dir}.")
        store = self._store(remote_dir)
        known = self._same.setdefault((remote_dir, directory), {})
        found = {rel: facts for rel, facts in _files_below(directory) if not _is_left_out(rel, exclude)}
        changed = [rel for rel, facts in found.items() if rel not in known or known[rel][0] != facts]
        for batch in self._batches(changed):
            store.send([Sending(os.path.join(directory, rel), rel) for rel in batch])
        if changed:
            # What is remembered is not sent again while the local file stays as it is. So an object that another
            # process has removed or replaced meanwhile would stay wrong, and each later copy would claim success. The
            # same comparison finds a file that changed while it was sent: this copy is not what was asked for.
            stored = {one.key: one for one in store.list("")}
            for rel in changed:
                if rel not in stored or stored[rel].size != found[rel][1]:
                    raise SyncError(f"{os.path.join(directory, rel)} was changed while it was copied to {remote_dir}.")
                known[rel] = (found[rel], stored[rel])

    def copy_down(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None) -> None:
        """Download what has changed. Nothing at the other end is no failure: then nothing is copied."""
        directory = os.path.abspath(local_dir)
        os.makedirs(directory, exist_ok=True)
        store = self._store(remote_dir)
        stored = {one.key: one for one in store.list("") if not _is_left_out(one.key, exclude)}
        known = self._same.setdefault((remote_dir, directory), {})
        changed = [
            key for key, one in stored.items() if known.get(key) != (_facts_of(os.path.join(directory, key)), one)
        ]
        for batch in self._batches(changed):
            store.fetch([Fetching(key, _inside(directory, key)) for key in batch])
        for key in changed:
            facts = _facts_of(os.path.join(directory, key))
            if facts is not None:
                known[key] = (facts, stored[key])

    def remove(self, remote_dir: str) -> None:
        """Delete a directory; what is not there counts as deleted."""
        address = _address(remote_dir)
        gone = f"{address.url}/"
        for (place, _), known in self._same.items():
            for rel in [rel for rel in known if _address(join_address(place, rel)).url.startswith(gone)]:
                del known[rel]
        if address.is_local:
            delete_by_address(address.path)
            return
        with contextlib.closing(connect(address)) as store:
            store.delete([one.key for one in store.list("")])

    def close(self) -> None:
        """Give up what runs, and let go of the stores."""
        super().close()
        stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()

    def _store(self, remote_dir: str) -> Store:
        if self._pid != os.getpid():  # a fork: the connections are its parent's
            self._stores, self._pid = {}, os.getpid()
        if remote_dir not in self._stores:
            self._stores[remote_dir] = connect(_address(remote_dir))
        return self._stores[remote_dir]

    def _batches(self, names: list[str]) -> Iterator[list[str]]:
        for at in range(0, len(names), BATCH):
            if self.given_up:
                raise SyncError("The copy was given up.")
            yield names[at : at + BATCH]


def get_cloud_sync_client(remote_dir: str) -> StoreSyncer:
    """The syncer for an address; an older name.

    Raises:
        InvalidInputError: Its scheme is not known.
    """
    _address(remote_dir)
    return StoreSyncer()


def _address(remote_dir: str) -> Address:
    try:
        return parse(remote_dir)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"Upload uri must start with one of s3://, gs://, az:// and file://, or be a path; got {remote_dir!r}. "
            "For other places override _create_storage_client(), or give SyncConfig a syncer of your own."
        ) from error


def _files_below(
    directory: str, prefix: str = "", above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[tuple[str, _Facts]]:
    """All files, links followed, by their paths relative to the top. What leads nowhere, or in a circle, has none."""
    top = os.stat(directory)
    above |= {(top.st_dev, top.st_ino)}
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        path, rel = os.path.join(directory, name), prefix + name
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(path)
            if stat.S_ISREG(found.st_mode):
                yield rel, _facts(found)
            elif stat.S_ISDIR(found.st_mode) and (found.st_dev, found.st_ino) not in above:
                yield from _files_below(path, f"{rel}/", above)


def _facts(found: os.stat_result) -> _Facts:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _facts_of(path: str) -> _Facts | None:
    try:
        return _facts(os.stat(path))
    except OSError:
        return None


def _inside(directory: str, key: str) -> str:
    """Where an object belongs; a name in a store is not to be trusted to stay below the directory."""
    if not is_inside(key):
        raise SyncError(f"The object {key!r} cannot become a file below {directory}.")
    return os.path.join(directory, key)


def _is_left_out(rel: str, exclude: Sequence[str] | None) -> bool:
    return any(fnmatch.fnmatch(rel, pattern) for pattern in exclude or ())
