"""Which experiment a root belongs to, for what is shipped from it.

Owns reading the uid. Must never be needed: without it, parts say nothing of whose they are.
"""

from __future__ import annotations

import os

import msgspec

from holdfast.errors import DamageError
from holdfast.storage.local import REAL_DISK, Disk


class _Facts(msgspec.Struct):
    uid: str


_decode_facts = msgspec.json.Decoder(_Facts).decode


def uid_in(data: bytes) -> str:
    """Return the uid in the text of ``spec.json``; empty if it cannot be read."""
    try:
        return _decode_facts(data).uid
    except (ValueError, RecursionError):
        return ""


def uid_of(root: str | os.PathLike[str], disk: Disk = REAL_DISK) -> str:
    """Return the uid of the experiment at ``root``; empty if there is none that can be read."""
    try:
        return uid_in(disk.read(os.path.join(os.fspath(root), ".holdfast", "spec.json")))
    except (OSError, DamageError):
        return ""
