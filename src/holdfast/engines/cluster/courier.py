"""Files between the driver's disk and the nodes, in threads of their own.

Brings sealed stages and the other files of trials to the experiment's directory, and pushes to a node what an attempt
needs there: the trainable, values, the checkpoint that it starts from. A node that sees the experiment's directory
itself needs none of this.

Owns: connections for files, and what is known about the files of each node. Must never: run in the loop's thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from holdfast.checkpoints import names
from holdfast.checkpoints.stage_sending import CannotSend
from holdfast.checkpoints.tree import remove_quietly
from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.carrier import Carrier, lost_stage
from holdfast.engines.cluster.node_files import Need, NodeFiles, key_of
from holdfast.engines.cluster.tree_stream import TransferCut, tree_of
from holdfast.errors import CheckpointDamagedError, StorageError

FILES = "root"
"""Below a node's scratch directory: what workers there take for the experiment's directory."""

THREADS = 32
"""So that a few nodes that hang do not keep the others waiting."""

CARRIER_S = 20.0
"""How long a node may take to open a connection for files."""

_log = logging.getLogger(__name__)


class StartFetching(Protocol):
    """Gets checkpoints from the experiment's store to where attempts start (``node_sender``)."""

    def lacks(self, need: Need) -> bool:
        """Whether a checkpoint is in the store alone."""

    def fetch(self, carrier: Carrier, files: NodeFiles, need: Need) -> bool:
        """Have a node fetch it. False if it cannot: then a good copy is here. Raises ``StorageError``."""

    def fetch_and_tell(self, need: Need, done: Callable[[str], None]) -> None:
        """Fetch it to this directory; ``done`` as with ``push``."""


