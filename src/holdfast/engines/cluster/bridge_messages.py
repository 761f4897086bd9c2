"""What the engine and its bridge to the cluster say to each other.

Owns: these structs and their decoders. Must never: import the cluster's library.
"""

from __future__ import annotations

from typing import Union

import msgspec


class ClusterNode(msgspec.Struct, array_like=True, frozen=True):
    """A machine of the cluster that is alive, as far as the cluster knows.

    ``leaves_at``: when the cluster takes it away, as ``time.time()``; 0.0 if nobody knows when, None if it stays.
    ``drivers_own``: the bridge has joined through it, so the cluster ends every worker when it is lost.
    """

    id: str
    host: str
    ip: str
    resources: dict[str, float]
    head: bool = False
    leaves_at: float | None = None
    drivers_own: bool = False


class OpenCluster(msgspec.Struct, array_like=True, tag="open", frozen=True):
    """Join the cluster at this address; "" for the one that this process is in already."""

    address: str


class PlaceWorker(msgspec.Struct, array_like=True, tag="start", frozen=True):
    """Place a worker.

    ``node``: where, "" to let the cluster choose. ``bundles``: if more than one, a placement group of them, and the
    worker in the first.
    """

    worker: int
    plan: bytes
    request: dict[str, float]
    bundles: list[dict[str, float]]
    strategy: str
    node: str


class EndWorker(msgspec.Struct, array_like=True, tag="end", frozen=True):
    """Give back what the worker occupies."""

    worker: int


class StartPorter(msgspec.Struct, array_like=True, tag="porter", frozen=True):
    """Start the porter of a node."""

    node: str
    plan: bytes


BridgeOrder = Union[OpenCluster, PlaceWorker, EndWorker, StartPorter]


class ClusterJoined(msgspec.Struct, array_like=True, tag="opened", frozen=True):
    """The cluster was joined."""

    address: str
    ip: str  # of this machine, as the cluster sees it
    nodes: list[ClusterNode]


class Refused(msgspec.Struct, array_like=True, tag="refused", frozen=True):
    """The cluster cannot be joined: why, and what to do."""

    text: str


class NodesSeen(msgspec.Struct, array_like=True, tag="nodes", frozen=True):
    """Which machines are alive; told when that changes."""

    nodes: list[ClusterNode]


SLOT_RETURNED = "returned"
"""What the cluster says of a worker that has left by itself."""


class SlotEnded(msgspec.Struct, array_like=True, tag="slot", frozen=True):
    """The cluster says that a worker has ended: ``kind`` is `SLOT_RETURNED` or the name of the cluster's error.

    If the driver's own node was lost before a worker died, ``NodesSeen`` without it comes first.
    ``refused``: it was never begun, and the same request will always be refused.
    """

    worker: int
    kind: str
    text: str
    refused: bool = False


class PorterStarted(msgspec.Struct, array_like=True, tag="started", frozen=True):
    """A porter has reached the driver, or ``error`` says why not."""

    node: str
    error: str


BridgeWord = Union[ClusterJoined, Refused, NodesSeen, SlotEnded, PorterStarted]

decode_order = msgspec.msgpack.Decoder(BridgeOrder).decode
decode_word = msgspec.msgpack.Decoder(BridgeWord).decode
