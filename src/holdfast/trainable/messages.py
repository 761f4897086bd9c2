"""The wire: messages from the driver to a worker, and frames. Workers answer with ``core.observations``.

A frame is a 4-byte little-endian length and one msgpack message. The same messages cross a Unix socket (local engine)
and actor calls (Ray); nothing here knows which.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Protocol, Union

import msgspec

from holdfast.core.observations import WorkerMessage

MAX_FRAME_BYTES = 64 * 1024 * 1024
READ_BYTES = 64 * 1024  # larger reads cost an mmap each

_LENGTH = struct.Struct("<I")


class Setup(msgspec.Struct, array_like=True, tag="setup", frozen=True):
    """What every attempt of an experiment has in common; sent once to each worker."""

    worker: int
    experiment: str
    root: str  # absolute path of the experiment as this worker sees it
    trainable_file: str  # the pickled trainable; loaded once and kept
    objects_file: str  # pickled values that configs refer to; loaded when a config needs one
    is_class: bool
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool = False
    reuse_instances: bool = False  # TuneConfig.reuse_actors
    chdir: bool = True
    log_to_file: tuple[str, str] | None = None  # file names in the trial's directory
    memory_limit_bytes: int = 0
    sys_path: tuple[str, ...] = ()
    working_dir: str = ""
    address: str = ""  # of the experiment, if another than ``root``: in a store, or where a syncer copies it
    epoch: int = 0  # of the driver


class Run(msgspec.Struct, array_like=True, tag="run", frozen=True):
    """Run one attempt of one trial."""

    n: int
    attempt: int
    trial_id: str
    trial_name: str
    trial_dir: str  # relative to the root
    tag: str
    config: dict[str, Any]  # plain data; objects as markers
    checkpoint: str | None = None  # directory relative to the root to start from
    iteration: int = 0
    time_total: float = 0.0
    timesteps_total: int = 0
    episodes_total: int = 0
    resources: dict[str, float] = {}
    bundles: list[dict[str, float]] = []
    strategy: str = "PACK"
    gpus: tuple[str, ...] = ()  # what CUDA_VISIBLE_DEVICES must be; () hides all


class Decision(msgspec.Struct, array_like=True, tag="D", frozen=True, gc=False):
    """The answer to the report with this ordinal."""

    ordinal: int
    go: str = "go"  # "go", "stop", "pause"
    save: bool = False  # class trainables save before they go on, stop or pause
    ahead: int = 0  # so many reports may follow this one without waiting for an answer: all would say "go"


class SaveSoon(msgspec.Struct, array_like=True, tag="save", frozen=True, gc=False):
    """The driver is about to end: checkpoint at the next chance (``should_checkpoint()`` turns true)."""


class Quit(msgspec.Struct, array_like=True, tag="quit", frozen=True, gc=False):
    """No further attempts: leave."""


ToWorker = Union[Setup, Run, Decision, SaveSoon, Quit]

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(WorkerMessage)


class Channel(Protocol):
    """A worker's end of the wire. ``receive`` blocks; it raises ``EOFError`` when the driver is gone."""

    def send(self, *messages: WorkerMessage) -> None: ...

    def receive(self) -> ToWorker: ...

    def pending(self) -> list[ToWorker]:
        """Messages that have already arrived, without waiting; raises ``EOFError`` when the driver is gone."""
        ...


def frame(message: Any) -> bytes:
    """One message, ready to be sent."""
    payload = _encoder.encode(message)
    if len(payload) > MAX_FRAME_BYTES:
        raise ValueError(
            f"a message of {len(payload):,} bytes is larger than the limit of {MAX_FRAME_BYTES:,}; "
            "large values belong in a checkpoint or in tune.with_parameters(), not in metrics or config"
        )
    return _LENGTH.pack(len(payload)) + payload


def decode_to_worker(payload: bytes | memoryview) -> ToWorker:
    message: ToWorker = _to_worker.decode(payload)
    return message


def decode_from_worker(payload: bytes | memoryview) -> WorkerMessage:
    message: WorkerMessage = _from_worker.decode(payload)
    return message


class FrameBuffer:
    """Cuts a byte stream into payloads.

    Pieces of a large frame are joined once, when the last one has arrived: joining as they come would cost the square
    of its size.
    """

    __slots__ = ("_have", "_need", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 4

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The complete payloads that ``data`` finishes, in order. Must be iterated to its end."""
        if self._have:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
        start, size = 0, len(data)
        self._need = 4
        while size - start >= 4:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame claims {length:,} bytes: this is not our stream")
            end = start + 4 + length
            if end > size:
                self._need = 4 + length
                break
            yield data[start + 4 : end]
            start = end
        self._have = size - start
        self._parts = [data[start:]] if self._have else []
