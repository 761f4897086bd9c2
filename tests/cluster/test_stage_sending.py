"""A node that can use the store uploads its stages itself; the driver alone makes checkpoints of them."""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.checkpoints.job_threads import MAX_JOBS_AT_ONCE
from holdfast.checkpoints.jobs import (
    CommitJob,
    Job,
    MirrorDone,
    MirrorJob,
    MirrorOutcome,
    Outcome,
    PrepareJob,
    VerifyJob,
    bringing,
)
from holdfast.checkpoints.remote_checkpoints import ensure_local, fetch, give_up
from holdfast.checkpoints.remote_jobs import RemoteJobPerformer
from holdfast.checkpoints.stage import Stage
from holdfast.core.observations import CommitEnded, VerifyEnded
from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster import node_store
from holdfast.engines.cluster.carrier import Warehouse
from holdfast.engines.cluster.courier import FILES, Courier
from holdfast.engines.cluster.node_files import Need
from holdfast.engines.cluster.node_sender import NodeSender, StoreStarts
from holdfast.engines.cluster.node_store import NodeStore
from holdfast.errors import InvalidInputError, StorageError
from holdfast.storage.address import parse
from holdfast.storage.store import Sending, Store
from holdfast.storage.store_access import StoreAccess, adopt, make_access, open_access
from holdfast.testing.memory_store import Fault, MemoryStore

TRIAL = "t"
KEY = f"{TRIAL}/checkpoint_000000"
CONTENT = {"weights.bin": b"w" * 300_000, "more/state": b"s"}
ACCESS = StoreAccess(address="s3://bucket/e", environ={}, witness=("spec", ""))


class Machine:
    """A driver with its mirror, a node with its scratch directory, and what both see of one store.

    Attributes:
        store: As the driver sees it.
        nodes: As the node sees it: the same objects, and faults of its own.
    """

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mirror, self.scratch = top / "mirror", top / "scratch"
        (self.mirror / ".holdfast").mkdir(parents=True)
        self.store, self.nodes = MemoryStore(), MemoryStore()
        self.nodes._objects = self.store._objects
        self.removed: list[str] = []
        starts = StoreStarts(str(self.mirror), self._fetch_here)
        self.courier = Courier(str(self.mirror), self._tell, (), starts)
        self.courier.add_node("b", "host-b")
        self.sender: NodeSender = NodeSender(self.courier, starts, str(self.mirror))
        self.performer = RemoteJobPerformer(self.store, self.mirror)
        self.performer.senders = self
        self.why = ""
        monkeypatch.setattr(node_store, "open_access", self._open)
        self._warehouse = Warehouse(str(self.scratch), NodeStore(ACCESS, f"{self.scratch}/{FILES}"))

    def _open(self, access: StoreAccess) -> Store:
        if self.why:
            raise InvalidInputError(self.why)
        return self.nodes

    def _fetch_here(self, path: str, digest: str) -> None:
        ensure_local(self.store, path, self.mirror / path, expect_digest=digest)

    def _tell(self, node: str, order: say.PorterOrder) -> None:
        if isinstance(order, say.Remove):
            self.removed.append(order.path)
        elif isinstance(order, say.OpenCarrier):
            ours, theirs = socket.socketpair()
            threading.Thread(target=self._warehouse.serve, args=(theirs,), daemon=True).start()
            self.courier.connected(order.number, ours)

    def stage(self, index: int = 0) -> str:
        """A worker there seals a stage; returns its name."""
        stage = Stage(self.there, "id", 1)
        directory = stage.new_directory()
        for name, content in CONTENT.items():
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_bytes(content)
        sealed = stage.seal(directory).name
        self.courier.note_stage("b", TRIAL, sealed)
        return sealed

    @property
    def there(self) -> Path:
        return self.scratch / FILES / TRIAL

    def commit(self, sealed: str, index: int = 0) -> Outcome | MirrorOutcome:
        return self.perform(CommitJob(0, index, str(self.mirror / TRIAL), sealed, "id", 1, {"step": 7}))

    def perform(self, job: Job | MirrorJob) -> Outcome | MirrorOutcome:
        (self.mirror / TRIAL).mkdir(exist_ok=True)
        outcome: Outcome | MirrorOutcome = bringing(
            self.courier, self.performer.perform, self.performer.perform_on_node
        )(job)
        return outcome

    def data_keys(self) -> list[str]:
        return [key for key in self.store.objects if not key.endswith("_manifest.json")]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine(tmp_path, monkeypatch)
    yield machine
    machine.courier.close()


