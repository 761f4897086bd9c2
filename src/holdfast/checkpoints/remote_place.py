"""A checkpoint in a remote store: its address, and temporary local copies of its files.

Owns what ``Checkpoint`` does differently for a store. Never changes a checkpoint in a store, except its metadata.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoints import names, scratch
from holdfast.checkpoints.checkpoint_reader import quick_check
from holdfast.checkpoints.metadata import decode_metadata
from holdfast.checkpoints.read_locks import reading
from holdfast.checkpoints.remote_checkpoints import fetch
from holdfast.checkpoints.verified import ensure
from holdfast.errors import CheckpointDamagedError, InvalidInputError, ObjectMissingError, StorageError
from holdfast.space.naming import is_inside
from holdfast.storage.address import LOCAL, Address, is_remote, parse, type_of, within
from holdfast.storage.store import Fetching, Store

_log = logging.getLogger("holdfast.checkpoints")


class StoreFilesystem:
    """Stands for an object store in ``Checkpoint.filesystem`` where pyarrow is not installed."""

    def __init__(self, scheme: str, options: tuple[tuple[str, str], ...] = ()) -> None:
        self.type_name = scheme
        self._options = options

    @classmethod
    def at(cls, address: Address) -> StoreFilesystem:
        """The one that an address is in."""
        return cls(address.scheme, address.options)

    def shown(self) -> Any:
        """What a user gets: a ``pyarrow.fs.FileSystem`` over this store if pyarrow is installed."""
        try:
            from holdfast.checkpoints.pyarrow_store import filesystem_for
        except ModuleNotFoundError:
            return self
        return filesystem_for(self.type_name, self._options)

    def __eq__(self, other: object) -> bool:
        return getattr(other, "type_name", None) == self.type_name

    def __hash__(self) -> int:
        return hash(self.type_name)

    def __repr__(self) -> str:
        return f"StoreFilesystem({self.type_name!r})"


def is_remote_place(path: str, filesystem: Any) -> bool:
    """Whether this is a checkpoint of another place than the local file system."""
    if filesystem is not None:
        return type_of(filesystem) != LOCAL
    return is_remote(path)


class RemotePlace:
    """Where a checkpoint is in a store."""

    def __init__(self, path: str, filesystem: Any = None) -> None:
        own = isinstance(filesystem, StoreFilesystem) or filesystem is None
        whole = parse(path) if own else within(filesystem, path)
        parent, _, self.key = whole.path.rpartition("/")
        if not self.key:
            raise InvalidInputError(f"Checkpoint({path!r}): a checkpoint needs a name below its bucket.")
        self._address = msgspec.structs.replace(whole, path=parent)
        self._filesystem = None if own else filesystem
        self.stands_for = StoreFilesystem.at(whole) if own else filesystem
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        if self._store is None:
            from holdfast.storage.agent_client import connect

            self._store = connect(self._address, filesystem=self._filesystem)
        return self._store

    def exists(self) -> bool:
        """Whether there is anything at all."""
        return bool(self.store.list(f"{self.key}/"))

    def fetch_to(self, directory: Path, *, digest: str | None = None, verify: bool = True) -> None:
        """Make ``directory``, which must not exist, a copy; verified if the checkpoint has a manifest.

        Args:
            directory: The copy.
            digest: What the journal says the manifest's is; then there must be one.
            verify: Compare the files with the manifest.

        Raises:
            CheckpointDamagedError: It is not what was saved.
            StorageError: The store refuses or does not answer.
        """
        if verify and (digest or self.store.stat(f"{self.key}/{names.MANIFEST}") is not None):
            fetch(self.store, self.key, directory, expect_digest=digest)
        else:
            if verify and names.index_of(self.key) is not None:
                _log.warning("%s/%s has no manifest: damage cannot be detected.", self.store.url, self.key)
            self._fetch_unverified(directory)
        # Not one of the manifest's files: users set it after the commit, when the manifest cannot change any more,
        # because the journal has its digest. If that covered it, each `set_metadata` would make the checkpoint count as
        # damaged. The metadata has a checksum of its own.
        with contextlib.suppress(ObjectMissingError):
            (directory / names.METADATA).write_bytes(self.store.get(f"{self.key}/{names.METADATA}"))

    def _fetch_unverified(self, directory: Path) -> None:
        """Files that somebody put there without us."""
        found = self.store.list(f"{self.key}/")
        if not found:
            raise ObjectMissingError(f"there is nothing at {self.store.url}/{self.key}")
        inside = len(self.key) + 1
        for stat in found:
            if not is_inside(stat.key[inside:]):
                reason = f"the object {stat.key!r} cannot be a file below it"
                raise CheckpointDamagedError(
                    f"the checkpoint {self.store.url}/{self.key} cannot be copied: {reason}. Nothing was written.",
                    path=f"{self.store.url}/{self.key}",
                    reason=reason,
                )
        directory.mkdir(parents=True)
        self.store.fetch([Fetching(stat.key, os.path.join(directory, stat.key[inside:])) for stat in found])

    @contextlib.contextmanager
    def local_files(self, local_copy: str | None, *, digest: str | None = None, verify: bool = True) -> Iterator[str]:
        """A local directory with the files: the nearest good copy, else a temporary one. See ``fetch_to``."""
        if local_copy is not None:
            with reading(local_copy) as kept:
                if kept and _is_whole(local_copy, digest, verify):
                    yield local_copy
                    return
        with scratch.directory("checkpoint") as temporary:
            directory = Path(temporary) / self.key
            self.fetch_to(directory, digest=digest, verify=verify)
            yield str(directory)

    def get_metadata(self) -> dict[str, Any]:
        try:
            data = self.store.get(f"{self.key}/{names.METADATA}")
        except ObjectMissingError:
            return {}
        return decode_metadata(data, f"{self.store.url}/{self.key}")

    def set_metadata(self, data: bytes) -> None:
        self.store.put(f"{self.key}/{names.METADATA}", data)


def _is_whole(directory: str, digest: str | None, verify: bool) -> bool:
    try:
        if verify:
            ensure(directory, digest)
        else:
            quick_check(directory)
    except (CheckpointDamagedError, StorageError):
        return False
    return os.path.exists(f"{directory}/{names.MANIFEST}")
