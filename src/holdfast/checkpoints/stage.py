"""The worker's half of a commit: get the user's files under the root, complete and closed to further writes.

Owns stage directories from their creation until they are sealed. Blocks the training only for what it must: a directory
from ``checkpoint_dir()`` is sealed in place (its files are listed, not read), any other is copied. Never syncs, never
writes a manifest and never touches ``checkpoint_*``: the driver alone commits, so a zombie worker cannot damage a
checkpoint.

A sealed directory holds ``.holdfast-seal``: the list of its files when the training called ``report``. The commit
compares the files with it, so a writer that was still active is detected, and no half-written file is saved.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.checkpoints import names
from holdfast.checkpoints.copying import copy_tree
from holdfast.checkpoints.manifest import ALGORITHM, BadManifest, FileEntry, decode, open_json, seal_json
from holdfast.checkpoints.metadata import seal_metadata
from holdfast.checkpoints.tree import TreeListing, read_own_file, remove_quietly, scan, storage_error
from holdfast.core.observations import SealedStage
from holdfast.errors import InvalidInputError, StorageError
from holdfast.space.naming import is_inside
from holdfast.storage.crashpoint import crashpoint


class SealedFile(msgspec.Struct, array_like=True, frozen=True):
    """A file as it was when it was sealed. ``hash`` is "" if unknown; ``ino`` is 0 if nobody else knew the path."""

    path: str
    size: int
    hash: str = ""
    ino: int = 0
    mtime_ns: int = 0


class StageSeal(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``.holdfast-seal``."""

    format: int = 1
    trial: str
    attempt: int
    algo: str = ALGORITHM
    files: tuple[SealedFile, ...]


_decode_seal = msgspec.json.Decoder(StageSeal).decode