def test_the_node_sends_the_files_and_the_driver_the_manifest(machine: Machine, tmp_path: Path) -> None:
    sealed = machine.stage()
    done = machine.commit(sealed)
    assert isinstance(done, CommitEnded)
    assert not done.damaged
    assert [request.verb for request in machine.nodes.requests] == ["send"]
    assert not [request for request in machine.store.requests if request.verb == "send"]
    assert list((machine.mirror / TRIAL).iterdir()) == []
    manifest = fetch(machine.store, KEY, tmp_path / "copy", expect_digest=done.digest)
    assert (manifest.stage, manifest.meta, manifest.total) == (sealed, {"step": 7}, 300_001)
    assert {name: (tmp_path / "copy" / name).read_bytes() for name in CONTENT} == CONTENT
    assert machine.removed == [f"{FILES}/{TRIAL}/{sealed}"]


def test_a_commit_whose_answer_was_lost_is_found_and_nothing_is_sent_again(machine: Machine) -> None:
    sealed = machine.stage()
    machine.store.faults.append(Fault("lost", verbs=("create",), times=1))
    first = machine.commit(sealed)
    assert not isinstance(first, CommitEnded)
    assert machine.removed == []
    second = machine.commit(sealed)
    assert isinstance(second, CommitEnded)
    assert second.digest
    assert [request.verb for request in machine.nodes.requests] == ["send"]


def test_the_manifest_comes_after_all_files(machine: Machine) -> None:
    sealed = machine.stage()
    machine.store.faults.append(Fault("unreachable", verbs=("create",), times=1))
    assert not isinstance(machine.commit(sealed), CommitEnded)
    assert len(machine.data_keys()) == len(CONTENT)
    assert f"{KEY}/_manifest.json" not in machine.store.objects


def test_a_stage_that_was_written_to_is_never_committed(machine: Machine) -> None:
    sealed = machine.stage()
    with open(machine.there / sealed / "weights.bin", "r+b") as file:
        file.write(b"x")
    done = machine.commit(sealed)
    assert isinstance(done, CommitEnded)
    assert done.damaged
    assert "weights.bin was written to after the checkpoint was reported" in done.message
    assert machine.data_keys() == []


def test_a_stage_that_is_written_to_while_it_is_sent_is_never_committed(machine: Machine) -> None:
    sealed = machine.stage()
    send = machine.nodes.send

    def write_and_send(files: list[Sending]) -> object:
        with open(machine.there / sealed / "weights.bin", "r+b") as file:
            file.write(b"x")
        return send(files)

    machine.nodes.send = write_and_send  # type: ignore[method-assign, assignment]
    done = machine.commit(sealed)
    assert isinstance(done, CommitEnded)
    assert done.damaged
    assert machine.data_keys() == []  # what was sent of it is gone


def test_what_a_lost_node_has_sent_is_removed(machine: Machine) -> None:
    sealed = machine.stage()
    send = machine.nodes.send

    def send_half(files: list[Sending]) -> object:
        send(files[:1])
        machine.courier.lose_node("b", "it was switched off")
        raise StorageError("gone")

    machine.nodes.send = send_half  # type: ignore[method-assign, assignment]
    machine.store.faults.append(Fault("unreachable", verbs=("create",), times=1))
    assert not isinstance(machine.commit(sealed), CommitEnded)  # nothing is decided before the store says so
    done = machine.commit(sealed)
    assert isinstance(done, CommitEnded)
    assert done.damaged
    assert "it was on host-b, which was lost" in done.message
    assert machine.data_keys() == []
    assert machine.store.get(f"{KEY}/_manifest.json").startswith(b'{"given_up"')


