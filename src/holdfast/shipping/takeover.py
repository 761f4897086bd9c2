"""Record a takeover in the store on the local disk, where every append of the old driver checks for it (I4).

Owns how a successor's epoch file gets into the mirror of the driver that it replaces.
"""

from __future__ import annotations

import logging
import os

from holdfast.errors import DamageError, NewerFormatError
from holdfast.journal import epoch as epochs
from holdfast.journal.claims import Claim, encode_claim
from holdfast.shipping import parts
from holdfast.storage.local import REAL_DISK, Disk

_log = logging.getLogger("holdfast.journal")


def let_in(root: str, claim: Claim, foreign: bytes, key: str, disk: Disk = REAL_DISK) -> Claim | None:
    """Put the epoch files of a part that somebody else has made into a mirror, so that its driver stops.

    Args:
        root: The mirror.
        claim: The claim that has been overtaken.
        foreign: The bytes of the part.
        key: Where it was found.
        disk: Where the mirror is.

    Returns:
        Who made the part; None if it cannot be read, which makes the claim no less void.
    """
    successor: Claim | None = None
    files: dict[str, bytes] = {}
    try:
        for part in parts.decode_parts(foreign, key):
            successor = part.header.by
            files.update((piece.file, data) for piece, data in part.contents() if piece.file.startswith(parts.EPOCHS))
    except (DamageError, NewerFormatError) as error:
        _log.warning("the part of the driver that has taken over cannot be read: %s", error)
    fence = epochs.fence_path(root, claim)
    text = b"" if successor is None else encode_claim(successor)
    files.setdefault(os.path.relpath(fence, root), text)
    for file, data in files.items():
        disk.create_exclusive(os.path.join(root, file), data)
    disk.sync_dir(os.path.dirname(fence))
    return successor
