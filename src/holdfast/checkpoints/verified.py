"""Verify a checkpoint once per process, before its files are first read.

Owns the cache of checkpoints that this process has verified, and which directories need a manifest: checkpoints of an
experiment do, a user's own directory does not. The cache key is inode, size and times of each file, so that using a
checkpoint again costs a listing. Never writes, and never mistakes storage that cannot be read for damage.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple, NoReturn

from holdfast.checkpoints import names
from holdfast.checkpoints.checkpoint_reader import read_manifest, verify
from holdfast.checkpoints.manifest import Manifest, digest, new_hasher
from holdfast.checkpoints.tree import is_root_there, read_own_file, scan, storage_error
from holdfast.errors import CheckpointDamagedError

MAX_REMEMBERED = 4096

# A file that changes within one tick of the file system's clock keeps its times. So what was written this recently
# is read again next time.
FRESH_NS = 100_000_000
FRESH_COARSE_NS = 2_000_000_000  # where times are whole seconds
_SECOND_NS = 1_000_000_000

_log = logging.getLogger("holdfast.checkpoints")


class _Known(NamedTuple):
    mark: str
    digest: str


class _Look(NamedTuple):
    mark: str
    newest_ns: int


_lock = threading.Lock()
_known: OrderedDict[str, _Known] = OrderedDict()
_told: set[str] = set()


def ensure(directory: str, expect_digest: str | None = None) -> None:
    """Return if the files may be used: they are what was saved, or nobody but the user ever vouched for them.

    Args:
        directory: The checkpoint.
        expect_digest: What the journal says its digest is; None if that is not known.

    Raises:
        CheckpointDamagedError: Something is missing, changed or too much; the reason names the file.
        StorageError: The storage could not be read: nothing is known about the checkpoint.
    """
    directory = os.path.abspath(directory)
    known = _known.get(directory)
    if known is not None and expect_digest in (None, known.digest) and _look(directory).mark == known.mark:
        return
    if inspect(directory, expect_digest) is not None:
        look = _look(directory)  # before it is read: a later change shows
        _remember(directory, look, verify(directory, expect_digest=expect_digest))


def inspect(directory: str, expect_digest: str | None = None) -> Manifest | None:
    """The manifest; None for a directory that needs none. The files are not looked at. Raises as ``ensure`` does."""
    path = Path(directory)
    saved = names.index_of(path.name) is not None
    try:
        return read_manifest(path, expect_digest=expect_digest)
    except CheckpointDamagedError:
        if expect_digest is not None or (saved and is_root_there(os.path.dirname(directory))):
            raise
        data = _manifest_bytes(directory)
        if data is None:
            if saved and path.is_dir():
                _say_unverified(directory)
            return None
        if saved or _is_like_ours(data):
            raise
        return None  # another program's file of the same name


def read_through(directory: str | os.PathLike[str], expect_digest: str | None = None) -> Manifest:
    """Compare every byte, whatever is remembered: bytes can rot. Raises as ``reader.verify`` does."""
    path = os.path.abspath(directory)
    look = None
    if os.path.isdir(path):
        look = _look(path)
    manifest = verify(path, expect_digest=expect_digest)
    if look is not None:
        _remember(path, look, manifest)
    return manifest


def mark_of(directory: str | os.PathLike[str]) -> str:
    """What tells another process that it sees the very files that this one has read through; "" if it has not."""
    known = _known.get(os.path.abspath(directory))
    return f"{known.digest}:{known.mark}" if known is not None else ""


def trust(directory: str, mark: str) -> None:
    """Believe another process's ``mark_of``, for as long as the files are those that it saw."""
    if mark:
        known, _, look = mark.partition(":")
        _put(os.path.abspath(directory), _Known(look, known))


def _look(directory: str) -> _Look:
    try:
        listing = scan(directory, follow=False)
    except FileNotFoundError:
        _missing(directory)
    except OSError as error:
        raise storage_error(error, f"reading the checkpoint {directory}") from error
    hasher = new_hasher()
    newest = 0
    for rel, facts in listing.files.items():
        if rel == names.METADATA or names.is_leftover(rel):
            continue
        times = facts.st_mtime_ns, facts.st_ctime_ns
        newest = max(newest, *times)
        hasher.update(f"{rel}\0{facts.st_ino}\0{facts.st_size}\0{times}\0".encode())
    for rel in listing.odd:
        hasher.update(os.fsencode(f"{rel}\0odd\0"))
    return _Look(hasher.hexdigest(), newest)


def _remember(directory: str, look: _Look, manifest: Manifest) -> None:
    coarse = look.newest_ns % _SECOND_NS == 0
    if look.newest_ns + (FRESH_COARSE_NS if coarse else FRESH_NS) <= time.time_ns():
        _put(directory, _Known(look.mark, digest(manifest)))


def _put(directory: str, known: _Known) -> None:
    with _lock:
        _known[directory] = known
        _known.move_to_end(directory)
        while len(_known) > MAX_REMEMBERED:
            _known.popitem(last=False)


def _manifest_bytes(directory: str) -> bytes | None:
    try:
        return read_own_file(f"{directory}/{names.MANIFEST}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_error(error, f"reading the checkpoint {directory}") from error


def _is_like_ours(data: bytes) -> bool:
    """Whether a damaged manifest was one of ours: one damaged place leaves the other trait."""
    return data.startswith(b'{"format":') or b',"self":"' in data


def _say_unverified(directory: str) -> None:
    if directory not in _told and len(_told) < MAX_REMEMBERED:
        _told.add(directory)
        _log.warning("%s has no manifest (%s), so damage to its files cannot be detected.", directory, names.MANIFEST)


def _missing(directory: str) -> NoReturn:
    raise CheckpointDamagedError(
        f"the checkpoint {directory} is missing: there is no such directory.",
        path=directory,
        reason="the directory is missing",
    )
