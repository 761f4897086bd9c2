"""The manifest: the list of files, sizes and hashes that makes a directory a checkpoint.

Owns the format of ``_manifest.json`` and the hash algorithms. Does no file access. A directory without a valid
manifest does not exist for readers (I2).

The last field, ``self``, is the hash of every byte before it, so any change to the file shows. That hash is also the
checkpoint's digest: the journal's commit event holds it, and through it every byte of every file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.errors import InvalidTypeError
from holdfast.space.naming import is_inside

FORMAT = 1
ALGORITHM = "xxh3-128"
ALGORITHMS = {"xxh3-128": 32, "sha256": 64}  # name: length of its hex digest


class Hasher(Protocol):
    """What both algorithms offer."""

    def update(self, data: Any, /) -> None: ...

    def hexdigest(self) -> str: ...


class FileEntry(msgspec.Struct, frozen=True):
    """One file: its path relative to the checkpoint, its size in bytes, the hash of its content."""

    path: str
    size: int
    hash: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a committed checkpoint consists of, and where it came from."""

    format: int = FORMAT
    trial: str
    index: int
    attempt: int
    stage: str  # the sealed directory it was made from; unique, so a repeated commit knows its own work
    algo: str = ALGORITHM
    files: tuple[FileEntry, ...]  # sorted by path
    total: int  # sum of the sizes
    meta: dict[str, Any] = {}


_decode_manifest = msgspec.json.Decoder(Manifest).decode


class BadManifest(Exception):
    """The bytes are not a valid manifest; the text says why."""


def new_hasher(algo: str = ALGORITHM) -> Hasher:
    """An empty hash of this algorithm."""
    if algo == "sha256":
        return hashlib.sha256()
    assert algo == ALGORITHM, algo
    import xxhash

    return xxhash.xxh3_128()


def encode(manifest: Manifest) -> bytes:
    """The content of ``_manifest.json``."""
    return seal_json(manifest, manifest.algo)


def decode(data: bytes) -> Manifest:
    """The inverse of ``encode``.

    Raises:
        BadManifest: If a byte is wrong, or the content is not what ``encode`` would have written.
    """
    manifest = open_json(data, _decode_manifest)
    validate(manifest)
    return manifest


def digest(manifest: Manifest) -> str:
    """The hash that stands for the whole checkpoint."""
    return _hash(_encode(manifest), manifest.algo)


def validate(manifest: Manifest) -> None:
    """Raise ``BadManifest`` unless the fields agree with each other and every path stays inside the checkpoint."""
    if manifest.format != FORMAT:
        raise BadManifest(f"its format is {manifest.format}, this holdfast reads {FORMAT}")
    if manifest.algo not in ALGORITHMS:
        raise BadManifest(f"it uses the hash {manifest.algo!r}, known are {', '.join(ALGORITHMS)}")
    if manifest.index < 0 or manifest.attempt < 0:
        raise BadManifest(f"index {manifest.index} or attempt {manifest.attempt} is negative")
    last = ""
    for entry in manifest.files:
        if not is_inside(entry.path):
            raise BadManifest(f"the path {entry.path!r} leads out of the checkpoint")
        if entry.path <= last:
            raise BadManifest(f"the path {entry.path!r} is out of order or listed twice")
        if entry.size < 0 or len(entry.hash) != ALGORITHMS[manifest.algo]:
            raise BadManifest(f"the size or hash of {entry.path!r} is impossible")
        last = entry.path
    if manifest.total != sum(entry.size for entry in manifest.files):
        raise BadManifest(f"its total of {manifest.total} bytes is not the sum of its files")


Record = TypeVar("Record", bound=msgspec.Struct)

_MARK = b',"self":"'
_TAIL = b'"}\n'


def seal_json(record: msgspec.Struct, algo: str) -> bytes:
    """One line of JSON whose last field ``self`` is the hash of all that stands before it."""
    body = _encode(record)
    return body[:-1] + _MARK + _hash(body, algo).encode() + _TAIL


def open_json(data: bytes, decode: Callable[[bytes], Record]) -> Record:
    """The inverse of ``seal_json``; raises ``BadManifest`` if a single byte differs."""
    start = data.rfind(_MARK)
    if start < 0 or not data.endswith(_TAIL):
        raise BadManifest("it is truncated")
    body = data[:start] + b"}"
    checksum = data[start + len(_MARK) : -len(_TAIL)].decode("ascii", "replace")
    algo = next((name for name, length in ALGORITHMS.items() if length == len(checksum)), None)
    if algo is None or _hash(body, algo) != checksum:
        raise BadManifest("its content does not match its own checksum")
    try:
        return decode(body)
    except (ValueError, RecursionError) as error:
        raise BadManifest(f"it is not one of ours: {error}") from None


def _encode(record: msgspec.Struct) -> bytes:
    try:
        return msgspec.json.encode(record)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(
            f"checkpoint metadata cannot be written as JSON: {error}. Use strings, numbers, booleans, lists and "
            "dicts, and put anything else into a file of the checkpoint."
        ) from None


def _hash(data: bytes, algo: str) -> str:
    hasher = new_hasher(algo)
    hasher.update(data)
    return hasher.hexdigest()
