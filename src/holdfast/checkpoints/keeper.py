"""Commits, verifications and deletions in the background of the driver.

Owns a few threads and two queues. The control loop hands in jobs and collects outcomes; it never waits for a disk.
Decides nothing: a failure becomes an outcome with its reason, and whoever submitted the job knows what to do about
it. No exception leaves a thread.

Jobs of one trial run one after the other in the order in which they were submitted, so its checkpoints appear in
order and a deletion never overtakes the commit before it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Union

import msgspec

from holdfast.checkpoints.commit import commit
from holdfast.checkpoints.delete import delete
from holdfast.checkpoints.reader import verify
from holdfast.errors import CheckpointDamagedError, InternalError, StorageFullError

MAX_JOBS_AT_ONCE = 4


class Commit(msgspec.Struct, frozen=True):
    """Finish the commit of a sealed stage of trial number ``n``."""

    n: int
    index: int
    trial_dir: str
    sealed_name: str
    trial_id: str
    attempt: int
    spare: tuple[str, ...] = ()  # local copies of older checkpoints, which a store makes superfluous


class Verify(msgspec.Struct, frozen=True):
    """Read a checkpoint and compare it with the journal's digest."""

    n: int
    index: int
    directory: str
    digest: str


class Delete(msgspec.Struct, frozen=True):
    """Delete a checkpoint, or the stage that would have become one."""

    n: int
    index: int
    directory: str
    stage: str = ""


class CommitDone(msgspec.Struct, frozen=True):
    n: int
    index: int
    digest: str
    bytes: int
    files: int


class CommitFailed(msgspec.Struct, frozen=True):
    """Not committed: for ever (``damaged``), until there is space (``full``), or for now."""

    n: int
    index: int
    damaged: bool
    full: bool
    message: str


class VerifyDone(msgspec.Struct, frozen=True):
    n: int
    index: int


class VerifyFailed(msgspec.Struct, frozen=True):
    """Not verified: it is ``damaged``, or the storage could not be read."""

    n: int
    index: int
    damaged: bool
    message: str


class DeleteDone(msgspec.Struct, frozen=True):
    n: int
    index: int


class DeleteFailed(msgspec.Struct, frozen=True):
    n: int
    index: int
    message: str


Job = Union[Commit, Verify, Delete]
Outcome = Union[CommitDone, CommitFailed, VerifyDone, VerifyFailed, DeleteDone, DeleteFailed]


class Keeper(Protocol):
    """What the driver needs of either keeper."""

    def submit(self, job: Job) -> None:
        """Take a job; its outcome follows exactly once, unless the keeper is closed without waiting."""

    def drain(self) -> list[Outcome]:
        """The outcomes since the last call, in the order in which they came about."""

    def withdraw(self, job: Job) -> bool:
        """Take a job back that has not begun; there will be no outcome. False if it is too late."""

    @property
    def pending(self) -> int:
        """How many jobs have no outcome yet."""

    def close(self, wait: bool = True, running_s: float = 0.0) -> None:
        """Take no more jobs. With ``wait``, returns when all are done; otherwise those not begun are dropped.

        Args:
            wait: Whether to wait for all jobs, for as long as it takes.
            running_s: Without ``wait``, how long to wait for the jobs that have begun.
        """


def perform(job: Job, *, sync: bool = True) -> Outcome:
    """Do one job; whatever goes wrong is in the outcome."""
    try:
        if isinstance(job, Commit):
            done = commit(
                Path(job.trial_dir),
                job.sealed_name,
                job.index,
                trial_id=job.trial_id,
                attempt=job.attempt,
                sync=sync,
            )
            return CommitDone(job.n, job.index, done.digest, done.bytes, done.files)
        if isinstance(job, Verify):
            verify(job.directory, expect_digest=job.digest)
            return VerifyDone(job.n, job.index)
        delete_local(job)
        return DeleteDone(job.n, job.index)
    except BaseException as error:
        return failed(job, error)


def delete_local(job: Delete) -> None:
    """Delete what is on this machine; raises as ``delete`` does."""
    delete(job.directory)
    if job.stage:
        delete(job.stage)


def failed(job: Job, error: BaseException) -> Outcome:
    """The outcome of a job that ended with an exception."""
    damaged = isinstance(error, CheckpointDamagedError)
    # The reason alone: it becomes part of the history, which names no place where the experiment once was (I11).
    message = error.reason if isinstance(error, CheckpointDamagedError) else str(error) or type(error).__name__
    if isinstance(job, Commit):
        return CommitFailed(job.n, job.index, damaged, isinstance(error, StorageFullError), message)
    if isinstance(job, Verify):
        return VerifyFailed(job.n, job.index, damaged, message)
    # This one is journaled too, once it was tried often enough.
    return DeleteFailed(job.n, job.index, message.replace(os.path.dirname(os.path.abspath(job.directory)) + "/", ""))


