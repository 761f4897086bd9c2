"""What a syncer is given to copy: directories without half-written files.

Copy tools know nothing of an experiment. They fail when a stage is renamed while they copy it, read files in any order,
and leave partial copies when they are killed. So they never see the experiment's root itself:

    .sync-<name>/tree/                 everything for the remote copy, as links: no stages, no temporary files
    .sync-<name>/tree/.holdfast        a consistent copy of the journal, sealed with names, sizes and hashes
    .sync-<name>/tree/.holdfast-safe   the same, or one round older or newer; of the two, one is whole at any time
    .sync-<name>/next                  the consistent copy of the journal that the current round uploads

Owns these directories and the seal. Must never copy anything to another machine, and never write into the root.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from io import FileIO
from typing import IO

import msgspec

from holdfast.errors import NewerFormatError, StorageError
from holdfast.storage.layout import SYNC_SEAL
from holdfast.storage.local import TEMP_PREFIX, write_atomic

JOURNAL = ".holdfast"
SAFE = ".holdfast-safe"
JOURNALS = (SAFE, JOURNAL)
FORMAT = 1

_STAGES = (".stage-", ".sealed-", ".trash-")
_CHECKPOINT = "checkpoint_"
_SEAL_BLOCK = 256
_MAX_PASSES = 10
_CHUNK = 1 << 20
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})


class MomentSeal(msgspec.Struct, frozen=True):
    """What a moment of the journal consists of.

    Attributes:
        format: Of this file.
        number: Of later moments it is larger.
        files: By relative path, size in bytes and xxh3-128 hex digest.
    """

    format: int
    number: int
    files: dict[str, tuple[int, str]]


_decode_moment_seal = msgspec.json.Decoder(MomentSeal).decode


class BadSeal(Exception):
    """A copy of a journal is not what its seal says, or has none; the text says what is wrong."""


def write_seal(directory: str, number: int) -> MomentSeal:
    """Seal all files of ``directory`` as they are now."""
    files = {rel: (os.path.getsize(path), _digest(path)) for rel, path in _files_below(directory) if rel != SYNC_SEAL}
    seal = MomentSeal(FORMAT, number, files)
    data = msgspec.json.encode(seal)
    # Tools that go by size and time leave a file out whose size is the same and whose time is not after that of the
    # copy, which the other end's clock says. So two seals in a row never have the same size.
    length = -(-len(data) // _SEAL_BLOCK) * _SEAL_BLOCK + number % _SEAL_BLOCK
    write_atomic(os.path.join(directory, SYNC_SEAL), data.ljust(length))
    return seal


def number_after(number: int) -> int:
    """Return a number for the next seal: larger, later by the clock, and of another size (see `write_seal`)."""
    later = max(time.time_ns(), number + 1)
    return later + (number + 1 - later) % _SEAL_BLOCK


def unseal(directory: str, time_ns: int | None = None) -> None:
    """Remove the seal of a directory that is to be written to again, and make its files as old as ``time_ns``."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(directory, SYNC_SEAL))
    if time_ns is not None:
        for _, path in _files_below(directory):
            os.utime(path, ns=(time_ns, time_ns))


def read_seal(directory: str) -> MomentSeal | None:
    """Return the seal of a directory, verified or not; None if it has none.

    Raises:
        BadSeal: It cannot be read.
    """
    try:
        with open(os.path.join(directory, SYNC_SEAL), "rb") as file:
            seal = _decode_moment_seal(file.read())
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadSeal(f"its seal cannot be read: {error}") from None
    if seal.format > FORMAT:
        raise NewerFormatError(
            f"{directory} was written by a newer holdfast (format {seal.format}; this one knows {FORMAT}). "
            "Type: pip install --upgrade holdfast"
        )
    return seal


def check_seal(directory: str) -> MomentSeal | None:
    """Compare all files with the seal and remove those it does not name: the other end may keep what is obsolete.

    Returns:
        The seal; None if there is none, which means that no syncer of ours has made this copy.

    Raises:
        BadSeal: A file is missing or has another content.
    """
    seal = read_seal(directory)
    if seal is None:
        return None
    for rel, (size, digest) in seal.files.items():
        path = os.path.join(directory, rel)
        found = os.path.getsize(path) if os.path.exists(path) else None
        if found is None:
            raise BadSeal(f"{rel} is missing")
        if found != size:
            raise BadSeal(f"{rel} has {found:,} bytes instead of {size:,}")
        if _digest(path) != digest:
            raise BadSeal(f"{rel} has another content than was sent")
    for rel, path in list(_files_below(directory)):
        if rel not in seal.files and rel != SYNC_SEAL:
            os.remove(path)
    return seal


