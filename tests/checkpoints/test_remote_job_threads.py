"""Two queues: what needs only this machine does not wait for a network, and jobs of one checkpoint keep their order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.checkpoints.job_threads import MAX_JOBS_AT_ONCE
from holdfast.checkpoints.jobs import CommitJob, DeleteJob, DiscardJob, PrepareJob, PruneJob, VerifyJob
from holdfast.checkpoints.remote_job_threads import RemoteJobThreads
from holdfast.errors import InternalError

DEADLINE_S = 20.0


def commit(n: int, index: int) -> CommitJob:
    return CommitJob(n, index, "", "", "", 0)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Store:
    """Uploads and deletions hang until ``opened``; the outcome of a job is the job."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun: list[Any] = []

    def perform(self, job: Any) -> Any:
        self.begun.append(job)
        if isinstance(job, CommitJob | DeleteJob):
            assert self.opened.wait(DEADLINE_S)
        return job


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.opened.set()


def drain(threads: RemoteJobThreads, count: int) -> list[Any]:
    found: list[Any] = []

    def enough() -> bool:
        found.extend(threads.drain())
        return len(found) >= count

    wait_for(enough)
    return found


def test_a_store_that_hangs_holds_up_nothing_that_needs_this_machine_alone(store: Store) -> None:
    threads = RemoteJobThreads(lambda: None, store.perform)
    for n in range(2 * MAX_JOBS_AT_ONCE):
        threads.submit(commit(n, 0))
        threads.submit(DeleteJob(n, 1, ""))
    local = [PrepareJob(0, 2, "", "", "", 0), VerifyJob(0, 3, "", ""), DiscardJob(0, 4, "", ""), PruneJob(0, 5, "")]
    for job in local:
        threads.submit(job)
    assert sorted(map(str, drain(threads, len(local)))) == sorted(map(str, local))
    store.opened.set()
    threads.close()
    assert len(threads.drain()) == 4 * MAX_JOBS_AT_ONCE


def test_jobs_of_one_checkpoint_run_one_after_the_other_in_whichever_lane(store: Store) -> None:
    threads = RemoteJobThreads(lambda: None, store.perform)
    jobs = [commit(0, 0), PruneJob(0, 0, ""), VerifyJob(0, 0, "", ""), DeleteJob(0, 0, "")]
    for job in jobs:
        threads.submit(job)
    wait_for(lambda: bool(store.begun))
    assert store.begun == jobs[:1]
    assert threads.pending == 4
    store.opened.set()
    assert drain(threads, 4) == jobs
    assert threads.pending == 0


def test_what_has_not_begun_can_be_withdrawn_wherever_it_waits(store: Store) -> None:
    threads = RemoteJobThreads(lambda: None, store.perform)
    running = [commit(n, 0) for n in range(MAX_JOBS_AT_ONCE)]
    for job in running:
        threads.submit(job)
    wait_for(lambda: len(store.begun) == MAX_JOBS_AT_ONCE)
    behind = commit(0, 1)  # another job of its trial
    no_thread = commit(9, 0)
    held = PruneJob(9, 0, "")  # another job of its checkpoint
    for job in (behind, no_thread, held):
        threads.submit(job)
    for job in (behind, held, no_thread):
        assert threads.waits(job)
        assert threads.withdraw(job)
        assert not threads.waits(job)
        assert not threads.withdraw(job)
    assert not threads.waits(running[0])
    assert not threads.withdraw(running[0])
    threads.submit(no_thread)
    threads.submit(held)
    assert threads.withdraw(no_thread)
    assert drain(threads, 1) == [held], "it need not wait any longer"
    store.opened.set()
    assert len(drain(threads, MAX_JOBS_AT_ONCE)) == MAX_JOBS_AT_ONCE


def test_closing_without_waiting_leaves_a_store_that_hangs_behind(store: Store) -> None:
    threads = RemoteJobThreads(lambda: None, store.perform)
    threads.submit(commit(0, 0))
    threads.submit(PruneJob(0, 0, ""))
    wait_for(lambda: len(store.begun) == 1)
    threads.close(wait=False, running_s=0.01)
    with pytest.raises(InternalError, match="closed"):
        threads.submit(commit(1, 0))
    store.opened.set()
    wait_for(lambda: threads.pending == 0)
    assert store.begun == [commit(0, 0)]


def test_more_commits_are_under_way_if_other_machines_upload(store: Store) -> None:
    threads = RemoteJobThreads(lambda: None, store.perform, commits_at_once=2 * MAX_JOBS_AT_ONCE)
    for n in range(3 * MAX_JOBS_AT_ONCE):
        threads.submit(commit(n, 0))
    wait_for(lambda: len(store.begun) == 2 * MAX_JOBS_AT_ONCE)
    store.opened.set()
    assert len(drain(threads, 3 * MAX_JOBS_AT_ONCE)) == 3 * MAX_JOBS_AT_ONCE
    threads.close(False)
