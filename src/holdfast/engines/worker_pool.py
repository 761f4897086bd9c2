"""The worker processes of the local engine: their sockets, their nanny, their ends. One selector, one thread.

Owns: the table of workers, the restart of a lost nanny, and the patience with which a process is ended.
Must never: block on a worker or a nanny, know what an attempt is, or raise because a process misbehaves.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from holdfast.core.events import Cause
from holdfast.engines.exits import explain
from holdfast.engines.link import SocketLink
from holdfast.engines.nanny_messages import Notice, WorkerEnded
from holdfast.engines.nanny_process import NannyProcess
from holdfast.engines.worker_handle import WorkerHandle
from holdfast.engines.worker_links import READ, SILENT, WRITE, PoolListener, WorkerLinks
from holdfast.storage import trial_logs

SILENT_S = 5.0
"""From the end of a worker's connection to its kill, if it is not gone by itself: longer than a nanny's BURIAL_S."""

MAX_LOSSES = 3
"""Nannies that may be lost in a row without one worker having started, before no more are started."""

_LOST_NANNY = "the process that supervises the workers was lost"

_log = logging.getLogger(__name__)


class WorkerPool(WorkerLinks):
    """Workers on this machine, and their nanny.

    Attributes:
        losses: Nannies lost since the listener last set this to 0.
    """

    def __init__(
        self, listener: PoolListener, log_dir: Path, first_number: int, max_output_bytes: int | None = None
    ) -> None:
        super().__init__(listener, first_number, max_output_bytes)
        self.losses = 0
        self._log_dir = log_dir
        self._start: Callable[..., NannyProcess] | None = None
        self._nanny: NannyProcess | None = None

    def begin(self, start: Callable[..., NannyProcess]) -> None:
        """Start the nanny. ``start`` is kept, to be called again, with ``again=True``, if the nanny is lost."""
        self._start = start
        self._add_nanny(start())

    def close(self) -> None:
        """End all workers and everything below them."""
        try:
            if self._nanny is not None:
                self._forget_nanny(self._nanny)
                if not self._nanny.stop():
                    _log.warning("Some processes that trials started could not be killed (stuck in the kernel?).")
            trial_logs.settle_all(str(self._log_dir), self._max_output_bytes)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close this process's descriptors and touch nothing else: for a fork of the driver."""
        if self._nanny is not None:
            self._nanny.forget()
            self._nanny = None
        super().abandon()

    def new_worker(self) -> WorkerHandle:
        """A worker that can be sent to at once: it reads when it has started.

        Raises:
            OSError: If there can be none.
        """
        if self._nanny is None:
            raise OSError(f"{_LOST_NANNY} {self.losses} times in a row; see {self._log_dir / 'nanny.log'}")
        ours, theirs = socket.socketpair()
        number = self._next_number
        self._next_number += 1
        worker = WorkerHandle(number, SocketLink(ours), str(self._log_dir / f"worker-{number}.log"))
        self.workers[number] = worker
        self._selector.register(ours, READ, worker)
        self._nanny.start_worker(number, theirs.detach(), worker.log)
        self._watch(self._nanny.link)
        return worker

    def _terminate(self, worker: WorkerHandle) -> None:
        if self._nanny is not None:
            self._nanny.terminate_worker(worker.number)
            self._watch(self._nanny.link)

    def _kill(self, worker: WorkerHandle) -> None:
        if self._nanny is not None:
            self._nanny.kill_worker(worker.number)
            self._watch(self._nanny.link)

    def _hang_up(self, worker: WorkerHandle) -> None:
        """The connection has ended. That is a hint: the nanny will tell how the process ended."""
        self._cut(worker)
        self.arm(worker, SILENT_S, self._kill_silent)

    def _worker_ended(self, ended: WorkerEnded) -> None:
        worker = self.workers.get(ended.worker)
        if worker is None:
            return
        if worker.fault == SILENT and os.waitstatus_to_exitcode(ended.status) != -signal.SIGKILL:
            worker.fault, worker.halted = "", False  # it had ended by itself, and the nanny was late to say so
        if worker.fault or ended.note:
            self._gone(worker, ended.cause or Cause.EXIT, worker.fault or ended.note)
        else:
            cause = explain(ended.status, halted=worker.halted, oom=ended.oom, peak_kib=ended.peak_kib)
            self._gone(worker, *cause)

    # --- the nanny

    def _add_nanny(self, nanny: NannyProcess) -> None:
        self._nanny = nanny
        self._selector.register(nanny.link.socket, READ, self._on_nanny)
        if nanny.pidfd is not None:
            # Its socket may outlive it in a worker that it was just forking.
            self._selector.register(nanny.pidfd, READ, lambda mask: self._nanny_lost(nanny))

    def _forget_nanny(self, nanny: NannyProcess) -> None:
        self._selector.unregister(nanny.link.socket)
        if nanny.pidfd is not None:
            self._selector.unregister(nanny.pidfd)

    def _on_nanny(self, mask: int) -> None:
        nanny = self._nanny
        if nanny is None:
            return
        if mask & WRITE:
            nanny.link.flush()
            self._watch(nanny.link)
        if mask & READ:
            messages = nanny.receive()
            for message in messages or ():
                if isinstance(message, WorkerEnded):
                    self._worker_ended(message)
                elif isinstance(message, Notice):
                    _log.warning("%s", message.text)
            if messages is None:
                self._nanny_lost(nanny)

    def _nanny_lost(self, nanny: NannyProcess) -> None:
        """All workers die with their nanny; their trials continue elsewhere, at nobody's expense."""
        if nanny is not self._nanny:
            return
        self._forget_nanny(nanny)
        self._nanny = None
        self.losses += 1
        nanny.bury()
        lost = list(self.workers.values())
        if self.losses <= MAX_LOSSES:
            _log.warning("%s and is started again.", _LOST_NANNY.capitalize())
            try:
                assert self._start is not None
                self._add_nanny(self._start(again=True))
            except OSError as error:
                _log.warning("It cannot be started: %s", error)
        for worker in lost:
            self._gone(worker, Cause.ENGINE_LOST, _LOST_NANNY)
