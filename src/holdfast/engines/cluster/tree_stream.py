"""Directories as a stream: a tree, and the contents of its files in pieces, with a checksum for each file.

What arrives is written beside its target and appears there whole: a transfer that was cut leaves nothing that could be
taken for a directory. Names, modes, times and holes stay. A file that cannot be read any more is told in its place, so
that the others arrive and the connection stays in order.

Owns: the stream's format, and writing and reading it. Must never: write outside the directory that it was given.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
import uuid
from collections.abc import Callable, Iterator

import xxhash

from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.handshake import frame, receive_exactly
from holdfast.space.naming import is_inside

PIECE_BYTES = 1 << 20
"""How much of a file is read, sent and hashed at once."""

_PIECE = struct.Struct("<QI")
_UNREADABLE = 0xFFFFFFFF
"""As the length of a piece: the file cannot be read any more, its offset is the reason's errno, and nothing follows."""

_DIGEST_BYTES = 16
_MODES = 0o777


class TransferCut(Exception):
    """The connection has ended half-way."""


class UnreadableFile(OSError):
    """The sender cannot read a file that it has announced; ``errno`` is its reason."""


# --- sending


def tree_of(directory: str, *, wanted: Callable[[str, os.stat_result], bool] | None = None) -> say.Tree:
    """What is in a directory; links and special files are left out.

    With ``wanted`` the directory is one that is being written to: what vanishes meanwhile is left out, too.
    """
    files: list[say.TreeEntry] = []
    dirs: list[str] = []
    for place, inside, here in os.walk(directory):
        base = os.path.relpath(place, directory)
        base = "" if base == "." else f"{base}/"
        inside[:] = [name for name in inside if not os.path.islink(os.path.join(place, name))]
        dirs.extend(f"{base}{name}" for name in inside)
        for name in here:
            try:
                facts = os.lstat(os.path.join(place, name))
            except FileNotFoundError:
                if wanted is None:
                    raise
                continue
            if stat.S_ISREG(facts.st_mode) and (wanted is None or wanted(f"{base}{name}", facts)):
                files.append(say.TreeEntry(f"{base}{name}", facts.st_mode & _MODES, facts.st_size, facts.st_mtime_ns))
    return say.Tree(tuple(files), tuple(dirs))


def send_tree(sock: socket.socket, directory: str, tree: say.Tree) -> OSError | None:
    """Send a tree and the contents of its files. Returns why one could not be read, of which the receiver is told."""
    sock.sendall(frame(tree))
    trouble = None
    for entry in tree.files:
        error = _send_file(sock, os.path.join(directory, entry.path), entry.size)
        trouble = trouble or error
    return trouble


def _send_file(sock: socket.socket, path: str, size: int) -> OSError | None:
    hasher = xxhash.xxh3_128()
    try:
        for offset, data in _read(path, size):
            hasher.update(data)
            sock.sendall(_PIECE.pack(offset, len(data)) + data)
    except _CannotRead as error:
        sock.sendall(_PIECE.pack(error.reason.errno or errno.EIO, _UNREADABLE))
        return error.reason
    sock.sendall(_PIECE.pack(0, 0) + hasher.digest())
    return None


class _CannotRead(Exception):
    """Tells a file that cannot be read from a connection that has ended: both raise ``OSError``."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(reason)
        self.reason = reason


def _read(path: str, size: int) -> Iterator[tuple[int, bytes]]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _CannotRead(error) from error
    try:
        for offset, length in _data_of(fd, size):
            try:
                data = os.pread(fd, length, offset)
            except OSError as error:
                raise _CannotRead(error) from error
            if not data:
                break  # it has become shorter: the checksum of what is left is right, and the receiver sees its size
            yield offset, data
    finally:
        os.close(fd)


def send_content(sock: socket.socket, data: bytes) -> None:
    """Send the content of a file."""
    for offset in range(0, len(data), PIECE_BYTES):
        piece = data[offset : offset + PIECE_BYTES]
        sock.sendall(_PIECE.pack(offset, len(piece)) + piece)
    sock.sendall(_PIECE.pack(0, 0) + xxhash.xxh3_128_digest(data))


def _data_of(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Pieces of a file that have data; what lies between them is a hole."""
    offset = 0
    while offset < size:
        end = size
        if hasattr(os, "SEEK_DATA"):
            try:
                offset = os.lseek(fd, offset, os.SEEK_DATA)
                end = min(size, os.lseek(fd, offset, os.SEEK_HOLE))
            except OSError as error:
                if error.errno == errno.ENXIO:  # a hole up to the end
                    return
                end = size  # a file system that does not know
        while offset < end:
            length = min(PIECE_BYTES, end - offset)
            yield offset, length
            offset += length


