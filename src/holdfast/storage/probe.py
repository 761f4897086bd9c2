"""Test whether a store honours create-only writes, which fence a second driver: it is tried, not assumed.

Owns the test. Must never leave its object behind when it can be removed.
"""

from __future__ import annotations

import uuid
from typing import Protocol, runtime_checkable

from holdfast.errors import StorageError, UnsafeStoreError
from holdfast.storage.store import Store, create_once

PROBE_PREFIX = ".holdfast/probe-"


@runtime_checkable
class KnowsItself(Protocol):
    """A store that can tell about its `create` without a trial."""

    def create_is_atomic(self) -> bool | None:
        """False if two writers could both succeed; True or None if a trial shows it."""


def probe(store: Store) -> None:
    """Create an object twice, and refuse the store if the second writer succeeds as well.

    Raises:
        UnsafeStoreError: If it does.
    """
    if isinstance(store, KnowsItself) and store.create_is_atomic() is False:
        raise _refusal(store)
    key = f"{PROBE_PREFIX}{uuid.uuid4().hex}"
    try:
        # The first one may find its own object, if an answer was lost: the key is ours alone. The second one has
        # other content, so that a store which overwrites is found out even if that answer is lost too.
        create_once(store, key, b"first " + uuid.uuid4().bytes)
        second = b"second " + uuid.uuid4().bytes
        if store.create(key, second) or store.get(key) == second:
            raise _refusal(store)
    finally:
        try:
            store.delete([key])
        except StorageError:
            pass  # what went wrong before is worth more, and a probe's object does no harm


def _refusal(store: Store) -> UnsafeStoreError:
    return UnsafeStoreError(
        f"{store.url} does not honour create-only writes: two drivers that run the same experiment could overwrite "
        f"each other's records, and its history could be lost. Use a store that does, by its URL (S3, Google Cloud "
        f"Storage, Azure, most servers that speak S3). If you are certain that no second driver will ever run, set "
        f"RunConfig(sync_config=SyncConfig(unfenced_store=True))."
    )
