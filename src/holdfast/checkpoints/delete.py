"""Deleting one directory of ours.

Owns the order in which a checkpoint ceases to exist: first its manifest, so that no reader can see half of it, then
its name, then its files. Refuses everything that this code base did not make (I3). Decides nothing about which
checkpoints are still needed.
"""

from __future__ import annotations

import os
import stat
import zlib
from typing import NoReturn

from holdfast.checkpoints import names
from holdfast.checkpoints.manifest import BadManifest, decode
from holdfast.checkpoints.tree import remove_tree, storage_error
from holdfast.errors import InternalError, StorageError
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.local import fsync_dir


def delete(directory: str | os.PathLike[str]) -> None:
    """Delete a checkpoint or a temporary directory of ours; finishes a deletion that was interrupted.

    Durability: when this returns, the directory is gone and stays so after a loss of power.

    Raises:
        InternalError: The directory is not one that we made; it was not touched.
        StorageError: The file system refused. Calling again later may work.
    """
    path = os.path.abspath(directory)
    name = os.path.basename(path)
    if names.index_of(name) is None and not names.is_temporary(name):
        _refuse(path, "its name is not one that checkpoints have")
    try:
        _delete(path, name)
    except OSError as error:
        if _is_held_open(_trash_of(path, name)):
            raise StorageError(
                f"{path} is no checkpoint any more, but some process has files of it open, and a network file system "
                "keeps those for as long. What is left is removed later, or when the experiment is restored."
            ) from error
        raise storage_error(error, f"deleting {path}") from error


def _trash_of(path: str, name: str) -> str:
    """The directory's last name, made from the one that it had, so that a repeated deletion finds it."""
    return path if name.startswith(".trash-") else f"{os.path.dirname(path)}/.trash-{zlib.crc32(name.encode()):08x}"


def _is_held_open(trash: str) -> bool:
    """Whether nothing is left but what a network file system keeps for those who have it open."""
    left = [name for _, _, files in os.walk(trash) for name in files]
    return bool(left) and all(names.is_kept_for_readers(name) for name in left)


def _delete(path: str, name: str) -> None:
    parent = os.path.dirname(path)
    trash = _trash_of(path, name)
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISDIR(facts.st_mode):
            _refuse(path, "it is not a directory")
        if names.index_of(name) is not None:
            _remove_manifest(path)
        crashpoint("D2.after")
        if trash != path:
            remove_tree(trash)
            os.rename(path, trash)
    crashpoint("D4.after")
    remove_tree(trash)
    if os.path.isdir(parent):
        fsync_dir(parent)


def _remove_manifest(path: str) -> None:
    """From here on it is no checkpoint; the mark, put there in the same step, says that it was one of ours."""
    manifest = f"{path}/{names.MANIFEST}"
    try:
        with open(manifest, "rb") as file:
            decode(file.read())
    except FileNotFoundError:
        if not os.path.exists(f"{path}/{names.TRASH_MARK}"):
            _refuse(path, "it has no manifest, so it is not known to be a checkpoint")
    except BadManifest as error:
        _refuse(path, f"its manifest is not a valid one of ours ({error})")
    else:
        os.rename(manifest, f"{path}/{names.TRASH_MARK}")
        fsync_dir(path)


def _refuse(path: str, why: str) -> NoReturn:
    raise InternalError(f"refused to delete {path}: {why}. It was not touched. Remove it by hand if it is not needed.")
