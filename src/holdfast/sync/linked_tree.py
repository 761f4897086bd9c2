"""What a syncer is given to copy: directories in which nothing is half done.

Copying tools know nothing of an experiment. They fail when a stage is renamed under their hands, read files in any
order, and leave anything behind when they are killed. So they never see the experiment's root itself:

    .sync-<name>/tree/                 all that is to be at the other end, as links: no stages, no temporary files
    .sync-<name>/tree/.holdfast        a moment of the journal, sealed with names, sizes and hashes
    .sync-<name>/tree/.holdfast-safe   the same, or one round older or newer; of the two, one is whole at any time
    .sync-<name>/next                  the moment of the journal that the round under way is about

Owns these directories and the seal. Must never copy anything to another machine, and never write into the root.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator
from io import FileIO
from typing import IO, NamedTuple

import msgspec

from holdfast.errors import NewerFormatError, StorageError
from holdfast.storage.local import TEMP_PREFIX, write_atomic

JOURNAL = ".holdfast"
SAFE = ".holdfast-safe"
JOURNALS = (SAFE, JOURNAL)
SEAL = ".sync-seal.json"
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


class BadSeal(Exception):
    """A copy of a journal is not what its seal says, or has none; the text says what is wrong."""


def write_seal(directory: str, number: int) -> MomentSeal:
    """Seal all files of ``directory`` as they are now."""
    files = {rel: (os.path.getsize(path), _digest(path)) for rel, path in _files_below(directory) if rel != SEAL}
    seal = MomentSeal(FORMAT, number, files)
    data = msgspec.json.encode(seal)
    # Tools that go by size and time leave a file out whose size is the same and whose time is not after that of the
    # copy, which the other end's clock says. So two seals in a row never have the same size.
    length = -(-len(data) // _SEAL_BLOCK) * _SEAL_BLOCK + number % _SEAL_BLOCK
    write_atomic(os.path.join(directory, SEAL), data.ljust(length))
    return seal


def number_after(number: int) -> int:
    """Return a number for the next seal: larger, later by the clock, and of another size (see `write_seal`)."""
    later = max(time.time_ns(), number + 1)
    return later + (number + 1 - later) % _SEAL_BLOCK


def set_times(directory: str, time_ns: int) -> None:
    """Make all files of a directory as old as the moment that they show."""
    for _, path in _files_below(directory):
        os.utime(path, ns=(time_ns, time_ns))


def remove_seal(directory: str) -> None:
    """Remove the seal of a directory that is to be written to again."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(directory, SEAL))


def read_seal(directory: str) -> MomentSeal | None:
    """Return the seal of a directory, verified or not; None if it has none.

    Raises:
        BadSeal: It cannot be read.
    """
    try:
        with open(os.path.join(directory, SEAL), "rb") as file:
            seal = msgspec.json.decode(file.read(), type=MomentSeal)
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
        try:
            found = os.path.getsize(path)
        except FileNotFoundError:
            raise BadSeal(f"{rel} is missing") from None
        if found != size:
            raise BadSeal(f"{rel} has {found:,} bytes instead of {size:,}")
        if _digest(path) != digest:
            raise BadSeal(f"{rel} has another content than was sent")
    for rel, path in list(_files_below(directory)):
        if rel not in seal.files and rel != SEAL:
            os.remove(path)
    return seal


class _Facts(NamedTuple):
    """What tells whether a file is the same, has grown, or is another one under the same name."""

    inode: int
    size: int
    modified: int


class MomentCopy:
    """Keeps ``target`` equal to a moment of the journal directory ``source``, at the cost of what is new in it.

    A moment is a prefix of the history with everything it refers to. A live directory gives it if it is read in the
    right order: snapshots, and what drivers say of their syncs, before segments, because neither must know more than
    the segments; segments in the order of their names; and what records refer to (stored objects) after the records.
    """

    def __init__(self, source: str, target: str) -> None:
        self._source = source
        self._target = target
        self._known: dict[str, _Facts] = {}

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
            if rel not in seen and not rel.startswith(("snapshots/", "journal/")):
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
            facts = _Facts(status.st_ino, status.st_size, status.st_mtime_ns)
            known = self._known.get(rel)
            if known == facts:
                return
            # Segments only ever grow. Anything else under a known name is a new file, whatever its inode's number.
            grown = rel.startswith("journal/") and known is not None and known.inode == facts.inode
            if grown and known is not None and known.size <= facts.size:
                with open(target, "r+b") as copy:
                    _copy_range(source, copy, known.size, facts.size)
                    copy.truncate(facts.size)
            else:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                temporary = f"{os.path.dirname(target)}/{TEMP_PREFIX}{os.urandom(6).hex()}"
                with open(temporary, "wb") as copy:
                    _copy_range(source, copy, 0, facts.size)
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
        self._merge(self._root, self._tree, is_root=True, in_checkpoint=False)

    def clear(self) -> None:
        """Remove the links, and keep the moments of the journal for the next driver on this machine."""
        with contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(self._tree)):
                if entry.name not in JOURNALS:
                    _remove(entry)

    def _merge(self, source: str, target: str, *, is_root: bool, in_checkpoint: bool) -> None:
        with os.scandir(source) as entries:
            wanted = {entry.name: entry for entry in entries if in_checkpoint or _is_ours_to_show(entry, is_root)}
        with os.scandir(target) as entries:
            present = {entry.name: entry for entry in entries}
        for name, entry in present.items():
            if name not in wanted and not (is_root and name in JOURNALS):
                _remove(entry)
        for name, entry in wanted.items():
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile: gone at the next refresh
                if entry.is_dir(follow_symlinks=False):
                    self._merge_directory(entry, f"{target}/{name}", present.get(name), in_checkpoint)
                elif _is_copied(entry):
                    self._link(entry, target, present.get(name))

    def _merge_directory(
        self, entry: os.DirEntry[str], target: str, present: os.DirEntry[str] | None, in_checkpoint: bool
    ) -> None:
        if present is not None and not present.is_dir(follow_symlinks=False):
            os.remove(target)
            present = None
        if present is None:
            os.mkdir(target)
        inside = in_checkpoint or entry.name.startswith(_CHECKPOINT)
        self._merge(entry.path, target, is_root=False, in_checkpoint=inside)

    def _link(self, entry: os.DirEntry[str], folder: str, present: os.DirEntry[str] | None) -> None:
        if present is not None:
            if present.is_dir(follow_symlinks=False):
                shutil.rmtree(present.path)
            elif self._is_same(entry, present):
                return
        temporary = f"{folder}/{TEMP_PREFIX}{os.urandom(6).hex()}"
        try:
            os.link(entry.path, temporary, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._copies = True
            shutil.copy2(entry.path, temporary, follow_symlinks=False)
        os.replace(temporary, f"{folder}/{entry.name}")

    def _is_same(self, entry: os.DirEntry[str], present: os.DirEntry[str]) -> bool:
        if entry.inode() == present.inode():
            return True
        if not self._copies:
            return False
        here, there = entry.stat(follow_symlinks=False), present.stat(follow_symlinks=False)
        return (here.st_size, here.st_mtime_ns) == (there.st_size, there.st_mtime_ns)


def _is_ours_to_show(entry: os.DirEntry[str], is_root: bool) -> bool:
    if is_root and entry.name in JOURNALS:
        return False
    hidden = _STAGES if entry.is_dir(follow_symlinks=False) else (TEMP_PREFIX,)
    return not entry.name.startswith(hidden)


def _is_copied(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_symlink()


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
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
        state = xxhash.xxh3_128()
        while chunk := file.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()
