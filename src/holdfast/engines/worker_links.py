"""Connections to workers: one selector, one thread, one timer each. Who starts and ends workers is for subclasses.

Owns: the table of workers, their sockets, and the patience with which a worker is ended.
Must never: block on a worker, know what an attempt is, or raise because a process misbehaves.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from holdfast.engines.link import SocketLink
from holdfast.engines.spin_wait import SpinWait
from holdfast.engines.worker_handle import WorkerHandle
from holdfast.storage import trial_logs
from holdfast.trainable.worker_messages import Quit, frame

EXIT_S = 2.0
"""How long a worker that was told to leave may take; user code may have registered exit functions."""

TERM_S = 2.0
"""From SIGTERM to SIGKILL."""

SILENT = (
    "the worker closed its connection to the driver and kept running "
    "(does the trial close file descriptors that it did not open?)"
)

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

_QUIT = frame(Quit())


class PoolListener(Protocol):
    """Who is told what workers say and how they end."""

    def hear(self, worker: WorkerHandle, payloads: list[bytes]) -> None:
        """Messages of a worker; a ``ValueError`` means that they are none, and ends the worker."""

    def gone(self, worker: WorkerHandle, cause: str, detail: str) -> None:
        """Nothing is left of the worker, and everything it had sent was heard. Told once for each."""


class WorkerLinks:
    """Workers, as one end of their connections sees them.

    Attributes:
        workers: By number; until nothing is left of them.
    """

    def __init__(self, listener: PoolListener, first_number: int, max_output_bytes: int | None = None) -> None:
        self.workers: dict[int, WorkerHandle] = {}
        self._listener = listener
        self._max_output_bytes = max_output_bytes
        self._next_number = first_number
        self._selector = selectors.DefaultSelector()
        self._wait = SpinWait()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, READ, self._on_wake)
        self._timers: dict[int, tuple[float, Callable[[WorkerHandle], None]]] = {}

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
            if isinstance(target, WorkerHandle):
                self._on_worker(target, mask)
            else:
                target(mask)
        if self._timers:
            self._run_timers()

    def abandon(self) -> None:
        """Close this process's descriptors and touch nothing else: for a fork of the driver."""
        for worker in self.workers.values():
            worker.link.close()
        self.workers.clear()
        self._selector.close()
        self._woken.close()
        self._waker.close()

    # --- what can be done with a worker

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
        """SIGTERM to the worker, later SIGKILL."""
        worker.halted = True
        self._terminate(worker)
        self.arm(worker, TERM_S if patience_s is None else patience_s, self.kill)

    def kill(self, worker: WorkerHandle) -> None:
        """Kill the worker's process tree."""
        worker.halted = True
        self.disarm(worker)
        self._kill(worker)

    def _terminate(self, worker: WorkerHandle) -> None:
        raise NotImplementedError

    def _kill(self, worker: WorkerHandle) -> None:
        raise NotImplementedError

    def _hang_up(self, worker: WorkerHandle) -> None:
        """The connection has ended. That is a hint: somebody else will tell how the process ended."""
        raise NotImplementedError

    # --- the loop

    def _watch(self, link: SocketLink) -> None:
        """Wait for a link to become writable exactly while it has something to send."""
        key = self._selector.get_key(link.socket)
        events = READ | (WRITE if link.waiting else 0)
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
        if mask & READ:
            try:
                payloads = worker.link.receive()
                if payloads is None:
                    self._hang_up(worker)
                    return
                self._listener.hear(worker, payloads)
            except ValueError as error:
                self._garbled(worker, error)
                return
        if mask & WRITE:
            worker.link.flush()
            self._watch(worker.link)

    # --- the ends of workers

    def _cut(self, worker: WorkerHandle) -> None:
        if not worker.cut:
            worker.cut = True
            self._selector.unregister(worker.link.socket)

    def _kill_silent(self, worker: WorkerHandle) -> None:
        if not worker.halted:
            worker.fault = SILENT
        self.kill(worker)

    def _garbled(self, worker: WorkerHandle, error: ValueError) -> None:
        self._cut(worker)
        worker.fault = f"the worker's connection carried something else than its messages ({error})"
        self.kill(worker)

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
