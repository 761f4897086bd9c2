"""Verify a checkpoint directory before it is used.

Owns verification and quarantine. Distinguishes damage (fall back to an older checkpoint) from storage that cannot be
read now (retry: an outage must not cost a trial its progress). Never changes or deletes a checkpoint; a damaged one is
renamed, so that a person can inspect it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import NoReturn

from holdfast.checkpoints import names
from holdfast.checkpoints.manifest import BadManifest, FileEntry, Manifest, decode, digest
from holdfast.checkpoints.tree import (
    TRIAL_GONE,
    TreeListing,
    hash_open_file,
    is_root_there,
    open_own_file,
    read_own_file,
    run_all,
    scan,
    storage_error,
)
from holdfast.errors import CheckpointDamagedError
from holdfast.storage.local import fsync_dir, look_anew

READ_THREADS = 4

# The file system has answered, and the answer is that the thing is not there or is something else.
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR})


def read_manifest(directory: Path, *, expect_digest: str | None = None, trial_id: str | None = None) -> Manifest:
    """The manifest of a checkpoint, compared with what is expected of it; the files are not looked at.

    Raises:
        CheckpointDamagedError: There is none, or it is not the expected one.
        StorageError: It cannot be read now.
    """
    try:
        _check_place(directory)
        try:
            data = read_own_file(f"{directory}/{names.MANIFEST}")
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            _damaged(directory, "it has no manifest" if directory.is_dir() else "the directory is missing")
    except OSError as error:
        raise storage_error(error, f"reading the checkpoint {directory}") from error
    try:
        manifest = decode(data)
    except BadManifest as error:
        _damaged(directory, f"its manifest is damaged: {error} ({names.MANIFEST})")
    if trial_id is not None and manifest.trial != trial_id:
        _damaged(directory, f"its manifest belongs to trial {manifest.trial}, not to {trial_id}")
    if (index := names.index_of(directory.name)) is not None and manifest.index != index:
        _damaged(directory, f"its manifest belongs to checkpoint {manifest.index} of trial {manifest.trial}")
    if expect_digest is not None and (found := digest(manifest)) != expect_digest:
        _damaged(
            directory,
            f"its manifest (of checkpoint {manifest.index} of trial {manifest.trial}) differs from the committed one: "
            f"digest {found} instead of {expect_digest}",
        )
    return manifest


def verify(
    directory: str | os.PathLike[str], *, expect_digest: str | None = None, trial_id: str | None = None
) -> Manifest:
    """Read every byte of a checkpoint and compare it with the manifest.

    Args:
        directory: The checkpoint.
        expect_digest: What the journal says its digest is; None accepts any valid manifest.
        trial_id: The trial that it must belong to; None accepts any.

    Raises:
        CheckpointDamagedError: Something is missing, changed or too much; the message names the file.
        StorageError: The storage could not be read: nothing is known about the checkpoint.
    """
    path = Path(directory)
    manifest = read_manifest(path, expect_digest=expect_digest, trial_id=trial_id)

    def check_one(entry: FileEntry) -> None:
        try:
            fd = open_own_file(f"{path}/{entry.path}")
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            _damaged(path, f"{entry.path} is missing")
        try:
            _check_size(path, entry, os.fstat(fd).st_size)
            if hash_open_file(fd, manifest.algo) != entry.hash:
                _damaged(path, f"the content of {entry.path} is not what was saved")
        finally:
            os.close(fd)

    try:
        check_names(path, manifest, scan(str(path), follow=False))
        run_all(check_one, manifest.files, READ_THREADS)
    except OSError as error:
        raise storage_error(error, f"reading the checkpoint {path}") from error
    return manifest


def quick_check(directory: str | os.PathLike[str], expect_digest: str | None = None) -> Manifest:
    """Compare names and sizes with the manifest, without reading the files. Raises as ``verify`` does."""
    path = Path(directory)
    manifest = read_manifest(path, expect_digest=expect_digest)
    try:
        listing = scan(str(path), follow=False)
    except OSError as error:
        raise storage_error(error, f"reading the checkpoint {path}") from error
    check_names(path, manifest, listing)
    for entry in manifest.files:
        _check_size(path, entry, listing.files[entry.path].st_size)
    return manifest


def quarantine(directory: str | os.PathLike[str]) -> Path | None:
    """Move a damaged checkpoint out of the way: ``<name>.bad-<hex>`` beside it. None if it is gone."""
    path = Path(directory)
    aside = path.with_name(f"{path.name}.bad-{names.unique()}")
    try:
        os.rename(path, aside)
        fsync_dir(str(path.parent))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, f"moving the damaged checkpoint {path} aside") from error
    return aside


def _check_place(directory: Path) -> None:
    """If the place of all the trial's checkpoints is gone, so may the storage be: that is no damage.

    Another machine may have made the checkpoint since this one last looked for it.
    """
    with contextlib.suppress(OSError):
        look_anew(directory.parent.parent)
    try:
        look_anew(directory.parent)
    except FileNotFoundError:
        if not is_root_there(str(directory.parent)):
            raise
        _damaged(directory, TRIAL_GONE)


def check_names(path: Path, manifest: Manifest, listing: TreeListing) -> None:
    """Raise ``CheckpointDamagedError`` unless exactly the files that the manifest lists are there."""
    listed = {entry.path for entry in manifest.files}
    for rel, what in listing.odd.items():
        _damaged(path, f"{rel} {what}")
    for rel in sorted(listed - listing.files.keys()):
        _damaged(path, f"{rel} is missing")
    for rel in sorted(listing.files.keys() - listed):
        if not names.is_internal(rel) and not names.is_leftover(rel):
            _damaged(path, f"{rel} is not one of the files that were saved")


def _check_size(path: Path, entry: FileEntry, size: int) -> None:
    if size != entry.size:
        _damaged(path, f"{entry.path} has {size:,} bytes instead of {entry.size:,}")


def _damaged(path: Path, reason: str) -> NoReturn:
    raise CheckpointDamagedError(
        f"the checkpoint {path} is damaged: {reason}. It was left as it is; an older checkpoint of the trial can be "
        "used instead.",
        path=str(path),
        reason=reason,
    )