class MomentCopy:
    """Keeps ``target`` equal to a moment of the journal directory ``source``, at the cost of what is new in it.

    A moment is a prefix of the history with everything it refers to. A live directory gives it if it is read in the
    right order: snapshots, and what drivers say of their syncs, before segments, because neither must know more than
    the segments; segments in the order of their names; and what records refer to (stored objects) after the records.
    """

    def __init__(self, source: str, target: str) -> None:
        self._source = source
        self._target = target
        self._known: dict[str, tuple[int, int, int]] = {}  # inode, size and time of what was copied

    def update(self) -> None:
        """Copy what is new.

        Raises:
            StorageError: Files of ``source`` kept vanishing while they were read.
        """
        for _ in range(_MAX_PASSES):
            try:
                return self._pass()
            except FileNotFoundError as error:  # a snapshot that was replaced meanwhile: another moment, then
                vanished = error
        raise StorageError(
            f"{self._source} could not be copied: {vanished.filename} vanished, the {_MAX_PASSES}th time in a row. "
            "Nothing was changed; it is tried again."
        ) from vanished

    def _pass(self) -> None:
        seen = set()
        for folder, endings in (("epochs", (".synced", ".released")), ("snapshots", ""), ("journal", "")):
            for rel, path in sorted(_files_below(os.path.join(self._source, folder))):
                if rel.endswith(endings):
                    seen.add(f"{folder}/{rel}")
                    self._copy(f"{folder}/{rel}", path)
        for rel, path in list(_files_below(self._source)):
            if rel not in seen and not rel.startswith(("snapshots/", "journal/", "requests/")):
                seen.add(rel)
                self._copy(rel, path)
        for rel, path in list(_files_below(self._target, temporary=True)):
            if rel not in seen:
                self._known.pop(rel, None)
                os.remove(path)

    def _copy(self, rel: str, path: str) -> None:
        target = os.path.join(self._target, rel)
        with open(path, "rb", buffering=0) as source:
            status = os.fstat(source.fileno())
            size, facts = status.st_size, (status.st_ino, status.st_size, status.st_mtime_ns)
            inode, copied, _ = known = self._known.get(rel, (0, 0, 0))
            if known == facts:
                return
            # Segments only ever grow. Anything else under a known name is a new file, whatever its inode's number.
            if rel.startswith("journal/") and inode == status.st_ino and copied <= size:
                with open(target, "r+b") as copy:
                    _copy_range(source, copy, copied, size)
                    copy.truncate(size)
            else:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                temporary = f"{os.path.dirname(target)}/{TEMP_PREFIX}{os.urandom(6).hex()}"
                with open(temporary, "wb") as copy:
                    _copy_range(source, copy, 0, size)
                os.replace(temporary, target)
        # Tools that go by size and time then see the same file after a restart of the driver.
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        self._known[rel] = facts


class LinkedTree:
    """Keeps ``tree`` equal to ``root`` by hard links, without what nobody at the other end may see.

    A link costs no space and does not vanish when a checkpoint is deleted while a tool reads it. Left out are the
    journal, stages, temporary files, and what is no file at all (sockets).
    """

    def __init__(self, root: str, tree: str) -> None:
        self._root = root
        self._tree = tree
        self._copies = False

    def refresh(self) -> None:
        """Bring the tree up to date."""
        os.makedirs(self._tree, exist_ok=True)
        self._merge(self._root, self._tree, in_checkpoint=False)

    def clear(self) -> None:
        """Remove the links, and keep the moments of the journal for the next driver on this machine."""
        with contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(self._tree)):
                if entry.name not in JOURNALS:
                    _remove(entry)

    def _merge(self, source: str, target: str, *, in_checkpoint: bool) -> None:
        journals = JOURNALS if target == self._tree else ()
        with os.scandir(source) as entries:
            shown = [entry for entry in entries if entry.name not in journals and _is_shown(entry, in_checkpoint)]
        wanted = {entry.name: _is_directory(entry) for entry in shown}
        with os.scandir(target) as entries:
            obsolete = [entry for entry in entries if wanted.get(entry.name) != _is_directory(entry)]
        for entry in obsolete:
            if entry.name not in journals:
                _remove(entry)
        for entry in shown:
            place = f"{target}/{entry.name}"
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile: gone at the next refresh
                if _is_directory(entry):
                    os.makedirs(place, exist_ok=True)
                    self._merge(entry.path, place, in_checkpoint=in_checkpoint or entry.name.startswith(_CHECKPOINT))
                elif not self._is_same(entry, place):
                    self._link(entry.path, place)

    def _is_same(self, entry: os.DirEntry[str], place: str) -> bool:
        if not os.path.lexists(place):
            return False
        source, copied = entry.stat(follow_symlinks=False), os.lstat(place)
        as_copied = self._copies and (source.st_size, source.st_mtime_ns) == (copied.st_size, copied.st_mtime_ns)
        return as_copied or os.path.samestat(source, copied)

    def _link(self, path: str, place: str) -> None:
        temporary = f"{os.path.dirname(place)}/{TEMP_PREFIX}{os.urandom(6).hex()}"
        try:
            os.link(path, temporary, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._copies = True
            shutil.copy2(path, temporary, follow_symlinks=False)
        os.replace(temporary, place)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _is_shown(entry: os.DirEntry[str], in_checkpoint: bool) -> bool:
    directory = _is_directory(entry)
    if not in_checkpoint and entry.name.startswith(_STAGES if directory else TEMP_PREFIX):
        return False
    return directory or entry.is_file(follow_symlinks=False) or entry.is_symlink()


def _remove(entry: os.DirEntry[str]) -> None:
    if _is_directory(entry):
        shutil.rmtree(entry.path)
    else:
        os.remove(entry.path)


def _files_below(directory: str, *, temporary: bool = False) -> Iterator[tuple[str, str]]:
    """All regular files as (relative path, path); unfinished ones only if ``temporary``."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            if name.startswith(TEMP_PREFIX) and not temporary:
                continue
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(os.lstat(path).st_mode):
                    yield os.path.relpath(path, directory), path


def _copy_range(source: IO[bytes] | FileIO, copy: IO[bytes], start: int, end: int) -> None:
    """Copy bytes to the same place of another file; a file that has become shorter counts as vanished."""
    source.seek(start)
    copy.seek(start)
    while start < end:
        chunk = source.read(min(_CHUNK, end - start))
        if not chunk:
            raise FileNotFoundError(errno.ENOENT, "The file became shorter", source.name)
        copy.write(chunk)
        start += len(chunk)


def _digest(path: str) -> str:
    import xxhash

    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
