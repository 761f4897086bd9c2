"""Directories over a connection: requests about a node's scratch directory, and the answers.

Both ends block, in threads of their own, so that streaming competes with nobody. What travels is written by
``tree_stream``.

Owns: both ends of such a connection. Must never: touch anything outside the directory that it was given.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import time
import uuid
from typing import NoReturn

import msgspec

from holdfast.checkpoints import names
from holdfast.checkpoints.stage_sending import CannotSend, SentStage, StageRef, damaged
from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.handshake import frame, receive_frame
from holdfast.engines.cluster.node_store import NodeStore
from holdfast.engines.cluster.tree_stream import (
    TransferCut,
    UnreadableFile,
    receive_files,
    receive_tree,
    send_content,
    send_tree,
    tree_of,
)
from holdfast.errors import CheckpointDamagedError, StorageError, StorageFullError
from holdfast.space.naming import is_inside

_FULL = (errno.ENOSPC, errno.EDQUOT)


class UnreadableFileError(StorageError):
    """A file of a node cannot be read there, now or later."""


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
            doing = f"reading {path} on {self.host}" if isinstance(error, UnreadableFile) else f"writing {target}"
            raise _storage(error, doing) from error
        return True

    def bring_changed(
        self, path: str, known: dict[str, tuple[int, int]], target: str, without: tuple[str, ...] = ()
    ) -> None:
        """Copy those files of a directory of the node that are not as in ``known``, which is brought up to date.

        One that vanishes meanwhile is left out.

        Raises:
            TransferCut: The connection has ended.
            StorageFullError: There is no space here for some of them; the others are here.
            UnreadableFileError: The node cannot read some of them; the others are here.
            StorageError: Some cannot be written here; the others are here.
        """
        answer = self._ask(say.FetchChanged(path, known, without))
        assert isinstance(answer, say.Tree)
        failed = receive_files(self._sock, answer, target)
        known.update({e.path: (e.size, e.mtime_ns) for e in answer.files if e.path not in failed})
        full = {path: error for path, error in failed.items() if error.errno in _FULL}
        for path, error in (full or failed).items():
            if isinstance(error, UnreadableFile):
                if error.errno != errno.ENOENT:  # else it vanished, as temporary files do
                    raise UnreadableFileError(f"reading {path} on {self.host}: {error.strerror}") from error
            else:
                raise _storage(error, f"writing {os.path.join(target, path)}") from error

    def push(self, source: str, tree: say.Tree, path: str, *, whole: bool) -> None:
        """Copy files of ``source`` to the node; raises as ``bring`` does."""
        try:
            self._sock.sendall(frame(say.StoreTree(path, whole)))
            unread = send_tree(self._sock, source, tree)
            answer = say.decode_answer(receive_frame(self._sock))
        except (OSError, msgspec.DecodeError) as error:
            raise TransferCut(str(error)) from error
        if unread is not None:
            raise _storage(unread, f"reading {source}") from unread
        if isinstance(answer, say.Failed):
            self._refused(answer)

    def push_content(self, content: dict[str, bytes], path: str) -> None:
        """Write these files of a directory of the node; raises as ``bring`` does."""
        now = time.time_ns()
        tree = say.Tree(tuple(say.TreeEntry(name, 0o600, len(data), now) for name, data in content.items()))
        try:
            self._sock.sendall(frame(say.StoreTree(path, False)) + frame(tree))
            for data in content.values():
                send_content(self._sock, data)
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
    kind = StorageFullError if error.errno in _FULL else StorageError
    return kind(f"{doing}: {error.strerror or error}")


def lost_stage(path: str, host: str) -> CheckpointDamagedError:
    """The error for a stage whose machine is gone."""
    reason = f"it was on {host}, which was lost before the checkpoint had been brought to the experiment's directory"
    return CheckpointDamagedError(f"the staged checkpoint {path} is lost: {reason}.", path=path, reason=reason)
