"""Events: durable facts, in the past tense. The journal is a list of these and nothing else.

An event carries its cause, unless its kind has only one, which its docstring names. Else it has only what cannot be
recomputed by folding the events before it, because every byte here is paid once per report.

``at`` is wall time in seconds that never runs backwards within an epoch (the driver adds monotonic time to the wall
time at which it claimed the epoch), so a clock jump cannot reorder history.

Fields are only ever added at the end, with a default: old journals must stay readable (I11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Union

import msgspec

# Checked when a record is read: Python takes -1 for the last of a list, and a date cannot be made of every number.
Count = Annotated[int, msgspec.Meta(ge=0)]
Moment = Annotated[float, msgspec.Meta(ge=0.0, le=253_000_000_000.0)]
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e18)]


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
    NODE_LOST = "node_lost"  # its machine cannot be reached any more
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
    kinds: tuple[str, ...] = ()  # ``module:name`` of its class and their bases, nearest first


class Event(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all events."""

    at: Moment


class EpochStarted(Event, frozen=True, tag="epoch"):
    """A driver was started and took the right to write; everything an older epoch writes after this is void."""

    epoch: Count
    writer: str
    host: str
    pid: int
    objects: dict[str, str] = {}  # digests of the files that it runs with, by name; empty: as before


class WorkerJoined(Event, frozen=True, tag="worker"):
    """A worker process that the engine started is ready; reports name it by number to stay small."""

    worker: int
    host: str
    ip: str
    pid: int


class TrialCreated(Event, frozen=True, tag="new"):
    """The search suggested a configuration."""

    n: Count
    id: str
    config: dict[Any, Any]
    tag: str
    params: tuple[str, ...] = ()  # paths in config that the search chose
    mark: list[int] | None = None  # where the proposer stood; lets it continue exactly here
    request: dict[str, Amount] | None = None  # None: one CPU
    name: str = ""  # only if the user named the trial
    dirname: str = ""  # only if it differs from the rule
    asked_after: int = -1  # last event that the searcher had been told when it chose this config


class TrialStarted(Event, frozen=True, tag="start"):
    """An attempt was given to the engine. ``rows`` reports survive; later ones are superseded (I6).

    Its cause is that the scheduler chose the trial among those that waited; after ``StoodStill`` the core does.
    """

    n: Count
    attempt: Count
    rows: Count = 0
    source: tuple[Count, Count] | None = None  # (trial, checkpoint index) that it starts from


class Reported(Event, frozen=True, tag="rep"):
    """The trial reported; ``why`` is the cause of the verdict on it."""

    n: Count
    attempt: Count
    worker: int
    dt: float  # time_this_iter_s, measured in the worker
    metrics: dict[str, Any]
    verdict: str = ""  # "" = continue, "stop", "pause"
    why: str = ""


class CheckpointStaged(Event, frozen=True, tag="stage"):
    """The trial saved: fully written under the root, not yet fsynced and renamed. Recovery finishes the commit."""

    n: Count
    attempt: Count
    index: Count
    sealed: str
    bytes: Count
    files: Count


class CheckpointCommitted(Event, frozen=True, tag="ckpt"):
    """The background job that was given a staged checkpoint made it durable."""

    n: Count
    index: Count
    digest: str
    bytes: Count


class CheckpointRejected(Event, frozen=True, tag="bad"):
    n: Count
    index: Count
    reason: str


class CheckpointsDropped(Event, frozen=True, tag="drop"):
    """Nothing refers to these any more: the intent to delete them."""

    n: Count
    indexes: tuple[Count, ...]
    why: str = ""  # if it is not the user's rule for keeping checkpoints


class CheckpointsDeleted(Event, frozen=True, tag="gone"):
    """The files are gone, because ``CheckpointsDropped`` said so; that event has the cause."""

    n: Count
    indexes: tuple[Count, ...]


class TrialPaused(Event, frozen=True, tag="pause"):
    n: Count
    attempt: Count
    why: str = ""  # the verdict that it follows; "" in journals of older versions


class TrialResumed(Event, frozen=True, tag="unpause"):
    """A paused trial waits to be started again."""

    n: Count
    why: str = ""  # if it is not that the scheduler has chosen it


class TrialReconfigured(Event, frozen=True, tag="config"):
    """The trial continues with another config and, if ``donor`` is given, from that checkpoint. Its rows stay."""

    n: Count
    config: dict[Any, Any]
    tag: str = ""  # how it is shown from now on
    donor: tuple[Count, Count] | None = None  # (trial, checkpoint index)
    parent: int = -1  # the trial that was copied, which may itself have begun with a checkpoint of ``donor``
    params: tuple[str, ...] = ()  # paths in config that were chosen by now
    why: str = ""  # who changed the config, and why; "" in journals of older versions


class TrialResized(Event, frozen=True, tag="resize"):
    """The trial asks for other resources from its next attempt on."""

    n: Count
    request: dict[str, Amount] | None
    by_user: bool = False  # else by the scheduler
    why: str = ""  # which scheduler, and why; "" if the user did, and in journals of older versions


class AttemptFailed(Event, frozen=True, tag="fail"):
    """Counted against ``max_failures``; the trial will be tried again."""

    n: Count
    attempt: Count
    cause: str
    error: ErrorFacts
    worker: int = 0  # where it ran, if no report of the attempt tells; so in all events that end an attempt


class AttemptInterrupted(Event, frozen=True, tag="cut"):
    """Not the trial's fault; not counted; the trial will be tried again."""

    n: Count
    attempt: Count
    cause: str
    detail: str = ""
    worker: int = 0


class TrialErrored(Event, frozen=True, tag="error"):
    n: Count
    attempt: Count
    cause: str
    error: ErrorFacts
    worker: int = 0


