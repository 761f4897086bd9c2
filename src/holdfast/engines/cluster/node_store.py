"""The store of the experiment, as a node uses it: with a storage agent of the porter's own.

Owns: the node's connection to the store, and what a node answers when it is asked to send a stage or to fetch a
checkpoint. Must never: write a manifest, or let a credential into an answer.
"""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

from holdfast.checkpoints.remote_checkpoints import ensure_local
from holdfast.checkpoints.stage_sending import CannotSend, StageRef, check_stage, send_stage
from holdfast.engines.cluster import node_messages as say
from holdfast.errors import (
    CheckpointDamagedError,
    InvalidInputError,
    StorageError,
    StoreDeniedError,
    StoreUnreachableError,
)
from holdfast.storage.store import Store
from holdfast.storage.store_access import StoreAccess, open_access


class NodeStore:
    """What a node does with the store.

    Args:
        access: What the driver has granted.
        root: What workers here take for the experiment's directory.
    """

    def __init__(self, access: StoreAccess | None, root: str) -> None:
        self._access = access
        self._root = Path(root)
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._failure = ""
        self._failed_at = 0.0

    def send(self, stage: StageRef) -> say.CarrierAnswer:
        """Upload a stage."""
        if not self._has(stage):
            return say.NotThere()
        try:
            return say.StageSent(send_stage(self._open(), self._root, stage))
        except Exception as error:
            return _answer(error)

    def check(self, stage: StageRef) -> say.CarrierAnswer:
        """Read a stage through."""
        if not self._has(stage):
            return say.NotThere()
        try:
            check_stage(self._root, stage, read=True)
        except Exception as error:
            return _answer(error)
        return say.Done()

    def fetch(self, key: str, digest: str) -> say.CarrierAnswer:
        """Have a good copy of a checkpoint below the root."""
        try:
            ensure_local(self._open(), key, self._root / key, expect_digest=digest)
        except Exception as error:
            return _answer(error)
        return say.Done()

    def _has(self, stage: StageRef) -> bool:
        return (self._root / stage.trial_dir / stage.sealed).is_dir()

    def _open(self) -> Store:
        """The store; opened when it is first needed, and again after it could not be."""
        began = time.monotonic()
        with self._lock:
            if self._store is not None:
                return self._store
            if self._access is None:
                raise CannotSend("the driver has not said where the store is")
            if self._failed_at > began:  # while this one waited: it would take as long again
                raise CannotSend(self._failure)
            try:
                self._store = open_access(self._access)
            except (InvalidInputError, StorageError) as error:
                self._failure, self._failed_at = str(error), time.monotonic()
                raise CannotSend(str(error)) from error
            return self._store


def _answer(error: Exception) -> say.CarrierAnswer:
    if isinstance(error, CheckpointDamagedError):
        return say.Damaged(error.reason)
    if isinstance(error, CannotSend | StoreDeniedError | StoreUnreachableError):
        return say.NoStore(str(error))
    if isinstance(error, OSError):
        return say.Failed(error.errno or errno.EIO, str(error))
    return say.NoStore(f"{type(error).__name__}: {error}")
