"""The upload progress of a local mirror: ``.holdfast/shipped.json``.

It saves a resumed driver from downloading everything only to learn that its mirror is right. Owns that file. It is a
hint: it may be missing, old or damaged, and nothing may rely on it before `Shipped.is_held_by` and the store itself
have confirmed it.
"""

from __future__ import annotations

import logging
import os

import msgspec
import xxhash

from holdfast.errors import DamageError
from holdfast.shipping.parts import is_shipped
from holdfast.storage.local import TEMP_PREFIX
from holdfast.storage.untrusted import read_regular

FORMAT = 1
FILE = ".holdfast/shipped.json"
VIEW = ".view"  # how the name of a reader's copy ends that stands beside a mirror

_CHUNK = 1024 * 1024
_log = logging.getLogger("holdfast.journal")


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a file: how many bytes, and their xxh3-128."""

    size: int
    digest: str


class Shipped(msgspec.Struct, frozen=True):
    """What of a mirror is in the store.

    Attributes:
        number: Of the last part.
        prev: Its hash.
        seq: Last record of the journal that is in the store.
        files: How much of each file is, by its path relative to the root.
        format: Of the note.
    """

    number: int = 0
    prev: str = ""
    seq: int = 0
    files: dict[str, Extent] = {}
    format: int = FORMAT

    def is_held_by(self, root: str) -> bool:
        """Tell whether the files of a mirror begin with the bytes that are in the store."""
        return all(extent_of(os.path.join(root, file), known.size) == known for file, known in self.files.items())


_decode_shipped = msgspec.json.Decoder(Shipped).decode


def extent_of(path: str, size: int = -1) -> Extent | None:
    """Return the first ``size`` bytes of a file (-1: all) as an extent; None if there are not as many."""
    hasher = xxhash.xxh3_128()
    left = size
    done = 0
    try:
        with open(path, "rb") as file:
            while left and (chunk := file.read(min(left, _CHUNK) if left > 0 else _CHUNK)):
                hasher.update(chunk)
                done += len(chunk)
                left -= len(chunk) if left > 0 else 0
    except FileNotFoundError:
        return None
    return Extent(done, hasher.hexdigest()) if size in (-1, done) else None


def read_note(root: str) -> Shipped | None:
    """Return what the mirror remembers, or None if that is nothing or cannot be read."""
    try:
        note = _decode_shipped(read_regular(os.path.join(root, FILE)))
    except (OSError, DamageError, ValueError, RecursionError):
        return None
    if not all(map(is_shipped, note.files)):
        return None  # names of other files could lead anywhere
    return note if note.format <= FORMAT and note.number > 0 else None


def write_note(root: str, shipped: Shipped) -> None:
    """Remember what is in the store.

    Durability:
        Survives a kill. It is not synced: whoever reads it checks it anyway, and it is written with every part.
    """
    path = os.path.join(root, FILE)
    temp = os.path.join(os.path.dirname(path), f"{TEMP_PREFIX}shipped")
    try:
        with open(temp, "wb") as file:
            file.write(msgspec.json.encode(shipped) + b"\n")
        os.replace(temp, path)
    except OSError as error:
        # Without it the next driver of this mirror downloads what it could have kept: no reason to stop.
        _log.debug("the upload progress could not be recorded: %s", error)
