"""The engine for clusters: attempts run in workers on other machines, which a cluster places and which dial in here.

Owns: which attempt is in which worker on which node, and what it is given there.
Must never: decide about a trial, or raise because something outside went wrong once it is open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from holdfast.core.events import Cause, ErrorFacts
from holdfast.core.observations import (
    Capacity,
    Died,
    Hint,
    Interrupted,
    Joined,
    Observation,
    Raised,
    Report,
    Saved,
    Waiting,
)
from holdfast.engines.cluster import bridge_messages as ray
from holdfast.engines.cluster import handshake
from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.actor_worker import WorkerPlan
from holdfast.engines.cluster.attempt_queue import AttemptQueue
from holdfast.engines.cluster.bridge_process import REJOIN_S, BridgeProcess, join_cluster, rejoin_cluster
from holdfast.engines.cluster.cluster_opening import (
    ClusterSettings,
    open_door,
    porter_plan,
    try_copier,
    wait_for_nodes,
)
from holdfast.engines.cluster.cluster_pool import ClusterPool
from holdfast.engines.cluster.collector import Collector
from holdfast.engines.cluster.courier import Courier
from holdfast.engines.cluster.deliveries import Deliveries, ExperimentFiles
from holdfast.engines.cluster.node_sender import NodeSender, StoreStarts
from holdfast.engines.cluster.placement import Node, sizes_of, sum_of, why_never
from holdfast.engines.cluster.preemption import Preemption
from holdfast.engines.cluster.remote_worker import RemoteWorker
from holdfast.engines.nanny_messages import Hello, WorkerWord, decode_word
from holdfast.engines.worker import DEFAULT_RUNNER
from holdfast.engines.worker_engine import WorkerEngine
from holdfast.engines.worker_handle import AttemptEnd, WorkerHandle
from holdfast.errors import InternalError, InvalidInputError, TuneError
from holdfast.storage import trial_logs
from holdfast.storage.local import write_atomic
from holdfast.trainable.worker_messages import Run, Setup, frame

LEAVE_S = 5.0
"""How long porters may take to end what is left on their nodes."""

_MARKER = ".holdfast/cluster-{}.marker"
_log = logging.getLogger(__name__)


class ClusterEngine(WorkerEngine):
    """Runs attempts on a Ray cluster (``engines.base.Engine``, ``engines.base.RunsElsewhere``).

    Args:
        settings: A ``RayEngine``.
        files: What attempts need.
        log_dir: What trials print is kept here.
        runner: "module:function" that a worker calls with its setup and channel.
    """

    def __init__(
        self, settings: ClusterSettings, files: ExperimentFiles, *, log_dir: Path, runner: str = DEFAULT_RUNNER
    ) -> None:
        super().__init__()
        self._settings = settings
        self._files = files
        self._log_dir = Path(log_dir)
        self._runner = runner
        self._owner = os.getpid()
        self._run_id = secrets.token_hex(4)
        self._secret = handshake.new_secret()
        self._pool: ClusterPool | None = None
        self._courier: Courier | None = None
        self._sender: NodeSender | None = None
        self._collector: Collector | None = None
        self._bridge: BridgeProcess | None = None
        self._addresses: list[tuple[str, int]] = []
        self._queue = AttemptQueue(self._idle, self._give, self, settings.spares)
        self._deliveries: Deliveries | None = None
        self._preemption = Preemption()
        self.lost = ""  # see ``NeedsCluster``
        self._cluster: ray.ClusterJoined | None = None
        self._capacity = Capacity({})
        self._is_open = False  # until then capacity only grows, and is told once
        self._marker = Path(files.root) / _MARKER.format(self._run_id)

    # --- what others ask of an engine that runs elsewhere

    def bring(self, trial_dir: str, sealed: str, attempt: int) -> None:
        """See ``RunsElsewhere``."""
        if self._courier is not None:
            self._courier.bring(trial_dir, sealed, attempt)

    def drop(self, trial_dir: str, sealed: str) -> None:
        """See ``RunsElsewhere``."""
        if self._courier is not None:
            self._courier.drop(trial_dir, sealed)

    @property
    def sender(self) -> NodeSender | None:
        """See ``SendsStages``."""
        return self._sender

    def is_elsewhere(self, trial_dir: str, sealed: str) -> bool:
        """See ``RunsElsewhere``."""
        return self._courier is not None and self._courier.is_elsewhere(trial_dir, sealed)

    def check_request(
        self, request: Mapping[str, float], bundles: Sequence[Mapping[str, float]], strategy: str = "PACK"
    ) -> None:
        """See ``RunsElsewhere``."""
        assert self._cluster is not None
        nodes = [Node(facts) for facts in self._cluster.nodes] if self._pool is None else self._pool.nodes.values()
        if why := why_never(request, bundles, nodes, strategy):
            raise InvalidInputError(f"{why} Nothing was run.")

    def is_waiting(self, n: int, attempt: int) -> bool:
        """See ``MakesAttemptsWait``."""
        worker = self._attempts.get((n, attempt))
        return not isinstance(worker, RemoteWorker) or not worker.sent or worker.has_ended

    # --- the protocol

    def join(self) -> None:
        """See ``NeedsCluster``."""
        if self._cluster is None:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            self._bridge, self._cluster = join_cluster(self._settings.address, self._log_dir / "bridge.log")

    def open(self, setup: Setup) -> None:
        """Join the cluster and wait until its nodes are ready.

        Raises:
            TuneError: It cannot be joined, or no node can be used; says why and what to do.
        """
        if self._setup is not None:
            raise InternalError("An engine is opened once.")
        self._setup = setup
        limit = setup.max_output_bytes or None
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            trial_logs.settle_all(str(self._log_dir), limit)
            marked = secrets.token_hex(16)
            write_atomic(str(self._marker), marked.encode())
            self.join()
            bridge, opened = self._bridge, self._cluster
            assert bridge is not None
            assert opened is not None
            door, self._addresses = open_door(self._settings.host, self._settings.port, opened.ip)
        except OSError as error:
            self.close()
            raise TuneError(f"The Ray engine could not start: {error}. Nothing was run.") from error
        except BaseException:
            self.close()
            raise
        self._deliveries = Deliveries(self._files, setup, {opened.ip, *(ip for ip, _ in self._addresses)})
        marker = (str(self._marker.relative_to(self._files.root)), marked)
        plan = porter_plan(self._files, self._settings, self._addresses, self._secret, self._run_id, marker)
        starts = None if self._files.fetch is None else StoreStarts(self._files.root, self._files.fetch)
        self._courier = Courier(self._files.root, self._tell_node, setup.log_to_file or (), starts, self._files.copier)
        self._sender = None if starts is None else NodeSender(self._courier, starts, self._files.root)
        self._links = self._pool = ClusterPool(
            self, door, bridge.sock, self._secret, plan, self._courier, self._log_dir, setup.worker, limit
        )
        self._collector = Collector(self._pool, self._courier, self, self._files.sync_period_s, setup.log_to_file)
        self._queue.pool = self._pool
        self._queue.plan = WorkerPlan(
            addresses=self._addresses, secret=self._secret, worker=0, run=self._run_id, runner=self._runner
        )
        self._pool.see_nodes(opened.nodes)
        try:
            wait_for_nodes(self._pool, self._files, self._addresses)
            try_copier(self._files, self._pool.nodes.values(), marked)
        except BaseException:
            self.close()
            raise
        self._is_open = True
        self._ready.insert(0, self._capacity)

    def poll(self, timeout_s: float) -> Sequence[Observation]:
        """What happened; files of running trials are brought now and then."""
        if self._collector is not None:
            self._collector.turn(self._attempts.values())
            timeout_s = self._collector.wait_s(timeout_s)
        return super().poll(timeout_s)

    def halt(self, n: int, attempt: int, grace_s: float) -> None:
        """End the attempt; what it left is still brought, but no space is waited for."""
        worker = self._attempts.get((n, attempt))
        if isinstance(worker, RemoteWorker) and self._collector is not None:
            self._collector.hurry(worker)
            if worker.over is not None:
                return
        super().halt(n, attempt, grace_s)

    def launch(self, run: Run) -> None:
        """Give the attempt to a warm worker, or ask for a new one."""
        if run.attempt <= self._launched.get(run.n, -1):
            return
        self._launched[run.n] = run.attempt
        self._queue.add(run)

    def close(self, grace_s: float = 0.0) -> None:
        """Workers leave by themselves or are ended; porters end what is left, and clear their nodes."""
        if self._pool is not None and self._sender is not None and self._owner == os.getpid():
            self._sender.rescue(self._pool.turn)
        pool, self._pool, self._links = self._pool, None, None
        self._queue.pool = None
        if self._owner != os.getpid():
            if pool is not None:
                pool.abandon()
            return
        try:
            if pool is not None:
                self._dismiss(pool, grace_s)
                if self._courier is not None:
                    self._courier.close()
                pool.close()
        finally:
            if self._bridge is not None:
                self._bridge.close()
            with contextlib.suppress(OSError):
                self._marker.unlink(missing_ok=True)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _tell_node(self, node: str, order: say.PorterOrder) -> None:
        pool = self._pool
        if pool is not None:
            pool.tell_node(node, order)
        elif isinstance(order, say.OpenCarrier) and self._courier is not None:
            self._courier.connected(order.number, None)

    # --- placing attempts

    def _launch_waiting(self) -> None:
        self._queue.launch()

    def _give_up_waiting(self, n: int, attempt: int) -> None:
        self._queue.give_up(n, attempt)

    def refuse(self, run: Run, cause: str, detail: str) -> None:
        """Part of ``QueueListener``."""
        self._ready.append(Died(run.n, run.attempt, cause, detail))

    def fail(self, run: Run, kind: str, detail: str) -> None:
        """Part of ``QueueListener``."""
        self._ready.append(Raised(run.n, run.attempt, 0, ErrorFacts(kind, detail), final=True))

    def warn(self, run: Run, text: str) -> None:
        """Part of ``QueueListener``."""
        self._ready.append(Hint(run.n, run.attempt, 0, text))

    # --- giving an attempt to a worker

    def _give(self, worker: RemoteWorker, run: Run) -> None:
        """Send the attempt, after what it needs is on the worker's node."""
        assert self._setup is not None
        assert self._courier is not None
        assert self._deliveries is not None
        worker.begin(run, self._setup, 0.0)
        self._attempts[run.n, run.attempt] = worker
        node = self._node(worker)
        done = partial(self._pushed_elsewhere, worker, run)
        if node.sees_root:
            if not self._courier.fetch_start(self._deliveries.start_of(run), done):
                self._send(worker, run)
            return
        is_clear = self._courier.enter(worker.node, worker.number, run.trial_dir, run.checkpoint)
        missing = self._courier.missing(worker.node, self._deliveries.needs(run))
        if missing or not is_clear:
            self._courier.push(worker.node, run.trial_dir, missing, done)
        else:
            self._send(worker, run)

    def _pushed_elsewhere(self, worker: RemoteWorker, run: Run, why: str) -> None:
        """From a thread of the courier."""
        pool = self._pool
        if pool is not None:
            pool.do_soon(partial(self._pushed, worker, run, why))

    def _pushed(self, worker: RemoteWorker, run: Run, why: str) -> None:
        if worker.key != (run.n, run.attempt) or worker.cut or self._pool is None:
            return  # ended meanwhile
        if not why:
            self._send(worker, run)
            return
        _log.warning("files for trial %s could not be sent to %s: %s", run.trial_id, worker.host, why)
        worker.fault = f"its files could not be sent to {worker.host}: {why}"
        self._release(worker)
        self.refuse(run, Cause.STORAGE, worker.fault)
        self._pool.retire(worker)

    def _send(self, worker: RemoteWorker, run: Run) -> None:
        assert self._pool is not None
        assert self._setup is not None
        assert self._deliveries is not None
        node = self._node(worker)
        run = msgspec.structs.replace(run, gpus=worker.devices)
        if not node.sees_root:
            run = msgspec.structs.replace(run, checkpoint_mark="")
        try:
            data = frame(run)
            if not worker.told:
                data = frame(self._deliveries.setup_for(worker.number, node)) + data
        except (ValueError, TypeError, OverflowError) as error:
            self._release(worker)
            self._idle.append(worker)
            self.refuse(run, Cause.EXCEPTION, f"the trial's configuration cannot be sent to a worker: {error}")
            return
        worker.told = worker.sent = True
        if not node.sees_root and self._setup.log_to_file is not None:
            self._pool.follow(worker, [f"{run.trial_dir}/{name}" for name in dict.fromkeys(self._setup.log_to_file)])
        self._pool.send(worker, data)

    def _node(self, worker: RemoteWorker) -> Node:
        assert self._pool is not None
        return self._pool.nodes[worker.node]

    # --- what workers say

    def hear(self, worker: WorkerHandle, payloads: list[bytes]) -> None:
        """Part of ``PoolListener``; remembers where stages are."""
        assert isinstance(worker, RemoteWorker)
        pool = self._pool
        node = pool.nodes.get(worker.node) if pool is not None else None
        for payload in payloads:
            message: WorkerWord = decode_word(payload)
            if (
                isinstance(message, Report | Saved)
                and message.sealed is not None
                and node is not None
                and not node.sees_root
                and self._courier is not None
                and worker.trial_dir
            ):
                self._courier.note_stage(worker.node, worker.trial_dir, message.sealed.name)
            if type(message) is Report and worker.held is None:
                worker.run = None
                self._ready.append(message)
            else:
                self._hear_other(worker, message)
            self._preemption.heard(pool, worker, message)

    def _attempt_ended(self, worker: WorkerHandle, message: AttemptEnd) -> None:
        assert isinstance(worker, RemoteWorker)
        if self._collector is None or not self._collector.ended(worker, message):
            super()._attempt_ended(worker, message)

    def all_sent(self, worker: RemoteWorker) -> None:
        """Part of ``ClusterListener``."""
        if self._collector is not None:
            self._collector.all_sent(worker)

    def end_now(self, worker: RemoteWorker, message: AttemptEnd | None) -> None:
        """Part of ``EndListener``."""
        if worker.over is not None:
            self._bury(worker)
        elif message is not None:
            super()._attempt_ended(worker, message)

    def waits(self, waiting: Waiting) -> None:
        """Part of ``EndListener``."""
        self._ready.append(waiting)

    def _must_retire(self, worker: WorkerHandle, message: AttemptEnd) -> bool:
        assert isinstance(worker, RemoteWorker)
        assert self._setup is not None
        holds_memory = worker.request.gpus > 0 and not self._setup.reuse_instances
        return super()._must_retire(worker, message) or holds_memory

    def _joined(self, hello: Hello) -> None:
        """Workers elsewhere have introduced themselves before."""

    def _release(self, worker: WorkerHandle) -> None:
        assert isinstance(worker, RemoteWorker)
        if worker.key is not None:
            self._attempts.pop(worker.key, None)
            worker.key = None
            if self._courier is not None:
                self._courier.leave(worker.node, worker.number)

    # --- what the pool tells

    def arrived(self, worker: RemoteWorker) -> None:
        """Part of ``ClusterListener``."""
        self._ready.append(Joined(worker.number, worker.host, worker.ip, worker.pid))
        self._queue.arrived(worker)

    def not_started(self, number: int, detail: str, refused: bool = False) -> None:
        """Part of ``ClusterListener``."""
        self._queue.not_started(number, detail, refused)

    def gone(self, worker: WorkerHandle, cause: str, detail: str) -> None:
        """Part of ``PoolListener``."""
        assert isinstance(worker, RemoteWorker)
        if worker in self._idle:
            self._idle.remove(worker)
        worker.over = self._preemption.end_of(worker, worker.key, worker.held or worker.ending, cause, detail)
        if self._collector is None or not self._collector.gone(worker):
            self._bury(worker)
        self._launch_waiting()

    def _bury(self, worker: RemoteWorker) -> None:
        """Tell how the attempt of a worker that is gone has ended, if it had one."""
        self._release(worker)
        if worker.over is not None:
            self._ready.append(worker.over)

    def capacity_changed(self) -> None:
        """Part of ``ClusterListener``."""
        pool = self._pool
        if pool is None:
            return
        usable = [node.facts.resources for node in pool.nodes.values() if node.usable]
        offer = Capacity(sum_of(usable), sizes_of(usable))
        if offer != self._capacity:
            self._capacity = offer
            if self._is_open:
                self._ready.append(offer)
            self._launch_waiting()

    def node_leaves(self, node: Node) -> None:
        """Part of ``ClusterListener``: its attempts save what they can, and continue elsewhere."""
        if self._pool is not None:
            running = [worker for worker in self._attempts.values() if worker.number in self._pool.workers]
            text = self._preemption.begin(self._pool, node, self._idle, running, self.save_soon)
            self._ready.append(Hint(0, 0, 0, text))

    def cluster_lost(self, why: str) -> None:
        """Part of ``ClusterListener``: look for the cluster for a while."""
        self._ready.append(Hint(0, 0, 0, f"{why}; trials continue if it is found within {REJOIN_S:.0f} s"))
        old, self._bridge = self._bridge, None
        threading.Thread(target=self._look_for_cluster, args=(why, old), daemon=True, name="holdfast-rejoin").start()

    def _look_for_cluster(self, why: str, old: BridgeProcess | None) -> None:
        """In a thread of its own."""
        log = self._log_dir / "bridge.log"
        found = rejoin_cluster(old, self._settings.address, log, lambda: self._pool is None)
        pool = self._pool
        if pool is None:
            if found is not None:
                found[0].close()
        elif found is not None:
            pool.do_soon(partial(self._rejoined, *found))
        else:
            pool.do_soon(partial(self._lose_for_good, f"{why}, and it could not be reached again for {REJOIN_S:.0f} s"))

    def _lose_for_good(self, why: str) -> None:
        self.lost = why
        self._ready.append(Interrupted(why))

    def _rejoined(self, bridge: BridgeProcess, opened: ray.ClusterJoined) -> None:
        pool = self._pool
        if pool is None:
            bridge.close()
            return
        self._bridge = bridge
        pool.attach(bridge.sock)
        pool.see_nodes(opened.nodes)
        self._launch_waiting()

    # --- the end

    def _dismiss(self, pool: ClusterPool, grace_s: float) -> None:
        self._links = pool  # nothing is launched any more, but what workers say is still heard
        self._queue.close(pool)
        deadline = time.monotonic() + grace_s
        for worker in list(self._idle):
            pool.retire(worker)
        if grace_s > 0:
            for worker in self._attempts.values():
                if worker.held is None and worker.number in pool.workers:
                    pool.terminate(worker, grace_s)
            while time.monotonic() < deadline and self._attempts:
                pool.turn(deadline - time.monotonic())
        self._links = None
        pool.dismiss_nodes(LEAVE_S)
