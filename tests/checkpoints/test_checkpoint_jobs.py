from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_trial import Trial
from world import World

from holdfast.checkpoints import delete as delete_module
from holdfast.checkpoints import jobs as jobs_module
from holdfast.checkpoints.checkpoint_reader import verify
from holdfast.checkpoints.commit import Committed
from holdfast.checkpoints.job_threads import MAX_JOBS_AT_ONCE
from holdfast.checkpoints.jobs import (
    CheckpointJobThreads,
    CommitJob,
    DeleteJob,
    JobFailed,
    Outcome,
    VerifyJob,
)
from holdfast.core.events import Noted
from holdfast.core.observations import CommitEnded, DeleteEnded, VerifyEnded
from holdfast.core.retention import Retention
from holdfast.errors import InternalError, StorageError, StorageFullError


def commit_job(trial: Trial, index: int = 0, n: int = 0) -> CommitJob:
    return CommitJob(n, index, str(trial.dir), trial.sealed().name, trial.id, trial.attempt)


def run(threads: CheckpointJobThreads, *jobs: CommitJob | VerifyJob | DeleteJob) -> list[Outcome]:
    for job in jobs:
        threads.submit(job)
    threads.close(wait=True)
    return threads.drain()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_jobs_of_a_trial_are_done_in_order(trial: Trial) -> None:
    wakes: list[None] = []
    threads = CheckpointJobThreads(lambda: wakes.append(None))
    first, second = commit_job(trial, 0), commit_job(trial, 1)
    directory = str(trial.dir / "checkpoint_000000")
    outcomes = run(threads, first, second, DeleteJob(0, 0, directory), VerifyJob(0, 0, directory, "x"))
    saved = verify(trial.dir / "checkpoint_000001")
    assert [type(outcome) for outcome in outcomes] == [CommitEnded, CommitEnded, DeleteEnded, VerifyEnded]
    assert outcomes[1] == CommitEnded(0, 1, outcomes[1].digest, saved.total)
    assert outcomes[3] == VerifyEnded(0, 0, ok=False, damaged=True, message=outcomes[3].message)
    assert len(wakes) == 4
    assert threads.pending == 0
    assert threads.drain() == []


def test_a_verification_compares_the_digest(trial: Trial) -> None:
    done = trial.commit(trial.sealed().name)
    directory = str(trial.dir / "checkpoint_000000")
    good, bad = run(
        CheckpointJobThreads(lambda: None), VerifyJob(0, 0, directory, done.digest), VerifyJob(0, 0, directory, "00")
    )
    assert good == VerifyEnded(0, 0, ok=True)
    assert isinstance(bad, VerifyEnded)
    assert bad.damaged


def test_failures_come_back_with_their_kind(trial: Trial, tmp_path: Path) -> None:
    job = commit_job(trial)
    (trial.dir / job.sealed_name / "note.txt").unlink()
    unmounted = str(tmp_path / "unmounted")
    outcomes = run(
        CheckpointJobThreads(lambda: None),
        job,
        CommitJob(0, 1, unmounted, ".sealed-1-00000000", "t1", 1),
        VerifyJob(0, 2, f"{unmounted}/checkpoint_000000", "00"),
        DeleteJob(0, 3, str(tmp_path)),
    )
    assert isinstance(outcomes[0], CommitEnded)
    assert outcomes[0].damaged
    assert [(type(outcome), outcome.kind) for outcome in outcomes[1:]] == [
        (JobFailed, CommitJob),
        (JobFailed, VerifyJob),
        (JobFailed, DeleteJob),
    ]
    assert "note.txt is missing" in outcomes[0].message
    assert "refused to delete" in outcomes[3].message