def test_a_node_that_is_lost_before_it_sent_anything_leaves_the_store_as_it_is(machine: Machine) -> None:
    sealed = machine.stage()
    machine.courier.lose_node("b", "it was switched off")
    done = machine.commit(sealed)
    assert isinstance(done, CommitEnded)
    assert done.damaged
    assert machine.store.requests == []


def test_a_checkpoint_whose_files_are_all_there_does_not_need_its_node_any_more(machine: Machine) -> None:
    sealed = machine.stage()
    machine.store.faults.append(Fault("unreachable", verbs=("create",), times=1))
    assert not isinstance(machine.commit(sealed), CommitEnded)
    machine.courier.lose_node("b", "it was switched off")
    done = machine.commit(sealed)
    assert isinstance(done, CommitEnded)
    assert done.digest
    assert not done.damaged
    assert [request.verb for request in machine.nodes.requests] == ["send"]


def test_a_file_that_the_store_lacks_afterwards_is_sent_again(machine: Machine) -> None:
    sealed = machine.stage()
    send = machine.nodes.send

    def send_and_lose(files: list[Sending]) -> object:
        machine.nodes.send = send  # type: ignore[method-assign]
        hashes = send(files)
        machine.store.delete([files[0].key])
        return hashes

    machine.nodes.send = send_and_lose  # type: ignore[method-assign, assignment]
    assert not isinstance(machine.commit(sealed), CommitEnded)
    assert f"{KEY}/_manifest.json" not in machine.store.objects
    done = machine.commit(sealed)
    assert isinstance(done, CommitEnded)
    assert done.digest


def test_a_driver_that_was_taken_over_while_its_node_sent_leaves_nothing_behind(machine: Machine) -> None:
    sealed = machine.stage()
    send = machine.nodes.send

    def send_late(files: list[Sending]) -> object:
        assert give_up(machine.store, KEY, sealed) is None  # the successor, who finds no stage
        return send(files)

    machine.nodes.send = send_late  # type: ignore[method-assign, assignment]
    done = machine.commit(sealed)
    assert isinstance(done, CommitEnded)
    assert done.damaged
    assert "another driver has taken over" in done.message
    assert machine.data_keys() == []