class TrialTerminated(Event, frozen=True, tag="end"):
    n: Count
    attempt: Count
    reason: str
    worker: int = 0


class TrialRequeued(Event, frozen=True, tag="again"):
    """A trial runs again that had ended, or begins anew: mode "resume" or "restart"."""

    n: Count
    mode: str
    why: str = ""  # "" in journals of older versions: the user had asked for it


class BudgetRenewed(Event, frozen=True, tag="renew"):
    """The user resumed the experiment: every unfinished trial has been requeued and gets its retries back."""


class Action:
    """What a person can ask a live driver for."""

    STOP = "stop"
    NOTE = "note"
    TAG = "tag"
    UNTAG = "untag"
    SAMPLES = "samples"

    ALL = (STOP, NOTE, TAG, UNTAG, SAMPLES)


class UserRequested(Event, frozen=True, tag="user"):
    """A person asked for something, about one trial (``n``) or the experiment (-1).

    The fold of this one record is what was asked for: it is done, or nothing is. More samples are ``SettingsChanged``.
    """

    n: Annotated[int, msgspec.Meta(ge=-1)]
    id: str  # of the request, which is never followed twice
    action: str
    text: str = ""  # a note
    tags: tuple[str, ...] = ()
    by: str = ""  # who asked, as the machine calls them
    refused: str = ""  # why nothing was done


class SearchAsked(Event, frozen=True, tag="ask"):
    """A searcher that learns was asked for configurations: all it will answer follows from what it was told before.

    Its cause is that fewer trials wait to be started than the settings want.
    """

    count: Count


class BacklogFilled(Event, frozen=True, tag="full"):
    """More bytes of staged checkpoints wait to be committed than may: trials that save wait from now on."""

    checkpoints: int
    bytes: int
    limit: int


class BacklogEased(Event, frozen=True, tag="eased"):
    """Trials do not wait for the backlog any more."""

    checkpoints: int
    bytes: int


class StorageLagged(Event, frozen=True, tag="lag"):
    """Records have waited more than 5 s to become durable, or could not be written at all."""

    since: Moment  # when the oldest of them was written
    detail: str = ""  # what storage says, if it says anything


class StorageCaughtUp(Event, frozen=True, tag="caught"):
    """All records that waited are durable now."""

    since: Moment


class StoodStill(Event, frozen=True, tag="still"):
    """Nothing ran, nothing new could come, and the scheduler started none of the trials that waited; it was told so."""


class SearchEnded(Event, frozen=True, tag="nomore"):
    reason: str


class SearchReopened(Event, frozen=True, tag="more"):
    reason: str


class SettingsChanged(Event, frozen=True, tag="settings"):
    """The user continued with other settings than before. None: as before. Targets are for the whole experiment."""

    metric: str | None = None
    mode: str | None = None
    num_samples: int | None = None  # in total; -1: without end
    total: int | None = None  # trials that ``num_samples`` makes; None if nobody knows
    time_budget_s: float | None = None
    max_concurrent: int | None = None
    objects: dict[str, str] = {}  # setting -> key of its stored value
    retold: bool = False  # a policy is another one: it was told everything again
    relearned: bool = False  # and it was another metric that counted
    words: tuple[str, ...] = ()  # the differences, for people
    request: str = ""  # id of the request that led to it; "": it was given to a restore
    by: str = ""  # who made that request


class Noted(Event, frozen=True, tag="note"):
    """Something a person should know later, about one trial (``n``) or the experiment (-1)."""

    n: Annotated[int, msgspec.Meta(ge=-1)]
    text: str


class DriverStopped(Event, frozen=True, tag="bye"):
    reason: str
    change: str = ""  # a setting without which the same error would end the next driver too, as a restore takes it


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
    BacklogFilled,
    BacklogEased,
    StorageLagged,
    StorageCaughtUp,
    SearchEnded,
    SearchReopened,
    SettingsChanged,
    Noted,
    UserRequested,
    DriverStopped,
]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyEvent, ext_hook=lambda code, data: _refuse_extension(code))


def encode(event: AnyEvent) -> bytes:
    """The event's journal payload."""
    return _encoder.encode(event)


decode: Callable[[bytes | memoryview], AnyEvent] = _decoder.decode
"""The inverse of ``encode``; raises ``ValueError`` or ``RecursionError`` for anything else."""


def _refuse_extension(code: int) -> Any:
    raise ValueError(f"an extension of type {code}, which no event holds")


def _spelled(kind: type[Event]) -> bytes:
    tag = str(kind.__struct_config__.tag).encode()
    return bytes([0xA0 | len(tag)]) + tag  # a short text, as msgpack spells it


_ABOUT_ONE_TRIAL = frozenset(
    _spelled(kind)
    for kind in AnyEvent.__args__  # type: ignore[attr-defined]
    if kind.__struct_fields__[1:2] == ("n",) and kind not in (TrialStarted, TrialReconfigured)  # they may name others
)
_FLOAT = 0xCB
_NUMBER_SIZES = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


def subject(payload: bytes) -> int | None:
    """The one trial that a payload is about, by its first bytes alone; None if that takes decoding it.

    A payload is the list [tag, at, n, ...]. Whoever looks for one trial among many pays for this, however large the
    metrics of the others are.
    """
    try:
        end = 2 + (payload[1] & 0x1F)
        if payload[end] != _FLOAT or payload[1:end] not in _ABOUT_ONE_TRIAL:
            return None
        first = payload[end + 9]
    except IndexError:
        return None
    if first < 0x80:
        return first
    size = _NUMBER_SIZES.get(first)
    return None if size is None else int.from_bytes(payload[end + 10 : end + 10 + size])