@pytest.mark.parametrize("error", [StorageFullError("full"), StorageError("broken"), MemoryError(), SystemExit(3)])
def test_no_exception_leaves_a_thread(error: BaseException, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> Committed:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(jobs_module, "commit", fail)
        threads = CheckpointJobThreads(lambda: None)
        threads.submit(commit_job(trial))
        wait_for(lambda: threads.pending == 0)
    (outcome,) = threads.drain()
    assert outcome == JobFailed(0, 0, CommitJob, False, str(error) or type(error).__name__)
    assert run(threads, commit_job(trial, 1))[0].index == 1


def test_a_wake_that_fails_stops_nothing(trial: Trial) -> None:
    def wake() -> None:
        raise OSError("the loop is gone")

    outcomes = run(CheckpointJobThreads(wake), *(commit_job(trial, index, n=index) for index in range(3)))
    assert sorted(outcome.index for outcome in outcomes) == [0, 1, 2]


class Gate:
    """A commit that starts, waits to be let through, and counts how many are inside."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = threading.Event()
        self.inside = self.most = self.started = 0

    def __call__(self, *args: object, **kwargs: object) -> Committed:
        with self.lock:
            self.started += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self.open.wait(20)
        with self.lock:
            self.inside -= 1
        return Committed("", 0, 0)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(jobs_module, "commit", gate)
    return gate


def job(n: int, index: int) -> CommitJob:
    return CommitJob(n, index, "", "", "", 0)


def test_at_most_four_jobs_run_at_once(gate: Gate) -> None:
    threads = CheckpointJobThreads(lambda: None)
    for n in range(20):
        threads.submit(job(n, 0))
    wait_for(lambda: gate.started == MAX_JOBS_AT_ONCE)
    assert threads.pending == 20
    gate.open.set()
    assert len(run(threads)) == 20
    assert gate.most == MAX_JOBS_AT_ONCE


def test_one_slow_trial_does_not_hold_up_the_others(gate: Gate, trial: Trial) -> None:
    threads = CheckpointJobThreads(lambda: None)
    for index in range(5):
        threads.submit(job(1, index))
    trial.dir.mkdir()
    threads.submit(DeleteJob(2, 0, str(trial.dir / "checkpoint_000000")))
    wait_for(lambda: threads.pending == 5 and gate.started == 1)
    assert threads.drain() == [DeleteEnded(2, 0, ok=True)]
    assert gate.most == 1
    gate.open.set()
    assert [outcome.index for outcome in run(threads)] == [0, 1, 2, 3, 4]
    assert gate.most == 1


def test_closing_without_waiting_drops_what_has_not_begun(gate: Gate) -> None:
    threads = CheckpointJobThreads(lambda: None)
    for n in range(6):
        threads.submit(job(n, 0))
    threads.submit(job(0, 1))
    wait_for(lambda: gate.started == MAX_JOBS_AT_ONCE)
    threads.close(wait=False)
    assert threads.pending == MAX_JOBS_AT_ONCE
    gate.open.set()
    wait_for(lambda: threads.pending == 0)
    assert len(threads.drain()) == gate.started == MAX_JOBS_AT_ONCE
    wait_for(lambda: not any(thread.is_alive() for thread in threads._threads))


def test_closing_can_wait_for_what_has_begun(gate: Gate) -> None:
    threads = CheckpointJobThreads(lambda: None)
    threads.submit(job(0, 0))
    threads.submit(job(0, 1))
    wait_for(lambda: gate.started == 1)
    threads.close(wait=False, running_s=0.01)
    assert threads.pending == 1
    threading.Timer(0.05, gate.open.set).start()
    threads.close(wait=False, running_s=20)
    assert threads.drain() == [CommitEnded(0, 0)]
    assert not any(thread.is_alive() for thread in threads._threads)


def test_what_a_failed_deletion_says_names_no_place(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is journaled, and the experiment may be elsewhere tomorrow."""
    saved = trial.saved(0)
    (saved / "_manifest.json").write_bytes(b"{}")
    monkeypatch.chdir(trial.dir)
    for directory in (str(saved), saved.name):
        (refused,) = run(CheckpointJobThreads(lambda: None), DeleteJob(0, 0, directory))
        assert isinstance(refused, JobFailed)
        assert refused.message.startswith("refused to delete checkpoint_000000: its manifest is not a valid one")

    def fail(place: int, path: str, name: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), f"{path}/note.txt")

    monkeypatch.setattr(delete_module, "_remove_manifest", fail)
    (failed,) = run(CheckpointJobThreads(lambda: None), DeleteJob(0, 0, str(saved)))
    assert isinstance(failed, JobFailed)
    assert failed.message.startswith(
        "deleting checkpoint_000000 failed (checkpoint_000000/note.txt): Permission denied"
    )


def noted(why: str) -> str:
    """What the history says of a checkpoint that could not be deleted for this reason."""
    world = World(retention=Retention(num_to_keep=1))
    for name in ("a", "b"):
        world.save(name=name)
    (event,) = world.tell(DeleteEnded(0, 0, ok=False, message=why)).events
    assert isinstance(event, Noted)
    return event.text


@pytest.mark.parametrize("place", ["", "/note.txt", "/.."])
def test_the_event_of_a_failed_deletion_holds_no_absolute_path(
    trial: Trial, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever file the system names: the checkpoint, one of its files, or the trial's directory."""
    saved = trial.saved(0)
    file = os.path.normpath(f"{saved}{place}")

    def refuse(path: str, *, within: int | None = None) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), file)

    def keep(directory: int, path: str, name: str) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    def link(path: str, *, within: int | None = None) -> int:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)

    for name, failure in (("open_directory", refuse), ("_delete", keep), ("open_directory", link)):
        with monkeypatch.context() as patch:
            patch.setattr(delete_module, name, failure)
            if name == "_delete":
                patch.setattr(delete_module, "_is_held_open", lambda trash: True)
            (failed,) = run(CheckpointJobThreads(lambda: None), DeleteJob(0, 0, str(saved)))
        assert isinstance(failed, JobFailed)
        text = noted(failed.message)
        assert text.startswith("checkpoint_000000 could not be deleted: ")
        assert text.count("checkpoint_000000") > 1
        assert str(trial.dir.parent) not in text


def test_closed_threads_take_no_jobs() -> None:
    threads = CheckpointJobThreads(lambda: None)
    threads.close()
    threads.close()
    with pytest.raises(InternalError, match="closed"):
        threads.submit(job(0, 0))


def test_threads_are_reused(trial: Trial) -> None:
    threads = CheckpointJobThreads(lambda: None)
    for index in range(5):
        threads.submit(DeleteJob(0, index, str(trial.dir / "checkpoint_000000")))
        wait_for(lambda: threads.pending == 0 and threads._idle == 1)
    assert len(threads._threads) == 1
    threads.close()
