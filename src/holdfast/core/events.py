"""Events: durable facts, in the past tense. The journal is a list of these and nothing else.

An event holds only what cannot be recomputed by folding the events before it, because every byte here is paid
once per report. ``at`` is wall time in seconds that never runs backwards within an epoch (the driver adds
monotonic time to the wall time at which it claimed the epoch), so a clock jump cannot reorder history.

Fields are only ever added at the end, with a default: old journals must stay readable (I11).
"""

from __future__ import annotations

from typing import Any, Union

import msgspec


class Cause:
    """Why an attempt ended other than by finishing; the first group uses up ``max_failures``."""

    EXCEPTION = "exception"
    EXIT = "exit"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    STALLED = "stalled"
    LOADING = "loading"  # the trainable failed while it loaded a checkpoint
    DAMAGED = "damaged"
    CALLBACK = "callback"  # a user's callback failed when the trial had finished

    DRIVER_LOST = "driver_lost"
    DRIVER_STOPPED = "driver_stopped"
    ENGINE_LOST = "engine_lost"
    STORAGE = "storage"
    PREEMPTED = "preempted"

    COUNTED = frozenset({EXCEPTION, EXIT, SIGNAL, OUT_OF_MEMORY, STALLED, LOADING})


class ErrorFacts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What is known about a failure, as plain text that can be read without the user's code."""

    type: str = ""
    message: str = ""
    location: str = ""  # the user's own file:line
    traceback: str = ""
    output: str = ""  # tail of what the trial printed


class Event(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all events."""

    at: float


class EpochStarted(Event, frozen=True, tag="epoch"):
    """A driver took the right to write; everything an older epoch writes after this is void."""

    epoch: int
    writer: str
    host: str
    pid: int


class WorkerJoined(Event, frozen=True, tag="worker"):
    """A worker process is ready; reports name it by number to stay small."""

    worker: int
    host: str
    ip: str
    pid: int


class TrialCreated(Event, frozen=True, tag="new"):
    n: int
    id: str
    config: dict[str, Any]
    tag: str
    params: tuple[str, ...] = ()  # paths in config that the search chose
    mark: list[int] | None = None  # where the proposer stood; lets it continue exactly here
    request: dict[str, float] | None = None  # None: one CPU
    name: str = ""  # only if the user named the trial
    dirname: str = ""  # only if it differs from the rule
    asked_after: int = -1  # last event that the searcher had been told when it chose this config


class TrialStarted(Event, frozen=True, tag="start"):
    """An attempt was given to the engine. ``rows`` reports survive; later ones are superseded (I6)."""

    n: int
    attempt: int
    rows: int = 0
    source: tuple[int, int] | None = None  # (trial, checkpoint index) that it starts from


class Reported(Event, frozen=True, tag="rep"):
    n: int
    attempt: int
    worker: int
    dt: float  # time_this_iter_s, measured in the worker
    metrics: dict[str, Any]
    verdict: str = ""  # "" = continue, "stop", "pause"
    why: str = ""


class CheckpointStaged(Event, frozen=True, tag="stage"):
    """Fully written under the root, not yet fsynced and renamed. Recovery finishes the commit."""

    n: int
    attempt: int
    index: int
    sealed: str
    bytes: int
    files: int


class CheckpointCommitted(Event, frozen=True, tag="ckpt"):
    n: int
    index: int
    digest: str
    bytes: int


class CheckpointRejected(Event, frozen=True, tag="bad"):
    n: int
    index: int
    reason: str


class CheckpointsDropped(Event, frozen=True, tag="drop"):
    """Nothing refers to these any more: the intent to delete them."""

    n: int
    indexes: tuple[int, ...]


class CheckpointsDeleted(Event, frozen=True, tag="gone"):
    n: int
    indexes: tuple[int, ...]


class TrialPaused(Event, frozen=True, tag="pause"):
    n: int
    attempt: int


class TrialResumed(Event, frozen=True, tag="unpause"):
    n: int


class TrialReconfigured(Event, frozen=True, tag="config"):
    """The trial goes on with another config and, if ``donor`` is given, from that checkpoint. Its rows stay."""

    n: int
    config: dict[str, Any]
    tag: str = ""  # how it is shown from now on
    donor: tuple[int, int] | None = None  # (trial, checkpoint index)
    parent: int = -1  # the trial that was copied, which may itself have begun with a checkpoint of ``donor``
    params: tuple[str, ...] = ()  # paths in config that were chosen by now


class TrialResized(Event, frozen=True, tag="resize"):
    """The trial asks for other resources from its next attempt on."""

    n: int
    request: dict[str, float] | None


class AttemptFailed(Event, frozen=True, tag="fail"):
    """Counted against ``max_failures``; the trial will be tried again."""

    n: int
    attempt: int
    cause: str
    error: ErrorFacts


class AttemptInterrupted(Event, frozen=True, tag="cut"):
    """Not the trial's fault; not counted; the trial will be tried again."""

    n: int
    attempt: int
    cause: str
    detail: str = ""


class TrialErrored(Event, frozen=True, tag="error"):
    n: int
    attempt: int
    cause: str
    error: ErrorFacts


class TrialTerminated(Event, frozen=True, tag="end"):
    n: int
    attempt: int
    reason: str


class TrialRequeued(Event, frozen=True, tag="again"):
    """The user asked for an ended trial to run again: mode "resume" or "restart"."""

    n: int
    mode: str


class BudgetRenewed(Event, frozen=True, tag="renew"):
    """The user resumed the experiment: every unfinished trial gets its retries back."""


class SearchAsked(Event, frozen=True, tag="ask"):
    """A searcher that learns was asked for configurations: all it will answer follows from what it was told before."""

    count: int


class StoodStill(Event, frozen=True, tag="still"):
    """Nothing ran, nothing new could come, and the scheduler started none of the trials that waited; it was told so."""


class SearchEnded(Event, frozen=True, tag="nomore"):
    reason: str


class SearchReopened(Event, frozen=True, tag="more"):
    reason: str


class Noted(Event, frozen=True, tag="note"):
    """Something a person should know later, about one trial (``n``) or the experiment (-1)."""

    n: int
    text: str


class DriverStopped(Event, frozen=True, tag="bye"):
    reason: str


AnyEvent = Union[
    EpochStarted,
    WorkerJoined,
    TrialCreated,
    TrialStarted,
    Reported,
    CheckpointStaged,
    CheckpointCommitted,
    CheckpointRejected,
    CheckpointsDropped,
    CheckpointsDeleted,
    TrialPaused,
    TrialResumed,
    TrialReconfigured,
    TrialResized,
    AttemptFailed,
    AttemptInterrupted,
    TrialErrored,
    TrialTerminated,
    TrialRequeued,
    BudgetRenewed,
    SearchAsked,
    StoodStill,
    SearchEnded,
    SearchReopened,
    Noted,
    DriverStopped,
]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyEvent)


def encode(event: AnyEvent) -> bytes:
    """The event's journal payload."""
    return _encoder.encode(event)


def decode(payload: bytes | memoryview) -> AnyEvent:
    """The inverse of ``encode``; raises ``msgspec.DecodeError`` for anything else."""
    event: AnyEvent = _decoder.decode(payload)
    return event
