"""Every exception that holdfast raises, in one tree, split by what the caller can do.

    TuneError
    ├── UsageError                     fix your code or your arguments; nothing was started
    │   ├── InvalidInputError          (also ValueError)
    │   │   └── RecursiveDependencyError   sampled values depend on each other in a circle
    │   ├── InvalidTypeError           (also TypeError)
    │   ├── CannotWrapError            (also RuntimeError) with_resources() cannot attach to this callable
    │   ├── UnequalResourcesError      (also RuntimeError) trials of one experiment ask for different resources
    │   ├── NotSerializableError       (also TypeError)   names the object inside your trainable
    │   ├── MetricMissingError         (also ValueError)  a result lacks the metric that was asked for
    │   ├── ExperimentExistsError      (also ValueError)  offers restore, a new name, or if_exists
    │   ├── ExperimentNotFoundError    (also FileNotFoundError, ValueError)
    │   ├── NotRunError                (also RuntimeError)
    │   ├── NoResultError              (also RuntimeError) what was asked for is not among the results
    │   └── NewerFormatError           the root was written by a newer holdfast
    ├── OwnershipError                 another driver writes this experiment
    │   ├── ExperimentLockedError      host, pid and age of the holder are fields
    │   ├── ForkedStorageError         a fork of the process that owns the connection used it
    │   ├── UnsafeStoreError           (also ValueError) the store cannot keep two drivers apart
    │   └── FencedError                a newer driver took over; this one must stop
    ├── StorageError                   (also OSError) retry later; nothing was overwritten
    │   ├── StorageFullError           no space left under the root
    │   ├── ObjectMissingError         (also FileNotFoundError) the store has answered: there is no such object
    │   ├── StoreDeniedError           the store refuses: credentials, permissions, no such bucket
    │   ├── StoreUnreachableError      no answer, or "later": waited for, for a while
    │   ├── NotShippedError            fit() ended, and some of it is on this machine only
    │   └── SyncError                  (also RuntimeError) a syncer's copy or deletion did not succeed
    │       └── SyncTimeoutError       (also TimeoutError) it took longer than it may
    ├── DamageError                    data is damaged; nothing was overwritten
    │   ├── JournalDamagedError        file, offset and record number are fields
    │   └── CheckpointDamagedError     (also ValueError) path and reason are fields
    ├── TrialError                     a trial ended in ERROR; found in ``ResultGrid.errors``
    └── InternalError                  a bug in holdfast; the journal is intact
        └── IllegalTransitionError

Machine-readable facts are attributes; messages say what happened, what is safe, and what to type next.
"""

from __future__ import annotations

from typing import Any


class TuneError(Exception):
    """Base of everything that holdfast raises on purpose."""


class UsageError(TuneError):
    """The call cannot work as written; nothing was started or stored."""


class InvalidInputError(UsageError, ValueError):
    """An argument has a value that holdfast cannot work with."""


class RecursiveDependencyError(InvalidInputError):
    """Values of the search space depend on each other in a circle."""


class UnequalResourcesError(UsageError, RuntimeError):
    """Trials ask for different resources where all must begin with the same."""


class CannotWrapError(UsageError, RuntimeError):
    """The callable cannot carry resources or parameters; wrap it in a function or a lambda."""


class InvalidTypeError(UsageError, TypeError):
    """An argument has a type that holdfast cannot work with."""


class NotSerializableError(UsageError, TypeError):
    """The trainable cannot be pickled, so it cannot reach a worker process."""


class MetricMissingError(UsageError, ValueError):
    """A trial's result does not include the metric that the search, scheduler or config needs."""


class ExperimentExistsError(UsageError, ValueError):
    """An experiment of this name has already been started here."""


class ExperimentNotFoundError(UsageError, FileNotFoundError, ValueError):
    """The path is not the root of a holdfast experiment."""


class NotRunError(UsageError, RuntimeError):
    """Results were asked for before the experiment has been run."""


class NoResultError(UsageError, RuntimeError):
    """What was asked for does not exist among the results."""


class NewerFormatError(UsageError):
    """The experiment was written by a newer holdfast than this one."""


class OwnershipError(TuneError):
    """This process may not write the experiment."""


class ExperimentLockedError(OwnershipError):
    """Another driver holds the experiment.

    Attributes:
        host: Where the holder runs.
        pid: Its process id there.
        age_s: Seconds since it was last heard of.
    """

    def __init__(self, message: str, *, host: str, pid: int, age_s: float) -> None:
        super().__init__(message)
        self.host = host
        self.pid = pid
        self.age_s = age_s


class ForkedStorageError(OwnershipError, RuntimeError):
    """A fork has used a connection to a store that belongs to its parent."""


class UnsafeStoreError(OwnershipError, ValueError):
    """The store does not honour create-only writes, so it cannot keep two drivers apart."""


class FencedError(OwnershipError):
    """A newer driver has taken the experiment over; everything this one writes from now on is void."""


class StorageError(TuneError, OSError):
    """The experiment's storage did not do what was asked; trying again later may work."""

    def __str__(self) -> str:
        return str(self.args[-1]) if self.args else ""


class StorageFullError(StorageError):
    """There is no space left under the experiment's root."""


class ObjectMissingError(StorageError, FileNotFoundError):
    """The store has answered, and the answer is that there is no such object."""


class StoreDeniedError(StorageError, PermissionError):
    """The store refuses: credentials are missing, wrong, expired or not sufficient, or there is no such bucket."""


class StoreUnreachableError(StorageError, ConnectionError):
    """The store did not answer, or asked to try again later."""


class NotShippedError(StorageError):
    """The run has ended in order, but something is on this machine only; the message names it and how to ship it."""


class SyncError(StorageError, RuntimeError):
    """A copy did not succeed; what was there before is still there."""


class SyncTimeoutError(SyncError, TimeoutError):
    """A copy took longer than it may."""


class DamageError(TuneError):
    """Stored data is damaged. Nothing was overwritten."""


class JournalDamagedError(DamageError):
    """A record inside the journal does not match its checksum.

    Attributes:
        file: Segment file, relative to the experiment's root.
        offset: Byte offset of the damaged record.
        seq: Number of the first record that cannot be read.
    """

    def __init__(self, message: str, *, file: str, offset: int, seq: int) -> None:
        super().__init__(message)
        self.file = file
        self.offset = offset
        self.seq = seq


class CheckpointDamagedError(DamageError, ValueError):
    """A checkpoint does not match its manifest, or has none.

    Attributes:
        path: The checkpoint directory.
        reason: What is wrong with it, naming the file.
    """

    def __init__(self, message: str, *, path: str, reason: str) -> None:
        super().__init__(message)
        self.path = path
        self.reason = reason


class TrialError(TuneError):
    """What made a trial end in ERROR.

    Attributes:
        trial_id: The trial.
        cause: One of the causes in ``holdfast.core.events.Cause``.
        error_type: Name of the exception's class, or "" if the process died.
        location: The user's own ``file:line``, or "" if unknown.
        traceback: Full traceback text as the worker saw it, or "".
    """

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.trial_id: str = facts.get("trial_id", "")
        self.cause: str = facts.get("cause", "")
        self.error_type: str = facts.get("error_type", "")
        self.location: str = facts.get("location", "")
        self.traceback: str = facts.get("traceback", "")


class InternalError(TuneError):
    """A bug in holdfast. The journal is intact: restore the experiment and report the story printed here."""


class IllegalTransitionError(InternalError):
    """An event arrived in a status that the transition table does not allow."""
