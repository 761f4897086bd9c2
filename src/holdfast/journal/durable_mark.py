"""How far a driver knows its journal to be durable, said where others can read it.

A driver that is alive writes ``.holdfast/epochs/<epoch>.synced`` after each sync. So a reader can tell how much a power
cut would take now, and the next driver what it may rely on (see `SegmentWriter`). The file is neither durable nor
replaced atomically, because it costs a sync thread's time after every sync: after a crash it may be missing, old or
half new. An old one is still true, since what was durable stays so; any other betrays itself by its checksum.

Owns this file. Must never be needed. That a history which is shorter than this says is damaged is for `reach` to say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from holdfast.errors import DamageError, FencedError, JournalDamagedError
from holdfast.journal.claims import Claim
from holdfast.journal.epoch import holder
from holdfast.journal.position import Position, decode_position, encode_position
from holdfast.journal.reader import read_journal
from holdfast.storage.local import REAL_DISK, Disk

_MARK = re.compile(r"\d{8}\.(?:synced|released)", re.ASCII)


def publish(root: str, claim: Claim, position: Position, disk: Disk) -> None:
    """Say that every record before ``position`` is durable. If the disk refuses, nobody is told."""
    try:
        disk.overwrite(_path(root, claim.epoch), encode_position(position))
    except OSError:
        pass


def published(root: str, epoch: int, disk: Disk) -> Position | None:
    """Return what the driver of ``epoch`` said last, or None if it cannot be read."""
    try:
        return decode_position(disk.read(_path(root, epoch)))
    except (OSError, DamageError):
        return None


def oldest_volatile(root: str | os.PathLike[str], *, disk: Disk = REAL_DISK) -> bytes | None:
    """Return the oldest record that a power cut could take away now, by what the live driver says of its syncs.

    Costs what was written since the last sync, not what was written before. None if there is no such record, or if
    nobody is alive to say.
    """
    root = os.path.abspath(root)
    owner = holder(root, disk=disk)
    position = published(root, owner.claim.epoch, disk) if owner is not None and owner.alive else None
    if position is None:
        return None
    try:
        return next((payload for _, payload in read_journal(root, after=position, disk=disk)), None)
    except (FencedError, JournalDamagedError, FileNotFoundError):  # the driver continued elsewhere while we looked
        return None


def is_there(root: str | os.PathLike[str], epoch: int, *, disk: Disk = REAL_DISK) -> bool:
    """Whether there is a mark of ``epoch``, whatever it says. A driver makes it before it has a record."""
    return disk.exists(_path(os.path.abspath(root), epoch))


def damaged_marks(root: str | os.PathLike[str], *, disk: Disk = REAL_DISK) -> Iterator[tuple[str, str]]:
    """Return the marks that cannot be read, relative to the root, and why.

    One that a power cut has left empty, or full of zeros, is no damage, and one that nobody has filled is neither.
    """
    root = os.path.abspath(root)
    for name in sorted(disk.list(f"{root}/.holdfast/epochs")):
        file = f".holdfast/epochs/{name}"
        # Twice: its driver may have been writing it.
        if _MARK.fullmatch(name) and _is_damaged(f"{root}/{file}", disk) and _is_damaged(f"{root}/{file}", disk):
            yield file, "does not match its checksum"


def _is_damaged(path: str, disk: Disk) -> bool:
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return False
    except (OSError, DamageError):
        return True
    return bool(data.strip(b"\0")) and decode_position(data) is None


def _path(root: str, epoch: int) -> str:
    return f"{root}/.holdfast/epochs/{epoch:08d}.synced"
