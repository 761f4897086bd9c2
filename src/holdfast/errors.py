"""Every exception that holdfast raises, in one tree, split by what the caller can do.

    TuneError
    ├── UsageError                     fix your code or your arguments; nothing was started
    │   ├── InvalidInputError          (also ValueError)
    │   │   ├── MissingObjectError     an object of the search space was not kept: give param_space= again
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
    ├── EngineLostError                the cluster was lost for good; restore when it is back
    ├── RequestRefusedError            a live driver was asked for something, and has not done it
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
    │   ├── ObjectDamagedError         a stored trainable, setting or value; path and reason are fields
    │   └── CheckpointDamagedError     (also ValueError) path and reason are fields
    ├── TrialError                     a trial ended in ERROR; found in ``ResultGrid.errors``
    └── InternalError                  a bug in holdfast; the journal is intact
        └── IllegalTransitionError

Machine-readable facts are attributes; messages say what happened, what is safe, and what to type next.
"""

from __future__ import annotations

from typing import Any

from holdfast.messages.visible import visible_lines


class TuneError(Exception):
    """Base of everything that holdfast raises on purpose.

    Attributes:
        mirror_of: The experiment's address, if what has failed is its local mirror; else "".
    """

    mirror_of: str = ""

    def __str__(self) -> str:
        """The message; names and texts in it may be of an experiment that one should not trust."""
        # The user of an experiment in a store may not know the path of its mirror.
        where = f"{self.mirror_of}, in its mirror on this machine: " if self.mirror_of else ""
        return visible_lines(where + self._text())

    def _text(self) -> str:
        return super().__str__()


class UsageError(TuneError):
    """The call cannot work as written; nothing was started or stored."""


class InvalidInputError(UsageError, ValueError):
    """An argument has a value that holdfast cannot work with.

    Attributes:
        change: The setting that has to be corrected before the experiment can continue, as it is written in a restore;
            "" if there is none, or no experiment yet.
    """

    change = ""


class MissingObjectError(InvalidInputError):
    """An object that a trial's config names was not kept with the experiment; a restore has to be given it again."""


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
    """A trial's result does not include the metric that the search, scheduler or config needs.

    Attributes:
        change: The setting that names a metric that was reported, as it is written in a restore; "" if unknown.
        fact: What happened, without the advice, which names the place where the experiment is now; "" if unknown.
    """

    def __init__(self, message: str, change: str = "", fact: str = "") -> None:
        super().__init__(message)
        self.change = change
        self.fact = fact


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
    """This process may not write the experiment.

    Attributes:
        place: The experiment, as its user knows it: a path or an address. "" if the message says all.
    """

    place: str = ""


class ExperimentLockedError(OwnershipError):
    """Another driver holds the experiment.

    Attributes:
        host: Where the holder runs.
        pid: Its process id there.
        age_s: Seconds since its last heartbeat.
        dead_in_s: Seconds until it counts as dead without a heartbeat; None if it is known to be alive.
        place: The experiment, if it can be taken over; then the message is what is known of its holder.
    """

    def __init__(
        self,
        message: str,
        *,
        host: str,
        pid: int,
        age_s: float,
        dead_in_s: float | None = None,
        place: str = "",
    ) -> None:
        super().__init__(message)
        self.host = host
        self.pid = pid
        self.age_s = age_s
        self.dead_in_s = dead_in_s
        self.place = place

    def _text(self) -> str:
        known, place = super()._text(), self.place
        if not place:
            return known
        return (
            f"The experiment {place} {known} Wait until it has finished, or stop it, or take the experiment over with "
            f"Tuner.restore({place!r}, takeover=True) or `holdfast resume {place} --takeover`: the other driver then "
            "stops at its next write."
        )


class ForkedStorageError(OwnershipError, RuntimeError):
    """A fork has used a connection to a store that belongs to its parent."""


class UnsafeStoreError(OwnershipError, ValueError):
    """The store does not honour create-only writes, so it cannot keep two drivers apart."""


