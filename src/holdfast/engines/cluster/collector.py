"""When the files that attempts write beside their checkpoints are brought: now and then, and when an attempt ends.

However an attempt ends, its directory is removed from the node afterwards, so the end is told when its files are on
the driver's disk, or when they cannot be brought any more. A full disk is waited for, as checkpoints wait.

Owns: what an end waits for, and what is tried again. Must never: decide how an attempt has ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from holdfast.core.backoff import Backoff
from holdfast.core.events import Cause
from holdfast.core.observations import Died, Raised, Waiting
from holdfast.engines.cluster.carrier import UnreadableFileError
from holdfast.engines.cluster.cluster_pool import ClusterPool
from holdfast.engines.cluster.courier import Courier
from holdfast.engines.cluster.remote_worker import RemoteWorker
from holdfast.engines.worker_handle import AttemptEnd, WorkerHandle
from holdfast.errors import StorageFullError

RETRY = Backoff(first_s=0.5, longest_s=15.0)
MAX_TRIES = 3
"""For what may be a fault of a connection or of a disk. Space may be made at any time, so that is waited for."""

FILES, OUTPUT = "files", "output"
"""What an end can wait for."""

_log = logging.getLogger(__name__)


class EndListener(Protocol):
    """Who is told that nothing more is awaited."""

    def end_now(self, worker: RemoteWorker, message: AttemptEnd | None) -> None:
        """The attempt's files are here. ``message``: its last, None if its worker is gone without one."""

    def waits(self, waiting: Waiting) -> None:
        """An attempt's files wait for space, or do not any more."""


class Collector:
    """Has files of attempts brought, and tells the ends of those that wait for it. In the loop's thread.

    Args:
        pool: Of their workers.
        courier: Brings files.
        told: Who hears of the ends.
        period_s: How often files of running attempts are brought.
        followed: Files that trials print to, which are followed as they grow.
    """

    def __init__(
        self,
        pool: ClusterPool,
        courier: Courier,
        told: EndListener,
        period_s: float,
        followed: tuple[str, str] | None,
    ) -> None:
        self._period_s = period_s
        self._collected_at = time.monotonic()
        self._pool = pool
        self._courier = courier
        self._told = told
        self._followed = followed
        self._later: list[tuple[float, RemoteWorker]] = []

    def ended(self, worker: RemoteWorker, message: AttemptEnd) -> bool:
        """An attempt has said that it has ended. False if nothing has to be brought: tell it now."""
        if worker.ending is not None:
            return True  # an attempt ends once
        if worker.cut or worker.key != (message.n, message.attempt) or not self._has_files(worker):
            return False
        worker.ending = message
        if self._followed is not None:
            worker.awaited.add(OUTPUT)
            self._pool.stop_following(worker)
        self._begin(worker)
        return True

    def gone(self, worker: RemoteWorker) -> bool:
        """The worker of an attempt is gone. False if nothing has to be brought, or is awaited any more."""
        worker.awaited.discard(OUTPUT)  # it was sent before
        if worker.key is None or worker.brought or not self._has_files(worker):
            worker.awaited.clear()
        elif FILES not in worker.awaited:
            self._begin(worker)
        elif worker.hurried:
            self.hurry(worker)
            return True
        return bool(worker.awaited)

    def all_sent(self, worker: RemoteWorker) -> None:
        """What it has appended to followed files is here."""
        worker.awaited.discard(OUTPUT)
        if worker.ending is not None:
            self._finish(worker)

    def hurry(self, worker: RemoteWorker) -> None:
        """The driver wants the attempt to end: files that wait for space are not waited for any longer."""
        worker.hurried = True
        if worker.over is not None and any(each is worker for _, each in self._later):
            self._later = [(when, each) for when, each in self._later if each is not worker]
            self._give_up(worker)

    def turn(self, attempts: Iterable[WorkerHandle]) -> None:
        """Begin what is due."""
        now = time.monotonic()
        if now - self._collected_at >= self._period_s:
            self._collected_at = now
            for worker in attempts:
                assert isinstance(worker, RemoteWorker)
                if not worker.has_ended and not self._pool.nodes[worker.node].sees_root:
                    self._courier.collect(worker.node, worker.trial_dir)
        due = [worker for when, worker in self._later if when <= now]
        self._later = [(when, worker) for when, worker in self._later if when > now]
        for worker in due:
            if FILES in worker.awaited:  # else its node was lost meanwhile
                self._begin(worker)

    def wait_s(self, timeout_s: float) -> float:
        """How long to wait for anything else: until something is tried again, at most ``timeout_s``."""
        return max(0.0, min([timeout_s, *(when - time.monotonic() for when, _ in self._later)]))

    def _has_files(self, worker: RemoteWorker) -> bool:
        node = self._pool.nodes.get(worker.node)
        return worker.sent and node is not None and node.link is not None and not node.sees_root

    def _begin(self, worker: RemoteWorker) -> None:
        worker.awaited.add(FILES)
        self._courier.collect(worker.node, worker.trial_dir, partial(self._collected_elsewhere, worker, worker.key))

    def _collected_elsewhere(
        self, worker: RemoteWorker, key: tuple[int, int] | None, trouble: Exception | None
    ) -> None:
        """From a thread of the courier."""
        self._pool.do_soon(partial(self._collected, worker, key, trouble))

    def _collected(self, worker: RemoteWorker, key: tuple[int, int] | None, trouble: Exception | None) -> None:
        if worker.key != key or FILES not in worker.awaited:
            return
        if trouble is not None and self._later_again(worker, trouble):
            return
        worker.awaited.discard(FILES)
        worker.brought = True
        self._finish(worker)

    def _later_again(self, worker: RemoteWorker, trouble: Exception) -> bool:
        """Whether the files are tried to be brought again."""
        assert worker.key is not None
        is_full = isinstance(trouble, StorageFullError)
        if not self._has_files(worker):
            return False  # the node was lost, and with it what it had
        if is_full and worker.hurried and worker.over is not None:
            self._give_up(worker)
            return True
        worker.tries += 1
        if isinstance(trouble, UnreadableFileError) or (not is_full and worker.tries >= MAX_TRIES):
            _log.warning("Files of %s on %s are lost: %s", worker.trial_dir, worker.host, trouble)
            return False
        if is_full and not worker.awaits_space:
            worker.awaits_space = True
            text = f"its files wait on {worker.host} until the driver's disk has room: {trouble}"
            self._told.waits(Waiting(*worker.key, worker.number, text))
        self._later.append((time.monotonic() + RETRY.delay_s(worker.tries), worker))
        return True

    def _give_up(self, worker: RemoteWorker) -> None:
        """What has ended well has not, if its files were not brought: the attempt is made again."""
        if worker.key is not None and not isinstance(worker.over, Died | Raised):
            detail = "ended at the driver's request before there was space for its files"
            worker.over = Died(*worker.key, Cause.SIGNAL, detail, "", worker.number)
        _log.warning("Files of %s on %s were not brought: the driver's disk is full", worker.trial_dir, worker.host)
        worker.awaited.clear()
        self._finish(worker)

    def _finish(self, worker: RemoteWorker) -> None:
        if not worker.awaited:
            if worker.awaits_space and worker.key is not None:
                self._told.waits(Waiting(*worker.key, worker.number, ""))
            message, worker.ending = worker.ending, None
            self._told.end_now(worker, message)
