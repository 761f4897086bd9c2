"""Commits, verifications and deletions in the background of the driver.

Owns the kinds of jobs and their outcomes. Decides nothing: a failure becomes an outcome with its reason, and the
submitter handles it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Union

import msgspec

from holdfast.checkpoints.commit import commit
from holdfast.checkpoints.delete import delete
from holdfast.checkpoints.job_threads import JobThreads
from holdfast.checkpoints.tree import refuse_links
from holdfast.checkpoints.verified import read_through
from holdfast.errors import CheckpointDamagedError, StorageFullError


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


class PrepareDone(msgspec.Struct, frozen=True):
    """``whole``: the local checkpoint is what was saved. Otherwise there is nothing here to make it of."""

    n: int
    index: int
    whole: bool


class DiscardDone(msgspec.Struct, frozen=True):
    n: int
    index: int


class PruneDone(msgspec.Struct, frozen=True):
    n: int
    index: int


class MirrorFailed(msgspec.Struct, frozen=True):
    """A job of this kind, in the mirror, did not succeed: for ever (``damaged``), or for now."""

    n: int
    index: int
    kind: type
    damaged: bool
    message: str


Job = Union[CommitJob, VerifyJob, DeleteJob]
Outcome = Union[CommitDone, CommitFailed, VerifyDone, VerifyFailed, DeleteDone, DeleteFailed]

MirrorJob = Union[PrepareJob, DiscardJob, PruneJob]
"""What an experiment in a store needs besides, on this machine alone."""

MirrorOutcome = Union[PrepareDone, DiscardDone, PruneDone, MirrorFailed]


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
            return CommitDone(job.n, job.index, done.digest, done.bytes, done.files)
        if isinstance(job, VerifyJob):
            trial_dir, name = os.path.split(os.path.abspath(job.directory))
            top, folder = os.path.split(trial_dir)
            refuse_links(top, f"{folder}/{name}")
            read_through(job.directory, job.digest)
            return VerifyDone(job.n, job.index)
        delete_local(job)
        return DeleteDone(job.n, job.index)
    except BaseException as error:
        return failed(job, error)


def delete_local(job: DeleteJob | DiscardJob) -> None:
    """Delete what is on this machine; raises as ``delete`` does."""
    delete(job.directory)
    if job.stage:
        delete(job.stage)


def failed(job: Job, error: BaseException) -> Outcome:
    """The outcome of a job that ended with an exception."""
    damaged = isinstance(error, CheckpointDamagedError)
    message = reason_of(error)
    if isinstance(job, CommitJob):
        return CommitFailed(job.n, job.index, damaged, isinstance(error, StorageFullError), message)
    if isinstance(job, VerifyJob):
        return VerifyFailed(job.n, job.index, damaged, message)
    # This one is journaled too, once it was tried often enough.
    return DeleteFailed(job.n, job.index, message.replace(os.path.dirname(os.path.abspath(job.directory)) + "/", ""))


def reason_of(error: BaseException) -> str:
    """What went wrong, for an outcome."""
    # The reason alone: it becomes part of the history, which names no place where the experiment once was (I11).
    return error.reason if isinstance(error, CheckpointDamagedError) else str(error) or type(error).__name__


class CheckpointJobThreads(JobThreads[Job, Outcome]):
    """Does jobs in a few threads. Jobs of one trial run in the order in which they were submitted, so its checkpoints
    appear in order and a deletion never overtakes the commit before it.

    Args:
        wake: Called from one of the threads whenever ``drain`` has something to give; must not block.
        perform: Does one job; never raises.
    """

    def __init__(self, wake: Callable[[], None], perform: Callable[[Job], Outcome] = perform) -> None:
        super().__init__(wake, perform)
