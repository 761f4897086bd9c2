"""The bridge to a cluster: why it cannot join, and when it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.engines.cluster import bridge, bridge_process
from holdfast.engines.cluster import bridge_messages as say
from holdfast.engines.cluster.driver_sockets import close_in_forks
from holdfast.engines.cluster.handshake import frame, receive_frame
from holdfast.errors import TuneError


def test_a_head_that_does_not_let_this_machine_in_asks_for_a_token() -> None:
    """Ray raises the same error as if nobody were there."""
    error = ConnectionError("Could not connect to the cluster")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert "RAY_AUTH_TOKEN" in bridge._why_not(address, error)
    assert "There is no Ray cluster at" in bridge._why_not(address, error)
    assert "There is no Ray cluster at" in bridge._why_not("auto", error)


def served() -> tuple[bridge.Bridge, socket.socket, threading.Thread]:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    one = bridge.Bridge(theirs)
    thread = threading.Thread(target=one.serve)
    thread.start()
    return one, ours, thread


def test_what_is_no_message_ends_the_bridge() -> None:
    _, ours, thread = served()
    with ours:
        ours.sendall(b"\xff" * 64)  # the length of a message that nobody sends
        with contextlib.suppress(ConnectionResetError):  # some of it was not read
            assert ours.recv(1) == b""
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize(("error", "refused"), [(ValueError("1.5 of x"), True), (RuntimeError("not now"), False)])
def test_what_ray_refuses_is_distinguished_from_what_fails(
    error: Exception, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(order: Any) -> None:
        raise error

    one, ours, thread = served()
    monkeypatch.setattr(one, "_start", fail)
    with ours:
        ours.sendall(frame(say.PlaceWorker(7, b"", {"x": 1.5}, [], "PACK", "")))
        word = say.decode_word(receive_frame(ours))
    thread.join(30)
    assert word == say.SlotEnded(7, type(error).__name__, str(error), refused)


def test_the_connection_ends_with_the_driver() -> None:
    """Even if somebody else has a copy of the driver's end of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["sleep", "1000"]) as driver:
        thread = threading.Thread(target=bridge.hang_up_with, args=(driver.pid, theirs))
        thread.start()
        driver.kill()
        theirs.settimeout(30)
        assert theirs.recv(1) == b""
        thread.join()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_of_the_driver_keeps_no_connection() -> None:
    ours, theirs = socket.socketpair()
    theirs.settimeout(30)
    close_in_forks(ours)
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        ours.close()  # as the death of the driver would
        assert theirs.recv(1) == b""
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        theirs.close()


def test_a_cluster_is_looked_for_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it accepts connections and says nothing."""
    patience: list[float] = []

    def join(address: str | None, log: Path, within_s: float) -> Any:
        patience.append(within_s)
        raise TuneError("not now")

    now = [0.0]
    monkeypatch.setattr(bridge_process, "join_cluster", join)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds + 20.0))
    assert bridge_process.rejoin_cluster(None, "x:1", tmp_path / "log", lambda: False) is None
    assert patience == [60.0, 38.0, 16.0]


class FakeRay:
    """A cluster of "a", which is this machine, and "b"."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, port: int) -> None:
        own = {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
        self.listed: list[dict[str, Any]] = [{"Alive": True, "NodeID": "a", **own}, {"Alive": True, "NodeID": "b"}]
        facts = {"gcs_address": "127.0.0.1:1", "get_node_id": lambda: "a"}
        library = SimpleNamespace(
            is_initialized=lambda: True,
            nodes=lambda: self.listed,
            get_runtime_context=lambda: SimpleNamespace(**facts),
            util=SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1"),
        )
        for name in ("ray", "ray._private", "ray._private.state"):
            monkeypatch.setitem(sys.modules, name, library)


def test_a_death_is_told_after_the_loss_of_the_drivers_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine would count it otherwise: Ray ends all workers of a driver whose node is lost."""
    monkeypatch.setattr(bridge, "LOOK_S", 600.0)
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        library = FakeRay(monkeypatch, raylet.getsockname()[1])
        one, ours, thread = served()
        with ours:
            ours.sendall(frame(say.OpenCluster("")))
            joined = say.decode_word(receive_frame(ours))
            assert isinstance(joined, say.ClusterJoined)
            assert [node.drivers_own for node in joined.nodes] == [True, False]
            one._slot_ended(7, RuntimeError("an unrelated death"))
            assert isinstance(say.decode_word(receive_frame(ours)), say.SlotEnded)
            library.listed[0]["Alive"] = False
            one._slot_ended(8, RuntimeError("its owner has died"))
            seen = say.decode_word(receive_frame(ours))
            assert isinstance(seen, say.NodesSeen)
            assert [node.id for node in seen.nodes] == ["b"]
            assert say.decode_word(receive_frame(ours)) == say.SlotEnded(8, "RuntimeError", "its owner has died")
        thread.join(30)
        one._slot_ended(9, RuntimeError("wakes the thread that watches"))


def test_a_cluster_is_not_joined_through_a_node_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray lists it as alive for some seconds."""
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        port = raylet.getsockname()[1]
    FakeRay(monkeypatch, port)
    _, ours, thread = served()
    with ours:
        ours.sendall(frame(say.OpenCluster("")))
        refused = say.decode_word(receive_frame(ours))
    thread.join(30)
    assert isinstance(refused, say.Refused)
    assert "run `ray start` here again" in refused.text


def test_notice_of_drained_nodes_survives_a_head_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    drained: dict[str, int] = {"b": 5000, "c": 0}
    state = SimpleNamespace(get_draining_nodes=lambda: dict(drained) or 1 / 0)
    for name in ("ray", "ray._private", "ray._private.state"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(state=state))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        one = bridge.Bridge(theirs)
        one._ray = SimpleNamespace(nodes=lambda: [{"Alive": True, "NodeID": name} for name in "abc"])
        for _ in range(2):
            assert [node.leaves_at for node in one._alive()] == [None, 5.0, 0.0]
            drained.clear()
