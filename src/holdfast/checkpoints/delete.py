"""Delete one checkpoint or stage directory.

Owns the order of a deletion: first the manifest, so that no reader can see a partial checkpoint, then the name, then
the files. Refuses every directory that holdfast did not make (I3). Does not decide which checkpoints are still needed.

Its errors have a ``reason`` beside their message: a deletion that fails for good is journaled, and the history names no
place where the experiment once was (I11).
"""

from __future__ import annotations

import os
import stat
import zlib
from typing import NoReturn

from holdfast.checkpoints import names
from holdfast.checkpoints.manifest import BadManifest, decode
from holdfast.checkpoints.tree import storage_error
from holdfast.errors import DamageError, InternalError, StorageError
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.untrusted import kind_of, open_directory, read_regular, remove_below


def delete(directory: str | os.PathLike[str]) -> None:
    """Delete a checkpoint or a temporary directory of ours; finishes a deletion that was interrupted.

    Durability: when this returns, the directory is gone and stays so after a loss of power.

    Raises:
        InternalError: The directory is not one that we made; it was not touched.
        StorageError: The file system refused. Calling again later may work.
    """
    path = os.path.abspath(directory)
    parent, name = os.path.split(path)
    if names.index_of(name) is None and not names.is_temporary(name):
        _refuse(path, "its name is not one that checkpoints have")
    try:
        # Through the opened directory of the trial, which is one name below the root and no link: nothing that was put
        # in its place can lead a deletion elsewhere.
        place = open_directory(parent)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        _refuse(path, f"the trial's directory is {kind_of(parent)}")
    except OSError as error:
        raise _trouble(error, path) from error
    try:
        _delete(place, path, name)
    except OSError as error:
        if _is_held_open(f"{parent}/{_trash_of(name)}"):
            raise _held_open(path) from error
        raise _trouble(error, path) from error
    finally:
        os.close(place)


def _trash_of(name: str) -> str:
    """The directory's last name, made from the one that it had, so that a repeated deletion finds it."""
    return name if name.startswith(".trash-") else f".trash-{zlib.crc32(name.encode()):08x}"


def _is_held_open(trash: str) -> bool:
    """Whether nothing is left but what a network file system keeps for those who have it open."""
    left = [name for _, _, files in os.walk(trash) for name in files]
    return bool(left) and all(names.is_kept_for_readers(name) for name in left)


def _delete(place: int, path: str, name: str) -> None:
    trash = _trash_of(name)
    try:
        facts = os.stat(name, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISDIR(facts.st_mode):
            _refuse(path, "it is not a directory")
        if names.index_of(name) is not None:
            _remove_manifest(place, path, name)
        crashpoint("D2.after")
        if trash != name:
            remove_below(place, trash)
            os.rename(name, trash, src_dir_fd=place, dst_dir_fd=place)
    crashpoint("D4.after")
    remove_below(place, trash)
    os.fsync(place)


def _remove_manifest(place: int, path: str, name: str) -> None:
    """From here on it is no checkpoint; the mark, put there in the same step, says that it was one of ours."""
    directory = open_directory(name, within=place)
    try:
        try:
            decode(read_regular(names.MANIFEST, within=directory))
        except FileNotFoundError:
            if not _has(directory, names.TRASH_MARK):
                _refuse(path, "it has no manifest, so it is not known to be a checkpoint")
        except (BadManifest, DamageError) as error:
            _refuse(path, f"its manifest is not a valid one of ours ({error})")
        else:
            os.rename(names.MANIFEST, names.TRASH_MARK, src_dir_fd=directory, dst_dir_fd=directory)
            os.fsync(directory)
    finally:
        os.close(directory)


def _has(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _refuse(path: str, why: str) -> NoReturn:
    what = f"{why}. It was not touched. Remove it by hand if it is not needed."
    error = InternalError(f"refused to delete {path}: {what}")
    error.reason = f"refused to delete {os.path.basename(path)}: {what}"
    raise error


def _held_open(path: str) -> StorageError:
    what = (
        "is deleted, but some process has files of it open, and a network file system keeps those for as long. What is "
        "left is removed later, or when the experiment is restored."
    )
    error = StorageError(f"{path} {what}")
    error.reason = f"{os.path.basename(path)} {what}"
    return error


def _trouble(error: OSError, path: str) -> StorageError:
    """What the file system said, once with the path and once without."""
    parent, name = os.path.split(path)
    file = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    inside = os.path.relpath(file, parent) if os.path.isabs(file) else file
    if inside.split(os.sep)[0] in ("", ".", ".."):
        placeless = OSError(error.errno, error.strerror)
    else:
        placeless = OSError(error.errno, error.strerror, inside)
    trouble = storage_error(error, f"deleting {path}")
    trouble.reason = str(storage_error(placeless, f"deleting {name}"))
    return trouble