# --- receiving


def receive_tree(sock: socket.socket, tree: say.Tree, target: str, *, whole: bool) -> None:
    """Write a tree and what follows it.

    Args:
        sock: Where it comes from.
        tree: What was announced.
        target: A directory. If ``whole``, it must not exist; otherwise each file replaces the one of its name.
        whole: As in ``StoreTree``.

    Raises:
        TransferCut: The connection ended. A partial ``target`` may be there.
        OSError: It cannot be written; everything was read, so that the connection can be used again.
    """
    _refuse_outside(tree)
    trouble: OSError | None = None
    try:
        os.makedirs(target, exist_ok=not whole)
        for path in tree.dirs:
            os.makedirs(os.path.join(target, path), exist_ok=True)
    except OSError as error:
        trouble = error
    for entry in tree.files:
        try:
            if trouble is not None:
                _skip_file(sock)
            else:
                _receive_file(sock, entry, os.path.join(target, entry.path), replace=not whole)
        except OSError as error:
            trouble = trouble or error
    if trouble is not None:
        raise trouble


def receive_files(sock: socket.socket, tree: say.Tree, target: str) -> dict[str, OSError]:
    """Write those files of a tree that can be read there and written here; each replaces the one of its name.

    Returns:
        The others, and why. Raises ``TransferCut`` as ``receive_tree`` does.
    """
    _refuse_outside(tree)
    failed: dict[str, OSError] = {}
    for entry in tree.files:
        path = os.path.join(target, entry.path)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except OSError as error:
            failed[entry.path] = error
            with contextlib.suppress(UnreadableFile):
                _skip_file(sock)
            continue
        try:
            _receive_file(sock, entry, path, replace=True)
        except OSError as error:
            failed[entry.path] = error
    return failed


def _refuse_outside(tree: say.Tree) -> None:
    for path in (*tree.dirs, *(entry.path for entry in tree.files)):
        if not is_inside(path):
            raise TransferCut(f"the path {path!r} leads out of the directory")


def _receive_file(sock: socket.socket, entry: say.TreeEntry, path: str, *, replace: bool) -> None:
    where = f"{path}.{uuid.uuid4().hex[:8]}.part" if replace else path
    try:
        fd = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        with contextlib.suppress(UnreadableFile):
            _skip_file(sock)
        raise
    try:
        try:
            _fill(sock, fd, entry)
            os.fchmod(fd, entry.mode)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)
        if replace:
            os.replace(where, path)
    except BaseException:
        if replace:
            with contextlib.suppress(OSError):
                os.unlink(where)
        raise


def _fill(sock: socket.socket, fd: int, entry: say.TreeEntry) -> None:
    hasher, trouble = xxhash.xxh3_128(), None
    for offset, data in _pieces(sock):
        hasher.update(data)
        if trouble is None:
            try:
                _write_at(fd, data, offset)
            except OSError as error:
                trouble = error
    if _exactly(sock, _DIGEST_BYTES) != hasher.digest():
        raise TransferCut(f"{entry.path} has arrived with another checksum than it was sent with")
    if trouble is not None:
        raise trouble
    os.ftruncate(fd, entry.size)


def _write_at(fd: int, data: bytearray, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _pieces(sock: socket.socket) -> Iterator[tuple[int, bytearray]]:
    while True:
        offset, length = _PIECE.unpack(_exactly(sock, _PIECE.size))
        if not length:
            return
        if length == _UNREADABLE:
            raise UnreadableFile(offset, os.strerror(offset))
        if length > PIECE_BYTES:
            raise TransferCut(f"a piece of {length:,} bytes")
        yield offset, _exactly(sock, length)


def _skip_file(sock: socket.socket) -> None:
    for _ in _pieces(sock):
        pass
    _exactly(sock, _DIGEST_BYTES)


def _exactly(sock: socket.socket, size: int) -> bytearray:
    try:
        return receive_exactly(sock, size)
    except OSError as error:
        raise TransferCut(str(error)) from error
