"""Observations: what the world told us. They may be late, repeated, stale or wrong; events are what we made of them.

The first group travels as it is from a worker to the driver (one wire format for every engine); the others are made
by the engine, by checkpoint jobs or by the controller itself. None of them is ever journaled.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from holdfast.core.events import ErrorFacts


class SealedStage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A checkpoint that is fully staged under the root: directory name beside its target, and what is in it."""

    name: str
    files: int
    bytes: int
    hashed: bool


class FromWorker(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of messages from a worker. ``attempt`` fences: an old attempt's messages are refused."""

    n: int
    attempt: int
    worker: int


class Report(FromWorker, frozen=True, tag="R"):
    """One call of ``report()``. Its worker waits for a ``Decision`` on it, unless it is final or sent ahead."""

    ordinal: int  # 1, 2, ... within the attempt
    dt: float
    metrics: dict[str, Any]
    sealed: SealedStage | None = None
    final: bool = False  # what the trainable returned; ``Returned`` follows and nobody waits for an answer
    passed: bool = False  # a driver before this one had let it pass before it knew it


class Saved(FromWorker, frozen=True, tag="S"):
    """A checkpoint that the driver asked for, belonging to the last report (class trainables)."""

    sealed: SealedStage | None = None
    ordinal: int = 0  # of that report; 0: not told


class Returned(FromWorker, frozen=True, tag="E"):
    """The trainable finished by itself."""


class Stopped(FromWorker, frozen=True, tag="X"):
    """The trainable was unwound because a ``Decision`` said stop or pause."""


class Raised(FromWorker, frozen=True, tag="F"):
    """The trainable raised. ``storage``: because of a full disk; ``pickled``: the exception itself, if it pickles."""

    error: ErrorFacts
    pickled: bytes = b""
    storage: bool = False
    restoring: bool = False
    final: bool = False  # must not be retried (refused reset, invalid trainable)
    doubtful: bool = False  # ``storage``, but the trial's own code has raised it and there is space now


class Waiting(FromWorker, frozen=True, tag="W"):
    """The worker cannot stage a checkpoint for now (disk full) and waits; empty text: it continues."""

    text: str


class Hint(FromWorker, frozen=True, tag="N"):
    """The trial uses an older spelling; the text has the user's line, and is only shown."""

    text: str


WorkerMessage = Union[Report, Saved, Returned, Stopped, Raised, Waiting, Hint]


class Joined(msgspec.Struct, frozen=True):
    """A worker process has started."""

    worker: int
    host: str
    ip: str
    pid: int


class Died(msgspec.Struct, frozen=True):
    """The process of an attempt is gone and everything it had sent was handled before this."""

    n: int
    attempt: int
    cause: str  # events.Cause
    detail: str  # "killed by SIGSEGV", "exit code 3", ...
    output: str = ""
    worker: int = 0  # 0: it never had one


class Capacity(msgspec.Struct, frozen=True):
    """What the engine can run at the same time, in total, and how large its machines are, if there are several."""

    resources: dict[str, float]
    machines: tuple[dict[str, float], ...] = ()  # each size once


class StorageLag(msgspec.Struct, frozen=True):
    """Records wait too long to become durable."""

    since: float
    detail: str


class StorageLagOver(msgspec.Struct, frozen=True):
    """They do not any more."""

    since: float


class FreeSpace(msgspec.Struct, frozen=True):
    """What the disk that staged checkpoints wait on has free."""

    bytes: int


class CommitEnded(msgspec.Struct, frozen=True):
    """A staged checkpoint was committed (``digest``), cannot be (``damaged``), or need not be (``superseded``)."""

    n: int
    index: int
    digest: str = ""
    bytes: int = 0
    damaged: bool = False
    message: str = ""
    superseded: bool = False  # a newer one was staged before its commit had begun


class VerifyEnded(msgspec.Struct, frozen=True):
    """A checkpoint about to be restored was read and compared with its manifest."""

    n: int
    index: int
    ok: bool
    damaged: bool = False
    message: str = ""


class DeleteEnded(msgspec.Struct, frozen=True):
    n: int
    index: int
    ok: bool
    message: str = ""


class Proposed(msgspec.Struct, frozen=True):
    """The searcher's next configuration, ready to become a trial."""

    id: str
    config: dict[Any, Any]
    tag: str
    params: tuple[str, ...]
    mark: list[int] | None
    request: dict[str, float] | None
    name: str = ""
    dirname: str = ""
    asked_after: int = -1


class NotYet(msgspec.Struct, frozen=True):
    """The searcher has no configuration before it is told more about the trials that it knows."""

    told: int = 0  # what it had been told by this driver when it said so


class Exhausted(msgspec.Struct, frozen=True):
    """The searcher has no further configuration."""

    reason: str


class StalledAttempt(msgspec.Struct, frozen=True):
    """No report for longer than ``stall_timeout_s``."""

    n: int
    attempt: int
    silent_s: float


class CallbackRaised(msgspec.Struct, frozen=True):
    """A callback failed in ``on_trial_complete``: the user counts on it, so the trial is not a success."""

    n: int
    error: ErrorFacts


class UserAsked(msgspec.Struct, frozen=True):
    """A person asks for something, by a request that no event tells of yet."""

    id: str
    action: str  # events.Action
    trial: str = ""  # id of a trial; "": the experiment
    text: str = ""
    tags: tuple[str, ...] = ()
    num_samples: int = 0
    total: int | None = None  # trials that these samples make, if that is known
    by: str = ""
    refused: str = ""  # why it cannot be followed, if that is known already


class GraceOver(msgspec.Struct, frozen=True):
    """Trials have had their time to take a last checkpoint."""


class StopAll(msgspec.Struct, frozen=True):
    """End the experiment: no new trials, unfinished ones are terminated (stop rule, budget, fail-fast)."""

    reason: str


class Interrupted(msgspec.Struct, frozen=True):
    """A person or the machine wants this driver to end; unfinished trials stay unfinished."""

    reason: str


class Resumed(msgspec.Struct, frozen=True):
    """This driver opened an experiment that had been run before. Actions: "resume", "restart", "skip"."""

    finished: str = "skip"
    unfinished: str = "resume"
    errored: str = "skip"
    lost: str = ""  # why trials that were running are not running now
    spent: str = ""  # why nothing may run any more, whatever the user requests (a used-up time budget)
    requests: dict[int, dict[str, float] | None] = {}  # other resources that the user gives to trials


EdgeObservation = Union[
    Joined,
    Died,
    Capacity,
    FreeSpace,
    StorageLag,
    StorageLagOver,
    CommitEnded,
    VerifyEnded,
    DeleteEnded,
    Proposed,
    NotYet,
    Exhausted,
    StalledAttempt,
    CallbackRaised,
    UserAsked,
    GraceOver,
    StopAll,
    Interrupted,
    Resumed,
]
Observation = Union[WorkerMessage, EdgeObservation]
