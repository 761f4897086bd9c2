"""Which file systems only this machine can change, how to read one that others change too, and how much space one has.

Owns the classification by the type of the mount. Must never claim that a file system belongs to this machine alone if
that is not known: an extra check costs microseconds, a missed successor means an experiment with two writers.
"""

from __future__ import annotations

import os
import shutil

from holdfast.storage.local import REAL_DISK, Disk, RealDisk, look_anew

_TABLE = "/proc/self/mountinfo"

# Everything else may have other clients, or is asked for its names by way of something that may (FUSE).
_OWN = frozenset(
    ("apfs", "aufs", "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfs", "hfsplus", "jfs")
    + ("msdos", "nilfs2", "ntfs", "ntfs3", "overlay", "ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs", "udf", "vfat")
    + ("xfs", "zfs")
)


class SharedDisk(RealDisk):
    """A disk on which other machines make files too."""

    def exists(self, path: str) -> bool:
        try:
            look_anew(os.path.dirname(path))
        except FileNotFoundError:
            return False
        return super().exists(path)


_SHARED_DISK: Disk = SharedDisk()


def disk_of(path: str | os.PathLike[str]) -> Disk:
    """Return the disk through which to look at ``path``, which need not be there yet."""
    return REAL_DISK if is_own(path) or os.name == "nt" else _SHARED_DISK


def is_own(path: str | os.PathLike[str]) -> bool:
    """Tell whether ``path`` is known to be on a file system that only this machine can change."""
    return file_system_of(path) in _OWN


def file_system_of(path: str | os.PathLike[str]) -> str:
    """Return the kind of file system, as ``nfs4``, on which ``path`` is or would be; empty if that cannot be known."""
    try:
        with open(_TABLE, encoding="utf-8", errors="surrogateescape") as file:
            mounts = [_parse(line) for line in file]
    except OSError:
        return ""
    inside = os.path.realpath(path)
    kind, longest = "", -1
    for place, its_kind in mounts:
        # Of several mounts at one place the last one is seen.
        if len(place) >= longest and (inside == place or inside.startswith(place.rstrip("/") + "/")):
            kind, longest = its_kind, len(place)
    return kind


def _parse(line: str) -> tuple[str, str]:
    """Return place and kind of a mount. Behind the place stand any number of optional words, then a dash."""
    facts, _, source = line.partition(" - ")
    place = facts.split(" ")[4].encode("utf-8", "surrogateescape")
    return _unescaped(place), source.split(" ", 1)[0]


def _unescaped(place: bytes) -> str:
    """Undo the octal escapes of blanks, tabs, line breaks and backslashes."""
    for code in (b"040", b"011", b"012", b"134"):
        place = place.replace(b"\\" + code, bytes([int(code, 8)]))
    return os.fsdecode(place)


def free_bytes(path: str | os.PathLike[str]) -> int | None:
    """What this user may still write to the file system of ``path``; None if it does not say."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None
