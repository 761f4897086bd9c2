"""Run checkpoint jobs of an experiment in a remote store.

Each job is done in the local mirror first, by the local code, and then in the store. Owns which of the two does what.
Decides nothing: a failure becomes an outcome with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.checkpoints import names
from holdfast.checkpoints.checkpoint_reader import verify
from holdfast.checkpoints.commit import Committed, recover
from holdfast.checkpoints.jobs import (
    CommitJob,
    DeleteJob,
    DiscardJob,
    Job,
    JobFailed,
    MirrorDone,
    MirrorJob,
    MirrorOutcome,
    Outcome,
    PrepareJob,
    PruneJob,
    VerifyJob,
    delete_local,
    failed,
    reason_of,
)
from holdfast.checkpoints.manifest import Manifest
from holdfast.checkpoints.read_locks import remove_copy
from holdfast.checkpoints.remote_checkpoints import (
    check_remote,
    delete_remote,
    ensure_local,
    find_uploaded,
    give_up,
    publish,
    upload,
)
from holdfast.checkpoints.stage_sending import CannotSend, SendsStages, StageRef, StageSender
from holdfast.core.observations import CommitEnded, DeleteEnded, VerifyEnded
from holdfast.errors import (
    CheckpointDamagedError,
    InternalError,
    StorageError,
    StorageFullError,
    StoreDeniedError,
    StoreUnreachableError,
)
from holdfast.storage.store import Store


class RemoteJobPerformer:
    """Does jobs in the mirror below ``root`` and in the store that it is shipped to.

    Attributes:
        on_end: Called when a job has ended, with what the store had against it, or None.
        senders: Whose machines may upload stages themselves; None if stages are on this machine.
    """

    def __init__(self, store: Store, root: str | os.PathLike[str]) -> None:
        self.on_end: Callable[[Job, StorageError | None], None] | None = None
        self.senders: SendsStages | None = None
        self._store = store
        self._root = os.path.abspath(root)
        # Keys of which another machine may have sent something, and what, once it has sent all.
        self._begun: dict[str, Manifest | None] = {}

    def perform(self, job: Job | MirrorJob) -> Outcome | MirrorOutcome:
        """Do one job; whatever goes wrong is in the outcome."""
        if isinstance(job, PrepareJob | DiscardJob | PruneJob):
            return self._in_mirror(job)
        trouble: StorageError | None = None
        try:
            match job:
                case CommitJob():
                    done = self._commit(job)
                    self._begun.pop(self._key(str(_directory(job))), None)
                    return CommitEnded(job.n, job.index, done.digest, done.bytes)
                case VerifyJob():
                    self._verify(job)
                    return VerifyEnded(job.n, job.index, ok=True)
                case DeleteJob():
                    delete_remote(self._store, self._key(job.directory))
                    _remove_unread(job.directory)
                    delete_local(job)
                    return DeleteEnded(job.n, job.index, ok=True)
        except BaseException as error:
            if isinstance(error, StorageError) and not isinstance(error, StorageFullError):
                trouble = error
            return failed(job, error)
        finally:
            if self.on_end is not None:
                self.on_end(job, trouble)

    # --- on the machine that has the stage

    def perform_on_node(self, job: Job | MirrorJob) -> Outcome | MirrorOutcome | None:
        """Do a job on the machine that has the stage; None if it has to be done here.

        Whatever goes wrong is in the outcome.
        """
        sender = self.senders.sender if self.senders is not None else None
        if sender is None or not isinstance(job, CommitJob | PrepareJob) or _directory(job).is_dir():
            return None
        stage = StageRef(os.path.basename(job.trial_dir), job.sealed_name, job.trial_id, job.attempt, job.index)
        half_sent = stage.key in self._begun and sender.is_lost(stage)
        if not half_sent and not sender.can_send(stage):
            return None
        if isinstance(job, PrepareJob):
            return self._prepare_on_node(job, sender, stage)
        trouble: StorageError | None = None
        outcome: Outcome
        try:
            done = self._commit_on_node(job, sender, stage)
            outcome = CommitEnded(job.n, job.index, done.digest, done.bytes)
        except CannotSend:
            return None
        except BaseException as error:
            if isinstance(error, StoreDeniedError | StoreUnreachableError):  # else it is the node that has trouble
                trouble = error
            outcome = failed(job, error)
        if self.on_end is not None:
            self.on_end(job, trouble)
        return outcome

    def _prepare_on_node(self, job: PrepareJob, sender: StageSender, stage: StageRef) -> MirrorOutcome | None:
        try:
            return MirrorDone(job.n, job.index, PrepareJob) if sender.check(stage) else None
        except BaseException as error:
            damaged = isinstance(error, CheckpointDamagedError)
            return JobFailed(job.n, job.index, PrepareJob, damaged, reason_of(error))

    def _commit_on_node(self, job: CommitJob, sender: StageSender, stage: StageRef) -> Committed:
        try:
            done = publish(self._store, stage.key, stage.sealed, partial(self._send, job, sender, stage))
        except CheckpointDamagedError:
            # Nobody else will look for what was sent of it.
            uploaded = give_up(self._store, stage.key, stage.sealed) if stage.key in self._begun else None
            if uploaded is None:
                self._begun.pop(stage.key, None)
                raise
            done = uploaded
        except StorageError as error:
            if not isinstance(error, StoreDeniedError | StoreUnreachableError):  # a file is not there: send it again
                self._begun[stage.key] = None
            raise
        self._begun.pop(stage.key, None)
        sender.sent(stage)
        return done

    def _send(self, job: CommitJob, sender: StageSender, stage: StageRef) -> Manifest:
        """Have the files sent, and say what they are. Once that is known, their machine is not needed any more."""
        sent = self._begun.setdefault(stage.key, None)
        if sent is None:
            sent = self._begun[stage.key] = self._ask_to_send(job, sender, stage)
        return sent

    def _ask_to_send(self, job: CommitJob, sender: StageSender, stage: StageRef) -> Manifest:
        try:
            sent = sender.send(stage)
        except CannotSend as error:
            self._store.stat(f"{stage.key}/{names.MANIFEST}")  # raises if this machine cannot use the store either
            sender.send_no_more(stage, str(error))
            raise
        return Manifest(
            trial=job.trial_id,
            index=job.index,
            attempt=job.attempt,
            stage=job.sealed_name,
            algo=sent.algo,
            files=sent.files,
            total=sum(file.size for file in sent.files),
            meta=job.facts,
        )

    # --- on this machine

    def _commit(self, job: CommitJob) -> Committed:
        directory = _directory(job)
        key = self._key(str(directory))
        if _recover(job) is None:
            # The stage was on a machine that is gone; perhaps its upload was complete.
            uploaded = find_uploaded(self._store, key, job.sealed_name) or give_up(self._store, key, job.sealed_name)
            if uploaded is None:
                raise CheckpointDamagedError(
                    f"the upload of {key} was not complete when its driver was lost",
                    path=key,
                    reason="its upload was not complete when the machine of its driver was lost",
                )
            return uploaded
        return upload(self._store, directory, key)

    def _verify(self, job: VerifyJob) -> None:
        """Have a good copy here, or one in the store that another machine will fetch."""
        key, directory = self._key(job.directory), Path(job.directory)
        sender = self.senders.sender if self.senders is not None else None
        if sender is not None and not directory.is_dir() and sender.fetches(key):
            check_remote(self._store, key, directory, expect_digest=job.digest)
        else:
            ensure_local(self._store, key, directory, expect_digest=job.digest)

    def _in_mirror(self, job: MirrorJob) -> MirrorOutcome:
        try:
            whole = True
            match job:
                case PrepareJob():
                    whole = _prepare(job)
                case DiscardJob():
                    delete_local(job)
                case PruneJob():
                    _remove_unread(job.directory)
            return MirrorDone(job.n, job.index, type(job), whole)
        except BaseException as error:
            damaged = isinstance(error, CheckpointDamagedError | InternalError)
            return JobFailed(job.n, job.index, type(job), damaged, reason_of(error))

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
