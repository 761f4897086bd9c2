"""A cluster on this machine alone, without Ray: its bridge is a thread that starts processes here.

Its nodes have scratch directories of their own and do not see the experiment's directory, so everything travels as it
would between machines.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.config import RayEngine
from holdfast.core.observations import Report, Returned
from holdfast.engines.cluster import bridge_messages as ray
from holdfast.engines.cluster import bridge_process, cluster_engine, porter
from holdfast.engines.cluster.bridge_process import BridgeProcess
from holdfast.engines.cluster.cluster_engine import ClusterEngine
from holdfast.engines.cluster.deliveries import ExperimentFiles
from holdfast.engines.cluster.handshake import frame, receive_frame
from holdfast.engines.cluster.node_messages import PorterPlan
from holdfast.engines.cluster.placement import fits
from holdfast.testing.scripted import SCRIPTED_RUNNER
from holdfast.trainable.process_environment import prepare_imports
from holdfast.trainable.worker_messages import Channel, Quit, Run, Setup

WORKER = """
import signal, sys, msgspec
from holdfast.engines.cluster.actor_worker import WorkerPlan, serve
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ray does
serve(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=WorkerPlan), sys.argv[1], "127.0.0.1")
"""


def close_descriptors(setup: Setup, channel: Channel) -> None:
    """A runner: a trial that closes files that it did not open, then reports."""
    run = channel.receive()
    assert isinstance(run, Run)
    os.closerange(3, 1024)
    channel.send(Report(run.n, run.attempt, setup.worker, 1, 0.0, {}))


def chatter(setup: Setup, channel: Channel) -> None:
    """A runner: a trial that prints 256 MB."""
    run = channel.receive()
    assert isinstance(run, Run)
    for _ in range(256):
        os.write(1, b"x" * 1023 + b"\n" + b"y" * (1 << 20))
    Path(os.environ["CHATTER_DONE"]).touch()
    channel.send(Report(run.n, run.attempt, setup.worker, 1, 0.0, {}))
    channel.receive()
    channel.send(Returned(run.n, run.attempt, setup.worker))


def report_devices(setup: Setup, channel: Channel) -> None:
    """A runner: each attempt reports its process and the GPUs that it may use."""
    while not isinstance(message := channel.receive(), Quit):
        if isinstance(message, Run):
            who = (message.n, message.attempt, setup.worker)
            seen = {"pid": os.getpid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
            channel.send(Report(*who, 1, 0.0, seen))
            channel.receive()
            channel.send(Returned(*who))


def report_paths(setup: Setup, channel: Channel) -> None:
    """A runner: one attempt reports where modules are looked for."""
    run = channel.receive()
    assert isinstance(run, Run)
    prepare_imports(setup)
    channel.send(Report(run.n, run.attempt, setup.worker, 1, 0.0, {"sys_path": list(sys.path)}))
    channel.receive()
    channel.send(Returned(run.n, run.attempt, setup.worker))


class Loopback:
    """Two nodes, "a" and "b", of two CPUs each (``testing.elsewhere_contract.Machines``).

    Attributes:
        root: The experiment's directory.
        place: A request that only "b" can meet.
        scratch: Where the nodes have their scratch directories.
        mute: So many of the next workers never dial in.
        broken: So many of the next workers end at once.
        drivers: The node through which the bridge has joined; "" if it is none of these.
        refused: Why the cluster refuses every worker; "" if it does not.
        spares: Workers that the engine keeps ready.
        runner: What workers call.
        agents: Processes that stand for the cluster's own on a node.
    """

    def __init__(self, top: Path, monkeypatch: Any) -> None:
        self.root = str(top / "experiment")
        self.place = {"CPU": 1.0, "host_b": 1.0}
        self.scratch = top / "scratch"
        self.mute = self.broken = self.spares = 0
        self.refused = self.drivers = ""
        self._leaves: dict[str, float] = {}
        self.runner = SCRIPTED_RUNNER
        self.agents: dict[str, int] = {}
        self._top = top
        self._nodes = {name: {"CPU": 2.0, f"host_{name}": 100.0} for name in "ab"}
        self._workers: dict[int, tuple[ray.PlaceWorker, str, subprocess.Popen[bytes]]] = {}
        self._waiting: list[ray.PlaceWorker] = []
        self._lock = threading.RLock()
        self._sock: socket.socket | None = None
        (top / "experiment" / ".holdfast").mkdir(parents=True)
        for module in (cluster_engine, bridge_process):
            monkeypatch.setattr(module, "join_cluster", self._join)

    def make(self) -> ClusterEngine:
        """A new engine of this cluster."""
        files = ExperimentFiles(
            root=self.root,
            objects=lambda: {".holdfast/trainable.pkl": b""},
            values=lambda config: [],
            shared=False,
            uid="contract",
            sync_period_s=300.0,
        )
        settings = RayEngine(host="127.0.0.1", scratch_dir=str(self.scratch), spares=self.spares)
        return ClusterEngine(settings, files, log_dir=self._top / "logs", runner=self.runner)

    def offer(self, name: str, **resources: float) -> None:
        """A node has more."""
        self._nodes[name] |= resources

    def lose(self, name: str = "b") -> None:
        """All processes of a node end at once, and the cluster knows it."""
        with self._lock:
            del self._nodes[name]
            for _, where, process in list(self._workers.values()):
                if where == name:
                    process.kill()
        self.kill_porter(name)
        self._say(ray.NodesSeen(self._seen()))

    def drain(self, name: str, leaves_at: float) -> None:
        """The cluster says that it takes a node away at this time."""
        with self._lock:
            self._leaves[name] = leaves_at
        self._say(ray.NodesSeen(self._seen()))

    def lose_all(self) -> None:
        """All porters end; others are started soon."""
        for name in list(self._nodes):
            self.kill_porter(name)

    @contextlib.contextmanager
    def without(self, name: str) -> Iterator[None]:
        """The cluster drops a node, whose processes live, and takes it back."""
        with self._lock:
            dropped = self._nodes.pop(name)
        self._say(ray.NodesSeen(self._seen()))
        yield
        with self._lock:
            self._nodes[name] = dropped
        self._say(ray.NodesSeen(self._seen()))

    def lose_bridge(self) -> None:
        """The bridge ends, and every worker with it."""
        assert self._sock is not None
        self._sock.shutdown(socket.SHUT_RDWR)

    def pids(self, name: str) -> list[int]:
        """Workers of a node that live."""
        with self._lock:
            return [process.pid for _, where, process in self._workers.values() if where == name]

    def kill_porter(self, name: str) -> None:
        for pid in self.porters(name):
            os.kill(pid, signal.SIGKILL)

    def porters(self, name: str) -> list[int]:
        """The porters of a node."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                log = os.readlink(entry / "fd" / "1")
                if log.startswith(str(self._top)) and log.endswith(f"-{name}/porter.log"):
                    found.append(int(entry.name))
        return found

    # --- the bridge

    def _seen(self) -> list[ray.ClusterNode]:
        return [
            ray.ClusterNode(name, name, "127.0.0.1", resources, False, self._leaves.get(name), name == self.drivers)
            for name, resources in self._nodes.items()
        ]

    def _join(self, address: str | None, log: Path, within_s: float = 0.0) -> tuple[BridgeProcess, ray.ClusterJoined]:
        ours, theirs = socket.socketpair()
        self._sock = theirs
        threading.Thread(target=self._serve, args=(theirs,), daemon=True).start()
        return BridgeProcess(ours, None), ray.ClusterJoined("loopback", "127.0.0.1", self._seen())

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                while True:
                    self._carry_out(ray.decode_order(receive_frame(sock)))
            except OSError:
                pass
        with self._lock:
            self._waiting.clear()
            for _, _, process in self._workers.values():
                process.kill()

    def _carry_out(self, order: ray.BridgeOrder) -> None:
        if isinstance(order, ray.PlaceWorker) and self.refused:
            self._say(ray.SlotEnded(order.worker, "ValueError", self.refused, True))
        elif isinstance(order, ray.PlaceWorker):
            with self._lock:
                self._waiting.append(order)
            self._start_waiting()
        elif isinstance(order, ray.EndWorker):
            with self._lock:
                self._waiting = [each for each in self._waiting if each.worker != order.worker]
                if order.worker in self._workers:
                    self._workers[order.worker][2].kill()
        elif isinstance(order, ray.StartPorter):
            threading.Thread(target=self._start_porter, args=(order,), daemon=True).start()

    def _start_waiting(self) -> None:
        with self._lock:
            for order in list(self._waiting):
                room = {name: dict(resources) for name, resources in self._nodes.items()}
                for held, where, _ in self._workers.values():
                    for name, amount in held.request.items() if where in room else ():
                        room[where][name] -= amount
                names = [order.node] if order.node else list(room)
                chosen = next((name for name in names if fits(order.request, room.get(name, {}))), None)
                if chosen is not None:
                    self._waiting.remove(order)
                    self._start(order, chosen)

    def _start(self, order: ray.PlaceWorker, where: str) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        code = WORKER
        if self.mute:
            self.mute, code = self.mute - 1, "import time; time.sleep(1000)"
        elif self.broken:
            self.broken, code = self.broken - 1, "raise SystemExit(1)"
        process = subprocess.Popen(
            [sys.executable, "-c", code, where],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._workers[order.worker] = (order, where, process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(order.plan)
        threading.Thread(target=self._wait, args=(order.worker, process), daemon=True).start()

    def _wait(self, worker: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with self._lock:
            del self._workers[worker]
        self._say(ray.SlotEnded(worker, "returned" if code == 0 else "ActorDiedError", f"it ended with {code}"))
        self._start_waiting()

    def _start_porter(self, order: ray.StartPorter) -> None:
        plan = msgspec.msgpack.decode(order.plan, type=PorterPlan)
        agent = self.agents.get(order.node, 0)
        error = porter.start_daemon(msgspec.structs.replace(plan, boot="another machine", agent=agent))
        self._say(ray.PorterStarted(order.node, error))

    def _say(self, word: ray.BridgeWord) -> None:
        sock = self._sock
        with contextlib.suppress(OSError):
            if sock is not None:
                sock.sendall(frame(word))
