"""Making the files of a checkpoint survive a loss of power: one after the other, or all at once.

Owns the choice between ``fsync`` of each file and one ``syncfs``. Decides nothing about checkpoints, and never calls a
file durable whose writing has failed.

Each ``fsync`` of a small file commits the file system's journal and flushes the disk: two hundred of them take longer
than their copying did, and half of the CPU time of a commit. ``syncfs`` does both once. But it waits for what everybody
else has written, and an error that it reports may be anybody's, while one of ours may have been reported to somebody
else. So it is used where little else waits to be written, and every file is asked for its own error behind it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.checkpoints.syscalls import can_sync_at_once, raise_write_error, sync_file_system
from holdfast.checkpoints.tree import run_all
from holdfast.storage.mounts import file_system_of

SYNC_THREADS = 8  # a disk merges concurrent fsyncs; eight halve the time of a thousand small files
MANY_FILES = 64  # below, both take the same time
MAX_OTHERS_BYTES = 64 * 1024 * 1024

_LOCAL = frozenset({"ext3", "ext4", "xfs", "btrfs", "f2fs"})
_MEMORY = "/proc/meminfo"

File = TypeVar("File")
Each = Callable[[File, Callable[[int], None]], None]


def sync_files(
    directory: str, files: Sequence[File], size: int, each: Callable[[File, Callable[[int], None]], None]
) -> None:
    """Make files survive a loss of power.

    Args:
        directory: Where they are.
        files: What ``each`` knows them by.
        size: Bytes in all of them.
        each: Opens one file and calls its second argument with the descriptor. From several threads.

    Raises:
        OSError: A file could not be written. A later attempt on the same file proves nothing.
    """
    if len(files) >= MANY_FILES and may_sync_at_once(directory, size) and _sync_at_once(directory):
        for file in files:
            each(file, raise_write_error)
    else:
        run_all(lambda file: each(file, os.fsync), files, SYNC_THREADS)


def may_sync_at_once(directory: str, size: int) -> bool:
    """Whether ``syncfs`` does here what ``fsync`` does, and does not wait for much that others have written."""
    if not can_sync_at_once() or file_system_of(directory) not in _LOCAL:
        return False
    waiting = unwritten_bytes()
    return waiting is not None and waiting <= size + MAX_OTHERS_BYTES


def unwritten_bytes() -> int | None:
    """What waits in memory to be written to any disk of this machine; None if nobody says."""
    try:
        with open(_MEMORY, encoding="ascii") as file:
            facts = dict(line.split(":", 1) for line in file)
        return sum(int(facts[name].split()[0]) * 1024 for name in ("Dirty", "Writeback"))
    except (OSError, LookupError, ValueError):
        return None


def _sync_at_once(directory: str) -> bool:
    """Sync the file system; False if that did not work, of which the files' own ``fsync`` says more."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sync_file_system(fd)
        finally:
            os.close(fd)
    except OSError:
        return False
    return True
