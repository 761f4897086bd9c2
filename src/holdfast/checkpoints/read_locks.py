"""Read locks on local copies of checkpoints that are in a remote store: a copy is not removed while it is read.

It is a lock on the copy's directory, because readers may be other processes: a notebook beside the driver, a trial that
loads another's weights. Checkpoints from which attempts start need no lock: the driver knows them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from holdfast.checkpoints.delete import delete
from holdfast.storage.locks import lock


@contextlib.contextmanager
def reading(directory: str) -> Iterator[bool]:
    """Keep a local copy from being removed while the block runs.

    Returns:
        False if there is none, or it is being removed, or this file system cannot keep it: take another copy then.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        yield lock(fd, shared=True, without=False) and _is_still(directory, fd)
    finally:
        os.close(fd)


def remove_copy(directory: str) -> bool:
    """Remove a local copy. False if somebody reads it, and it was left as it is.

    Raises as ``delete`` does.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        delete(directory)  # what an interrupted removal has left
        return True
    try:
        if not lock(fd):
            return False
        delete(directory)
        return True
    finally:
        os.close(fd)


def _is_still(directory: str, fd: int) -> bool:
    """Whether the directory that was opened still has its name: it may have been removed before it was locked."""
    try:
        return os.path.samestat(os.stat(directory), os.fstat(fd))
    except OSError:
        return False
