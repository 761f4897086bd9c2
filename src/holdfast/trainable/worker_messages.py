"""The wire: messages from the driver to a worker. Workers answer with ``core.observations``.

Owns these structs, their decoders, and how large one may be. The same messages cross a Unix socket (local engine) and
a network (clusters); must never know which.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Union

import msgspec

from holdfast.core.observations import WorkerMessage
from holdfast.storage.framing import FrameTooLargeError, Framing

FRAMING = Framing(limit=64 * 1024 * 1024, byteorder="little")


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
    max_output_bytes: int = 0  # that are kept of one trial's output; 0 keeps all
    digests: dict[str, str] = {}  # of the two files as the driver knows them, by name
    own_processes: bool = False  # a worker runs one attempt and leaves
    scratch: str = ""  # of a worker on another machine: its node's directory for what is only of use there


class Run(msgspec.Struct, array_like=True, tag="run", frozen=True):
    """Run one attempt of one trial."""

    n: int
    attempt: int
    trial_id: str
    trial_name: str
    trial_dir: str  # relative to the root
    tag: str
    config: dict[Any, Any]  # plain data; objects as markers
    checkpoint: str | None = None  # directory relative to the root to start from
    iteration: int = 0
    time_total: float = 0.0
    timesteps_total: int = 0
    episodes_total: int = 0
    resources: dict[str, float] = {}
    bundles: list[dict[str, float]] = []
    strategy: str = "PACK"
    gpus: tuple[str, ...] = ()  # what CUDA_VISIBLE_DEVICES must be; () hides all
    checkpoint_mark: str = ""  # by it a worker knows the files that the driver has verified (checkpoints.verified)
    checkpoint_digest: str = ""  # of its manifest, as the journal knows it


class Decision(msgspec.Struct, array_like=True, tag="D", frozen=True, gc=False):
    """The answer to the report with this ordinal."""

    ordinal: int
    go: str = "go"  # "go", "stop", "pause"
    save: bool = False  # class trainables save before they continue, stop or pause
    ahead: int = 0  # so many reports may follow this one without waiting for an answer: all would say "go"


class SaveRequest(msgspec.Struct, array_like=True, tag="save", frozen=True, gc=False):
    """The driver is about to end: checkpoint at the next chance (``should_checkpoint()`` turns true)."""


class Quit(msgspec.Struct, array_like=True, tag="quit", frozen=True, gc=False):
    """No further attempts: leave."""


ToWorker = Union[Setup, Run, Decision, SaveRequest, Quit]

_encoder = msgspec.msgpack.Encoder()
_encode_frame = FRAMING.encode
_to_worker = msgspec.msgpack.Decoder(ToWorker)


class Channel(Protocol):
    """A worker's end of the wire. ``receive`` blocks; it raises ``EOFError`` when the driver is gone."""

    def send(self, *messages: WorkerMessage | Encoded) -> None: ...

    def receive(self) -> ToWorker: ...

    def pending(self) -> list[ToWorker]:
        """Messages that have already arrived, without waiting; raises ``EOFError`` when the driver is gone."""
        ...


class Encoded(NamedTuple):
    """A message that was encoded before it is sent, to learn that it can be.

    Attributes:
        payload: The message as msgpack.
        data: The payload as it goes over the wire.
    """

    payload: bytes
    data: bytes


def frame(message: Any) -> bytes:
    """One message, ready to be sent."""
    return message.data if type(message) is Encoded else encoded(message).data


def encoded(message: Any) -> Encoded:
    """Encode a message once for all who need its bytes. Raises ``ValueError`` if it is too large to be sent."""
    try:
        payload = _encoder.encode(message)
        return Encoded(payload, _encode_frame(payload))
    except FrameTooLargeError as error:
        raise ValueError(
            f"{error}; large values belong in a checkpoint or in tune.with_parameters(), not in metrics or config"
        ) from None


def decode_to_worker(payload: bytes | memoryview) -> ToWorker:
    message: ToWorker = _to_worker.decode(payload)
    return message