class Stage:
    """Makes and seals the stage directories of one attempt.

    Args:
        trial_dir: The trial's directory under the experiment's root; made if it is missing.
        trial_id: Written into the seal; a commit for another trial refuses it.
        attempt: The number of this attempt; likewise.
    """

    def __init__(self, trial_dir: Path, trial_id: str, attempt: int) -> None:
        self._dir = os.path.abspath(trial_dir)
        self._trial_id = trial_id
        self._attempt = attempt

    def new_directory(self) -> Path:
        """An empty directory on the root's own file system; what is written here need not be copied.

        Raises:
            StorageError: If it cannot be made; ``StorageFullError`` if there is no space.
        """
        path = f"{self._dir}/{names.stage_name(self._attempt)}"
        try:
            os.makedirs(self._dir, exist_ok=True)
            os.mkdir(path)
        except OSError as error:
            raise storage_error(error, f"making the directory {path}") from error
        crashpoint("L0.after")
        return Path(path)

    def seal(self, path: str | os.PathLike[str], hashes: Mapping[str, str] | None = None) -> SealedStage:
        """Make what is in ``path`` now ready to be committed.

        A directory from ``new_directory`` is renamed: further writes by its path fail. Any other directory is copied
        and left as it is, and may be used again at once.

        Args:
            path: The directory.
            hashes: Of files whose content the caller knows, so that damage between now and the commit is noticed.

        Durability: the files are complete under the root and survive the death of any process. They survive a loss of
        power only once the driver has committed them.

        Raises:
            InvalidInputError: If the directory is missing, was reported before, or holds something that cannot be
                part of a checkpoint; the message names it.
            StorageFullError: If there is no space. Nothing partial is left; calling again later may work.
            StorageError: If the file system fails in another way.
        """
        return self._seal(path, move=True, hashes=hashes or {})

    def seal_copy(self, path: str | os.PathLike[str]) -> SealedStage:
        """The same, but a directory from ``new_directory`` is copied, too, and stays as it is."""
        return self._seal(path, move=False, hashes={})

    def _seal(self, path: str | os.PathLike[str], *, move: bool, hashes: Mapping[str, str]) -> SealedStage:
        source = os.path.realpath(path)
        parent, name = os.path.split(source)
        ours = move and parent == os.path.realpath(self._dir) and names.is_stage(name, self._attempt)
        self._check_source(source, os.fspath(path), ours)
        try:
            if ours:
                listing = scan(source, follow=False)
                if _is_plain(listing):
                    return self._seal_in_place(source, listing, hashes)
            sealed = self._seal_copy(source, os.fspath(path))
        except StorageError:
            raise
        except OSError as error:
            raise storage_error(error, f"saving the checkpoint {os.fspath(path)} in {self._dir}") from error
        if ours:
            remove_quietly([source])
        return sealed

    def _check_source(self, source: str, given: str, ours: bool) -> None:
        try:
            is_directory = stat.S_ISDIR(os.stat(source).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            is_directory = False
        except OSError as error:  # nothing is known: it may well be there
            raise storage_error(error, f"reading the checkpoint directory {given}") from error
        if not is_directory:
            if ours:
                raise InvalidInputError(
                    f"the checkpoint directory {given} was already reported. A directory from tune.checkpoint_dir() "
                    "can be reported once: call tune.checkpoint_dir() again for each checkpoint."
                )
            what = "is not a directory" if os.path.lexists(source) else "does not exist"
            raise InvalidInputError(
                f"the checkpoint directory {given} {what}. Write the checkpoint's files into a directory, then call "
                "report(metrics, checkpoint=Checkpoint.from_directory(that_directory))."
            )
        inside = os.path.realpath(self._dir)
        if inside == source or inside.startswith(source.rstrip("/") + "/"):
            raise InvalidInputError(
                f"the checkpoint directory {given} contains the trial's own directory {self._dir}, where checkpoints "
                "are stored. Write the checkpoint's files into a sub-directory or a temporary directory instead."
            )

    def _seal_in_place(self, source: str, listing: TreeListing, hashes: Mapping[str, str]) -> SealedStage:
        _check_names(source, listing)
        if names.MANIFEST in listing.files:
            os.unlink(f"{source}/{names.MANIFEST}")
        files = tuple(
            SealedFile(rel, facts.st_size, hashes.get(rel, ""), facts.st_ino, facts.st_mtime_ns)
            for rel, facts in sorted(listing.files.items())
            if not names.is_internal(rel)
        )
        return self._close(source, files)

    def _seal_copy(self, source: str, given: str) -> SealedStage:
        listing = scan(source, follow=True)
        for rel, what in listing.odd.items():
            raise InvalidInputError(
                f"{rel!r} in the checkpoint directory {given} {what}. A checkpoint consists of regular files and "
                "directories: remove it, or replace it by a file."
            )
        _check_names(source, listing)
        for rel in [rel for rel in listing.files if names.is_internal(rel) and rel != names.METADATA]:
            del listing.files[rel]
        target = str(self.new_directory())
        try:
            copied = copy_tree(source, target, listing, hash_clones=False)
            return self._close(target, _as_sealed(copied))
        except BaseException:
            remove_quietly([target])
            raise

    def _close(self, stage: str, files: tuple[SealedFile, ...]) -> SealedStage:
        if os.path.exists(f"{stage}/{names.METADATA}"):
            seal_metadata(stage)
        write_seal(stage, StageSeal(trial=self._trial_id, attempt=self._attempt, files=files))
        crashpoint("L1.after")
        name = names.sealed_name(os.path.basename(stage))
        os.rename(stage, f"{self._dir}/{name}")
        crashpoint("L1.sealed")
        total = sum(file.size for file in files)
        return SealedStage(name, len(files), total, all(file.hash for file in files))


def write_seal(directory: str, seal: StageSeal) -> None:
    """Write ``.holdfast-seal`` into a stage, or replace it; after an error it is as before."""
    path = f"{directory}/{names.NEW_SEAL}"
    try:
        with open(path, "wb", buffering=0) as file:
            data = memoryview(seal_json(seal, seal.algo))
            while data:
                data = data[file.write(data) :]
        os.replace(path, f"{directory}/{names.SEAL}")
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        raise


def read_seal(directory: str) -> StageSeal:
    """The seal of a sealed directory.

    Raises:
        BadManifest: If it is damaged; after a loss of power it may be cut short or empty.
        FileNotFoundError: If there is none.
    """
    seal = open_json(read_own_file(f"{directory}/{names.SEAL}"), _decode_seal)
    for entry in seal.files:
        if not is_inside(entry.path):
            raise BadManifest(f"the path {entry.path!r} leads out of the checkpoint")
    return seal


def _as_sealed(copied: list[FileEntry]) -> tuple[SealedFile, ...]:
    return tuple(
        SealedFile(entry.path, entry.size, entry.hash) for entry in copied if not names.is_internal(entry.path)
    )


def _is_plain(listing: TreeListing) -> bool:
    """Whether the files can stay as they are: links lead elsewhere, and a second name lets others write here."""
    return not listing.odd and all(facts.st_nlink == 1 for facts in listing.files.values())


def _check_names(source: str, listing: TreeListing) -> None:
    """Refuse a user's file in the place of our manifest; a manifest of ours comes along when a checkpoint is copied."""
    if names.MANIFEST not in listing.files:
        return
    with open(f"{source}/{names.MANIFEST}", "rb") as file:
        data = file.read()
    try:
        decode(data)
    except BadManifest:
        raise InvalidInputError(
            f"the checkpoint directory {source} has a file {names.MANIFEST!r}, a name that holdfast needs for its own "
            "list of files. Give yours another name or move it into a sub-directory."
        ) from None
