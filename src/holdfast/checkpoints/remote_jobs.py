"""Run checkpoint jobs of an experiment in a remote store.

Each job is done in the local mirror first, by the local code, and then in the store. Owns which of the two does what.
Decides nothing: a failure becomes an outcome with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holdfast.checkpoints import names
from holdfast.checkpoints.checkpoint_reader import verify
from holdfast.checkpoints.commit import Committed, recover
from holdfast.checkpoints.jobs import (
    CommitDone,
    CommitJob,
    DeleteDone,
    DeleteJob,
    DiscardDone,
    DiscardJob,
    Job,
    MirrorFailed,
    MirrorJob,
    MirrorOutcome,
    Outcome,
    PrepareDone,
    PrepareJob,
    PruneDone,
    PruneJob,
    VerifyDone,
    VerifyJob,
    delete_local,
    failed,
    reason_of,
)
from holdfast.checkpoints.read_locks import remove_copy
from holdfast.checkpoints.remote_checkpoints import delete_remote, ensure_local, find_uploaded, give_up, upload
from holdfast.errors import CheckpointDamagedError, InternalError, StorageError, StorageFullError
from holdfast.storage.store import Store


class RemoteJobPerformer:
    """Does jobs in the mirror below ``root`` and in the store that it is shipped to.

    Attributes:
        on_end: Called when a job has ended, with what the store had against it, or None.
    """

    def __init__(self, store: Store, root: str | os.PathLike[str]) -> None:
        self.on_end: Callable[[Job, StorageError | None], None] | None = None
        self._store = store
        self._root = os.path.abspath(root)

    def perform(self, job: Job | MirrorJob) -> Outcome | MirrorOutcome:
        """Do one job; whatever goes wrong is in the outcome."""
        if isinstance(job, PrepareJob | DiscardJob | PruneJob):
            return self._in_mirror(job)
        trouble: StorageError | None = None
        try:
            match job:
                case CommitJob():
                    done = self._commit(job)
                    return CommitDone(job.n, job.index, done.digest, done.bytes, done.files)
                case VerifyJob():
                    ensure_local(self._store, self._key(job.directory), Path(job.directory), expect_digest=job.digest)
                    return VerifyDone(job.n, job.index)
                case DeleteJob():
                    delete_remote(self._store, self._key(job.directory))
                    _remove_unread(job.directory)
                    delete_local(job)
                    return DeleteDone(job.n, job.index)
        except BaseException as error:
            if isinstance(error, StorageError) and not isinstance(error, StorageFullError):
                trouble = error
            return failed(job, error)
        finally:
            if self.on_end is not None:
                self.on_end(job, trouble)

    def _commit(self, job: CommitJob) -> Committed:
        directory = _directory(job)
        key = self._key(str(directory))
        if _recover(job) is None:
            # The stage was on a machine that is gone; perhaps its upload was complete.
            there = find_uploaded(self._store, key, job.sealed_name) or give_up(self._store, key, job.sealed_name)
            if there is None:
                raise CheckpointDamagedError(
                    f"the upload of {key} was not complete when its driver was lost",
                    path=key,
                    reason="its upload was not complete when the machine of its driver was lost",
                )
            return there
        return upload(self._store, directory, key)

    def _in_mirror(self, job: MirrorJob) -> MirrorOutcome:
        try:
            match job:
                case PrepareJob():
                    return PrepareDone(job.n, job.index, whole=_prepare(job))
                case DiscardJob():
                    delete_local(job)
                    return DiscardDone(job.n, job.index)
                case PruneJob():
                    _remove_unread(job.directory)
                    return PruneDone(job.n, job.index)
        except BaseException as error:
            damaged = isinstance(error, CheckpointDamagedError | InternalError)
            return MirrorFailed(job.n, job.index, type(job), damaged, reason_of(error))

    def _key(self, directory: str) -> str:
        return os.path.relpath(directory, self._root).replace(os.sep, "/")


def _directory(job: CommitJob | PrepareJob) -> Path:
    return Path(job.trial_dir) / names.checkpoint_name(job.index)


def _recover(job: CommitJob | PrepareJob) -> Committed | None:
    """The local commit, done now or before; None if there is nothing here to make it of."""
    Path(job.trial_dir).mkdir(parents=True, exist_ok=True)  # in a mirror that was just made it may be missing
    return recover(
        Path(job.trial_dir),
        job.sealed_name,
        job.index,
        trial_id=job.trial_id,
        attempt=job.attempt,
        metadata=job.facts,
    )


def _prepare(job: PrepareJob) -> bool:
    local = _recover(job)
    if local is None:
        return False
    # A commit believes the hashes of whoever copied the files; here another checkpoint is given up for this one.
    verify(_directory(job), expect_digest=local.digest)
    return True


def _remove_unread(directory: str) -> None:
    if not remove_copy(directory):
        raise StorageError(f"{os.path.basename(directory)} is being read")
