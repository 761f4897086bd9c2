"""Copy a user's directory, and hash each byte while it is copied.

Owns the copy primitive. Never changes, links or removes anything in the source, and always reports a file that changed
while it was read.

One thread that reads, hashes and writes cache-sized pieces into reserved space is as fast as ``cp`` here, and leaves
the other cores to the training. ``copy_file_range`` with the hash in a second thread gains nothing and costs half as
much CPU again; hashing a memory map would gain a little, but a file that is truncated during the copy would kill the
process with SIGBUS. A few threads pay off only for many small files, where creating files is the cost.
"""

from __future__ import annotations

import os

from holdfast.checkpoints.manifest import ALGORITHM, FileEntry, new_hasher
from holdfast.checkpoints.syscalls import clone, reserve
from holdfast.checkpoints.tree import BUFFER_BYTES, TreeListing, hash_open_file, run_all
from holdfast.errors import InvalidInputError
from holdfast.storage.crashpoint import crashpoint

RESERVE_FROM_BYTES = 1024 * 1024  # for smaller files the call costs more than it saves
CLONE_FROM_BYTES = 64 * 1024
MANY_FILES = 16
THREADS = 4

_ZEROS = bytes(BUFFER_BYTES)


class _Changed(Exception):
    """The file was not the same at the end of the copy as at its start."""


def copy_tree(
    source: str, target: str, listing: TreeListing, *, algo: str = ALGORITHM, hash_clones: bool = True
) -> list[FileEntry]:
    """Copy what ``listing`` names into the existing directory ``target``; the files, sorted by path.

    Nothing is synced. After an error ``target`` holds a part of the files: the caller removes it. A file that could be
    cloned has not passed through here; with ``hash_clones`` it is read for its hash, otherwise its hash is "".

    Raises:
        InvalidInputError: A file changed or disappeared during the copy.
        OSError: As the file system said.
    """
    for rel in listing.dirs:
        os.mkdir(f"{target}/{rel}")
    paths = sorted(listing.files)
    threads = THREADS if len(paths) >= MANY_FILES else 1
    shares = [paths[k::threads] for k in range(threads)]
    copied = run_all(lambda share: _Copier(source, target, algo, hash_clones).copy(share), shares, threads)
    return sorted((entry for share in copied for entry in share), key=lambda entry: entry.path)


class _Copier:
    """One thread's share of a copy: its buffer, and whether cloning has been found not to work."""

    def __init__(self, source: str, target: str, algo: str, hash_clones: bool) -> None:
        self._source = source
        self._target = target
        self._algo = algo
        self._hash_clones = hash_clones
        self._buffer = bytearray(BUFFER_BYTES)
        self._may_clone = True

    def copy(self, paths: list[str]) -> list[FileEntry]:
        return [self._copy_stable(rel) for rel in paths]

    def _copy_stable(self, rel: str) -> FileEntry:
        source, target = f"{self._source}/{rel}", f"{self._target}/{rel}"
        try:
            try:
                return self._copy(rel, source, target)
            except _Changed:
                os.unlink(target)
                return self._copy(rel, source, target)
        except _Changed as change:
            raise InvalidInputError(
                f"the file {source} changed while the checkpoint was copied ({change}). Finish and close all files "
                "of a checkpoint before you report it."
            ) from None
        except FileNotFoundError as error:
            if error.filename != source:
                raise
            raise InvalidInputError(
                f"the file {source} disappeared while the checkpoint was copied. Keep the directory as it is until "
                "report() has returned."
            ) from None

    def _copy(self, rel: str, source: str, target: str) -> FileEntry:
        reader = os.open(source, os.O_RDONLY)
        try:
            before = os.fstat(reader)
            # The owner must be able to remove and rewrite what is staged; otherwise permissions stay.
            mode = (before.st_mode & 0o777) | 0o200
            writer = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
            try:
                entry = self._fill(rel, reader, writer, before)
            finally:
                os.close(writer)
            after = os.fstat(reader)
        finally:
            os.close(reader)
        if after.st_size != before.st_size:
            raise _Changed(f"from {before.st_size:,} to {after.st_size:,} bytes")
        if after.st_mtime_ns != before.st_mtime_ns:
            raise _Changed("its content was written again")
        return entry

    def _fill(self, rel: str, reader: int, writer: int, facts: os.stat_result) -> FileEntry:
        size = facts.st_size
        if self._may_clone and size >= CLONE_FROM_BYTES:
            self._may_clone = clone(reader, writer)
            if self._may_clone:
                content = hash_open_file(writer, self._algo) if self._hash_clones else ""
                return FileEntry(rel, os.fstat(writer).st_size, content)
        sparse = facts.st_blocks * 512 < size
        if not sparse and size >= RESERVE_FROM_BYTES:
            reserve(writer, size)
        digest = self._pump(reader, writer, size, sparse)
        if sparse:
            os.ftruncate(writer, size)
        return FileEntry(rel, size, digest)

    def _pump(self, reader: int, writer: int, size: int, sparse: bool) -> str:
        hasher = new_hasher(self._algo)
        view = memoryview(self._buffer)
        position = 0
        while position < size:
            # Never past the size seen at the start: somebody appending all the time must not keep us here.
            count = os.readv(reader, [view[: size - position]])
            if count == 0:
                raise _Changed(f"it ended after {position:,} of {size:,} bytes")
            hasher.update(view[:count])
            # Holes are found by their zeros. Asking for them (SEEK_HOLE) has been answered wrongly for fresh data.
            if not (sparse and count == BUFFER_BYTES and self._buffer == _ZEROS):
                written = 0
                while written < count:
                    written += os.pwrite(writer, view[written:count], position + written)
            position += count
            crashpoint("L1.mid")
        return hasher.hexdigest()