@pytest.mark.parametrize("fault", ["package", "unreachable", "denied"])
def test_a_node_that_cannot_use_the_store_is_brought_and_named_once(
    machine: Machine, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    if fault == "package":
        machine.why = "object stores need the package obstore"
    else:
        machine.nodes.faults.append(Fault(fault))  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        for index in range(2):
            done = machine.commit(machine.stage(), index)
            assert isinstance(done, CommitEnded)
            assert done.digest
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("host-b cannot use the store itself: ")
    assert "holdfast[cloud]" in warning
    assert len(machine.nodes.requests) <= 1
    assert len(machine.data_keys()) == 2 * len(CONTENT)


def test_a_store_that_nobody_reaches_is_not_the_nodes_fault(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    sealed = machine.stage()
    machine.nodes.faults.append(Fault("unreachable", times=1))
    machine.store.faults.append(Fault("unreachable", verbs=("stat",), times=1))
    assert not isinstance(machine.commit(sealed), CommitEnded)
    assert caplog.records == []
    assert list((machine.mirror / TRIAL).iterdir()) == []
    done = machine.commit(sealed)
    assert isinstance(done, CommitEnded)
    assert done.digest
    assert machine.data_keys()


def test_a_newer_stage_is_read_back_where_it_is(machine: Machine) -> None:
    sealed = machine.stage()
    job = PrepareJob(0, 0, str(machine.mirror / TRIAL), sealed, "id", 1)
    assert machine.perform(job) == MirrorDone(0, 0, PrepareJob)
    assert list((machine.mirror / TRIAL).iterdir()) == []
    assert machine.nodes.requests == []


def test_a_newer_stage_is_brought_if_an_older_one_is_here(machine: Machine) -> None:
    """Otherwise the older one would be given up for one that goes with its node."""
    sealed = machine.stage()
    (machine.mirror / TRIAL / ".sealed-1-00000000").mkdir(parents=True)
    job = PrepareJob(0, 1, str(machine.mirror / TRIAL), sealed, "id", 1)
    assert machine.perform(job) == MirrorDone(0, 1, PrepareJob)
    assert (machine.mirror / TRIAL / "checkpoint_000001").is_dir()


def test_what_is_on_nodes_when_the_driver_leaves_is_brought_for_its_successor(machine: Machine) -> None:
    sealed = machine.stage()
    (machine.mirror / TRIAL).mkdir()
    machine.sender.rescue(time.sleep)
    assert (machine.mirror / TRIAL / sealed).is_dir()
    successor = RemoteJobPerformer(machine.store, machine.mirror)
    done = successor.perform(CommitJob(0, 0, str(machine.mirror / TRIAL), sealed, "id", 1))
    assert isinstance(done, CommitEnded)
    assert done.digest


def test_few_stages_are_brought_at_once_however_many_are_sent() -> None:
    gate, lock = threading.Event(), threading.Lock()
    inside: list[int] = []

    class Stages:
        def bring(self, trial_dir: str, sealed: str, attempt: int) -> None:
            with lock:
                inside.append(attempt)
            assert gate.wait(30)

        def drop(self, trial_dir: str, sealed: str) -> None: ...

    perform = bringing(Stages(), lambda job: job)
    with ThreadPoolExecutor(3 * MAX_JOBS_AT_ONCE) as threads:
        jobs = [threads.submit(perform, CommitJob(n, 0, "", "", "", 1)) for n in range(3 * MAX_JOBS_AT_ONCE)]
        deadline = time.monotonic() + 30
        while len(inside) < MAX_JOBS_AT_ONCE:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert len(inside) == MAX_JOBS_AT_ONCE
        gate.set()
        assert len({job.result().n for job in jobs}) == 3 * MAX_JOBS_AT_ONCE


# --- the way back


def committed(machine: Machine) -> Need:
    """A checkpoint that the store alone has."""
    done = machine.commit(machine.stage())
    assert isinstance(done, CommitEnded)
    return Need(KEY, done.digest, stored=True)


def verify(machine: Machine, need: Need) -> Outcome | MirrorOutcome:
    return machine.perform(VerifyJob(0, 0, str(machine.mirror / KEY), need.digest))


def give(machine: Machine, need: Need) -> str:
    """Start an attempt there; returns why it cannot be."""
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    machine.courier.enter("b", 1, "other", need.path)
    machine.courier.push("b", "other", machine.courier.missing("b", [need]), done.put)
    return done.get(timeout=30)


def test_a_node_fetches_the_checkpoint_that_its_attempt_starts_from(machine: Machine) -> None:
    need = committed(machine)
    assert verify(machine, need) == VerifyEnded(0, 0, ok=True)
    assert give(machine, need) == ""
    assert not (machine.mirror / KEY).exists()
    assert (machine.scratch / FILES / KEY / "weights.bin").read_bytes() == CONTENT["weights.bin"]
    assert "fetch" not in [request.verb for request in machine.store.requests]
    assert machine.courier.missing("b", [need]) == []


def test_a_checkpoint_that_lacks_a_file_in_the_store_is_damaged(machine: Machine) -> None:
    need = committed(machine)
    machine.store.delete([f"{KEY}/weights.bin"])
    outcome = verify(machine, need)
    assert isinstance(outcome, VerifyEnded)
    assert outcome.damaged


def test_a_checkpoint_that_a_node_finds_damaged_is_read_by_the_driver_next(machine: Machine) -> None:
    """The driver saw names and sizes alone. Without a look of its own it would start the trial so again and again."""
    need = committed(machine)
    machine.store.put(f"{KEY}/weights.bin", b"x" * len(CONTENT["weights.bin"]))
    assert verify(machine, need) == VerifyEnded(0, 0, ok=True)
    assert "the content of weights.bin is not what was saved" in give(machine, need)
    assert not (machine.scratch / FILES / KEY).exists()
    outcome = verify(machine, need)
    assert isinstance(outcome, VerifyEnded)
    assert outcome.damaged


def test_a_node_that_cannot_fetch_gets_the_checkpoint_from_the_driver(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    need = committed(machine)
    machine.nodes.faults.append(Fault("denied"))
    assert verify(machine, need) == VerifyEnded(0, 0, ok=True)
    assert give(machine, need) == ""
    assert (machine.scratch / FILES / KEY / "weights.bin").read_bytes() == CONTENT["weights.bin"]
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("host-b cannot use the store itself: ")


def test_a_machine_that_sees_the_directory_has_the_checkpoint_fetched_there(machine: Machine) -> None:
    need = committed(machine)
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert machine.courier.fetch_start(need, done.put)
    assert done.get(timeout=30) == ""
    assert (machine.mirror / KEY / "weights.bin").read_bytes() == CONTENT["weights.bin"]
    assert not machine.courier.fetch_start(need, done.put)


# --- what travels


def test_credentials_travel_and_what_belongs_to_one_machine_does_not() -> None:
    environ = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "very secret",
        "AWS_ENDPOINT_URL": "http://store",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/token",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
        "PATH": "/bin",
    }
    access = make_access(parse("s3://bucket/e?region=eu"), environ, ("spec", b"content"))
    assert sorted(access.environ) == ["AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL", "AWS_SECRET_ACCESS_KEY"]
    for shown in (repr(access), str(access), f"{access}", repr([access])):
        assert "very secret" not in shown
    plan = say.PorterPlan(addresses=[], secret="s", node="", ip="", run="", experiment="", store=access)
    assert "very secret" not in repr(plan)


def test_keys_of_the_driver_take_the_place_of_the_nodes_and_otherwise_its_own_stay() -> None:
    node = {"AWS_SESSION_TOKEN": "of the node", "AZURE_STORAGE_KEY": "mine", "PATH": "/bin"}
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "k"}
    adopt(StoreAccess(address="s3://b", environ=keys, witness=("", "")), node)
    assert node == {**keys, "AZURE_STORAGE_KEY": "mine", "PATH": "/bin"}
    node = {"AWS_ACCESS_KEY_ID": "of the node", "PATH": "/bin"}
    adopt(StoreAccess(address="s3://b", environ={"AWS_REGION": "eu"}, witness=("", "")), node)
    assert node == {"AWS_ACCESS_KEY_ID": "of the node", "AWS_REGION": "eu", "PATH": "/bin"}


def test_a_store_that_is_another_one_on_this_machine_is_refused(tmp_path: Path) -> None:
    """As at "localhost"; here it is a directory. A real agent is started."""
    (tmp_path / "spec").write_bytes(b"ours")
    access = make_access(parse(str(tmp_path)), {}, ("spec", b"ours"))
    store = open_access(access)
    store.put("key", b"content")
    store.close()
    assert (tmp_path / "key").read_bytes() == b"content"
    for content in (b"theirs", None):
        (tmp_path / "spec").unlink()
        if content is not None:
            (tmp_path / "spec").write_bytes(content)
        with pytest.raises(StorageError, match="is not the store of this experiment"):
            open_access(access)
