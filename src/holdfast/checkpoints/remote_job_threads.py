"""Separate queues for checkpoint jobs of an experiment in a remote store: local work never waits for the network.

When a store does not answer, its uploads hang for minutes. Local commits (by which a newer checkpoint may supersede a
queued one), verifications for trials that start, and the removal of local files continue; otherwise trials would block,
or fill the disk.

Owns the queues, and that jobs of one checkpoint run one after the other, whichever queue they are in. To be used from
one thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Union

from holdfast.checkpoints.job_threads import MAX_JOBS_AT_ONCE, JobThreads
from holdfast.checkpoints.jobs import CommitJob, DeleteJob, Job, MirrorJob, MirrorOutcome, Outcome, VerifyJob
from holdfast.errors import InternalError

NETWORK_S = 1.0  # for jobs under way when the driver leaves: whatever they leave half done in a store can be repeated

AnyJob = Union[Job, MirrorJob]
AnyOutcome = Union[Outcome, MirrorOutcome]
MakeThreads = Callable[[Callable[[], None], Callable[[AnyJob], AnyOutcome]], JobThreads[AnyJob, AnyOutcome]]

_NETWORK = (CommitJob, VerifyJob, DeleteJob)


class RemoteJobThreads:
    """Does jobs of experiments in stores: uploads, reads and deletions there, and what is done in the mirror.

    Args:
        wake: Called from another thread whenever ``drain`` has something to give; must not block.
        perform: Does one job; never raises.
        make_threads: Makes the threads for jobs of one kind.
        commits_at_once: How many commits may be under way; more if other machines upload.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        perform: Callable[[AnyJob], AnyOutcome],
        make_threads: MakeThreads = JobThreads,
        commits_at_once: int = MAX_JOBS_AT_ONCE,
    ) -> None:
        self._wake = wake
        self._news = threading.Event()
        self._local = make_threads(self._ended, perform)
        self._remote: dict[type, JobThreads[AnyJob, AnyOutcome]] = {
            kind: make_threads(self._ended, perform) for kind in _NETWORK
        }
        self._remote[CommitJob].at_once = commits_at_once
        self._at_work: dict[tuple[int, int], AnyJob] = {}  # of each checkpoint, what threads have
        self._held: dict[tuple[int, int], deque[AnyJob]] = {}  # and what comes after it
        self._outcomes: list[AnyOutcome] = []
        self._closed = False

    def _ended(self) -> None:
        self._news.set()
        self._wake()

    def _threads_of(self, job: AnyJob) -> JobThreads[AnyJob, AnyOutcome]:
        return self._remote.get(type(job), self._local)

    def submit(self, job: AnyJob) -> None:
        """Take a job; its outcome follows exactly once, unless this is closed without waiting."""
        if self._closed:
            raise InternalError(f"the threads for checkpoint jobs are closed and cannot take {job}")
        key = (job.n, job.index)
        if key in self._at_work:
            self._held.setdefault(key, deque()).append(job)
        else:
            self._at_work[key] = job
            self._threads_of(job).submit(job)

    def drain(self) -> list[AnyOutcome]:
        """The outcomes since the last call; those of one checkpoint in the order of its jobs."""
        self._collect()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _collect(self) -> None:
        for threads in (self._local, *self._remote.values()):
            for outcome in threads.drain():
                self._outcomes.append(outcome)
                self._submit_next((outcome.n, outcome.index))

    def _submit_next(self, key: tuple[int, int]) -> None:
        del self._at_work[key]
        rest = self._held.get(key)
        if not rest:
            return
        job = self._at_work[key] = rest.popleft()
        if not rest:
            del self._held[key]
        self._threads_of(job).submit(job)

    def waits(self, job: AnyJob) -> bool:
        """Whether a job has not begun."""
        return job in self._held.get((job.n, job.index), ()) or self._threads_of(job).waits(job)

    def withdraw(self, job: AnyJob) -> bool:
        """Take a job back that has not begun; there will be no outcome. False if it is too late."""
        key = (job.n, job.index)
        held = self._held.get(key, ())
        if job in held:
            assert isinstance(held, deque)
            held.remove(job)
            if not held:
                del self._held[key]
            return True
        if not self._threads_of(job).withdraw(job):
            return False
        self._submit_next(key)
        return True

    @property
    def pending(self) -> int:
        """How many jobs have no outcome yet."""
        submitted = sum(threads.pending for threads in (self._local, *self._remote.values()))
        return submitted + sum(len(rest) for rest in self._held.values())

    def close(self, wait: bool = True, running_s: float = 0.0) -> None:
        """Take no more jobs. With ``wait``, returns when all are done; otherwise those not begun are dropped.

        Args:
            wait: Whether to wait for all jobs, for as long as it takes.
            running_s: Without ``wait``, how long to wait for the jobs that have begun; no longer than a moment for
                those that need a network.
        """
        while wait and self.pending:
            self._news.wait()
            self._news.clear()
            self._collect()
        self._closed = True
        self._held.clear()
        deadline = time.monotonic() + min(running_s, NETWORK_S)
        self._local.close(wait, running_s)
        for threads in self._remote.values():
            threads.close(wait, max(0.0, deadline - time.monotonic()))