class FencedError(OwnershipError):
    """A newer driver has taken the experiment over; everything this one writes from now on is void.

    Attributes:
        successor: Who has the experiment now.
        driver: Who must stop.
    """

    def __init__(
        self,
        message: str = "",
        *,
        place: str = "",
        successor: str = "a newer driver",
        driver: str = "this driver",
    ) -> None:
        super().__init__(message)
        self.place = place
        self.successor = successor
        self.driver = driver

    def _text(self) -> str:
        if any(self.args):
            return super()._text()
        return (
            f"The experiment {self.place} was taken over by {self.successor}; {self.driver} must stop. Everything "
            "recorded before the takeover is safe; what this driver writes from now on is void. To inspect the "
            f"experiment: `holdfast status {self.place}`."
        )


class RequestRefusedError(TuneError):
    """A driver has not done what it was asked for: there is none, it refused, or it has not answered yet."""


class StorageError(TuneError, OSError):
    """The experiment's storage did not do what was asked; trying again later may work.

    Attributes:
        reason: The message without the place of the experiment, if it may become part of the history; else "".
    """

    reason: str = ""

    def _text(self) -> str:
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
    """The run is over, but something is on this machine only; the message names it and says how to ship it."""


class SyncError(StorageError, RuntimeError):
    """A copy did not succeed; what was there before is still there."""


class SyncTimeoutError(SyncError, TimeoutError):
    """A copy took longer than it may."""


class DamageError(TuneError):
    """Stored data is damaged. Nothing was overwritten."""


class JournalDamagedError(DamageError):
    """A record of the journal does not match its checksum, or is missing though it was known to be durable.

    Attributes:
        file: Segment file, relative to the experiment's root; of a journal in a store, the key of the object.
        offset: Byte offset of the damaged record.
        seq: Number of the first record that cannot be read.
        missing: How many records are known to be missing; None if none is, or if the number is not known.
        since: When the last record before the missing ones was written, in seconds since 1970; None if not known.
        summary: What is wrong, without what to do about it; empty if only the message tells.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str,
        offset: int,
        seq: int,
        missing: int | None = None,
        since: float | None = None,
        summary: str = "",
    ) -> None:
        super().__init__(message)
        self.summary = summary
        self.file = file
        self.offset = offset
        self.seq = seq
        self.missing = missing
        self.since = since


class ObjectDamagedError(DamageError):
    """A stored trainable, setting or value is not what was stored; nothing was loaded from it.

    Attributes:
        path: The file.
        reason: What is wrong with it.
    """

    def __init__(self, message: str, *, path: str, reason: str) -> None:
        super().__init__(message)
        self.path = path
        self.reason = reason


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


class EngineLostError(TuneError):
    """The cluster that ran the trials is lost. The run was shut down gracefully, and unfinished trials can be resumed.

    Attributes:
        call: What continues the experiment.
    """

    def __init__(self, message: str, call: str = "") -> None:
        super().__init__(message)
        self.call = call


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
        self._know(facts)

    def _know(self, facts: dict[str, Any]) -> None:
        self.trial_id: str = facts.get("trial_id", "")
        self.cause: str = facts.get("cause", "")
        self.error_type: str = facts.get("error_type", "")
        self.location: str = facts.get("location", "")
        self.traceback: str = facts.get("traceback", "")


class InternalError(TuneError):
    """A bug in holdfast. The journal is intact: restore the experiment and report the story printed here.

    Attributes:
        reason: The message without the place of the experiment, if it may become part of the history; else "".
    """

    reason: str = ""


class IllegalTransitionError(InternalError):
    """An event arrived in a status that the transition table does not allow.

    Where a journal is read, the journal is damaged; anywhere else this is a bug.
    """

    @property
    def fact(self) -> str:
        """What does not fit, without whose fault that is."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return f"{self.fact}; this is a bug in holdfast. The journal is intact: nothing was lost."
