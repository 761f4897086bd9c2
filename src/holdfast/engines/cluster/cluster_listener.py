"""What the pool of a cluster's workers tells the engine.

Owns: this interface. Must never: have an implementation.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.engines.cluster.placement import Node
from holdfast.engines.cluster.remote_worker import RemoteWorker
from holdfast.engines.worker_links import PoolListener


class ClusterListener(PoolListener, Protocol):
    """Who is told of workers and nodes."""

    def arrived(self, worker: RemoteWorker) -> None:
        """A worker has dialled in."""

    def not_started(self, number: int, detail: str, refused: bool = False) -> None:
        """A worker that was asked for will not come; ``refused``: nor would any other for such a request."""

    def all_sent(self, worker: RemoteWorker) -> None:
        """Everything that its attempt has written to followed files is here."""

    def capacity_changed(self) -> None:
        """Nodes came or went."""

    def node_leaves(self, node: Node) -> None:
        """The cluster will take a node away."""

    def cluster_lost(self, why: str) -> None:
        """The bridge is gone, and with it every worker."""
