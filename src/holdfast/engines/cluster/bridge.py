"""The bridge to Ray: the only module that imports it. Ray places workers and tells of nodes and deaths; nothing else.

The bridge is a process of its own, because losing the cluster's head aborts the process that has joined it. If the user
has joined a cluster in the driver's process, it is a thread there instead: object references belong to that process.

Owns: actors, placement groups, the list of nodes. Must never: know what an attempt is.
"""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast import _version
from holdfast.engines import kernel, process_tree
from holdfast.engines.cluster import bridge_messages as say
from holdfast.engines.cluster.handshake import HandshakeError, frame, receive_frame
from holdfast.engines.cluster.joined import knock

LOOK_S = 1.0
"""How often the cluster is asked for its nodes."""

TOKEN_ADVICE = (
    "The cluster's nodes do not agree on authentication: set RAY_AUTH_MODE=token and give every node and this machine "
    "the same token (RAY_AUTH_TOKEN or ~/.ray/auth_token), or set RAY_AUTH_MODE=disabled everywhere."
)

_UNCOUNTED = ("node:", "object_store_memory", "bundle_group_", "accelerator_type:")


class Bridge:
    """Serves one engine.

    Args:
        sock: The connection to it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._actors: dict[int, Any] = {}
        self._groups: dict[int, Any] = {}
        self._nodes: list[say.ClusterNode] = []
        self._own_node = ""
        self._deaths: queue.SimpleQueue[say.SlotEnded] = queue.SimpleQueue()
        self._drains: dict[str, float] = {}
        self._ended = threading.Event()
        self._ray: Any = None

    def serve(self) -> None:
        """Obey until the engine hangs up."""
        try:
            while True:
                order = say.decode_order(receive_frame(self._sock))
                try:
                    self._carry_out(order)
                except Exception as error:
                    self._report_failure(order, error)
        except (OSError, msgspec.DecodeError, HandshakeError):
            pass
        finally:
            self._ended.set()
            for worker in list(self._actors):
                with contextlib.suppress(Exception):
                    self._end(worker)
            with self._sending:
                self._sock.close()

    def _say(self, word: say.BridgeWord) -> None:
        with contextlib.suppress(OSError), self._sending:
            self._sock.sendall(frame(word))

    def _carry_out(self, order: say.BridgeOrder) -> None:
        if isinstance(order, say.OpenCluster):
            self._open(order.address)
        elif isinstance(order, say.PlaceWorker):
            self._start(order)
        elif isinstance(order, say.EndWorker):
            self._end(order.worker)
        else:
            self._start_porter(order)

    def _report_failure(self, order: say.BridgeOrder, error: Exception) -> None:
        traceback.print_exc()
        if isinstance(order, say.OpenCluster):
            self._say(say.Refused(_why_not(order.address, error)))
        elif isinstance(order, say.PlaceWorker):
            refused = isinstance(error, ValueError | TypeError)  # by Ray's client, whatever the cluster has
            self._say(say.SlotEnded(order.worker, type(error).__name__, _shortened(str(error)), refused))
        elif isinstance(order, say.StartPorter):
            self._say(say.PorterStarted(order.node, f"{type(error).__name__}: {error}"))

    # --- joining

    def _open(self, address: str) -> None:
        import ray

        self._ray = ray
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        context = ray.get_runtime_context()
        self._own_node = str(context.get_node_id())
        self._nodes = self._alive()
        ip = ray.util.get_node_ip_address()
        if not any(node.drivers_own for node in self._nodes):
            self._say(say.Refused(f"Ray has ended on this machine ({ip}): run `ray start` here again."))
            return
        self._say(say.ClusterJoined(str(context.gcs_address), str(ip), self._nodes))
        threading.Thread(target=self._watch_nodes, daemon=True, name="holdfast-nodes").start()

    def _alive(self) -> list[say.ClusterNode]:
        found, drained = [], self._drained()
        for node in self._ray.nodes():
            is_own = node.get("NodeID") == self._own_node
            if node.get("Alive") and not (is_own and _has_ended(node)):
                resources = {
                    name: float(amount)
                    for name, amount in node.get("Resources", {}).items()
                    if not name.startswith(_UNCOUNTED)
                }
                head = "node:__internal_head__" in node.get("Resources", {})
                host, ip = str(node.get("NodeManagerHostname", "")), str(node.get("NodeManagerAddress", ""))
                identity = str(node["NodeID"])
                found.append(say.ClusterNode(identity, host, ip, resources, head, drained.get(identity), is_own))
        return sorted(found, key=lambda node: node.id)

    def _drained(self) -> dict[str, float]:
        """Nodes that the cluster takes away (preemption, `ray drain-node`), and when. No public function tells it."""
        # If the head does not answer now, they are those of before; in a Ray without this function, none.
        with contextlib.suppress(Exception):
            from ray._private.state import state

            self._drains = {str(node): at_ms / 1000.0 for node, at_ms in state.get_draining_nodes().items()}
        return self._drains

    def _watch_nodes(self) -> None:
        while not self._ended.is_set():
            deaths: list[say.SlotEnded] = []
            with contextlib.suppress(queue.Empty):
                deaths.append(self._deaths.get(timeout=LOOK_S))
                while True:
                    deaths.append(self._deaths.get_nowait())
            self._look()
            for death in deaths:
                self._say(death)

    def _look(self) -> None:
        try:
            nodes = self._alive()
        except Exception:
            traceback.print_exc()
            return
        if nodes != self._nodes:
            self._nodes = nodes
            self._say(say.NodesSeen(nodes))

    # --- workers

    def _start(self, order: say.PlaceWorker) -> None:
        if len(order.bundles) > 1:
            from ray.util.placement_group import placement_group

            group = self._groups[order.worker] = placement_group(order.bundles, strategy=order.strategy)
            self._when_done(group.ready(), partial(self._place_in, order, group))
        else:
            self._create(order, self._affinity(order.node) if order.node else "DEFAULT", order.request)

    def _place_in(self, order: say.PlaceWorker, group: Any, error: BaseException | None) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if error is not None or order.worker not in self._groups:
            self._say(say.SlotEnded(order.worker, type(error).__name__, str(error)))
            return
        inside = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
        self._create(order, inside, order.bundles[0])

    def _affinity(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=False)

    def _create(self, order: say.PlaceWorker, strategy: Any, request: dict[str, float]) -> None:
        options = {
            "num_cpus": request.get("CPU", 0.0),
            "num_gpus": request.get("GPU", 0.0),
            "resources": {k: v for k, v in request.items() if k not in ("CPU", "GPU", "memory")},
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": 1,  # with more, user code would not run in the main thread
            "scheduling_strategy": strategy,
        }
        if request.get("memory"):
            options["memory"] = request["memory"]
        actor = self._ray.remote(WorkerActor).options(**options).remote()
        self._actors[order.worker] = actor
        self._when_done(actor.serve.remote(order.plan), partial(self._slot_ended, order.worker))

    def _slot_ended(self, worker: int, error: BaseException | None) -> None:
        if error is None:
            self._say(say.SlotEnded(worker, say.SLOT_RETURNED, ""))
        else:
            # The cluster may have ended it because the driver's own node is lost: that has to be told before.
            self._deaths.put(say.SlotEnded(worker, type(error).__name__, _shortened(str(error))))

    def _end(self, worker: int) -> None:
        actor, group = self._actors.pop(worker, None), self._groups.pop(worker, None)
        if actor is not None:
            with contextlib.suppress(Exception):
                self._ray.kill(actor, no_restart=True)
        if group is not None:
            from ray.util.placement_group import remove_placement_group

            with contextlib.suppress(Exception):
                remove_placement_group(group)

    # --- porters

    def _start_porter(self, order: say.StartPorter) -> None:
        task = self._ray.remote(start_porter).options(
            num_cpus=0, max_retries=0, scheduling_strategy=self._affinity(order.node)
        )
        mine = {"python": platform.python_version(), "holdfast": _version.__version__}
        self._when_done(task.remote(order.plan, mine), partial(self._porter_started, order.node), result=True)

    def _porter_started(self, node: str, outcome: Any) -> None:
        error = (
            f"{type(outcome).__name__}: {_shortened(str(outcome))}" if isinstance(outcome, BaseException) else outcome
        )
        self._say(say.PorterStarted(node, error))

    def _when_done(self, ref: Any, tell: Callable[[Any], None], *, result: bool = False) -> None:
        def done(future: Any) -> None:
            error = future.exception()
            tell(future.result() if result and error is None else error)

        ref.future().add_done_callback(done)


class WorkerActor:
    """The actor: one worker at a time."""

    def serve(self, plan: bytes) -> None:
        import ray

        from holdfast.engines.cluster import actor_worker

        context = ray.get_runtime_context()
        actor_worker.serve(actor_worker.decode_plan(plan), context.get_node_id(), ray.util.get_node_ip_address())


def start_porter(plan: bytes, driver: dict[str, str]) -> str:
    """Runs on a node: start its porter. Returns "", or why there is none."""
    from holdfast.engines.cluster import node_messages, porter

    here = {"python": platform.python_version(), "holdfast": _version.__version__}
    if here["holdfast"] != driver["holdfast"] or here["python"].split(".")[:2] != driver["python"].split(".")[:2]:
        return (
            f"{socket.gethostname()} has Python {here['python']} and holdfast {here['holdfast']}, the driver has "
            f"Python {driver['python']} and holdfast {driver['holdfast']}: install the same on every node"
        )
    decoded = node_messages.decode_porter_plan(plan)
    return porter.start_daemon(msgspec.structs.replace(decoded, agent=_raylet()))


def _raylet() -> int:
    """The process of Ray that has started this one; 0 if that cannot be known."""
    parent = process_tree.look(os.getppid())
    return parent.pid if parent is not None and parent.name == "raylet" else 0


def _has_ended(node: dict[str, Any]) -> bool:
    """Whether Ray has ended on this machine, which is this node; the cluster itself needs some 12 s to notice."""
    try:
        knock(str(node.get("NodeManagerAddress", "")), int(node.get("NodeManagerPort", 0)))
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)  # else it is busy
    return False


def _shortened(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:12])[:2000]


def _why_not(address: str, error: Exception) -> str:
    text = _shortened(str(error))
    if "Auth" in type(error).__name__ or "AuthToken" in text:
        return f"Ray at {address!r} refuses this machine: {text}. {TOKEN_ADVICE}"
    if isinstance(error, ImportError):
        return f"Ray is not installed here ({error}): pip install 'holdfast[ray]'"
    if isinstance(error, ConnectionError) and _is_heard(address):  # Ray does not say more if a token is missing
        return (
            f"Somebody listens at {address!r}, but Ray could not join: {text}. If the head of a cluster is there, it "
            f"asks for a token. {TOKEN_ADVICE}"
        )
    return (
        f"There is no Ray cluster at {address!r}: {type(error).__name__}: {text}. Start one with `ray start --head`, "
        "or give its address: RunConfig(engine=RayEngine(address='HOST:6379'))."
    )


def _is_heard(address: str) -> bool:
    """Whether anybody listens at an address."""
    host, _, port = address.rpartition(":")
    try:
        knock(host, int(port))
    except (OSError, ValueError):
        return False
    return True


def hang_up_with(driver: int, sock: socket.socket) -> None:
    """End the connection when the driver's process has ended: others may have a copy of its end of it."""
    pidfd = kernel.open_pidfd(driver)
    if pidfd is not None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()
        os.close(pidfd)
    elif not hasattr(os, "pidfd_open") or process_tree.is_running(driver):
        return  # the end of the connection has to do
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Entry of the bridge as a process of its own; its connection is a descriptor that it inherits."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    threading.Thread(target=hang_up_with, args=(int(sys.argv[2]), sock), daemon=True, name="holdfast-driver").start()
    try:
        Bridge(sock).serve()
    finally:
        os._exit(0)  # Ray's own shutdown may wait for a head that is gone; leaving is enough


if __name__ == "__main__":
    main()
