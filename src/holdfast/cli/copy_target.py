"""Where ``holdfast copy`` copies to: a new directory, or a new place in a store.

Owns the mark by which a copy that was cut short is told from what others have put there. Must never overwrite or remove
anything in a place that does not have this mark.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.checkpoints import names
from holdfast.checkpoints.checkpoint_reader import verify
from holdfast.checkpoints.manifest import BadManifest, decode, digest
from holdfast.checkpoints.remote_checkpoints import upload
from holdfast.checkpoints.tree import remove_tree
from holdfast.cli.copy_source import CopySource, File, copy_local
from holdfast.errors import (
    CheckpointDamagedError,
    ExperimentExistsError,
    InvalidInputError,
    ObjectMissingError,
    StorageError,
    UsageError,
)
from holdfast.shipping.remote_holder import CLOCK
from holdfast.storage.layout import PRIVATE, SPEC, Root
from holdfast.storage.local import write_atomic
from holdfast.storage.probe import PROBE_PREFIX, probe
from holdfast.storage.remote_root import Remote
from holdfast.storage.store import Sending, create_once
from holdfast.storage.untrusted import check_plain, copy_regular, read_regular

MARK = f"{PRIVATE}/copying.json"


class CopyMark(msgspec.Struct, frozen=True):
    """What a place that is being copied to is a copy of."""

    uid: str
    source: str


_decode_copy_mark = msgspec.json.Decoder(CopyMark).decode


class Target(Protocol):
    """A copy in the making."""

    shown: str

    def begin(self, mark: CopyMark) -> None:
        """Take the place, or continue with a copy of the same experiment."""

    def has_checkpoint(self, where: str, expected: str) -> bool:
        """Whether it is there already, from before."""

    def copy_checkpoint(self, source: CopySource, where: str, expected: str) -> None:
        """Copy a committed checkpoint."""

    def take_checkpoint(self, directory: Path, where: str) -> None:
        """Copy a checkpoint from a directory of this machine."""

    def stale(self, files: Sequence[File]) -> list[File]:
        """Those that are not there yet as they are."""

    def copy_files(self, source: CopySource, files: Sequence[File]) -> None:
        """Copy files, whatever is there."""

    def put_private(self, top: Path, files: Sequence[str]) -> None:
        """Copy private files from a directory of this machine; paths are relative to it."""

    def put_mark(self, file: str) -> None:
        """Make an empty private file."""

    def finish(self, spec: bytes) -> None:
        """Make the copy an experiment."""


def occupied(shown: str, is_experiment: bool, found: CopyMark | None, mark: CopyMark) -> UsageError | None:
    """Why a place that is not empty cannot be copied to; None if this very copy was begun there."""
    if found is not None and found.uid == mark.uid:
        return None
    if found is not None:
        return InvalidInputError(
            f"{shown} is an interrupted copy of another experiment ({found.source}). Nothing was changed. Complete or "
            f"remove that copy, or choose another path."
        )
    if is_experiment:
        return ExperimentExistsError(
            f"There is already an experiment at {shown}. Nothing was changed. Choose another path."
        )
    return InvalidInputError(f"{shown} is not empty. Nothing was changed. Choose a path that does not exist yet.")


class LocalTarget:
    """A directory."""

    def __init__(self, path: Path) -> None:
        self.shown = str(path)
        self._top = path

    def begin(self, mark: CopyMark) -> None:
        try:
            check_plain(self._top)  # links below it would lead what is written and removed elsewhere
            found = _decoded(read_regular(self._top / MARK))
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if self._top.is_file() or (self._top.is_dir() and any(self._top.iterdir())):
            refusal = occupied(self.shown, Root(self._top).exists(), found, mark)
            if refusal is not None:
                raise refusal
        (self._top / PRIVATE).mkdir(parents=True, exist_ok=True)
        write_atomic(str(self._top / MARK), msgspec.json.encode(mark))

    def has_checkpoint(self, where: str, expected: str) -> bool:
        directory = self._top / where
        if not directory.is_dir():
            return False
        try:
            verify(directory, expect_digest=expected)
        except CheckpointDamagedError:
            remove_tree(str(directory))  # ours: the power went while it was copied
            return False
        return True

    def copy_checkpoint(self, source: CopySource, where: str, expected: str) -> None:
        source.copy_checkpoint(where, expected, self._top / where)

    def take_checkpoint(self, directory: Path, where: str) -> None:
        if not (self._top / where).is_dir():
            copy_local(directory, self._top / where, "")

    def stale(self, files: Sequence[File]) -> list[File]:
        return [file for file in files if not self._is_same(file)]

    def _is_same(self, file: File) -> bool:
        try:
            facts = os.stat(self._top / file.path)
        except OSError:
            return False
        return facts.st_size == file.size and facts.st_mtime >= file.modified

    def copy_files(self, source: CopySource, files: Sequence[File]) -> None:
        source.copy_files(files, self._top)

    def put_private(self, top: Path, files: Sequence[str]) -> None:
        for file in files:
            (self._top / file).parent.mkdir(parents=True, exist_ok=True)
            copy_regular(top / file, self._top / file)

    def put_mark(self, file: str) -> None:
        (self._top / file).touch()

    def finish(self, spec: bytes) -> None:
        os.sync()  # one call for everything that was copied; the file below says that it is all there
        write_atomic(str(self._top / SPEC), spec)
        (self._top / MARK).unlink(missing_ok=True)


class StoreTarget:
    """A place in a store."""

    def __init__(self, remote: Remote) -> None:
        self.shown = remote.url
        self._store = remote.store
        if not remote.address.path:
            raise InvalidInputError(
                f"{remote.url}: a copy needs a name below its bucket, for example {remote.url}/copy."
            )

    def begin(self, mark: CopyMark) -> None:
        passing = (PROBE_PREFIX, CLOCK)
        self._existing = {stat.key: stat for stat in self._store.list("") if not stat.key.startswith(passing)}
        if self._existing:
            found = _decoded(self._store.get(MARK)) if MARK in self._existing else None
            refusal = occupied(self.shown, SPEC in self._existing, found, mark)
            if refusal is not None:
                raise refusal
        probe(self._store)
        self._store.put(MARK, msgspec.json.encode(mark))

    def has_checkpoint(self, where: str, expected: str) -> bool:
        key = f"{where}/{names.MANIFEST}"
        if key not in self._existing:
            return False
        try:
            return digest(decode(self._store.get(key))) == expected
        except (ObjectMissingError, BadManifest):
            return False

    def copy_checkpoint(self, source: CopySource, where: str, expected: str) -> None:
        with source.checkpoint(where, expected) as directory:
            upload(self._store, directory, where)

    def take_checkpoint(self, directory: Path, where: str) -> None:
        if f"{where}/{names.MANIFEST}" not in self._existing:
            upload(self._store, directory, where)

    def stale(self, files: Sequence[File]) -> list[File]:
        return [
            file
            for file in files
            if (existing := self._existing.get(file.path)) is None
            or existing.size != file.size
            or existing.modified <= file.modified
        ]

    def copy_files(self, source: CopySource, files: Sequence[File]) -> None:
        with source.near(files) as top:
            self._store.send([Sending(str(top / file.path), file.path) for file in files])

    def put_private(self, top: Path, files: Sequence[str]) -> None:
        self._store.send([Sending(str(top / file), file) for file in files])

    def put_mark(self, file: str) -> None:
        self._store.put(file, b"")

    def finish(self, spec: bytes) -> None:
        if create_once(self._store, SPEC, spec) is not None:
            raise StorageError(
                f"Another process has created an experiment at {self.shown} in the meantime. It was not changed."
            )
        self._store.delete([MARK])


def _decoded(data: bytes) -> CopyMark | None:
    try:
        return _decode_copy_mark(data)
    except (ValueError, RecursionError):
        return None