class Copier(Protocol):
    """The user's own way to copy a directory of a node (``sync.node_copier.NodeCopier``). From any thread."""

    def __call__(self, source: str, target: str, stop: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Copy from ``user@ip:/path/`` to a directory here, until ``stop``; raises ``StorageError``."""


class Courier:
    """Carries files.

    Args:
        root: The experiment's directory here.
        tell: Gives an order to a node; from any thread. ``connected`` answers ``OpenCarrier``.
        printed: Files in trials' directories that are not brought, because they are followed as they grow.
        starts: Fetches checkpoints that the store has and this directory has not; None if it has all of them.
        copier: What brings stages; None for our own connections.
    """

    def __init__(
        self,
        root: str,
        tell: Callable[[str, say.PorterOrder], None],
        printed: tuple[str, ...] = (),
        starts: StartFetching | None = None,
        copier: Copier | None = None,
    ) -> None:
        self._root = root
        self._starts = starts
        self._printed = printed
        self._copier = copier
        self._tell = tell
        self._nodes: dict[str, NodeFiles] = {}
        # By trial directory and sealed name. A node that was lost and comes back is another NodeFiles, without these.
        self._stages: dict[tuple[str, str], NodeFiles] = {}
        self._expected: dict[int, queue.SimpleQueue[socket.socket | None]] = {}
        self._waiting_on: dict[int, str] = {}
        self._next = 1
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, "holdfast-courier")

    # --- for the loop's thread

    def add_node(self, node: str, host: str, place: str = "") -> None:
        """A node has joined, with an empty scratch directory."""
        self._nodes[node] = NodeFiles(node, host, place)

    def lose_node(self, node: str, why: str) -> None:
        """Nothing more can come from there."""
        files = self._nodes.get(node)
        if files is None:
            return
        files.lose(why)
        with self._lock:
            waiting = [number for number, where in self._waiting_on.items() if where == node]
        for number in waiting:
            self.connected(number, None)

    def connected(self, number: int, sock: socket.socket | None) -> None:
        """A connection for files is there, or will never be."""
        with self._lock:
            waiting = self._expected.pop(number, None)
            self._waiting_on.pop(number, None)
        if waiting is not None:
            waiting.put(sock)
        elif sock is not None:
            sock.close()

    def note_stage(self, node: str, trial_dir: str, sealed: str) -> None:
        """A worker there has sealed a stage."""
        files = self._stages[trial_dir, sealed] = self._nodes[node]
        with files.changed:
            files.pending.setdefault(trial_dir, set()).add(sealed)

    def enter(self, node: str, worker: int, trial_dir: str, checkpoint: str | None) -> bool:
        """An attempt begins: what it uses stays. False if what an earlier one left is being removed: push first."""
        files = self._nodes[node]
        with files.changed:
            files.users.setdefault(trial_dir, set()).add(worker)
            if checkpoint is not None:
                files.starts[checkpoint] = files.starts.pop(checkpoint, set()) | {worker}
            return trial_dir not in files.changing

    def leave(self, node: str, worker: int) -> None:
        """The worker's attempt has ended: what only it has used is removed."""
        files = self._nodes.get(node)
        if files is None or files.lost:
            return
        with files.changed:
            mine = [path for path, workers in files.users.items() if worker in workers]
            for workers in (*files.users.values(), *files.starts.values()):
                workers.discard(worker)
            unused = [*(path for path in mine if files.is_unused(path)), *files.unused_starts()]
        for path in unused:
            self.soon(self._clear, files, path)

    def missing(self, node: str, needs: list[Need]) -> list[Need]:
        """Those that the node does not have yet."""
        files = self._nodes[node]
        with files.changed:
            return [need for need in needs if files.pushed.get(key_of(need)) != need.digest]

    def push(self, node: str, trial_dir: str, needs: list[Need], done: Callable[[str], None]) -> None:
        """Give these to a node, and call ``done`` with "", or with why it cannot be; from another thread."""
        self.soon(self._push, self._nodes[node], trial_dir, needs, done)

    def fetch_start(self, need: Need | None, done: Callable[[str], None]) -> bool:
        """For a node that sees this directory: fetch the checkpoint, and call ``done``. False if it is here."""
        if need is None or self._starts is None or not self._starts.lacks(need):
            return False
        self.soon(self._starts.fetch_and_tell, need, done)
        return True

    def collect(self, node: str, trial_dir: str, done: Callable[[Exception | None], None] | None = None) -> None:
        """Bring the files of a trial that have changed, and call ``done`` with what went wrong; from another thread.

        Without ``done`` it is left out if an earlier one has not ended: a slow connection has to keep up.
        """
        files = self._nodes[node]
        if done is None:
            if trial_dir in files.collecting:
                return
            files.collecting.add(trial_dir)
        self.soon(self._collect, files, trial_dir, done)

    def close(self) -> None:
        """Drop what was not begun."""
        for node in list(self._nodes):
            self.lose_node(node, "the driver has left")
        self._threads.shutdown(wait=True, cancel_futures=True)

    # --- for the threads of checkpoint jobs

    def bring(self, trial_dir: str, sealed: str, attempt: int) -> None:
        """Bring a sealed stage to the trial's directory here, if another machine has it.

        Raises:
            CheckpointDamagedError: That machine was lost.
            StorageError: Not now; ``StorageFullError`` if there is no space here.
        """
        files = self._stages.get((trial_dir, sealed))
        target = os.path.join(self._root, trial_dir, sealed)
        if files is None or os.path.isdir(target):
            return
        if files.lost:
            raise lost_stage(target, files.host)
        fresh = os.path.join(self._root, trial_dir, names.stage_name(attempt))
        try:
            if not self._fetch(files, f"{FILES}/{trial_dir}/{sealed}", fresh):
                raise lost_stage(target, files.host)
            os.rename(fresh, target)
        except TransferCut as error:
            remove_quietly([fresh])
            if files.lost:
                raise lost_stage(target, files.host) from error
            raise StorageError(f"the transfer from {files.host} was cut ({error})") from error
        except BaseException:
            remove_quietly([fresh])
            raise
        self.brought(files, trial_dir, sealed)

    def where(self, trial_dir: str, sealed: str) -> NodeFiles | None:
        """Which node has a stage that is not here; None if none has."""
        here = os.path.isdir(os.path.join(self._root, trial_dir, sealed))
        return None if here else self._stages.get((trial_dir, sealed))

    def bring_all(self) -> list[Future[None]]:
        """Begin to bring every stage that is not here."""
        stages = [stage for stage in list(self._stages) if (files := self.where(*stage)) and not files.lost]
        return [self._threads.submit(self.bring, *stage, names.attempt_of(stage[1])) for stage in stages]

    def nodes_of(self, trial_dir: str) -> set[str]:
        """Nodes that have stages of a trial."""
        return {files.node for (directory, _), files in list(self._stages.items()) if directory == trial_dir}

    def _fetch(self, files: NodeFiles, path: str, fresh: str) -> bool:
        """Copy a stage to a new directory; False if the node has none."""
        if self._copier is None:
            with self.carrier(files) as carrier:
                return carrier.bring(path, fresh)
        try:
            self._copier(f"{files.place}/{path}/", fresh, lambda: bool(files.lost))
        except StorageError as error:
            if files.lost:
                raise TransferCut(files.lost) from error
            raise
        if not os.path.lexists(os.path.join(fresh, names.SEAL)):
            raise StorageError(
                f"SyncConfig(syncer=...) said that {files.place}/{path}/ was copied from {files.host}, and "
                f"{names.SEAL}, which is in it, has not arrived"
            )
        return True

    def drop(self, trial_dir: str, sealed: str) -> None:
        """A stage is not wanted any more."""
        files = self._stages.pop((trial_dir, sealed), None)
        if files is not None:
            self._forget(files, trial_dir, sealed)

    def is_elsewhere(self, trial_dir: str, sealed: str) -> bool:
        """Whether another machine has this stage, and it was neither brought nor dropped."""
        return (trial_dir, sealed) in self._stages

    def brought(self, files: NodeFiles, trial_dir: str, sealed: str) -> None:
        """A stage is where it belongs: it is removed from its node, and what the trial wrote beside it is brought."""
        self._stages.pop((trial_dir, sealed), None)
        with contextlib.suppress(TransferCut, StorageError):
            self._bring_changed(files, trial_dir)
        self._forget(files, trial_dir, sealed)

    def _forget(self, files: NodeFiles, trial_dir: str, sealed: str) -> None:
        if not files.lost:
            self._tell(files.node, say.Remove(f"{FILES}/{trial_dir}/{sealed}"))
        with files.changed:
            left = files.pending.get(trial_dir)
            if left is not None:
                left.discard(sealed)
                if not left:
                    del files.pending[trial_dir]
            over = files.is_unused(trial_dir)
        if over:
            self.soon(self._clear, files, trial_dir)

    def soon(self, job: Callable[..., None], *arguments: Any) -> None:
        """Do this in a thread of the courier's."""
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._threads.submit(job, *arguments)

    # --- in threads of its own

    @contextlib.contextmanager
    def _changing(self, files: NodeFiles, path: str) -> Iterator[None]:
        """Nobody else puts anything into the trial directory of this path, or removes anything."""
        folder = path.split("/", 1)[0]
        with files.changed:
            while folder in files.changing:
                files.changed.wait()
            files.changing.add(folder)
        try:
            yield
        finally:
            with files.changed:
                files.changing.discard(folder)
                files.changed.notify_all()

    def _clear(self, files: NodeFiles, path: str) -> None:
        """Remove a trial directory or a start checkpoint from the node, unless somebody uses it again."""
        with contextlib.suppress(TransferCut, StorageError), self._changing(files, path):
            with files.changed:
                if files.lost or not files.is_unused(path):
                    return
                files.users.pop(path, None)
                files.starts.pop(path, None)
                files.brought.pop(path, None)
                files.pushed.pop(path, None)
                kept = [start for start in files.starts if start.startswith(f"{path}/")]
            with self.carrier(files) as carrier:
                carrier.discard(f"{FILES}/{path}", tuple(start.removeprefix(f"{path}/") for start in kept))

    def _push(self, files: NodeFiles, trial_dir: str, needs: list[Need], done: Callable[[str], None]) -> None:
        why = ""
        try:
            with self._changing(files, trial_dir):
                pass  # what an earlier attempt has left there is gone now
            with self.carrier(files) as carrier:
                for need in needs:
                    with self._changing(files, need.path):
                        if files.pushed.get(key_of(need)) != need.digest:
                            self._push_one(carrier, files, need)
                            files.pushed[key_of(need)] = need.digest
        except (TransferCut, OSError) as error:
            why = str(error) or type(error).__name__
        except BaseException as error:
            _log.exception("pushing files to %s", files.host)
            why = f"{type(error).__name__}: {error}"
        done(why)

    def _push_one(self, carrier: Carrier, files: NodeFiles, need: Need) -> None:
        source = os.path.join(self._root, need.path)
        target = f"{FILES}/{need.path}"
        if self._starts is not None and self._starts.lacks(need) and self._starts.fetch(carrier, files, need):
            return  # the node has it from the store
        if need.content:
            carrier.push_content(need.content, target)
            return
        tree = tree_of(source)
        if need.files:
            tree = say.Tree(tuple(entry for entry in tree.files if entry.path in need.files), ())
        carrier.push(source, tree, target, whole=not need.files)

    def _collect(self, files: NodeFiles, trial_dir: str, done: Callable[[Exception | None], None] | None) -> None:
        trouble: Exception | None = None
        try:
            self._bring_changed(files, trial_dir)
        except (TransferCut, StorageError) as error:
            trouble = error
            if not files.lost and done is None:
                _log.warning("files of %s could not be brought from %s: %s", trial_dir, files.host, error)
        except Exception as error:
            trouble = error
            _log.exception("bringing files of %s from %s", trial_dir, files.host)
        if done is not None:
            done(trouble)
        else:
            files.collecting.discard(trial_dir)

    def _bring_changed(self, files: NodeFiles, trial_dir: str) -> None:
        with files.changed:
            known = files.brought.setdefault(trial_dir, {})
        with self.carrier(files) as carrier:
            target = os.path.join(self._root, trial_dir)
            carrier.bring_changed(f"{FILES}/{trial_dir}", known, target, self._printed)

    @contextlib.contextmanager
    def carrier(self, files: NodeFiles) -> Iterator[Carrier]:
        """A connection to a node, for one transfer. Raises ``TransferCut`` if there is none."""
        carrier = self._take(files)
        with files.changed:
            files.busy.add(carrier)
            if files.lost:
                carrier.hang_up()
        try:
            yield carrier
        except (StorageError, CannotSend, CheckpointDamagedError):
            self._put_back(files, carrier)  # everything was read, so the connection is in order
            raise
        except BaseException:
            with files.changed:
                files.busy.discard(carrier)
            carrier.close()
            raise
        self._put_back(files, carrier)

    def _put_back(self, files: NodeFiles, carrier: Carrier) -> None:
        with files.changed:
            files.busy.discard(carrier)
            if not files.lost:
                files.idle.put(carrier)
                return
        carrier.close()

    def _take(self, files: NodeFiles) -> Carrier:
        if files.lost:
            raise TransferCut(files.lost)
        with contextlib.suppress(queue.Empty):
            return files.idle.get_nowait()
        arrives: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._expected[number] = arrives
            self._waiting_on[number] = files.node
        self._tell(files.node, say.OpenCarrier(number))
        deadline = time.monotonic() + CARRIER_S
        try:
            sock = arrives.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            self.connected(number, None)
            raise TransferCut(f"{files.host} opened no connection for files within {CARRIER_S:.0f} s") from None
        if sock is None:
            raise TransferCut(files.lost or f"{files.host} is gone")
        return Carrier(sock, files.host)
