"""Threads that run jobs in the background of the driver.

Owns a few threads and two queues. The control loop submits jobs and collects outcomes; it never waits for a disk or a
network. Does not know what a job is, and no exception leaves a thread.

Jobs of one trial run one after the other in the order in which they were submitted.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from holdfast.errors import InternalError

MAX_JOBS_AT_ONCE = 4


class OfTrial(Protocol):
    """Something about checkpoint ``index`` of trial number ``n``."""

    @property
    def n(self) -> int: ...

    @property
    def index(self) -> int: ...


J = TypeVar("J", bound=OfTrial)
R = TypeVar("R")


class JobThreads(Generic[J, R]):
    """Does jobs in at most ``MAX_JOBS_AT_ONCE`` threads.

    Args:
        wake: Called from one of the threads whenever ``drain`` has something to give; must not block.
        perform: Does one job; never raises.

    Attributes:
        at_once: Another maximum, for jobs that others do while the thread waits.
    """

    at_once = MAX_JOBS_AT_ONCE

    def __init__(self, wake: Callable[[], None], perform: Callable[[J], R]) -> None:
        self._wake = wake
        self._perform = perform
        self._changed = threading.Condition()
        self._waiting: dict[int, deque[J]] = {}  # of each trial with a job running or ready, what comes after it
        self._ready: deque[J] = deque()
        self._outcomes: deque[R] = deque()
        self._threads: list[threading.Thread] = []
        self._pending = 0
        self._idle = 0
        self._closed = False

    def submit(self, job: J) -> None:
        """Take a job; its outcome follows exactly once, unless this is closed without waiting."""
        with self._changed:
            if self._closed:
                raise InternalError(f"the threads for checkpoint jobs are closed and cannot take {job}")
            self._pending += 1
            if job.n in self._waiting:
                self._waiting[job.n].append(job)
                return
            self._waiting[job.n] = deque()
            self._ready.append(job)
            if self._idle >= len(self._ready) or len(self._threads) == self.at_once:
                self._changed.notify()
                return
            # A daemon: a disk that never answers must not keep the driver from ending.
            thread = threading.Thread(target=self._work, name="holdfast-job", daemon=True)
            self._threads.append(thread)
            thread.start()

    def drain(self) -> list[R]:
        """The outcomes since the last call, in the order in which they came about."""
        if not self._outcomes:  # the usual answer, many thousand times a second; one that comes just now is announced
            return []
        with self._changed:
            outcomes = list(self._outcomes)
            self._outcomes.clear()
        return outcomes

    def waits(self, job: J) -> bool:
        """Whether a job has not begun."""
        with self._changed:
            return job in self._ready or job in self._waiting.get(job.n, ())

    def withdraw(self, job: J) -> bool:
        """Take a job back that has not begun; there will be no outcome. False if it is too late."""
        with self._changed:
            if job in self._ready:
                self._ready.remove(job)
                self._release(job.n)
            elif job in self._waiting.get(job.n, ()):
                self._waiting[job.n].remove(job)
            else:
                return False
            self._pending -= 1
            return True

    @property
    def pending(self) -> int:
        """How many jobs have no outcome yet."""
        return self._pending

    def close(self, wait: bool = True, running_s: float = 0.0) -> None:
        """Take no more jobs. With ``wait``, returns when all are done; otherwise those not begun are dropped.

        Args:
            wait: Whether to wait for all jobs, for as long as it takes.
            running_s: Without ``wait``, how long to wait for the jobs that have begun.
        """
        deadline = time.monotonic() + running_s
        with self._changed:
            self._closed = True
            if not wait:
                self._pending -= len(self._ready) + sum(len(rest) for rest in self._waiting.values())
                self._ready.clear()
                self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(None if wait else max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (job := self._next()) is not None:
            outcome = self._perform(job)
            with self._changed:
                self._pending -= 1
                self._outcomes.append(outcome)
                self._release(job.n)
            with contextlib.suppress(Exception):
                self._wake()

    def _next(self) -> J | None:
        with self._changed:
            while not self._ready:
                if self._closed and not self._waiting:
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return self._ready.popleft()

    def _release(self, n: int) -> None:
        """Let the next job of this trial run; the calling thread is about to look for one, so none need be woken."""
        rest = self._waiting.get(n)
        if rest:
            self._ready.append(rest.popleft())
        elif rest is not None:
            del self._waiting[n]
            if self._closed and not self._waiting:
                self._changed.notify_all()
