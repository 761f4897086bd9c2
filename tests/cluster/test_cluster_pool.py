"""What the driver asks of a cluster when nodes, workers and the bridge come and go."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.engines.cluster import bridge_messages as ray
from holdfast.engines.cluster import cluster_opening, handshake
from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.actor_worker import WorkerPlan
from holdfast.engines.cluster.cluster_pool import ClusterPool
from holdfast.engines.cluster.courier import Courier
from holdfast.engines.cluster.deliveries import ExperimentFiles
from holdfast.engines.cluster.remote_worker import Request
from holdfast.errors import TuneError

ONE = Request((("CPU", 1.0),), (), "PACK")


class Listener:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *facts: self.told.append((name, facts))


class Stage:
    """A pool on this machine whose bridge is this test."""

    def __init__(self, top: Path, *, shared: bool = False) -> None:
        self.listener = Listener()
        self.secret = handshake.new_secret()
        door = socket.create_server(("127.0.0.1", 0))
        self.address = door.getsockname()
        self.bridge, theirs = socket.socketpair()
        who = {"secret": self.secret, "node": "", "ip": "", "run": "r", "experiment": "e"}
        plan = say.PorterPlan(addresses=[self.address], shared=shared, **who)  # type: ignore[arg-type]
        courier = Courier(str(top), lambda node, order: None)
        self.pool = ClusterPool(self.listener, door, theirs, self.secret, plan, courier, top, 1, None)  # type: ignore[arg-type]
        self.plan = WorkerPlan(addresses=[self.address], secret=self.secret, worker=0, run="r", runner="x:y")
        self.nodes = [ray.ClusterNode(name, name, "", {"CPU": 2.0}) for name in "ab"]
        self.socks: list[socket.socket] = []
        self._courier = courier

    def dial(self, role: str, number: int, node: str) -> socket.socket:
        """Somebody dials in."""
        done: list[socket.socket] = []
        greeting = handshake.greeting_of(role, number, node, "127.0.0.1")
        thread = threading.Thread(target=lambda: done.append(handshake.dial([self.address], self.secret, greeting)))
        thread.start()
        self.until(lambda: not thread.is_alive())
        self.socks.extend(done)
        return done[0]

    def place(self, node: str) -> tuple[socket.socket, int]:
        """A worker on a node whose porter is there; returns the porter's end of its connection, and the worker."""
        porter = self.dial("porter", 0, node)
        self.until(lambda: self.pool.nodes[node].usable)
        number = self.pool.start_worker(ONE, node, self.plan)
        self.dial("worker", number, node)
        self.until(lambda: number in self.pool.workers)
        return porter, number

    def until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30.0
        while not done():
            assert time.monotonic() < deadline
            self.pool.turn(0.01)

    def orders(self) -> list[ray.BridgeOrder]:
        """What the bridge was asked since the last call."""
        found = []
        self.bridge.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            while True:
                found.append(ray.decode_order(handshake.receive_frame(self.bridge)))
        return found

    def told(self, what: str) -> list[Any]:
        return [facts for name, facts in self.listener.told if name == what]

    def close(self) -> None:
        self.pool.close()
        self._courier.close()
        for sock in (*self.socks, self.bridge):
            sock.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


def test_a_worker_of_a_lost_node_gives_its_place_back(stage: Stage) -> None:
    stage.pool.see_nodes(stage.nodes)
    porter = stage.dial("porter", 0, "a")
    stage.until(lambda: stage.pool.nodes["a"].usable)
    number = stage.pool.start_worker(ONE, "a", stage.plan)
    stage.dial("worker", number, "a")
    stage.until(lambda: stage.told("arrived"))
    stage.orders()
    porter.close()
    stage.until(lambda: stage.told("gone"))
    assert stage.orders() == [ray.EndWorker(number)]
    assert stage.told("gone")[0][1] == "node_lost"


def test_a_node_that_the_lost_bridge_had_not_answered_for_is_asked_for_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engines.cluster.cluster_pool.REVIVE_S", 0.0)
    stage.pool.see_nodes(stage.nodes)
    assert [type(order) for order in stage.orders()] == [ray.StartPorter] * 2
    stage.bridge.close()
    stage.until(lambda: stage.told("cluster_lost"))
    stage.bridge, theirs = socket.socketpair()
    stage.pool.attach(theirs)
    stage.pool.see_nodes(stage.nodes)
    asked: list[str] = []

    def both() -> bool:
        asked.extend(order.node for order in stage.orders() if isinstance(order, ray.StartPorter))
        return len(asked) >= 2

    stage.until(both)
    assert sorted(asked) == ["a", "b"]


@pytest.fixture
def own(stage: Stage) -> list[ray.ClusterNode]:
    """Two nodes, of which "a" is the driver's own."""
    nodes = [msgspec.structs.replace(node, drivers_own=node.id == "a") for node in stage.nodes]
    stage.pool.see_nodes(nodes)
    return nodes


def test_the_end_of_ray_on_the_drivers_node_is_the_loss_of_the_cluster(
    stage: Stage, own: list[ray.ClusterNode]
) -> None:
    porter, first = stage.place("a")
    _, second = stage.place("b")
    porter.sendall(handshake.frame(say.AgentGone()))
    stage.until(lambda: stage.told("cluster_lost"))
    assert [(worker.number, cause) for worker, cause, _ in stage.told("gone")] == [
        (first, "engine_lost"),
        (second, "engine_lost"),
    ]
    assert not stage.pool.is_joined
    stage.bridge.close()
    stage.bridge, theirs = socket.socketpair()
    stage.pool.attach(theirs)
    stage.pool.see_nodes([msgspec.structs.replace(own[0], id="a again"), own[1]])
    assert stage.pool.is_joined
    assert [order.node for order in stage.orders() if isinstance(order, ray.StartPorter)] == ["a again"]
    assert len(stage.told("cluster_lost")) == 1


