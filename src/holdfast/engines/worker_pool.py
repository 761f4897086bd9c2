"""The worker processes of the local engine: their sockets, their nanny, their ends. One selector, one thread.

Owns: the table of workers, the restart of a lost nanny, and the patience with which a process is ended.
Must never: block on a worker or a nanny, know what an attempt is, or raise because a process misbehaves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from holdfast.core.events import Cause
from holdfast.engines.exits import explain
from holdfast.engines.link import SocketLink
from holdfast.engines.nanny_messages import Notice, WorkerEnded
from holdfast.engines.nanny_process import NannyProcess
from holdfast.engines.spin_wait import SpinWait
from holdfast.engines.worker_handle import WorkerHandle
from holdfast.storage import trial_logs
from holdfast.trainable.worker_messages import Quit, frame

EXIT_S = 2.0
"""How long a worker that was told to leave may take; user code may have registered exit functions."""

TERM_S = 2.0
"""From SIGTERM to SIGKILL."""

SILENT_S = 5.0
"""From the end of a worker's connection to its kill, if it is not gone by itself: longer than a nanny's BURIAL_S."""

SILENT = (
    "the worker closed its connection to the driver and kept running "
    "(does the trial close file descriptors that it did not open?)"
)

MAX_LOSSES = 3
"""Nannies that may be lost in a row without one worker having started, before no more are started."""

_QUIT = frame(Quit())
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_LOST_NANNY = "the process that supervises the workers was lost"

_log = logging.getLogger(__name__)


class PoolListener(Protocol):
    """Who is told what workers say and how they end."""

    def hear(self, worker: WorkerHandle, payloads: list[bytes]) -> None:
        """Messages of a worker; a ``ValueError`` means that they are none, and ends the worker."""

    def gone(self, worker: WorkerHandle, cause: str, detail: str) -> None:
        """Nothing is left of the worker, and everything it had sent was heard. Told once for each."""


class WorkerPool:
    """Workers and their nanny.

    Attributes:
        workers: By number; until nothing is left of them.
        losses: Nannies lost since the listener last set this to 0.
    """

    def __init__(
        self, listener: PoolListener, log_dir: Path, first_number: int, max_output_bytes: int | None = None
    ) -> None:
        self.workers: dict[int, WorkerHandle] = {}
        self.losses = 0
        self._listener = listener
        self._log_dir = log_dir
        self._max_output_bytes = max_output_bytes
        self._next_number = first_number
        self._start: Callable[..., NannyProcess] | None = None
        self._nanny: NannyProcess | None = None
        self._selector = selectors.DefaultSelector()
        self._wait = SpinWait()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, _READ, self._on_wake)
        self._timers: dict[int, tuple[float, Callable[[WorkerHandle], None]]] = {}

    def begin(self, start: Callable[..., NannyProcess]) -> None:
        """Start the nanny. ``start`` is kept, to be called again, with ``again=True``, if the nanny is lost."""
        self._start = start
        self._add_nanny(start())

    def wake(self) -> None:
        """Make ``turn`` return soon. From any thread and from signal handlers, also after ``close``."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def turn(self, timeout_s: float) -> None:
        """Wait until something happened, and tell the listener of it."""
        if self._timers:
            soonest = min(when for when, _ in self._timers.values()) - time.monotonic()
            timeout_s = max(0.0, min(timeout_s, soonest))
        select = self._selector.select
        ready = self._wait(partial(select, 0), partial(select, timeout_s)) if timeout_s > 0 else select(0)
        for key, mask in ready:
            target = key.data
            if type(target) is WorkerHandle:
                self._on_worker(target, mask)
            else:
                target(mask)
        if self._timers:
            self._run_timers()

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
        for worker in self.workers.values():
            worker.link.close()
        self.workers.clear()
        self._selector.close()
        self._woken.close()
        self._waker.close()

    # --- what can be done with a worker

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
        self._selector.register(ours, _READ, worker)
        self._nanny.start_worker(number, theirs.detach(), worker.log)
        self._watch(self._nanny.link)
        return worker

    def send(self, worker: WorkerHandle, data: bytes) -> None:
        """Send to a worker, however slowly it reads."""
        worker.link.send(data)
        if worker.link.waiting and not worker.cut:
            self._watch(worker.link)

    def arm(self, worker: WorkerHandle, delay_s: float, action: Callable[[WorkerHandle], None]) -> None:
        """Do this to the worker later. It has one timer: an earlier one stays, because each leads to the end."""
        when = time.monotonic() + delay_s
        timer = self._timers.get(worker.number)
        if timer is None or when < timer[0]:
            self._timers[worker.number] = (when, action)

    def disarm(self, worker: WorkerHandle) -> None:
        self._timers.pop(worker.number, None)

    def retire(self, worker: WorkerHandle) -> None:
        """Have the worker leave by itself, or else be killed."""
        self.disarm(worker)
        self.send(worker, _QUIT)
        self.arm(worker, EXIT_S, self.kill)

    def terminate(self, worker: WorkerHandle, patience_s: float | None = None) -> None:
        """SIGTERM to the worker's process group, later SIGKILL."""
        worker.halted = True
        if self._nanny is not None:
            self._nanny.terminate_worker(worker.number)
            self._watch(self._nanny.link)
        self.arm(worker, TERM_S if patience_s is None else patience_s, self.kill)

    def kill(self, worker: WorkerHandle) -> None:
        """Kill the worker's process tree."""
        worker.halted = True
        self.disarm(worker)
        if self._nanny is not None:
            self._nanny.kill_worker(worker.number)
            self._watch(self._nanny.link)

    # --- the loop

    def _watch(self, link: SocketLink) -> None:
        """Wait for a link to become writable exactly while it has something to send."""
        key = self._selector.get_key(link.socket)
        events = _READ | (_WRITE if link.waiting else 0)
        if key.events != events:
            self._selector.modify(link.socket, events, key.data)

    def _run_timers(self) -> None:
        now = time.monotonic()
        for number, (when, action) in list(self._timers.items()):
            if when <= now and number in self._timers:
                del self._timers[number]
                action(self.workers[number])

    def _on_wake(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _on_worker(self, worker: WorkerHandle, mask: int) -> None:
        if worker.cut:
            return  # buried earlier in this turn
        if mask & _READ:
            try:
                payloads = worker.link.receive()
                if payloads is None:
                    self._hang_up(worker)
                    return
                self._listener.hear(worker, payloads)
            except ValueError as error:
                self._garbled(worker, error)
                return
        if mask & _WRITE:
            worker.link.flush()
            self._watch(worker.link)

    # --- the ends of workers

    def _cut(self, worker: WorkerHandle) -> None:
        if not worker.cut:
            worker.cut = True
            self._selector.unregister(worker.link.socket)

    def _hang_up(self, worker: WorkerHandle) -> None:
        """The connection has ended. That is a hint: the nanny will tell how the process ended."""
        self._cut(worker)
        self.arm(worker, SILENT_S, self._kill_silent)

    def _kill_silent(self, worker: WorkerHandle) -> None:
        if not worker.halted:
            worker.fault = SILENT
        self.kill(worker)

    def _garbled(self, worker: WorkerHandle, error: ValueError) -> None:
        self._cut(worker)
        worker.fault = f"the worker's connection carried something else than its messages ({error})"
        self.kill(worker)

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

    def _gone(self, worker: WorkerHandle, cause: str, detail: str) -> None:
        if not worker.cut:
            # Its death was told before its socket was read: the last report may still be in there.
            self._cut(worker)
            with contextlib.suppress(ValueError):
                self._listener.hear(worker, worker.link.receive_rest())
        del self.workers[worker.number]
        self.disarm(worker)
        worker.link.close()
        self._listener.gone(worker, cause, detail)
        with contextlib.suppress(OSError):
            trial_logs.settle(worker.log, self._max_output_bytes)  # it was killed, or printed on leaving

    # --- the nanny

    def _add_nanny(self, nanny: NannyProcess) -> None:
        self._nanny = nanny
        self._selector.register(nanny.link.socket, _READ, self._on_nanny)
        if nanny.pidfd is not None:
            # Its socket may outlive it in a worker that it was just forking.
            self._selector.register(nanny.pidfd, _READ, lambda mask: self._nanny_lost(nanny))

    def _forget_nanny(self, nanny: NannyProcess) -> None:
        self._selector.unregister(nanny.link.socket)
        if nanny.pidfd is not None:
            self._selector.unregister(nanny.pidfd)

    def _on_nanny(self, mask: int) -> None:
        nanny = self._nanny
        if nanny is None:
            return
        if mask & _WRITE:
            nanny.link.flush()
            self._watch(nanny.link)
        if mask & _READ:
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
