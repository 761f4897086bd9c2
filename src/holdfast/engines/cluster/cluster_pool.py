"""The workers, porters and nodes of a cluster, as the driver sees them. One selector, one thread.

Owns: who has dialled in, which nodes can be used, how long a start may take, and why a worker has ended.
Must never: block on another machine, know what an attempt is, or raise because something elsewhere went wrong.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.core.backoff import Backoff
from holdfast.core.events import Cause
from holdfast.engines.cluster import bridge_messages as ray
from holdfast.engines.cluster import handshake
from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.actor_worker import WorkerPlan
from holdfast.engines.cluster.cluster_listener import ClusterListener
from holdfast.engines.cluster.courier import FILES, Courier
from holdfast.engines.cluster.door import Door
from holdfast.engines.cluster.placement import Node, Starting
from holdfast.engines.cluster.received_output import ReceivedOutput
from holdfast.engines.cluster.remote_worker import (
    VERDICT_S,
    RemoteWorker,
    Request,
    cause_of_end,
    patience_with_evidence,
)
from holdfast.engines.link import SocketLink
from holdfast.engines.worker_handle import WorkerHandle
from holdfast.engines.worker_links import READ, WRITE, WorkerLinks

START = Backoff(first_s=20.0, longest_s=300.0)
"""How long a worker may take to dial in before it is tried elsewhere; longer each time, for the cluster may be busy."""

REVIVE_S = 5.0
"""How often a node that was lost, and that the cluster still has, is tried again."""

MAX_STARTS = 5
"""Starts of one worker that may fail in a row before its attempt is given back."""

_log = logging.getLogger(__name__)


class ClusterPool(WorkerLinks):
    """Workers elsewhere.

    Args:
        listener: Who is told.
        listener_socket: Where workers and porters dial in.
        bridge: The connection to the bridge, which has joined the cluster.
        secret: That whoever dials in knows.
        plan: Of porters, without their node.
        courier: Carries files.
        log_dir: For what workers print.
    """

    def __init__(
        self,
        listener: ClusterListener,
        listener_socket: socket.socket,
        bridge: socket.socket,
        secret: str,
        plan: say.PorterPlan,
        courier: Courier,
        log_dir: Path,
        first_number: int,
        max_output_bytes: int | None,
    ) -> None:
        super().__init__(listener, first_number, max_output_bytes)
        self.nodes: dict[str, Node] = {}
        self.failures: dict[str, str] = {}  # by node: why its porter did not start
        self.blind: set[str] = set()  # nodes that do not see the directory that all have to share
        self._told: ClusterListener = listener
        self._plan = msgspec.structs.replace(plan, max_output_bytes=max_output_bytes or 0)
        self._courier = courier
        self._output = ReceivedOutput(log_dir, max_output_bytes, Path(plan.root))
        self._starting: dict[int, Starting] = {}
        self._orders: collections.deque[tuple[str, say.PorterOrder]] = collections.deque()  # of other threads
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()  # for this thread
        self._next_look = 0.0
        self._runner = ""
        self._door = Door(listener_socket, secret, self._selector, self._welcome)
        self._bridge: SocketLink | None = None
        self.attach(bridge)

    @property
    def is_joined(self) -> bool:
        """Whether the cluster can be asked for anything."""
        return self._bridge is not None

    # --- from any thread

    def tell_node(self, node: str, order: say.PorterOrder) -> None:
        """Give an order to a node's porter; one that is gone hears nothing."""
        self._orders.append((node, order))
        self.wake()

    def follow(self, worker: RemoteWorker, paths: list[str]) -> None:
        """Have what is appended to these files sent here, while the worker runs its attempt."""
        for path in paths:
            self._output.begin(path)
        self._order(worker.node, say.FollowFiles(worker.number, [f"{FILES}/{path}" for path in paths]))

    def stop_following(self, worker: RemoteWorker) -> None:
        """Its attempt has ended; ``all_sent`` follows, unless the worker is gone before."""
        self._order(worker.node, say.StopFollowing(worker.number))

    def do_soon(self, job: Callable[[], None]) -> None:
        """Have the loop's thread do this."""
        self._jobs.append(job)
        self.wake()

    # --- the loop

    def attach(self, bridge: socket.socket) -> None:
        """Speak to the cluster over this connection."""
        self._bridge = SocketLink(bridge)
        self._selector.register(self._bridge.socket, READ, self._on_bridge)

    def turn(self, timeout_s: float) -> None:
        """Wait until something happened, and tell the listener of it."""
        now = time.monotonic()
        if self._jobs or self._orders:
            timeout_s = 0.0
        elif self._starting or self._door or self.failures or any(node.lost for node in self.nodes.values()):
            timeout_s = min(timeout_s, max(0.0, self._next_look - now))
        super().turn(timeout_s)
        while self._jobs:
            self._jobs.popleft()()
        while self._orders:
            node, order = self._orders.popleft()
            self._order(node, order)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + 0.5
            self._look_at_starts()
            self._door.drop_silent()
            self._revive()

    def _order(self, node: str, order: say.PorterOrder) -> None:
        found = self.nodes.get(node)
        if found is not None and found.link is not None:
            found.link.send(handshake.frame(order))
            self._watch(found.link)
        elif isinstance(order, say.OpenCarrier):
            self._courier.connected(order.number, None)

    def _send_bridge(self, order: ray.BridgeOrder) -> None:
        if self._bridge is not None:
            self._bridge.send(handshake.frame(order))
            self._watch(self._bridge)

    # --- starting workers

    def start_worker(self, request: Request, node: str, plan: WorkerPlan, tries: int = 0) -> int:
        """Ask for a worker; ``arrived`` or ``not_started`` follows. Returns its number."""
        number = self._next_number
        self._next_number += 1
        self._runner = plan.runner
        self._starting[number] = Starting(request, node, time.monotonic() + START.delay_s(tries + 1), tries)
        bundles = [dict(bundle) for bundle in request.bundles]
        encoded = msgspec.msgpack.encode(msgspec.structs.replace(plan, worker=number))
        self._send_bridge(ray.PlaceWorker(number, encoded, request.total(), bundles, request.strategy, node))
        return number

    def forget_start(self, number: int) -> None:
        """The worker is not wanted any more."""
        if self._starting.pop(number, None) is not None:
            self._send_bridge(ray.EndWorker(number))

    def taken(self, *, leaving: bool = True) -> list[tuple[str, Request]]:
        """Node and request of every worker that runs or was asked for; "" is a node that the cluster chooses."""
        workers = [worker for worker in self.workers.values() if isinstance(worker, RemoteWorker)]
        running = [(worker.node, worker.request) for worker in workers if leaving or not worker.leaving]
        return running + [(start.node, start.request) for start in self._starting.values()]

    def _look_at_starts(self) -> None:
        now = time.monotonic()
        for number, start in list(self._starting.items()):
            if start.deadline <= now and number in self._starting:
                self.forget_start(number)
                where = self.nodes.get(start.node)
                if where is not None and where.usable:
                    _log.info("%s did not start a worker in time", where.facts.host)
                self._told.not_started(number, "it did not dial in")

    # --- who dials in

    def _welcome(self, link: SocketLink, greeting: handshake.Greeting) -> None:
        if greeting.role == "carrier":
            link.socket.setblocking(True)
            self._courier.connected(greeting.number, link.socket)
        elif greeting.role == "porter":
            self._porter_arrived(link, greeting)
        else:
            self._worker_arrived(link, greeting)

    def _worker_arrived(self, link: SocketLink, greeting: handshake.Greeting) -> None:
        start = self._starting.pop(greeting.number, None)
        node = self.nodes.get(greeting.node)
        if start is None:
            link.close()  # too late: another one has its attempt
            return
        if node is None or not node.usable:
            link.close()
            self._send_bridge(ray.EndWorker(greeting.number))
            self._told.not_started(greeting.number, f"it was placed on {greeting.host}, which is not usable now")
            return
        number = greeting.number
        worker = RemoteWorker(number, link, self._output.path(number), greeting, start.request)
        self.workers[number] = worker
        self._selector.register(link.socket, READ, worker)
        self._order(worker.node, say.WatchWorker(number, greeting.pid))
        self._told.arrived(worker)

    # --- porters and nodes

    def see_nodes(self, nodes: list[ray.ClusterNode]) -> None:
        """The cluster says that these are alive."""
        own = self._drivers_own()
        if own is not None and not any(node.drivers_own for node in nodes):
            self._bridge_lost(f"Ray has ended on {own.facts.host}, the driver's own node")
            return
        alive = {node.id: node for node in nodes}
        for identity in [identity for identity in self.nodes if identity not in alive]:
            self._lose(self.nodes[identity], f"{self.nodes[identity].facts.host} is gone from the cluster")
            del self.nodes[identity]
        for identity, facts in alive.items():
            known = self.nodes.get(identity)
            if known is None:
                known = self.nodes[identity] = Node(facts)
                self._ask_for_porter(known)
            is_news = facts.leaves_at is not None and known.facts.leaves_at is None
            known.facts = facts
            if is_news:
                self._told.node_leaves(known)
        self._told.capacity_changed()

    def _drivers_own(self) -> Node | None:
        return next((node for node in self.nodes.values() if node.facts.drivers_own), None)

    def _ask_for_porter(self, node: Node) -> None:
        node.asked, node.asked_at = True, time.monotonic()
        plan = msgspec.structs.replace(self._plan, node=node.facts.id, ip=node.facts.ip)
        self._send_bridge(ray.StartPorter(node.facts.id, msgspec.msgpack.encode(plan)))

    def try_again(self) -> None:
        """Ask once more for the porters that did not start."""
        for identity in list(self.failures):
            node = self.nodes.get(identity)
            if node is not None and node.link is None and not node.asked:
                del self.failures[identity]
                self._ask_for_porter(node)

    def _porter_arrived(self, link: SocketLink, greeting: handshake.Greeting) -> None:
        node = self.nodes.get(greeting.node)
        if node is None or node.link is not None:
            link.close()
            return
        if self._plan.shared and not greeting.sees_root:
            link.close()
            self.blind.add(greeting.node)
            self._unusable(node, f"it cannot see {self._plan.root}, which all nodes have to share")
            return
        self.blind.discard(greeting.node)
        node.link, node.scratch, node.sees_root, node.lost = link, greeting.scratch, greeting.sees_root, ""
        node.user = greeting.user
        self.failures.pop(greeting.node, None)
        self._courier.add_node(greeting.node, greeting.host, node.place)
        self._selector.register(link.socket, READ, lambda mask, node=node: self._on_porter(node, mask))
        self._told.capacity_changed()

    def _revive(self) -> None:
        """Nodes that were lost to us, but not to the cluster, may have come back."""
        now = time.monotonic()
        for node in self.nodes.values() if self.is_joined else ():
            waits = node.link is None and not node.asked and now - node.asked_at > REVIVE_S
            if waits and (node.lost or node.facts.id in self.failures):
                self._ask_for_porter(node)

    def _on_porter(self, node: Node, mask: int) -> None:
        link = node.link
        if link is None:
            return
        if mask & WRITE:
            link.flush()
            self._watch(link)
        if mask & READ:
            try:
                payloads = link.receive()
            except ValueError:
                payloads = None
            if payloads is None:
                self._lose(node, f"the connection to {node.facts.host} was lost")
                return
            read = 0
            for payload in payloads:
                word = say.decode_word(payload)
                if isinstance(word, say.AgentGone):
                    self._agent_gone(node)
                    return
                read += self._hear_porter(word)
            if read:
                self._order(node.facts.id, say.OutputRead(read))

    def _hear_porter(self, word: say.Printed | say.Appended | say.AllSent | say.WorkerGone) -> int:
        """Returns how much output it has brought."""
        if isinstance(word, say.Printed):
            self._output.take(word.worker, word.data)
            return len(word.data)
        if isinstance(word, say.Appended):
            self._output.append(word.path.removeprefix(f"{FILES}/"), word.offset, word.data)
            return len(word.data)
        if isinstance(word, say.AllSent):
            self._all_sent(word.worker)
        else:
            self._buried(word)
        return 0

    def _agent_gone(self, node: Node) -> None:
        why = f"Ray has ended on {node.facts.host}"
        if node.facts.drivers_own:
            self._bridge_lost(f"{why}, the driver's own node")
        self._lose(node, why)

    def _lose(self, node: Node, why: str) -> None:
        """Nothing on this node can be reached any more. What runs there ends itself when its lease is over."""
        if node.link is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(node.link.socket)
            node.link.close()
            node.link = None
        node.lost, node.asked_at = why, time.monotonic()
        self._courier.lose_node(node.facts.id, why)
        for worker in [w for w in self.workers.values() if isinstance(w, RemoteWorker) and w.node == node.facts.id]:
            self._send_bridge(ray.EndWorker(worker.number))  # it ends itself, but its actor would keep its place
            self._gone(worker, Cause.NODE_LOST, why)
        for number, start in list(self._starting.items()):
            if start.node == node.facts.id:
                self.forget_start(number)
                self._told.not_started(number, why)
        self._told.capacity_changed()

    # --- the ends of workers

    def _hang_up(self, worker: WorkerHandle) -> None:
        """The connection has ended. Its porter tells how; if that is silent, too, the node is lost."""
        self._cut(worker)
        assert isinstance(worker, RemoteWorker)
        if worker.leaving:
            self._send_bridge(ray.EndWorker(worker.number))
        if worker.status is None:  # else its end is known, and its cause is waited for
            self._timers.pop(worker.number, None)
            self.arm(worker, handshake.LEASE_S + VERDICT_S if worker.link.unread else VERDICT_S, self._kill_silent)

    def retire(self, worker: WorkerHandle) -> None:
        """Have the worker leave by itself, or else be killed."""
        assert isinstance(worker, RemoteWorker)
        worker.leaving = True
        super().retire(worker)

    def _terminate(self, worker: WorkerHandle) -> None:
        assert isinstance(worker, RemoteWorker)
        self._order(worker.node, say.TerminateTree(worker.number))

    def _kill(self, worker: WorkerHandle) -> None:
        assert isinstance(worker, RemoteWorker)
        self._order(worker.node, say.KillTree(worker.number))
        self._send_bridge(ray.EndWorker(worker.number))

    def _all_sent(self, number: int) -> None:
        worker = self.workers.get(number)
        if isinstance(worker, RemoteWorker):
            self._told.all_sent(worker)

    def _buried(self, word: say.WorkerGone) -> None:
        worker = self.workers.get(word.worker)
        if isinstance(worker, RemoteWorker):
            worker.status = word
            if worker.halted or worker.leaving:
                self._conclude(worker)
            else:
                self._timers.pop(worker.number, None)
                self.arm(worker, patience_with_evidence(worker), self._conclude)

    def _slot_ended(self, word: ray.SlotEnded) -> None:
        worker = self.workers.get(word.worker)
        if isinstance(worker, RemoteWorker):
            worker.verdict = word
            if worker.status is not None:
                self.arm(worker, patience_with_evidence(worker), self._conclude)
            elif word.kind == ray.SLOT_RETURNED:
                self._kill(worker)  # it has left, by itself or because its connection had ended; its process is idle
            return
        start = self._starting.pop(word.worker, None)
        if start is not None:
            self._send_bridge(ray.EndWorker(word.worker))
            detail = f"{word.kind}: {word.text}" if word.text else word.kind
            self._told.not_started(word.worker, detail, word.refused)

    def _conclude(self, worker: WorkerHandle) -> None:
        assert isinstance(worker, RemoteWorker)
        self._send_bridge(ray.EndWorker(worker.number))  # what it occupied is free now
        self._gone(worker, *cause_of_end(worker))
        self._output.settle(worker.number)

    # --- the bridge

    def _on_bridge(self, mask: int) -> None:
        bridge = self._bridge
        if bridge is None:
            return
        if mask & WRITE:
            bridge.flush()
            self._watch(bridge)
        if mask & READ:
            payloads = bridge.receive()
            if payloads is None:
                self._bridge_lost()
                return
            for payload in payloads:
                if self._bridge is bridge:  # else it was given up because of what it has said
                    self._hear_bridge(ray.decode_word(payload))

    def _hear_bridge(self, word: ray.BridgeWord) -> None:
        if isinstance(word, ray.NodesSeen):
            self.see_nodes(word.nodes)
        elif isinstance(word, ray.SlotEnded):
            self._slot_ended(word)
        elif isinstance(word, ray.PorterStarted):
            self._porter_answered(word)

    def _porter_answered(self, word: ray.PorterStarted) -> None:
        node = self.nodes.get(word.node)
        if node is None:
            return
        node.asked, node.asked_at = False, time.monotonic()
        if word.error and node.link is None:
            self._unusable(node, word.error)

    def _unusable(self, node: Node, why: str) -> None:
        if node.facts.id not in self.failures and not node.lost:
            _log.warning("%s cannot be used: %s", node.facts.host, why)
        self.failures[node.facts.id] = why

    def _bridge_lost(self, why: str = "the connection to the Ray cluster was lost") -> None:
        """Every actor dies with the job that started it."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(bridge.socket)
            bridge.close()
        for node in self.nodes.values():
            if node.link is None:  # the next bridge is asked again for those that this one has not answered
                node.asked, node.lost = False, node.lost or why
        for worker in list(self.workers.values()):
            if isinstance(worker, RemoteWorker):
                self._order(worker.node, say.KillTree(worker.number))
            self._gone(worker, Cause.ENGINE_LOST, why)
        for number in list(self._starting):
            del self._starting[number]
            self._told.not_started(number, why)
        self._told.cluster_lost(why)

    # --- the end

    def dismiss_nodes(self, patience_s: float) -> None:
        """Have porters end everything, and wait until they are gone."""
        for node in self.nodes.values():
            if node.link is not None:
                node.link.send(handshake.frame(say.Leave()))
                self._watch(node.link)
        deadline = time.monotonic() + patience_s
        while any(node.link is not None for node in self.nodes.values()) and time.monotonic() < deadline:
            super().turn(min(0.2, max(0.0, deadline - time.monotonic())))

    def close(self) -> None:
        """Close all connections; whoever is at their other ends leaves."""
        for worker in list(self.workers):
            self._output.settle(worker)
        for node in self.nodes.values():
            if node.link is not None:
                node.link.close()
        if self._bridge is not None:
            self._bridge.close()
        self._door.close()
        while self._jobs:  # one may have brought a connection to a cluster that came back just now
            self._jobs.popleft()()
        self.abandon()
