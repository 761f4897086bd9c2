"""What the driver and the porter of a node say to each other, and how a carrier is asked for files.

Owns: these structs and their decoders. Must never: touch a socket or a file.
"""

from __future__ import annotations

from typing import Union

import msgspec

from holdfast.checkpoints.stage_sending import SentStage, StageRef
from holdfast.storage.store_access import StoreAccess

WORKER_LOG = "worker-{}.log"
"""Name of the file that a worker prints to, below ``LOGS`` of its scratch directory."""

LOGS = ".holdfast/logs"

PROBE = ".probe"
"""A directory of a scratch directory, with ``PROBE_FILE`` in it, if the plan asks for it."""

PROBE_FILE = "below/probe"


class PorterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a porter starts; it travels as JSON to its standard input."""

    addresses: list[tuple[str, int]]  # of the driver
    secret: str
    node: str
    ip: str
    run: str  # of this driver's engine: marks its processes and names its scratch directory
    experiment: str  # uid, so that leftovers of earlier drivers of it can be told from those of others
    scratch: str = ""  # where scratch directories are made; "" for the system's temporary directory
    root: str = ""  # of the experiment on the driver's disk
    marker: str = ""  # a file below it, and what is in it: proves that the node sees the same root
    marked: str = ""
    boot: str = ""  # of the driver's machine
    shared: bool = False  # every node must see the root
    probe: str = ""  # what a file below ``PROBE`` says, so that it can be tried whether a command can copy it; "": none
    agent: int = 0  # the cluster's own process on the node, whose end ends all that the cluster has started; 0: unknown
    store: StoreAccess | None = None  # where checkpoints go; None if nodes do not send them
    max_output_bytes: int = 0  # of one file that waits to be sent; 0 keeps all


decode_porter_plan = msgspec.msgpack.Decoder(PorterPlan).decode


class WatchWorker(msgspec.Struct, array_like=True, tag="watch", frozen=True):
    """Tell how this process ends, and send what it prints."""

    worker: int
    pid: int


class FollowFiles(msgspec.Struct, array_like=True, tag="follow", frozen=True):
    """Send what is appended to these files, below the scratch directory, while this worker runs its attempt."""

    worker: int
    paths: list[str]


class StopFollowing(msgspec.Struct, array_like=True, tag="unfollow", frozen=True):
    """The worker's attempt has ended: send what is left of its files, then ``AllSent``."""

    worker: int


class TerminateTree(msgspec.Struct, array_like=True, tag="term", frozen=True):
    """SIGTERM to the worker."""

    worker: int


class KillTree(msgspec.Struct, array_like=True, tag="kill", frozen=True):
    """Kill everything that the worker is and has started; ``WorkerGone`` follows."""

    worker: int


class OpenCarrier(msgspec.Struct, array_like=True, tag="carrier", frozen=True):
    """Dial the driver once more, with this number, and serve what is asked there."""

    number: int


class Remove(msgspec.Struct, array_like=True, tag="remove", frozen=True):
    """Remove a directory below the scratch directory."""

    path: str


class OutputRead(msgspec.Struct, array_like=True, tag="read", frozen=True):
    """The driver has read so many bytes of output since the last of these."""

    size: int


class Leave(msgspec.Struct, array_like=True, tag="leave", frozen=True):
    """End all workers, send what they printed, remove the scratch directory, go."""


PorterOrder = Union[
    WatchWorker, FollowFiles, StopFollowing, TerminateTree, KillTree, OpenCarrier, Remove, OutputRead, Leave
]


class Printed(msgspec.Struct, array_like=True, tag="printed", frozen=True):
    """What a worker has printed since the last of these."""

    worker: int
    data: bytes


class Appended(msgspec.Struct, array_like=True, tag="appended", frozen=True):
    """What was written to a followed file, from this offset."""

    path: str
    offset: int
    data: bytes