class CheckpointKeeper:
    """Does jobs in at most ``MAX_JOBS_AT_ONCE`` threads.

    Args:
        wake: Called from a thread of the keeper whenever ``drain`` has something to give; must not block.
        perform: Does one job; never raises.
    """

    def __init__(self, wake: Callable[[], None], perform: Callable[[Job], Outcome] = perform) -> None:
        self._wake = wake
        self._perform = perform
        self._changed = threading.Condition()
        self._waiting: dict[int, deque[Job]] = {}  # of each trial with a job running or ready, what comes after it
        self._ready: deque[Job] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._threads: list[threading.Thread] = []
        self._pending = 0
        self._idle = 0
        self._closed = False

    def submit(self, job: Job) -> None:
        with self._changed:
            if self._closed:
                raise InternalError(f"the checkpoint keeper is closed and cannot take {job}")
            self._pending += 1
            if job.n in self._waiting:
                self._waiting[job.n].append(job)
                return
            self._waiting[job.n] = deque()
            self._ready.append(job)
            if self._idle >= len(self._ready) or len(self._threads) == MAX_JOBS_AT_ONCE:
                self._changed.notify()
                return
            # A daemon: a disk that never answers must not keep the driver from ending.
            thread = threading.Thread(target=self._work, name="holdfast-keeper", daemon=True)
            self._threads.append(thread)
            thread.start()

    def drain(self) -> list[Outcome]:
        with self._changed:
            outcomes = list(self._outcomes)
            self._outcomes.clear()
        return outcomes

    def withdraw(self, job: Job) -> bool:
        """Take a job back that has not begun; there will be no outcome. False if it is too late."""
        with self._changed:
            rest = self._waiting.get(job.n)
            if rest is None or job not in rest:
                return False
            rest.remove(job)
            self._pending -= 1
            return True

    @property
    def pending(self) -> int:
        return self._pending

    def close(self, wait: bool = True, running_s: float = 0.0) -> None:
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

    def _next(self) -> Job | None:
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


class TwoLaneKeeper:
    """Does deletions apart from everything else: they must not wait until a slow store has taken an upload.

    Otherwise a trial that saves faster than the store takes fills the local disk with stages that newer ones have
    replaced. A deletion still waits for the job of its own checkpoint. To be used from one thread.

    Args:
        wake: As for ``CheckpointKeeper``.
        perform: Does one job; never raises.
    """

    def __init__(self, wake: Callable[[], None], perform: Callable[[Job], Outcome] = perform) -> None:
        self._savers = CheckpointKeeper(wake, perform)
        self._deleters = CheckpointKeeper(wake, perform)
        self._saving: Counter[tuple[int, int]] = Counter()  # checkpoints of which the savers have a job

    def submit(self, job: Job) -> None:
        key = (job.n, job.index)
        if isinstance(job, Delete) and not self._saving[key]:
            self._deleters.submit(job)
        else:
            self._savers.submit(job)
            self._saving[key] += 1

    def drain(self) -> list[Outcome]:
        saved = self._savers.drain()
        for outcome in saved:
            self._forget(outcome.n, outcome.index)
        return saved + self._deleters.drain()

    def withdraw(self, job: Job) -> bool:
        if not self._savers.withdraw(job):
            return False
        self._forget(job.n, job.index)
        return True

    def _forget(self, n: int, index: int) -> None:
        self._saving[n, index] -= 1
        if not self._saving[n, index]:
            del self._saving[n, index]

    @property
    def pending(self) -> int:
        return self._savers.pending + self._deleters.pending

    def close(self, wait: bool = True, running_s: float = 0.0) -> None:
        deadline = time.monotonic() + running_s
        self._savers.close(wait, running_s)
        self._deleters.close(wait, max(0.0, deadline - time.monotonic()))


class SyncKeeper:
    """Does each job at once in the caller's thread, and commits without fsync: real files, no concurrency.

    Args:
        wake: Called when ``drain`` has something to give.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._outcomes: list[Outcome] = []
        self._closed = False

    def submit(self, job: Job) -> None:
        if self._closed:
            raise InternalError(f"the checkpoint keeper is closed and cannot take {job}")
        self._outcomes.append(perform(job, sync=False))
        self._wake()

    def drain(self) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def withdraw(self, job: Job) -> bool:
        return False

    @property
    def pending(self) -> int:
        return 0

    def close(self, wait: bool = True, running_s: float = 0.0) -> None:
        self._closed = True
