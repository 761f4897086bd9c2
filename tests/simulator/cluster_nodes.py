"""The nodes of a simulated cluster as one driver sees them: who is connected, who is given up, and what waits for them.

What ``engines.cluster.cluster_pool`` does with sockets and Ray happens here as events of the story: a node that is
silent is given up when the lease is over, one that the cluster lists is asked for its porter again and again.

Owns connections to nodes. Must never choose a node, or know what an attempt does: ``cluster_engine`` does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from holdfast.core.events import Cause
from holdfast.core.observations import Capacity, Died
from holdfast.engines.cluster.bridge_messages import ClusterNode
from holdfast.engines.cluster.cluster_pool import REVIVE_S
from holdfast.engines.cluster.handshake import LEASE_S
from holdfast.engines.cluster.placement import Node, sizes_of
from holdfast.engines.cluster.remote_worker import Request
from holdfast.trainable.worker_messages import Run, Setup
from simulator.engine import LATENCY_S, EngineHost, FakeEngine, FakeProcess
from simulator.machines import Machines, SimNode

PORTER_S = 0.05

_PORTER: Any = object()
"""The connection to a porter, of which nobody asks anything here."""


class ClusterHost(EngineHost, Protocol):
    """The driver process of such an engine, and the network between it and its workers."""

    def placed(self, process: FakeProcess, node: str, lost: str) -> None:
        """A worker for an attempt is started on a node; ``lost`` says why the engine has given that up."""

    def refused(self, process: FakeProcess, cause: str) -> None:
        """An attempt ends before it has begun."""

    def given_up(self, process: FakeProcess) -> None:
        """An attempt is given up with its node, or with all others."""


class Link:
    """The connections to a node, from when it joins until it is given up.

    Attributes:
        silent_since: Nothing gets through, in either direction.
        lost: Why the node was given up.
        attempts: That the engine has there, and whose end it has not told.
        up, down: What waits until something gets through, from the node and to it.
    """

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.id = node.id
        self.silent_since: float | None = None
        self.lost = ""
        self.attempts: dict[tuple[int, int], ClusterProcess] = {}
        self.workers: dict[int, SimWorker] = {}
        self.up: list[Callable[[], None]] = []
        self.down: list[Callable[[], None]] = []


class SimWorker(NamedTuple):
    """A worker process on a node, as ``placement`` knows them."""

    number: int
    node: str
    request: Request


class Coming(NamedTuple):
    """A worker that was asked for."""

    process: ClusterProcess
    tries: int
    node: str
    request: Request


class ClusterProcess(FakeProcess):
    """An attempt, from when the engine is given it.

    Attributes:
        engine: Whose it is.
        link: To the node of its worker; None before it has one.
        begun: It runs there.
        given_up: Its end was told, whatever it says.
    """

    def __init__(self, run: Run, engine: ConnectedNodes) -> None:
        super().__init__(run, 0)
        self.engine = engine
        self.link: Link | None = None
        self.begun = self.given_up = False

    @property
    def connection(self) -> Link:
        assert self.link is not None
        return self.link

    def end_with_node(self, how: str) -> None:
        """It is gone, and cannot say so."""
        self.engine.end_silently(self, how)


class ConnectedNodes(FakeEngine):
    """The part of the engine that is about nodes.

    Args:
        machines: Where attempts run.
        host: What programs run and what goes wrong.

    Attributes:
        links: To the nodes that were ever connected, by their newest connection.
    """

    def __init__(self, machines: Machines, host: ClusterHost) -> None:
        super().__init__(machines.timeline, host, 0.0)
        self.machines = machines
        self.links: dict[str, Link] = {}
        self._nodes: dict[str, Node] = {}
        self._told: ClusterHost = host
        self._coming: dict[int, Coming] = {}
        self._warm: dict[Request, dict[int, Link]] = {}  # idle workers
        self._capacity: Capacity | None = None
        self._is_joined = True

    def open(self, setup: Setup) -> None:
        self._host.step("engine open")
        self._next_worker = setup.worker
        self.machines.watchers.append(self)
        for node in self.machines.nodes:
            if node.listed:
                self._add(node)
                self._connect(node.id)
        self._tell_capacity()

    @abstractmethod
    def _launch_waiting(self) -> None:
        """There may be room for attempts that wait."""

    @abstractmethod
    def _not_started(self, number: int, why: str) -> None:
        """A worker that was asked for will not come."""

    @abstractmethod
    def _vacate(self, number: int) -> None:
        """What a worker occupied is free."""

    @abstractmethod
    def end_silently(self, process: ClusterProcess, how: str) -> None:
        """A process is gone with its machine, or by itself because its lease is over."""

    # --- nodes

    def _add(self, node: SimNode) -> None:
        facts = ClusterNode(node.id, node.name, "10.0.0.1", {"CPU": node.cpus})
        self._nodes[node.id] = Node(facts)

    def nodes_changed(self) -> None:
        if self._closed:
            return
        listed = {node.id: node for node in self.machines.nodes if node.listed}
        for identity in [identity for identity in self._nodes if identity not in listed]:
            self._lose(identity, "it is gone from the cluster")
            del self._nodes[identity]
        for identity, node in listed.items():
            if identity not in self._nodes:
                self._add(node)
                self._ask_for_porter(identity)
        self._tell_capacity()

    def _ask_for_porter(self, identity: str, delay_s: float = PORTER_S) -> None:
        self._timeline.later(delay_s, partial(self._porter_starts, identity))

    def _porter_starts(self, identity: str) -> None:
        known = self._nodes.get(identity)
        if not self._closed and known is not None and not known.usable and self._connect(identity):
            self._tell_capacity()
            self._launch_waiting()

    def _connect(self, identity: str) -> bool:
        """A porter dials in from a node that can be reached; any other is asked again and again."""
        node = next((node for node in self.machines.nodes if node.id == identity and node.is_reachable), None)
        if node is None:
            self._ask_for_porter(identity, REVIVE_S)
            return False
        self.links[identity] = Link(node)
        known = self._nodes[identity]
        known.link, known.lost = _PORTER, ""
        return True

    def node_silent(self, node: SimNode) -> None:
        link = self.links.get(node.id)
        if link is None or link.lost:
            return
        link.silent_since = since = self._timeline.now
        self._timeline.later(self.machines.lease_s(), lambda: self._lease_over(link, since))

    def _lease_over(self, link: Link, since: float) -> None:
        if link.silent_since == since:
            self._lose(link.id, "nothing was heard of it for 10 s")

    def node_back(self, node: SimNode, former: str) -> None:
        link = self.links.get(former)
        if link is None or link.lost or link.silent_since is None:
            return
        if node.id != former or self._timeline.now - link.silent_since >= LEASE_S:
            self._lose(former, "the connection was reset")
            return
        link.silent_since = None
        waiting, link.down = link.down, []
        arriving, link.up = link.up, []
        for action in (*arriving, *waiting):
            action()

    def _lose(self, identity: str, why: str) -> None:
        """Nothing on this node can be reached any more."""
        link = self.links.get(identity)
        if self._closed or link is None or link.lost:
            return
        link.lost, link.silent_since = why, None
        known = self._nodes[identity]
        known.link, known.lost = None, why
        self._ask_for_porter(identity, REVIVE_S)
        for number, worker in link.workers.items():
            self._vacate(number)
            self._warm.get(worker.request, {}).pop(number, None)
        self._give_up(link, Cause.NODE_LOST, f"{link.node.name}: {why}")
        link.down.clear()
        for number in [number for number, coming in self._coming.items() if coming.node == identity]:
            self._not_started(number, why)
        arriving, link.up = link.up, []
        for action in arriving:
            action()
        self._tell_capacity()
        self._launch_waiting()

    def _give_up(self, link: Link, cause: str, detail: str) -> None:
        """No attempt on a node is heard any more."""
        for key, process in link.attempts.items():
            process.halting = process.given_up = True
            self._told.given_up(process)
            self._arrived(Died(*key, cause, detail, worker=process.worker))
            if not process.begun:
                process.alive = False
        link.attempts.clear()

    def lose_cluster(self, seconds: float) -> None:
        """The connection to the cluster itself is lost, and with it every worker; nodes stay connected."""
        if self._closed or not self._is_joined:
            return
        self._is_joined = False
        self.machines.note("the cluster is lost", f"for {seconds:.1f} s")
        for link in self.links.values():
            for process in [process for process in link.attempts.values() if process.begun]:
                self._timeline.later(LATENCY_S, partial(self._kill_given_up, process))
            for number in list(link.workers):
                self._vacate(number)
            link.workers.clear()
            if not link.lost:
                self._give_up(link, Cause.ENGINE_LOST, "the connection to the cluster was lost")
        self._warm.clear()
        for number in list(self._coming):
            self._not_started(number, "the connection to the cluster was lost")
        self._timeline.later(seconds, self._rejoin)

    def _kill_given_up(self, process: ClusterProcess) -> None:
        if not self._is_held_back(process, partial(self._kill_given_up, process)):
            self.end_silently(process, "its cluster was lost")

    def _rejoin(self) -> None:
        self._is_joined = True
        self._launch_waiting()

    def _tell_capacity(self) -> None:
        usable = [node.facts.resources for node in self._nodes.values() if node.usable]
        offer = Capacity({"CPU": sum(size["CPU"] for size in usable)}, sizes_of(usable))
        if offer != self._capacity:
            self._capacity = offer
            self._arrived(offer)

    def _is_held_back(self, process: ClusterProcess, action: Callable[[], None]) -> bool:
        """Whether something cannot reach a process now: it waits, or never will."""
        link = process.connection
        if link.lost:
            return True
        if link.silent_since is not None:
            link.down.append(action)
            return True
        return False
