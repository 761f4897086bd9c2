"""What nodes are given stays as long as somebody there uses it, and no longer."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.carrier import Warehouse
from holdfast.engines.cluster.courier import FILES, Courier
from holdfast.engines.cluster.node_files import KEPT_STARTS, Need
from holdfast.errors import CheckpointDamagedError, StorageError


class OneNode:
    """A courier, and a node that opens connections at once."""

    def __init__(self, top: Path) -> None:
        self.here, self.there = top / "here", top / "there"
        self.removed: list[str] = []
        self.serves = True
        self.courier = Courier(str(self.here), self._tell)
        self.courier.add_node("b", "b")
        self._ends: list[socket.socket] = []

    def _tell(self, node: str, order: say.PorterOrder) -> None:
        if isinstance(order, say.Remove):
            self.removed.append(order.path)
            return
        assert isinstance(order, say.OpenCarrier)
        ours, theirs = socket.socketpair()
        if self.serves:
            threading.Thread(target=Warehouse(str(self.there)).serve, args=(theirs,), daemon=True).start()
        else:
            self._ends.append(theirs)
        self.courier.connected(order.number, ours)

    def checkpoint(self, path: str) -> Need:
        (self.here / path).mkdir(parents=True)
        (self.here / path / "state").write_text(path)
        return Need(path, f"digest of {path}")

    def give(self, worker: int, trial_dir: str, need: Need | None = None) -> None:
        """Begin an attempt there."""
        is_clear = self.courier.enter("b", worker, trial_dir, need.path if need else None)
        missing = self.courier.missing("b", [need] if need else [])
        if missing or not is_clear:
            done: queue.SimpleQueue[str] = queue.SimpleQueue()
            self.courier.push("b", trial_dir, missing, done.put)
            assert done.get(timeout=30) == ""

    def has(self, path: str) -> bool:
        return (self.there / FILES / path).exists()

    def write(self, path: str) -> None:
        (self.there / FILES / path).parent.mkdir(parents=True, exist_ok=True)
        (self.there / FILES / path).write_text(path)

    def close(self) -> None:
        self.courier.close()
        for end in self._ends:
            end.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    node = OneNode(tmp_path)
    yield node
    node.close()


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30.0
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_what_an_attempt_leaves_is_removed_when_it_has_ended(node: OneNode) -> None:
    node.give(1, "t")
    node.write("t/file")
    node.courier.leave("b", 1)
    until(lambda: not node.has("t"))


def test_the_checkpoint_of_a_donor_outlives_the_donor(node: OneNode) -> None:
    node.give(1, "donor")
    node.write("donor/file")
    node.give(2, "exploiter", node.checkpoint("donor/checkpoint_000001"))
    node.courier.leave("b", 1)
    until(lambda: not node.has("donor/file"))
    assert node.has("donor/checkpoint_000001/state")


def test_a_start_checkpoint_is_used_again_only_while_it_is_there(node: OneNode) -> None:
    need = node.checkpoint("t/checkpoint_000001")
    node.give(1, "t", need)
    node.courier.leave("b", 1)
    for k in range(KEPT_STARTS + 1):
        node.give(1, f"u{k}", node.checkpoint(f"u{k}/checkpoint_000001"))
        node.courier.leave("b", 1)
    until(lambda: not node.has("t/checkpoint_000001"))
    node.give(2, "t", need)
    assert node.has("t/checkpoint_000001/state")


def test_the_next_attempt_of_a_trial_keeps_its_files_when_the_last_stage_of_the_former_is_brought(
    node: OneNode,
) -> None:
    node.give(1, "t")
    node.write("t/.sealed-1-0011aabb/x")
    node.courier.note_stage("b", "t", ".sealed-1-0011aabb")
    node.courier.leave("b", 1)
    node.give(2, "t")
    node.write("t/mine")
    (node.here / "t").mkdir(parents=True)
    node.courier.bring("t", ".sealed-1-0011aabb", 1)
    assert node.removed == [f"{FILES}/t/.sealed-1-0011aabb"]
    node.give(3, "other")
    node.courier.leave("b", 3)
    until(lambda: not node.has("other"))
    assert node.has("t/mine")


def test_two_attempts_that_start_from_one_checkpoint_get_it_once(node: OneNode) -> None:
    need = node.checkpoint("donor/checkpoint_000001")
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    for worker in range(8):
        node.courier.enter("b", worker, f"t{worker}", need.path)
        node.courier.push("b", f"t{worker}", [need], done.put)
    assert [done.get(timeout=30) for _ in range(8)] == [""] * 8
    assert (node.there / FILES / need.path / "state").read_text() == need.path


def test_a_transfer_from_a_node_that_hangs_ends_when_it_is_lost(node: OneNode) -> None:
    node.serves = False
    node.courier.note_stage("b", "t", ".sealed-1-0011aabb")
    told: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def bring() -> None:
        try:
            node.courier.bring("t", ".sealed-1-0011aabb", 1)
        except BaseException as error:
            told.put(error)

    thread = threading.Thread(target=bring)
    thread.start()
    until(lambda: node._ends and node._ends[0].recv(1))
    node.courier.lose_node("b", "it was lost")
    assert isinstance(told.get(timeout=30), CheckpointDamagedError)
    thread.join()


def test_an_old_connection_that_ends_does_not_lose_a_node_that_is_back(node: OneNode) -> None:
    node.give(1, "t", node.checkpoint("t/checkpoint_000001"))
    old = node.courier._nodes["b"]
    with node.courier.carrier(old):
        node.courier.lose_node("b", "cut")
        node.courier.add_node("b", "b")
    node.give(2, "u", node.checkpoint("u/checkpoint_000001"))
    assert node.has("u/checkpoint_000001")


@pytest.mark.parametrize("own_copier", [False, True])
def test_a_stage_of_a_lost_node_stays_lost_when_the_node_is_back(tmp_path: Path, own_copier: bool) -> None:
    """Its scratch directory is gone. With the user's own command that looked like a copy to try again, for ever."""
    node = OneNode(tmp_path)

    def copy(source: str, target: str, stop: Callable[[], bool], timeout_s: float | None = None) -> None:
        raise StorageError(f"rsync: change_dir {source} failed: No such file or directory (2)")

    node.courier = Courier(str(node.here), node._tell, copier=copy if own_copier else None)
    node.courier.add_node("b", "b")
    node.courier.note_stage("b", "t", ".sealed-1-0011aabb")
    node.courier.lose_node("b", "it was lost")
    for _ in range(2):
        with pytest.raises(CheckpointDamagedError):
            node.courier.bring("t", ".sealed-1-0011aabb", 1)
        node.courier.add_node("b", "b")
    node.courier.note_stage("b", "t", ".sealed-2-0011aabb")  # of the node as it is now
    if own_copier:
        with pytest.raises(StorageError):
            node.courier.bring("t", ".sealed-2-0011aabb", 2)
    node.close()


def test_collections_of_a_slow_node_do_not_pile_up(node: OneNode) -> None:
    node.serves = False
    for _ in range(100):
        node.courier.collect("b", "t")
    until(lambda: node._ends)
    assert node.courier._threads._work_queue.qsize() == 0
    assert len(node._ends) == 1
