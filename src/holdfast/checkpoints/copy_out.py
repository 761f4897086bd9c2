"""Copies of a checkpoint for the user.

Owns the lock by which concurrent copies into one directory become one. Never leaves a directory with a part of a copy,
and never changes a checkpoint's own files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from holdfast.checkpoints import names
from holdfast.checkpoints.checkpoint_reader import check_names
from holdfast.checkpoints.copying import copy_tree
from holdfast.checkpoints.manifest import ALGORITHM, FileEntry, Manifest, new_hasher
from holdfast.checkpoints.tree import TreeListing, remove_quietly, scan, storage_error
from holdfast.checkpoints.verified import inspect
from holdfast.errors import CheckpointDamagedError, InvalidInputError, StorageError


def export(source: str, target: str, *, token: str, verify: bool = True) -> str:
    """Copy the user's files of the checkpoint ``source`` into ``target``.

    Args:
        token: Names the copy. A caller that had to wait for another one with the same token and target takes that
            one's copy for its own.
        verify: Compare each file with the manifest while it is copied.
    """
    if os.path.realpath(target) == os.path.realpath(source):
        return target
    if os.path.realpath(target).startswith(os.path.realpath(source) + "/"):
        raise InvalidInputError(f"{target} is inside the checkpoint {source}: choose a directory elsewhere")
    if os.path.lexists(target) and not os.path.isdir(target):
        raise InvalidInputError(f"{target} is not a directory: choose another path for the copy of the checkpoint")
    try:
        with _alone(target, token) as shared:
            if not shared and verify:
                _copy_into(source, target)
            elif not shared:
                _copy_into(source, target, verify=False)
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(error, f"copying the checkpoint {source} to {target}") from error
    return target


@contextlib.contextmanager
def _alone(target: str, token: str) -> Iterator[bool]:
    """Hold the lock of a target directory; True if somebody else made this very copy while we waited for it."""
    fd, shared = _lock(_lock_path(target), token)
    try:
        yield shared
        if not shared:
            os.pwrite(fd, token.encode(), 0)
    finally:
        if not shared:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_lock_path(target))  # those who wait have it open, and read the token there
        os.close(fd)


def _lock(path: str, token: str) -> tuple[int, bool]:
    waited = False
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            fcntl.flock(fd, fcntl.LOCK_EX)
        if waited and os.pread(fd, 64, 0) == token.encode():
            return fd, True
        if os.fstat(fd).st_nlink:
            os.ftruncate(fd, 0)  # a token that a killed process left says nothing about this copy
            return fd, False
        os.close(fd)  # its last holder removed the file, so others may hold a new one: join them


def _lock_path(target: str) -> str:
    hasher = new_hasher()
    hasher.update(os.fsencode(os.path.realpath(target)))
    return os.path.join(tempfile.gettempdir(), f"holdfast_{os.getuid()}_{hasher.hexdigest()[:16]}.lock")


def _copy_into(source: str, target: str, *, verify: bool = True) -> None:
    manifest = inspect(source) if verify else None
    saved = manifest is not None or names.index_of(os.path.basename(source)) is not None
    listing = scan(source, follow=not saved)  # there is no link in what we have saved
    if manifest is not None:
        check_names(Path(source), manifest, listing)
    for rel, what in listing.odd.items():
        raise InvalidInputError(f"{rel!r} in the checkpoint {source} {what}, so it cannot be copied")
    if saved:
        for rel in (names.MANIFEST, names.SEAL, names.NEW_SEAL):
            listing.files.pop(rel, None)
    merge = os.path.isdir(target)
    part = f"{target}/.part-{names.unique()}" if merge else f"{target}.part-{names.unique()}"
    try:
        os.makedirs(part)
        copied = copy_tree(source, part, listing, algo=manifest.algo if manifest else ALGORITHM)
        if manifest is not None:
            _compare(source, manifest, copied)
        if merge:
            _move_files(part, target, listing)
        else:
            os.rename(part, target)
    finally:
        remove_quietly([part])


def _compare(source: str, manifest: Manifest, copied: list[FileEntry]) -> None:
    found = {entry.path: entry for entry in copied}
    for entry in manifest.files:
        if found.get(entry.path) != entry:
            what = "is missing" if entry.path not in found else "is not what was saved"
            raise CheckpointDamagedError(
                f"the checkpoint {source} is damaged: {entry.path} {what}. No copy was made.",
                path=source,
                reason=f"{entry.path} {what}",
            )


def _move_files(part: str, target: str, listing: TreeListing) -> None:
    for rel in listing.dirs:
        os.makedirs(f"{target}/{rel}", exist_ok=True)
    for rel in listing.files:
        os.replace(f"{part}/{rel}", f"{target}/{rel}")
