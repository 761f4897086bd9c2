"""Directories over a connection, in pieces, with a checksum for each file.

Both ends block, in threads of their own, so that streaming competes with nobody. What arrives is written beside its
target and appears there whole: a transfer that was cut leaves nothing that could be taken for a directory. Names,
modes, times and holes stay.

Owns: the stream's format and both ends of it. Must never: write outside the directory that it was given.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from typing import NoReturn

import msgspec
import xxhash

from holdfast.checkpoints import names
from holdfast.checkpoints.stage_sending import CannotSend, SentStage, StageRef, damaged
from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.handshake import frame, receive_exactly, receive_frame
from holdfast.engines.cluster.node_store import NodeStore
from holdfast.errors import CheckpointDamagedError, StorageError, StorageFullError
from holdfast.space.naming import is_inside

PIECE_BYTES = 1 << 20
"""How much of a file is read, sent and hashed at once."""

_PIECE = struct.Struct("<QI")
_DIGEST_BYTES = 16
_MODES = 0o777


class TransferCut(Exception):
    """The connection has ended half-way."""


# --- sending


def tree_of(directory: str, *, wanted: Callable[[str, os.stat_result], bool] | None = None) -> say.Tree:
    """What is in a directory; links and special files are left out."""
    files: list[say.TreeEntry] = []
    dirs: list[str] = []
    for place, inside, here in os.walk(directory):
        base = os.path.relpath(place, directory)
        base = "" if base == "." else f"{base}/"
        inside[:] = [name for name in inside if not os.path.islink(os.path.join(place, name))]
        dirs.extend(f"{base}{name}" for name in inside)
        for name in here:
            facts = os.lstat(os.path.join(place, name))
            if stat.S_ISREG(facts.st_mode) and (wanted is None or wanted(f"{base}{name}", facts)):
                files.append(say.TreeEntry(f"{base}{name}", facts.st_mode & _MODES, facts.st_size, facts.st_mtime_ns))
    return say.Tree(tuple(files), tuple(dirs))


def send_tree(sock: socket.socket, directory: str, tree: say.Tree) -> None:
    """Send a tree and the contents of its files."""
    sock.sendall(frame(tree))
    for entry in tree.files:
        _send_file(sock, os.path.join(directory, entry.path), entry.size)


def _send_file(sock: socket.socket, path: str, size: int) -> None:
    hasher = xxhash.xxh3_128()
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for offset, length in _data_of(fd, size):
            data = os.pread(fd, length, offset)
            if not data:
                break  # it has become shorter: the checksum of what is left is right, and the receiver sees its size
            hasher.update(data)
            sock.sendall(_PIECE.pack(offset, len(data)) + data)
    finally:
        os.close(fd)
    sock.sendall(_PIECE.pack(0, 0) + hasher.digest())


def _send_content(sock: socket.socket, data: bytes) -> None:
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
    for path in (*tree.dirs, *(entry.path for entry in tree.files)):
        if not is_inside(path):
            raise TransferCut(f"the path {path!r} leads out of the directory")
    trouble: OSError | None = None
    try:
        os.makedirs(target, exist_ok=not whole)
        for path in tree.dirs:
            os.makedirs(os.path.join(target, path), exist_ok=True)
    except OSError as error:
        trouble = error
    for entry in tree.files:
        path = os.path.join(target, entry.path)
        if trouble is None:
            try:
                _receive_file(sock, entry, path, replace=not whole)
            except OSError as error:
                trouble = error
        else:
            _skip_file(sock)
    if trouble is not None:
        raise trouble


def _receive_file(sock: socket.socket, entry: say.TreeEntry, path: str, *, replace: bool) -> None:
    where = f"{path}.{uuid.uuid4().hex[:8]}.part" if replace else path
    try:
        fd = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
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


# --- the node's end


class Warehouse:
    """Answers requests about one scratch directory.

    Args:
        top: The scratch directory.
        store: The experiment's, for those who ask for it.
    """

    def __init__(self, top: str, store: NodeStore | None = None) -> None:
        self._top = top
        self._node_store = store

    def serve(self, sock: socket.socket) -> None:
        """Answer until the other end hangs up."""
        with sock:
            while True:
                try:
                    request = say.decode_request(receive_frame(sock))
                    self._answer(sock, request)
                except (OSError, TransferCut, msgspec.DecodeError):
                    return

    def _answer(self, sock: socket.socket, request: say.CarrierRequest) -> None:
        if isinstance(request, say.SendStage | say.CheckStage | say.FetchStart):
            sock.sendall(frame(self._use_store(request)))
            return
        if not is_inside(request.path):
            sock.sendall(frame(say.Failed(errno.EINVAL, f"{request.path!r} leads out of the scratch directory")))
            return
        path = os.path.join(self._top, request.path)
        if isinstance(request, say.StoreTree):
            self._store(sock, path, request.whole)
            return
        if isinstance(request, say.Discard):
            self._discard(sock, path, request.kept)
            return
        try:
            if isinstance(request, say.Fetch):
                tree = tree_of(path)
                found = bool(tree.files or tree.dirs) or os.path.isdir(path)
            else:
                tree, found = _changed(path, request.known, request.without), True
        except OSError as error:
            sock.sendall(frame(say.Failed(error.errno or errno.EIO, str(error))))
            return
        if found:
            send_tree(sock, path, tree)
        else:
            sock.sendall(frame(say.NotThere()))

    def _use_store(self, request: say.SendStage | say.CheckStage | say.FetchStart) -> say.CarrierAnswer:
        store = self._node_store
        path = (
            request.key if isinstance(request, say.FetchStart) else f"{request.stage.trial_dir}/{request.stage.sealed}"
        )
        if store is None or not is_inside(path):
            return say.NoStore("this node has no part of it")
        match request:
            case say.FetchStart(key, digest):
                return store.fetch(key, digest)
            case say.SendStage(stage):
                return store.send(stage)
            case say.CheckStage(stage):
                return store.check(stage)

    def _store(self, sock: socket.socket, path: str, whole: bool) -> None:
        tree = say.decode_tree(receive_frame(sock))
        fresh = f"{path}.{uuid.uuid4().hex[:8]}.part" if whole else path
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            receive_tree(sock, tree, fresh, whole=whole)
            if whole:
                shutil.rmtree(path, ignore_errors=True)
                os.rename(fresh, path)
        except OSError as error:
            sock.sendall(frame(say.Failed(error.errno or errno.EIO, str(error))))
        else:
            sock.sendall(frame(say.Done()))
        finally:
            if whole:
                shutil.rmtree(fresh, ignore_errors=True)

    def _discard(self, sock: socket.socket, path: str, kept: tuple[str, ...]) -> None:
        away = os.path.join(self._top, f".removed-{uuid.uuid4().hex}")
        try:
            if kept:
                os.mkdir(away)
                for name in set(os.listdir(path)) - set(kept):
                    os.rename(os.path.join(path, name), os.path.join(away, name))
            else:
                os.rename(path, away)
        except FileNotFoundError:
            pass  # there is nothing to remove
        except OSError as error:
            sock.sendall(frame(say.Failed(error.errno or errno.EIO, str(error))))
            return
        sock.sendall(frame(say.Done()))
        shutil.rmtree(away, ignore_errors=True)


def _changed(directory: str, known: dict[str, tuple[int, int]], without: tuple[str, ...]) -> say.Tree:
    """Files of a trial's directory that are not as they were; checkpoints and stages travel by themselves."""

    def wanted(path: str, facts: os.stat_result) -> bool:
        first = path.split("/", 1)[0]
        own = names.is_temporary(first) or names.index_of(first) is not None or path.endswith(".part")
        if own or path in without:
            return False
        return known.get(path) != (facts.st_size, facts.st_mtime_ns)

    tree = tree_of(directory, wanted=wanted)
    return say.Tree(tree.files, ())


