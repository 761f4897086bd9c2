"""Commits, verifications and deletions in the background of the driver.

Owns the kinds of jobs. What comes of one is what the core observes, or a failure with its reason, which the submitter
handles. Decides nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Union

import msgspec

from holdfast.checkpoints.commit import commit
from holdfast.checkpoints.delete import delete
from holdfast.checkpoints.job_threads import MAX_JOBS_AT_ONCE, JobThreads
from holdfast.checkpoints.tree import refuse_links
from holdfast.checkpoints.verified import read_through
from holdfast.core.observations import CommitEnded, DeleteEnded, VerifyEnded
from holdfast.errors import CheckpointDamagedError, InternalError, StorageError


class CommitJob(msgspec.Struct, frozen=True):
    """Finish the commit of a sealed stage of trial number ``n``."""

    n: int
    index: int
    trial_dir: str
    sealed_name: str
    trial_id: str
    attempt: int
    facts: dict[str, Any] = {}
    """What the manifest tells of the report that the checkpoint came with."""
    inherited: bool = False  # it was staged under another driver: perhaps before a loss of power


class VerifyJob(msgspec.Struct, frozen=True):
    """Read a checkpoint and compare it with the journal's digest."""

    n: int
    index: int
    directory: str
    digest: str


class DeleteJob(msgspec.Struct, frozen=True):
    """Delete a checkpoint, or the stage that would have become one."""

    n: int
    index: int
    directory: str
    stage: str = ""


class PrepareJob(msgspec.Struct, frozen=True):
    """Commit a sealed stage in the mirror of a store, and read it back: that needs no network."""

    n: int
    index: int
    trial_dir: str
    sealed_name: str
    trial_id: str
    attempt: int
    facts: dict[str, Any] = {}


class DiscardJob(msgspec.Struct, frozen=True):
    """Delete from the mirror what will never be in the store, because a newer checkpoint has taken its place."""

    n: int
    index: int
    directory: str
    stage: str


class PruneJob(msgspec.Struct, frozen=True):
    """Delete from the mirror the copy of a checkpoint that the store has, unless somebody reads it."""

    n: int
    index: int
    directory: str


class MirrorDone(msgspec.Struct, frozen=True):
    """A job of this kind has been done in the mirror. ``whole``: of a ``PrepareJob``, the checkpoint is what was saved.

    Otherwise there is nothing here to make it of.
    """

    n: int
    index: int
    kind: type
    whole: bool = True


class JobFailed(msgspec.Struct, frozen=True):
    """A job of this kind did not succeed: for now, or, in the mirror, for ever (``damaged``)."""

    n: int
    index: int
    kind: type
    damaged: bool
    message: str


Job = Union[CommitJob, VerifyJob, DeleteJob]
Outcome = Union[CommitEnded, VerifyEnded, DeleteEnded, JobFailed]
"""What the core observes of a job that has ended, for better or worse; or that it must be tried again."""


MirrorJob = Union[PrepareJob, DiscardJob, PruneJob]
"""What an experiment in a store needs besides, on this machine alone."""

MirrorOutcome = Union[MirrorDone, JobFailed]


class StageSource(Protocol):
    """Where stages are that are not in their trial's directory yet (``engines.base.RunsElsewhere``)."""

    def bring(self, trial_dir: str, sealed: str, attempt: int) -> None: ...

    def drop(self, trial_dir: str, sealed: str) -> None: ...


class KnownStages(StageSource, Protocol):
    """The same, and says which stages those are."""

    def is_elsewhere(self, trial_dir: str, sealed: str) -> bool: ...


def bringing(
    source: StageSource | None, perform: Callable[[Any], Any], there: Callable[[Any], Any] = lambda job: None
) -> Callable[[Any], Any]:
    """``perform``, but stages are brought to this machine before they are committed.

    Args:
        source: Where they are.
        perform: Does a job here; never raises.
        there: Does a job where the stage is; None if it has to be done here. Never raises.
    """
    if source is None:
        return perform
    few = threading.BoundedSemaphore(MAX_JOBS_AT_ONCE)  # of those that this machine does itself

    def bring_or_not(job: Any) -> Any:
        outcome = there(job)
        if outcome is not None:
            return outcome
        if not isinstance(job, CommitJob):
            return bring_and_perform(job)
        with few:
            return bring_and_perform(job)

    def bring_and_perform(job: Any) -> Any:
        try:
            if isinstance(job, CommitJob | PrepareJob):
                source.bring(os.path.basename(job.trial_dir), job.sealed_name, job.attempt)
            elif isinstance(job, DeleteJob | DiscardJob) and job.stage:
                trial_dir, sealed = os.path.split(job.stage)
                source.drop(os.path.basename(trial_dir), sealed)
        except BaseException as error:
            if isinstance(job, PrepareJob | DiscardJob):
                damaged = isinstance(error, CheckpointDamagedError)
                return JobFailed(job.n, job.index, type(job), damaged, reason_of(error))
            return failed(job, error)
        return perform(job)

    return bring_or_not


def perform(job: Job, *, sync: bool = True) -> Outcome:
    """Do one job; whatever goes wrong is in the outcome."""
    try:
        if isinstance(job, CommitJob):
            done = commit(
                Path(job.trial_dir),
                job.sealed_name,
                job.index,
                trial_id=job.trial_id,
                attempt=job.attempt,
                metadata=job.facts,
                sync=sync,
                reread=job.inherited,
            )
            return CommitEnded(job.n, job.index, done.digest, done.bytes)
        if isinstance(job, VerifyJob):
            trial_dir, name = os.path.split(os.path.abspath(job.directory))
            top, folder = os.path.split(trial_dir)
            refuse_links(top, f"{folder}/{name}")
            read_through(job.directory, job.digest)
            return VerifyEnded(job.n, job.index, ok=True)
        delete_local(job)
        return DeleteEnded(job.n, job.index, ok=True)
    except BaseException as error:
        return failed(job, error)


def delete_local(job: DeleteJob | DiscardJob) -> None:
    """Delete what is on this machine; raises as ``delete`` does."""
    delete(job.directory)
    if job.stage:
        delete(job.stage)


def failed(job: Job, error: BaseException) -> Outcome:
    """The outcome of a job that ended with an exception."""
    message = reason_of(error)
    if isinstance(error, CheckpointDamagedError) and not isinstance(job, DeleteJob):
        if isinstance(job, CommitJob):
            return CommitEnded(job.n, job.index, damaged=True, message=message)
        return VerifyEnded(job.n, job.index, ok=False, damaged=True, message=message)
    return JobFailed(job.n, job.index, type(job), False, message)


def reason_of(error: BaseException) -> str:
    """What went wrong, for an outcome."""
    # The reason alone: it becomes part of the history, which names no place where the experiment once was (I11).
    if isinstance(error, CheckpointDamagedError | InternalError | StorageError) and error.reason:
        return error.reason
    return str(error) or type(error).__name__


class CheckpointJobThreads(JobThreads[Job, Outcome]):
    """Does jobs in a few threads. Jobs of one trial run in the order in which they were submitted, so its checkpoints
    appear in order and a deletion never overtakes the commit before it.

    Args:
        wake: Called from one of the threads whenever ``drain`` has something to give; must not block.
        perform: Does one job; never raises.
    """

    def __init__(self, wake: Callable[[], None], perform: Callable[[Job], Outcome] = perform) -> None:
        super().__init__(wake, perform)