@pytest.mark.parametrize("status", [1 << 8, signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_the_cluster_ends_because_the_drivers_node_is_lost_is_not_counted(
    stage: Stage, own: list[ray.ClusterNode], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Its end is known before the loss is."""
    monkeypatch.setattr("holdfast.engines.cluster.remote_worker.EVIDENCE_S", 0.0)
    porter, number = stage.place("b")
    porter.sendall(handshake.frame(say.WorkerGone(number, status, False)))
    worker: Any = stage.pool.workers[number]
    stage.until(lambda: worker.status)
    for _ in range(10):
        stage.pool.turn(0.01)
    assert stage.told("gone") == []
    stage.bridge.sendall(handshake.frame(ray.NodesSeen(own[1:])))
    stage.bridge.sendall(handshake.frame(ray.SlotEnded(number, "ActorDiedError", "its owner has died")))
    stage.until(lambda: stage.told("gone"))
    assert stage.told("gone")[0][1] == "engine_lost"
    assert "a, the driver's own node" in stage.told("cluster_lost")[0][0]


def test_a_worker_whose_connection_is_seen_to_end_after_its_process_is_judged_by_its_exit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engines.cluster.cluster_pool.VERDICT_S", 0.0)
    stage.pool.see_nodes(stage.nodes)
    porter, number = stage.place("a")
    worker: Any = stage.pool.workers[number]
    porter.sendall(handshake.frame(say.WorkerGone(number, 7 << 8, False)))
    stage.until(lambda: worker.status)
    stage.socks[-1].close()
    stage.until(lambda: stage.told("gone"))
    assert stage.told("gone")[0][1:] == ("exit", f"exit code 7 before the trial had finished on {socket.gethostname()}")


def test_a_node_is_told_how_much_output_was_read(stage: Stage) -> None:
    stage.pool.see_nodes(stage.nodes)
    porter, number = stage.place("a")
    assert say.decode_order(handshake.receive_frame(porter)) == say.WatchWorker(number, os.getpid())
    porter.sendall(handshake.frame(say.Printed(number, b"12345")) + handshake.frame(say.AllSent(number)))
    stage.until(lambda: stage.told("all_sent"))
    porter.settimeout(30)
    assert say.decode_order(handshake.receive_frame(porter)) == say.OutputRead(5)


def test_a_worker_that_comes_too_late_is_turned_away_and_ended(stage: Stage) -> None:
    stage.pool.see_nodes(stage.nodes)
    stage.dial("porter", 0, "a")
    stage.until(lambda: stage.pool.nodes["a"].usable)
    number = stage.pool.start_worker(ONE, "a", stage.plan)
    stage.pool.forget_start(number)
    late = stage.dial("worker", number, "a")
    late.settimeout(30)
    assert late.recv(1) == b""
    assert ray.EndWorker(number) in stage.orders()
    assert stage.told("arrived") == []


def test_a_node_that_joins_without_the_shared_mount_is_not_used(tmp_path: Path) -> None:
    stage = Stage(tmp_path, shared=True)
    stage.pool.see_nodes(stage.nodes)
    stage.dial("porter", 0, "a").settimeout(30)
    stage.until(lambda: stage.pool.blind)
    assert stage.socks[0].recv(1) == b""
    assert not stage.pool.nodes["a"].usable
    assert "cannot see" in stage.pool.failures["a"]
    stage.close()


def test_a_node_that_does_not_answer_delays_the_others_only_a_little(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_opening, "PORTERS_S", 1e6)
    monkeypatch.setattr(cluster_opening, "OTHERS_S", 0.0)
    stage.pool.see_nodes(stage.nodes)
    stage.dial("porter", 0, "a")
    files = ExperimentFiles(root="", objects=dict, values=lambda config: [], shared=False, uid="", sync_period_s=1.0)
    cluster_opening.wait_for_nodes(stage.pool, files, [])
    assert (stage.pool.nodes["a"].usable, stage.pool.nodes["b"].usable) == (True, False)


def test_the_only_node_is_asked_twice_for_its_porter(stage: Stage) -> None:
    files = ExperimentFiles(root="", objects=dict, values=lambda config: [], shared=False, uid="", sync_period_s=1.0)
    stage.pool.see_nodes(stage.nodes[:1])
    stage.bridge.sendall(handshake.frame(ray.PorterStarted("a", "no space left on device")))

    def answer() -> None:
        for _ in range(2):
            handshake.receive_frame(stage.bridge)
        stage.bridge.sendall(handshake.frame(ray.PorterStarted("a", "no space left on device, again")))

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(TuneError, match="no space left on device, again"):
        cluster_opening.wait_for_nodes(stage.pool, files, [])
    thread.join()


def test_a_node_whose_porter_failed_is_tried_again_although_nothing_else_happens(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engines.cluster.cluster_pool.REVIVE_S", 0.0)
    stage.pool.see_nodes(stage.nodes[:1])
    stage.dial("porter", 0, "a")
    stage.pool.see_nodes(stage.nodes)
    stage.bridge.sendall(handshake.frame(ray.PorterStarted("b", "no space left on device")))
    stage.until(lambda: stage.pool.failures)
    stage.orders()
    stage.pool.turn(600.0)
    stage.pool.turn(600.0)
    assert [order.node for order in stage.orders() if isinstance(order, ray.StartPorter)] == ["b"]
