"""What the driver and its nanny say to each other, and the two words a worker adds to worker_messages.py.

Owns: these structs and their decoders. Must never: touch a process or a socket.
"""

from __future__ import annotations

from typing import Union

import msgspec

from holdfast.core.observations import Hint, Raised, Report, Returned, Saved, Stopped, Waiting

RUN_VARIABLE = "HOLDFAST_RUN"
"""Environment variable of a nanny and everything below it: which nanny that is."""

WORKER_VARIABLE = "HOLDFAST_WORKER"
"""Environment variable of what a worker executes: ``<run>/<worker>``."""


class NannyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a nanny starts; travels as JSON on its command line."""

    driver: int  # pid
    fd: int  # the nanny's end of the link, inherited
    run: str
    runner: str  # "module:function"
    fork: bool
    preload: tuple[str, ...]
    argv: tuple[str, ...]


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker process must know before it can be spoken to."""

    worker: int
    nanny: int  # pid of the parent it must have
    run: str
    runner: str
    log: str
    fd: int
    argv: tuple[str, ...] = ()


class StartWorker(msgspec.Struct, array_like=True, tag="start", frozen=True):
    """Start a worker on the socket that travels with this message."""

    worker: int
    log: str


class TerminateWorker(msgspec.Struct, array_like=True, tag="term", frozen=True):
    """SIGTERM to the worker's process group."""

    worker: int


class KillWorker(msgspec.Struct, array_like=True, tag="kill", frozen=True):
    """Kill the worker's whole process tree."""

    worker: int


Order = Union[StartWorker, TerminateWorker, KillWorker]


class Ready(msgspec.Struct, array_like=True, tag="ready", frozen=True):
    """The nanny has imported everything and reads its orders."""


class WorkerEnded(msgspec.Struct, array_like=True, tag="ended", frozen=True):
    """A worker and everything attributed to it is gone."""

    worker: int
    status: int  # as from waitpid()
    oom: bool  # the kernel's out-of-memory killer was at work at that time
    peak_kib: int
    note: str = ""  # why there was never a process
    cause: str = ""  # of that


class Notice(msgspec.Struct, array_like=True, tag="notice", frozen=True):
    """Something that a person should read."""

    text: str


NannyMessage = Union[WorkerEnded, Notice, Ready]


class Hello(msgspec.Struct, array_like=True, tag="H", frozen=True):
    """A worker process runs. Always its first message, so that nothing it reports can come before it."""

    worker: int
    pid: int


class Unclean(msgspec.Struct, array_like=True, tag="U", frozen=True):
    """The attempt that ends with the next message leaves things behind; the worker must not be used again."""

    worker: int
    what: str


WorkerWord = Union[Report, Saved, Returned, Stopped, Raised, Waiting, Hint, Hello, Unclean]

decode_order = msgspec.msgpack.Decoder(Order).decode
decode_nanny = msgspec.msgpack.Decoder(NannyMessage).decode
decode_word = msgspec.msgpack.Decoder(WorkerWord).decode