class WorkerGone(msgspec.Struct, array_like=True, tag="gone", frozen=True):
    """A watched worker has ended, and nothing that it started is left."""

    worker: int
    status: int  # as from waitpid(); -1 if the kernel does not tell it to strangers
    oom: bool
    evidence: str = ""  # the last line of a crash report, if it left one


class AllSent(msgspec.Struct, array_like=True, tag="sent", frozen=True):
    """Nothing more comes of the files that were followed for this worker's attempt."""

    worker: int


class AgentGone(msgspec.Struct, array_like=True, tag="agent", frozen=True):
    """The cluster's own process on this node has ended: what it had started ends, too, through no fault of a trial."""


PorterWord = Union[Printed, Appended, AllSent, WorkerGone, AgentGone]


class TreeEntry(msgspec.Struct, array_like=True, frozen=True):
    """A file of a directory: its path there, mode, size and time."""

    path: str
    mode: int
    size: int
    mtime_ns: int


class Tree(msgspec.Struct, array_like=True, tag="tree", frozen=True):
    """A directory. The contents of its files follow, in this order."""

    files: tuple[TreeEntry, ...]
    dirs: tuple[str, ...] = ()


class Fetch(msgspec.Struct, array_like=True, tag="fetch", frozen=True):
    """Send a directory."""

    path: str


class FetchChanged(msgspec.Struct, array_like=True, tag="changed", frozen=True):
    """Send those files of a trial's directory that are not as they were: (size, time) by path.

    ``without``: those that are followed as they grow.
    """

    path: str
    known: dict[str, tuple[int, int]]
    without: tuple[str, ...] = ()


class StoreTree(msgspec.Struct, array_like=True, tag="store", frozen=True):
    """Take a directory. Its tree and the contents follow.

    ``whole``: it appears at once, or not at all, and what stood there is replaced. Otherwise its files do, each by
    itself.
    """

    path: str
    whole: bool


class Discard(msgspec.Struct, array_like=True, tag="discard", frozen=True):
    """Remove a directory, but for these entries of it; when that is answered, nothing of it is left at its place."""

    path: str
    kept: tuple[str, ...] = ()


class SendStage(msgspec.Struct, array_like=True, tag="send", frozen=True):
    """Upload a sealed stage to the store."""

    stage: StageRef


class CheckStage(msgspec.Struct, array_like=True, tag="check", frozen=True):
    """Read a sealed stage through; ``Done`` if it is what was sealed."""

    stage: StageRef


class FetchStart(msgspec.Struct, array_like=True, tag="start", frozen=True):
    """Have a good copy of a checkpoint, which has this digest, at its place; fetch it from the store if needed."""

    key: str
    digest: str


class StageSent(msgspec.Struct, array_like=True, tag="uploaded", frozen=True):
    """The files of the stage are in the store."""

    sent: SentStage


class Damaged(msgspec.Struct, array_like=True, tag="damaged", frozen=True):
    """The stage is not what was sealed, or the checkpoint is not what was committed."""

    reason: str


class NoStore(msgspec.Struct, array_like=True, tag="nostore", frozen=True):
    """This node cannot use the store."""

    why: str


class Done(msgspec.Struct, array_like=True, tag="done", frozen=True):
    """What was asked is done."""


class NotThere(msgspec.Struct, array_like=True, tag="missing", frozen=True):
    """There is no such directory."""


class Failed(msgspec.Struct, array_like=True, tag="failed", frozen=True):
    """It cannot be done: the error number of the operating system, and words."""

    errno: int
    text: str


CarrierRequest = Union[Fetch, FetchChanged, StoreTree, Discard, SendStage, CheckStage, FetchStart]
CarrierAnswer = Union[Tree, Done, NotThere, Failed, StageSent, Damaged, NoStore]

decode_order = msgspec.msgpack.Decoder(PorterOrder).decode
decode_word = msgspec.msgpack.Decoder(PorterWord).decode
decode_request = msgspec.msgpack.Decoder(CarrierRequest).decode
decode_answer = msgspec.msgpack.Decoder(CarrierAnswer).decode
decode_tree = msgspec.msgpack.Decoder(Tree).decode
