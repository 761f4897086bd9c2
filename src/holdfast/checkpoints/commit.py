"""The driver's half of a commit: from a sealed stage to ``checkpoint_<index>``.

Owns the steps L2 to L6 below, the only code that makes a ``checkpoint_*`` directory, and the sweep of what commits
leave behind. Called again after a crash at any point it finishes the work or finds it done, so normal operation and
recovery are one path. Never deletes a directory that it did not make, and never replaces one.

    L0  a stage directory is made          (worker, stage.py)
    L1  files written, stage sealed        (worker, stage.py)
    L2  files hashed where the worker did not, compared with the seal, made durable
    L3  manifest written and fsynced
    L4  all directories fsynced
    L5  renamed to its final name          <- from here on the checkpoint exists
    L6  parent directory fsynced           <- from here on it survives a power cut; the journal may refer to it
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec

from holdfast.checkpoints import names
from holdfast.checkpoints.copying import copy_tree
from holdfast.checkpoints.durable_files import SYNC_THREADS, sync_files
from holdfast.checkpoints.manifest import BadManifest, FileEntry, Manifest, decode, digest, encode
from holdfast.checkpoints.stage import SealedFile, StageSeal, read_seal, write_seal
from holdfast.checkpoints.syscalls import rename_noreplace
from holdfast.checkpoints.tree import (
    TRIAL_GONE,
    TreeListing,
    hash_open_file,
    is_root_there,
    open_own_file,
    read_own_file,
    remove_quietly,
    run_all,
    scan,
    storage_error,
)
from holdfast.errors import CheckpointDamagedError, InternalError, StorageError
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.local import fsync_dir
from holdfast.storage.untrusted import open_directory, remove_below

HASH_THREADS = 2

GONE = "the staged files are missing and no checkpoint was made from them"

Answer = TypeVar("Answer")

# How it shows that another committer has renamed our stage.
_OVERTAKEN = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY})


class Committed(msgspec.Struct, frozen=True):
    """A checkpoint that exists: the digest that the journal keeps, and its size."""

    digest: str
    bytes: int
    files: int


def commit(
    trial_dir: Path,
    sealed_name: str,
    index: int,
    *,
    trial_id: str,
    attempt: int,
    metadata: dict[str, Any] | None = None,
    sync: bool = True,
    reread: bool = False,
) -> Committed:
    """Turn the sealed stage into ``checkpoint_<index>``, or find that this has been done.

    Durability: when this returns, the checkpoint survives a loss of power (with ``sync``).

    Args:
        trial_dir: The trial's directory.
        sealed_name: The stage in it.
        index: The checkpoint's number.
        trial_id: Whose it must be.
        attempt: Likewise.
        metadata: Becomes part of the manifest.
        sync: Make it survive a loss of power.
        reread: Read files whose hash is known, too: after a loss of power a file may have its size and no content.

    Raises:
        CheckpointDamagedError: The stage is not what the worker sealed, or is gone. It will never be committed.
        StorageFullError: There is no space. Calling again later may work.
        StorageError: The file system failed; not committed. Calling again later may work.
    """
    work = _Commit(os.fspath(trial_dir), sealed_name, index, trial_id, attempt, sync, reread)
    done = _translated(lambda: work.run(metadata or {}), work)
    if done is None:
        _damaged(f"{trial_dir}/{sealed_name}", GONE)
    return done


def recover(
    trial_dir: Path,
    sealed_name: str,
    index: int,
    *,
    trial_id: str,
    attempt: int,
    metadata: dict[str, Any] | None = None,
    sync: bool = True,
) -> Committed | None:
    """The same as ``commit``, but None if there is neither a stage nor a checkpoint made of it."""
    work = _Commit(os.fspath(trial_dir), sealed_name, index, trial_id, attempt, sync)
    return _translated(lambda: work.run(metadata or {}), work)


def look(
    trial_dir: Path, sealed_name: str, index: int, *, trial_id: str, attempt: int, read: bool = True
) -> Manifest | None:
    """See how a ``commit`` by the next driver would end, without changing anything.

    Args:
        read: Compare the content, too, not only names and sizes.

    Returns:
        The manifest, if the checkpoint exists already: its files were not looked at. None if it could be made.

    Raises:
        CheckpointDamagedError: It will never be committed.
        StorageError: The storage could not be read: nothing is known.
    """
    work = _Commit(os.fspath(trial_dir), sealed_name, index, trial_id, attempt, sync=False, reread=read)
    return _translated(lambda: work.look(read), work)


def _translated(do: Callable[[], Answer], work: _Commit) -> Answer:
    try:
        return do()
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(error, f"committing {work}") from error


class _Commit:
    """One commit: where its directories are, and its steps."""

    def __init__(
        self, trial_dir: str, sealed: str, index: int, trial_id: str, attempt: int, sync: bool, reread: bool = False
    ) -> None:
        if not names.is_sealed(sealed):
            raise InternalError(f"{sealed!r} is not the name of a sealed checkpoint")
        self._dir = trial_dir
        self._name = sealed
        self._sealed = f"{trial_dir}/{sealed}"
        self._resync = self._sealed + names.RESYNC
        self._target = f"{trial_dir}/{names.checkpoint_name(index)}"
        self._index = index
        self._trial_id = trial_id
        self._attempt = attempt
        self._sync = sync
        self._reread = reread

    def __str__(self) -> str:
        return f"{names.checkpoint_name(self._index)} of trial {self._trial_id} in {self._dir}"

    def look(self, read: bool) -> Manifest | None:
        self._check_place()
        manifest = self._own_manifest()
        if manifest is not None:
            return manifest
        if not os.path.isdir(self._sealed):
            if not os.path.isdir(self._resync):
                self._damaged(GONE)
            self._sealed = self._resync
        seal = self._read_seal()
        self._compare(seal)
        if read:
            self._hash(seal)
        else:
            for file in seal.files:
                with self._opened(file):
                    pass
        return None

    def run(self, metadata: dict[str, Any]) -> Committed | None:
        self._check_place()
        manifest = self._own_manifest() or self._make(metadata)
        if manifest is None:
            self._check_place()  # it may have gone away meanwhile, and then nothing is known about the stage
            return None
        crashpoint("L5.after")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._target}/{names.SEAL}")
        if self._sync:
            fsync_dir(self._dir)
        crashpoint("L6.after")
        remove_quietly([self._resync])
        return Committed(digest(manifest), manifest.total, len(manifest.files))

    def _check_place(self) -> None:
        try:
            os.stat(self._dir)
        except FileNotFoundError:
            if not is_root_there(self._dir):
                raise
            self._damaged(TRIAL_GONE)

    def _make(self, metadata: dict[str, Any]) -> Manifest | None:
        """Make the target, or find that another committer has; None if there is nothing to make it of.

        A driver that was taken over, or that left while a thread of it still worked, may be committing the same stage.
        Its renames take the stage away between any two steps of ours, which looks like damage and is none: so nothing
        is called damaged before we have looked for the target again, and whether the stage is still the one we read.
        """
        stage = 0
        try:
            stage = self._find_stage()
            return self._make_of_stage(metadata) if stage else self._own_manifest()
        except (CheckpointDamagedError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _OVERTAKEN:
                raise
            manifest = self._own_manifest()
            if manifest is not None:
                return manifest
            now = _directory_id(self._sealed)
            if stage and now != stage and (now or os.path.isdir(self._resync)):
                raise StorageError(
                    f"another driver has set {self._sealed} aside. Nothing was overwritten; a copy is committed next."
                ) from error
            raise

    def _make_of_stage(self, metadata: dict[str, Any]) -> Manifest:
        seal = self._read_seal()
        listing = self._compare(seal)
        entries = self._hash(seal)
        self._sync_files(seal, entries, listing)
        crashpoint("L2.after")
        manifest = self._write_manifest(entries, seal.algo, metadata)
        crashpoint("L3.after")
        self._sync_directories(seal, entries, listing)
        crashpoint("L4.after")
        self._rename()
        for rel in listing.files.keys() - {file.path for file in seal.files}:
            if names.is_temporary_file(rel):  # of a commit that was killed while it wrote its manifest
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._target}/{rel}")
        return manifest

    def _own_manifest(self) -> Manifest | None:
        """The target's manifest, if the target was made from our stage."""
        try:
            manifest = decode(read_own_file(f"{self._target}/{names.MANIFEST}"))
        except (FileNotFoundError, NotADirectoryError, BadManifest):
            return None
        ours = (manifest.stage, manifest.trial, manifest.index) == (self._name, self._trial_id, self._index)
        return manifest if ours else None

    def _find_stage(self) -> int:
        """Which directory is to be committed, after making a fresh one of a stage that failed to sync; 0 if none is."""
        found = _directory_id(self._sealed)
        if found or not os.path.isdir(self._resync):
            return found
        seal = self._read_seal(self._resync)
        fresh = f"{self._dir}/{names.stage_name(self._attempt)}"
        os.mkdir(fresh)
        try:
            copied = {entry.path: entry for entry in self._copy(self._resync, fresh, seal.algo)}
            for file in seal.files:
                entry = copied.get(file.path)
                if entry is None or entry.size != file.size or file.hash not in ("", entry.hash):
                    self._damaged(f"{file.path} is not what was staged, after a failed fsync")
            files = tuple(SealedFile(file.path, file.size, copied[file.path].hash) for file in seal.files)
            write_seal(fresh, msgspec.structs.replace(seal, files=files))
            os.rename(fresh, self._sealed)
        except BaseException:
            remove_quietly([fresh])
            raise
        return _directory_id(self._sealed)

    def _copy(self, source: str, target: str, algo: str) -> list[FileEntry]:
        listing = scan(source, follow=False)
        for rel in (names.SEAL, names.NEW_SEAL, names.MANIFEST):
            listing.files.pop(rel, None)
        return copy_tree(source, target, listing, algo=algo)

    def _read_seal(self, directory: str = "") -> StageSeal:
        try:
            seal = read_seal(directory or self._sealed)
        except FileNotFoundError:
            self._damaged("it has no seal")
        except BadManifest as error:
            self._damaged(f"its seal is damaged: {error}")
        if (seal.trial, seal.attempt) != (self._trial_id, self._attempt):
            self._damaged(f"it was sealed by attempt {seal.attempt} of trial {seal.trial}")
        return seal

    def _compare(self, seal: StageSeal) -> TreeListing:
        listing = scan(self._sealed, follow=False)
        for rel, what in listing.odd.items():
            self._damaged(f"{rel} {what}")
        sealed = {file.path for file in seal.files}
        for rel in listing.files.keys() - sealed:
            if not names.is_internal(rel) and not names.is_leftover(rel):
                self._damaged(f"{rel} appeared after the checkpoint was reported")
        return listing

    def _hash(self, seal: StageSeal) -> list[FileEntry]:
        def hash_one(file: SealedFile) -> FileEntry:
            with self._opened(file) as fd:
                content = file.hash
                if self._reread or not content:
                    content = hash_open_file(fd, seal.algo)
                self._check(file, fd)
            if file.hash not in ("", content):
                self._damaged(f"the content of {file.path} is not what was reported")
            return FileEntry(file.path, file.size, content)

        return run_all(hash_one, seal.files, HASH_THREADS)

    def _sync_files(self, seal: StageSeal, entries: list[FileEntry], listing: TreeListing) -> None:
        if not self._sync:
            return

        def sync_one(file: SealedFile, sync: Callable[[int], None]) -> None:
            with self._opened(file) as fd:
                sync(fd)
            crashpoint("L2.mid")

        files = list(seal.files)
        if (metadata := listing.files.get(names.METADATA)) is not None:
            files.append(SealedFile(names.METADATA, metadata.st_size))
        with self._set_aside_on_error(seal, entries):
            sync_files(self._sealed, files, sum(file.size for file in files), sync_one)

    @contextlib.contextmanager
    def _set_aside_on_error(self, seal: StageSeal, entries: list[FileEntry]) -> Iterator[None]:
        """After a failed fsync the kernel may have dropped the data and will call the next fsync a success.

        So the stage gets another name, under which only a copy of it can be committed, and its hashes are kept to
        tell whether the copy is still what was staged.
        """
        try:
            yield
        except OSError:
            files = tuple(SealedFile(entry.path, entry.size, entry.hash) for entry in entries)
            with contextlib.suppress(OSError):
                write_seal(self._sealed, msgspec.structs.replace(seal, files=files))
            os.rename(self._sealed, self._resync)
            raise

    def _write_manifest(self, entries: list[FileEntry], algo: str, metadata: dict[str, Any]) -> Manifest:
        manifest = Manifest(
            trial=self._trial_id,
            index=self._index,
            attempt=self._attempt,
            stage=self._name,
            algo=algo,
            files=tuple(entries),
            total=sum(entry.size for entry in entries),
            meta=metadata,
        )
        data = encode(manifest)
        written = decode(data)  # as readers will see it: tuples in the metadata have become lists
        assert encode(written) == data
        assert written.files == manifest.files
        # Never written in place: another committer's rename would publish half of it.
        temporary = names.temporary_file()
        try:
            with open(f"{self._sealed}/{temporary}", "xb", buffering=0) as file:
                _write_all(file.write, data[: len(data) // 2])
                crashpoint("L3.mid")
                _write_all(file.write, data[len(data) // 2 :])
                if self._sync:
                    os.fsync(file.fileno())
            os.replace(f"{self._sealed}/{temporary}", f"{self._sealed}/{names.MANIFEST}")
        except BaseException:
            for directory in (self._sealed, self._target):
                with contextlib.suppress(OSError):
                    os.unlink(f"{directory}/{temporary}")
            raise
        return written

    def _sync_directories(self, seal: StageSeal, entries: list[FileEntry], listing: TreeListing) -> None:
        if not self._sync:
            return
        with self._set_aside_on_error(seal, entries):
            run_all(fsync_dir, [self._sealed, *(f"{self._sealed}/{rel}" for rel in listing.dirs)], SYNC_THREADS)

    def _rename(self) -> None:
        for _ in range(2):
            try:
                rename_noreplace(self._sealed, self._target)
                return
            except FileExistsError:
                if self._own_manifest() is not None:
                    raise
                # Whatever it is, it may be all that somebody has: it stays, under another name.
                os.rename(self._target, f"{self._target}.orphan-{names.unique()}")
        raise InternalError(f"{self._target} came back after it was moved aside: is a second driver at work?")

    @contextlib.contextmanager
    def _opened(self, file: SealedFile) -> Iterator[int]:
        try:
            fd = open_own_file(f"{self._sealed}/{file.path}")
        except (FileNotFoundError, NotADirectoryError):
            self._damaged(f"{file.path} is missing")
        try:
            self._check(file, fd)
            yield fd
        finally:
            os.close(fd)

    def _check(self, file: SealedFile, fd: int) -> None:
        facts = os.fstat(fd)
        if facts.st_size != file.size:
            self._damaged(f"{file.path} has {facts.st_size:,} bytes instead of the {file.size:,} when it was reported")
        # Another inode means that the experiment was copied here, which may have changed the time as well.
        if facts.st_ino == file.ino and facts.st_mtime_ns != file.mtime_ns:
            self._damaged(f"{file.path} was written to after the checkpoint was reported")

    def _damaged(self, reason: str) -> NoReturn:
        _damaged(self._sealed, reason)


def _directory_id(path: str) -> int:
    """What tells a directory from another one that gets its name later; 0 if there is none."""
    try:
        facts = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return facts.st_ino if stat.S_ISDIR(facts.st_mode) else 0


def _damaged(path: str, reason: str) -> NoReturn:
    raise CheckpointDamagedError(
        f"the staged checkpoint {path} cannot be committed: {reason}. Nothing else is affected: the trial's earlier "
        "checkpoints are as they were. Finish and close all files of a checkpoint before you report it.",
        path=path,
        reason=reason,
    )


def _write_all(write: Callable[[memoryview], int | None], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[write(rest) or 0 :]


class Swept(NamedTuple):
    """What a sweep has removed, and what it has left because it belongs to attempts that the caller does not know."""

    removed: list[str]
    spared: list[str]


def sweep(trial_dir: Path, keep_stages: set[str], *, up_to: int) -> Swept:
    """Remove what interrupted commits and deletions left in a trial's directory.

    Only directories whose names we made. What cannot be removed now is left for the next sweep.

    Args:
        trial_dir: The trial's directory.
        keep_stages: The sealed stages whose commit is still to come.
        up_to: The last attempt that the caller knows of. A stage of a later one belongs to a driver that has taken
            over, and whoever sweeps has not noticed yet; or the records of that attempt were lost.
    """
    try:
        place = open_directory(trial_dir)
    except FileNotFoundError:
        return Swept([], [])
    except OSError as error:
        raise storage_error(error, f"listing {trial_dir}") from error
    swept = Swept([], [])
    try:
        for name in sorted(filter(names.is_temporary, os.listdir(place))):
            if name.removesuffix(names.RESYNC) in keep_stages:
                continue
            if names.attempt_of(name) > up_to:
                swept.spared.append(name)
                continue
            try:
                remove_below(place, name)
            except OSError:  # not a directory, or it cannot be removed now
                continue
            swept.removed.append(name)
    except OSError as error:
        raise storage_error(error, f"listing {trial_dir}") from error
    finally:
        os.close(place)
    return swept
