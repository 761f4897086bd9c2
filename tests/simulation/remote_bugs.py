"""Bugs on purpose on the store floor: each takes one safeguard away, and the stories of experiments in stores notice.

See ``simulated_bugs`` for those of the local simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.checkpoints import remote_checkpoints, remote_jobs
from holdfast.checkpoints.commit import Committed
from holdfast.checkpoints.manifest import decode, digest
from holdfast.controller.remote_backend import RemoteBackend
from holdfast.controller.remote_checkpoint_jobs import RemoteCheckpointJobEdge
from holdfast.controller.shipped_journal import ShippedJournal
from holdfast.core import commands as cmd
from holdfast.shipping import restore_mirror, shipper
from holdfast.storage.store import Store, create_once

Patch = pytest.MonkeyPatch


class RemoteBug(NamedTuple):
    """A bug, which invariants notice it, and within how many seeds."""

    plant: Callable[[Patch], None]
    noticed: tuple[str, ...]
    seeds: int


def _manifest_before_files(patch: Patch) -> None:
    def upload(store: Store, directory: Path, key: str) -> Committed:
        data = remote_checkpoints._local_manifest(directory)
        manifest = decode(data)
        create_once(store, f"{key}/_manifest.json", data)
        remote_checkpoints._send_files(store, directory, key, manifest)
        return Committed(digest(manifest), manifest.total, len(manifest.files))

    patch.setattr(remote_jobs, "upload", upload)


def _commit_before_its_record(patch: Patch) -> None:
    """A commit begins when its record is safe on this machine, instead of in the store."""
    original = RemoteCheckpointJobEdge.prepare

    def prepare(self: Any, command: Any) -> None:
        if isinstance(command, cmd.Commit):
            self.submit(command)
        else:
            original(self, command)

    patch.setattr(RemoteCheckpointJobEdge, "prepare", prepare)


def _delete_before_durable(patch: Patch) -> None:
    patch.setattr(ShippedJournal, "durable_seq", property(lambda self: self._journal.written_seq))


def _fence_asked_once(patch: Patch) -> None:
    """Parts are put without a condition: the claim was asked for, and nobody asks again."""

    def put(store: Store, key: str, data: bytes) -> None:
        store.put(key, data)

    patch.setattr(shipper, "create_once", put)


def _mirror_follows_blindly(patch: Patch) -> None:
    """What only the mirror has is replaced by what the store has."""
    original = restore_mirror._MirrorRestore._case

    def case(self: Any, *arguments: Any) -> str:
        found = original(self, *arguments)
        return "behind" if found == "ahead" else found

    patch.setattr(restore_mirror._MirrorRestore, "_case", case)


def _finish_without_waiting(patch: Patch) -> None:
    patch.setattr(RemoteBackend, "finish", lambda self, state, impatient, draining="": None)
    patch.setattr(RemoteBackend, "close", lambda self: None)


def _acknowledged_before_shipped(patch: Patch) -> None:
    """With durability="sync" a reply leaves when the record is safe on this machine."""
    patch.setattr(ShippedJournal, "accepted_seq", property(lambda self: self._journal.accepted_seq))


def _unread_replacement(patch: Patch) -> None:
    """A newer stage takes the place of an older one without having been read back."""
    patch.setattr(remote_jobs, "verify", lambda directory, expect_digest: None)
    patch.setattr(remote_jobs, "_recover", lambda job: remote_jobs.Committed("", 0, 0))


def _uncommitted_copies_are_pruned(patch: Patch) -> None:
    original = RemoteCheckpointJobEdge._prune

    def prune(self: Any, n: int) -> None:
        for record in self._state.trials[n].checkpoints:
            path = self._trial_dir(n) / f"checkpoint_{record.index:06d}"
            if path.is_dir():
                self._begin(remote_jobs.PruneJob(n, record.index, str(path)))
        original(self, n)

    patch.setattr(RemoteCheckpointJobEdge, "_prune", prune)


PLANTED = {
    "manifest before files": RemoteBug(_manifest_before_files, ("I2",), 5),
    "commit before the record of its stage": RemoteBug(_commit_before_its_record, ("I2",), 5),
    "delete before durable": RemoteBug(_delete_before_durable, ("I3",), 20),
    "fence asked once": RemoteBug(_fence_asked_once, ("I4", "I1", "I5"), 60),
    "mirror follows the store blindly": RemoteBug(_mirror_follows_blindly, ("I1", "JournalDamagedError"), 60),
    "finish without waiting": RemoteBug(_finish_without_waiting, ("I9",), 5),
    "acknowledged before it is in the store": RemoteBug(_acknowledged_before_shipped, ("I1",), 60),
    "replacement that nobody has read": RemoteBug(_unread_replacement, ("I2",), 60),
    "copies pruned before they are uploaded": RemoteBug(_uncommitted_copies_are_pruned, ("I2",), 60),
}