# --- the driver's end


class Carrier:
    """Brings and pushes directories over one connection to a node. For one thread at a time.

    Args:
        sock: The connection.
        host: Named in errors.
    """

    def __init__(self, sock: socket.socket, host: str) -> None:
        self._sock = sock
        self.host = host

    def bring(self, path: str, target: str) -> bool:
        """Copy a directory of the node to ``target``, which must not exist; False if the node has none.

        Raises:
            TransferCut: The connection has ended.
            StorageFullError: There is no space for it here.
            StorageError: One end cannot read or write.
        """
        answer = self._ask(say.Fetch(path))
        if isinstance(answer, say.NotThere):
            return False
        assert isinstance(answer, say.Tree)
        try:
            receive_tree(self._sock, answer, target, whole=True)
        except OSError as error:
            raise _storage(error, f"writing {target}") from error
        return True

    def bring_changed(
        self, path: str, known: dict[str, tuple[int, int]], target: str, without: tuple[str, ...] = ()
    ) -> None:
        """Copy those files of a directory of the node that are not as in ``known``, which is brought up to date."""
        answer = self._ask(say.FetchChanged(path, known, without))
        assert isinstance(answer, say.Tree)
        try:
            folders = {os.path.dirname(entry.path) for entry in answer.files} - {""}
            tree = say.Tree(answer.files, tuple(sorted(folders)))
            receive_tree(self._sock, tree, target, whole=False)
        except OSError as error:
            raise _storage(error, f"writing files to {target}") from error
        known.update({entry.path: (entry.size, entry.mtime_ns) for entry in answer.files})

    def push(self, source: str, tree: say.Tree, path: str, *, whole: bool) -> None:
        """Copy files of ``source`` to the node; raises as ``bring`` does."""
        try:
            self._sock.sendall(frame(say.StoreTree(path, whole)))
            send_tree(self._sock, source, tree)
            answer = say.decode_answer(receive_frame(self._sock))
        except FileNotFoundError as error:
            raise _storage(error, f"reading {source}") from error
        except (OSError, msgspec.DecodeError) as error:
            raise TransferCut(str(error)) from error
        if isinstance(answer, say.Failed):
            self._refused(answer)

    def push_content(self, content: dict[str, bytes], path: str) -> None:
        """Write these files of a directory of the node; raises as ``bring`` does."""
        now = time.time_ns()
        tree = say.Tree(tuple(say.TreeEntry(name, 0o600, len(data), now) for name, data in content.items()))
        try:
            self._sock.sendall(frame(say.StoreTree(path, False)) + frame(tree))
            for data in content.values():
                _send_content(self._sock, data)
            answer = say.decode_answer(receive_frame(self._sock))
        except (OSError, msgspec.DecodeError) as error:
            raise TransferCut(str(error)) from error
        if isinstance(answer, say.Failed):
            self._refused(answer)

    def discard(self, path: str, kept: tuple[str, ...] = ()) -> None:
        """Remove a directory of the node, but for these entries of it; raises as ``bring`` does."""
        self._ask(say.Discard(path, kept))

    def send_stage(self, stage: StageRef) -> SentStage | None:
        """Have the node upload a stage; None if it has none.

        Raises:
            CannotSend: The node cannot use the store.
            CheckpointDamagedError: The stage is not what was sealed.
            TransferCut: The connection has ended.
            StorageError: The stage cannot be read there.
        """
        answer = self._ask(say.SendStage(stage))
        if isinstance(answer, say.NotThere):
            return None
        assert isinstance(answer, say.StageSent)
        return answer.sent

    def check_stage(self, stage: StageRef) -> bool:
        """Have the node read a stage through; False if it has none. Raises as ``send_stage`` does."""
        return not isinstance(self._ask(say.CheckStage(stage)), say.NotThere)

    def fetch_start(self, key: str, digest: str) -> None:
        """Have the node fetch a checkpoint from the store; raises as ``send_stage`` does."""
        self._ask(say.FetchStart(key, digest))

    def hang_up(self) -> None:
        """End what is being done, from another thread: it raises ``TransferCut``."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()

    def _ask(self, request: say.CarrierRequest) -> say.CarrierAnswer:
        try:
            self._sock.sendall(frame(request))
            answer: say.CarrierAnswer = say.decode_answer(receive_frame(self._sock))
        except (OSError, msgspec.DecodeError) as error:
            raise TransferCut(str(error)) from error
        if isinstance(answer, say.Failed):
            self._refused(answer)
        if isinstance(answer, say.NoStore):
            raise CannotSend(answer.why)
        if isinstance(answer, say.Damaged):
            raise damaged(f"on {self.host}", answer.reason)
        return answer

    def _refused(self, answer: say.Failed) -> NoReturn:
        raise _storage(OSError(answer.errno, answer.text), f"on {self.host}")


def _storage(error: OSError, doing: str) -> StorageError:
    kind = StorageFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
    return kind(f"{doing}: {error.strerror or error}")


def lost_stage(path: str, host: str) -> CheckpointDamagedError:
    """The error for a stage whose machine is gone."""
    reason = f"it was on {host}, which was lost before the checkpoint had been brought to the experiment's directory"
    return CheckpointDamagedError(f"the staged checkpoint {path} is lost: {reason}.", path=path, reason=reason)
