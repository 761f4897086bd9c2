"""``holdfast verify`` of an experiment in a store: each part of its journal, each checkpoint, by key. Never writes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from holdfast.checkpoints import names
from holdfast.checkpoints.commit import GONE
from holdfast.checkpoints.manifest import ALGORITHM, BadManifest, FileEntry, Manifest, decode, digest
from holdfast.checkpoints.remote_checkpoints import find_uploaded
from holdfast.checkpoints.tree import hash_open_file
from holdfast.cli.scratch_directories import scratch
from holdfast.cli.verify_checkpoints import Checked, LocalCheckpoints
from holdfast.cli.verify_report import VerifyReport
from holdfast.cli.verify_root import check_root
from holdfast.controller.remote_experiment import mirror_root
from holdfast.core.state import CheckpointRecord
from holdfast.errors import (
    CheckpointDamagedError,
    ExperimentNotFoundError,
    JournalDamagedError,
    ObjectMissingError,
    StorageError,
)
from holdfast.journal.epoch import holder
from holdfast.shipping import parts
from holdfast.shipping.parts import Part, Span
from holdfast.shipping.remote_holder import MAX_TRIES, look
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.storage.layout import Root
from holdfast.storage.remote_root import Remote
from holdfast.storage.store import Fetching, Store

BATCH = 64
BATCH_BYTES = 256 << 20
"""How much of a checkpoint is on the local disk at a time; one file that is larger is there whole."""


def verify_stored(remote: Remote, *, quick: bool = False) -> VerifyReport:
    """Check everything that belongs to an experiment in a store; a live driver may continue writing meanwhile.

    Raises as ``verify_experiment`` does, and `StorageError` if the store refuses or does not answer.
    """
    if not remote.exists():
        raise ExperimentNotFoundError(f"There is no experiment at {remote.url}.")
    report, store = VerifyReport(), remote.store
    with scratch(remote) as work_dir:
        check_parts(store, report, work_dir)
        try:
            restored = restore_mirror(store, work_dir / "root", read_only=True)
        except JournalDamagedError as error:
            if not any(finding.file == error.file for finding in report.findings):
                report.damage(error.file, str(error))
            report.note("", "checkpoints were not verified: the journal that names them is damaged")
            return report
        owner = restored.holder or holder(restored.root)
        check_root(
            Root(restored.root, remote=remote),
            report,
            lambda: StoredCheckpoints(store, work_dir, report, mirror_root(remote).path, quick=quick),
            alive=owner is not None and owner.alive,
            again=lambda: Root(restore_mirror(store, work_dir / "again", read_only=True).root),
        )
    return report


# ------------------------------------------------------------------------------------------- the journal


def check_parts(store: Store, report: VerifyReport, work_dir: Path) -> None:
    """Read every object of the journal, and follow the chain of hashes through them."""
    for _ in range(MAX_TRIES):
        found: dict[str, str] = {}
        try:
            spans = sorted(look(store, parts.PREFIX).spans)
            _follow(read_parts(store, spans, work_dir, found), found)
        except ObjectMissingError:
            continue  # it was merged after we had listed it: look again
        try:
            parts.cover(spans)
        except JournalDamagedError as error:
            found.setdefault(error.file, str(error))
        for key, message in found.items():
            report.damage(key, message)
        return


def read_parts(store: Store, spans: list[Span], work_dir: Path, found: dict[str, str]) -> Iterator[tuple[str, Part]]:
    """Every part with the key of the object that it is in; objects that are damaged are put into ``found``."""
    for at in range(0, len(spans), BATCH):
        batch = spans[at : at + BATCH]
        paths = [work_dir / f"{span.first}-{span.last}.hfp" for span in batch]
        store.fetch([Fetching(span.key, str(path)) for span, path in zip(batch, paths, strict=True)])
        for span, path in zip(batch, paths, strict=True):
            data = path.read_bytes()
            path.unlink()
            try:
                yield from ((span.key, part) for part in parts.decode_parts(data, span.key))
            except JournalDamagedError as error:
                found[span.key] = str(error)


def _follow(read: Iterator[tuple[str, Part]], found: dict[str, str]) -> None:
    last: Part | None = None
    seen: dict[int, str] = {}
    for key, part in read:
        number = part.header.number
        if seen.setdefault(number, part.digest) != part.digest:
            found.setdefault(key, f"{key} holds another part {number} than an object before it")
        if last is not None and number == last.header.number + 1:
            try:
                parts.check_link(last, part, key)
            except JournalDamagedError as error:
                found.setdefault(key, str(error))
        if last is None or number > last.header.number:
            last = part


# ------------------------------------------------------------------------------------------- checkpoints


class StoredCheckpoints:
    """Looks at checkpoints in a store; what it has listed was there when it was made.

    Args:
        store: The experiment's address.
        work_dir: Where files are while they are hashed.
        report: Takes notes on objects that no manifest lists.
        mirror: Where a driver on this machine would look for what was not uploaded.
        quick: Compare names and sizes only.
    """

    def __init__(self, store: Store, work_dir: Path, report: VerifyReport, mirror: Path, *, quick: bool) -> None:
        self._store = store
        self._mirror_root = mirror
        self._mirror = LocalCheckpoints(mirror, quick=quick)
        self._work_dir = work_dir / "files"
        self._report = report
        self._quick = quick
        self._sizes = {stat.key: stat.size for stat in store.list("")}
        self._below: dict[str, list[str]] = {}
        for key in self._sizes:
            folder, _, rest = key.partition("/")
            name, _, file = rest.partition("/")
            if names.index_of(name) is not None:
                self._below.setdefault(f"{folder}/{name}", []).append(file)

    def __call__(self, where: str, expected: str, trial_id: str) -> Checked:
        key = f"{where}/{names.MANIFEST}"
        try:
            manifest = decode(self._store.get(key))
            if digest(manifest) != expected or manifest.trial != trial_id:
                return Checked(0, key, f"is the manifest of another checkpoint (of trial {manifest.trial})")
            bad = self._bad_size(where, manifest) or (None if self._quick else self._bad_content(where, manifest))
        except ObjectMissingError:
            return Checked(0, key, "is missing")
        except BadManifest as error:
            return Checked(0, key, f"is damaged: {error}")
        except StorageError as error:
            return Checked(0, where, f"cannot be read now: {error}", unreadable=True)
        self._note_others(where, manifest)
        return bad or Checked(manifest.total)

    def staged(self, folder: str, record: CheckpointRecord, trial_id: str) -> str:
        """See ``Inspector``: a driver on this machine uploads what its mirror has; else it takes what was uploaded."""
        where = f"{folder}/{names.checkpoint_name(record.index)}"
        if (self._mirror_root / folder).is_dir():
            try:
                made = self._mirror.staged(folder, record, trial_id)
            except CheckpointDamagedError as error:
                if error.reason != GONE:
                    raise
            else:
                found = self._mirror(where, made, trial_id) if made else Checked(0)
                if found.reason and not found.unreadable:
                    raise CheckpointDamagedError(found.reason, path=where, reason=found.reason)
                return ""
        uploaded = find_uploaded(self._store, where, record.sealed)
        if uploaded is None:
            reason = "its upload was not complete, and this machine has no copy of it"
            raise CheckpointDamagedError(reason, path=where, reason=reason)
        return uploaded.digest

    def _bad_size(self, where: str, manifest: Manifest) -> Checked | None:
        for entry in manifest.files:
            key = f"{where}/{entry.path}"
            size = self._sizes.get(key)
            if size is None:
                return Checked(0, key, "is missing")
            if size != entry.size:
                return Checked(0, key, f"has {size:,} bytes instead of {entry.size:,}")
        return None

    def _bad_content(self, where: str, manifest: Manifest) -> Checked | None:
        for batch in _batches(manifest.files):
            wanted = [Fetching(f"{where}/{entry.path}", str(self._work_dir / str(k))) for k, entry in enumerate(batch)]
            try:
                hashes = self._store.fetch(wanted)
                for entry, file, found in zip(batch, wanted, hashes, strict=True):
                    if (found if manifest.algo == ALGORITHM else _hash(file.path, manifest.algo)) != entry.hash:
                        return Checked(0, file.key, "its content is not what was saved")
            finally:
                shutil.rmtree(self._work_dir, ignore_errors=True)
        return None

    def _note_others(self, where: str, manifest: Manifest) -> None:
        listed = {entry.path for entry in manifest.files}
        for file in self._below.get(where, ()):
            if file not in listed and not names.is_internal(file):
                self._report.note(f"{where}/{file}", "is not one of the files that were saved; it is not used")


def _batches(entries: tuple[FileEntry, ...]) -> Iterator[list[FileEntry]]:
    batch: list[FileEntry] = []
    size = 0
    for entry in entries:
        if batch and (size + entry.size > BATCH_BYTES or len(batch) >= BATCH):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.size
    if batch:
        yield batch


def _hash(path: str, algo: str) -> str:
    fd = os.open(path, os.O_RDONLY)
    try:
        return hash_open_file(fd, algo)
    finally:
        os.close(fd)
