"""Ways in which an experiment in a store could lose something, each of which was one once."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from holdfast.checkpoints.commit import commit
from holdfast.checkpoints.jobs import CommitJob
from holdfast.checkpoints.remote_job_threads import RemoteJobThreads
from holdfast.checkpoints.remote_jobs import RemoteJobPerformer
from holdfast.checkpoints.stage import Stage
from holdfast.config import RunConfig, TuneConfig
from holdfast.controller.experiment import Settings, _without_secrets
from holdfast.controller.remote_checkpoint_jobs import RemoteCheckpointJobEdge
from holdfast.controller.remote_experiment import ELSEWHERE, mark_mirror, mirror_root
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.observations import CommitEnded
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State
from holdfast.core.transitions import apply
from holdfast.errors import ExperimentExistsError, ExperimentLockedError, FencedError
from holdfast.journal import Journal, claim_epoch, read_journal
from holdfast.shipping.claiming import claim_remote
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.shipping.shipper import Shipper
from holdfast.storage.address import parse
from holdfast.storage.layout import Root
from holdfast.storage.remote_root import Remote
from holdfast.testing.memory_store import MemoryStore
from holdfast.trainable.pickling import dump_settings

DEADLINE_S = 30.0


class Machine:
    """A driver on a machine of its own, shipping by hand."""

    def __init__(self, store: MemoryStore, root: Path, *, takeover: bool = False) -> None:
        self.store, self.root = store, str(root)
        restored = restore_mirror(store, self.root)
        os.makedirs(f"{self.root}/.holdfast", exist_ok=True)
        self.claim = claim_epoch(self.root, takeover=takeover)
        start = claim_remote(store, restored, self.claim, takeover=takeover)
        self.journal = Journal.create_or_append(self.root, self.claim, threaded=False)
        self.shipper = Shipper(store, self.journal, start, merging=(4, 4))

    def ship(self, *records: bytes) -> None:
        for record in records:
            self.journal.append([record])
            self.journal.sync()
            self.shipper.request(self.journal.written_seq)
            self.shipper.step()
        if self.shipper._merging is not None:
            self.shipper._merging.join()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_number_that_was_merged_away_cannot_be_claimed(store: MemoryStore, tmp_path: Path) -> None:
    """Somebody looks, and claims only after many more parts were made and merged: that number is not the next one."""
    first = Machine(store, tmp_path / "a" / "exp")
    first.ship(b"A1", b"A2")
    late = str(tmp_path / "c" / "exp")
    looked = restore_mirror(store, late)
    first.ship(*(b"A%d" % number for number in range(3, 40)))
    assert store.stat(f".holdfast/parts/{looked.shipped.number + 1:012d}.hfp") is None, "the test needs it merged"
    claim = claim_epoch(late, takeover=True)
    start = claim_remote(store, looked, claim, takeover=True)
    journal = Journal.create_or_append(late, claim, threaded=False)
    second = Shipper(store, journal, start)
    journal.append([b"C1"])
    journal.sync()
    second.request(journal.written_seq)
    second.step()
    assert not second.fenced
    first.shipper.request(first.journal.written_seq + 1)
    with pytest.raises(FencedError, match="taken over"):
        first.ship(b"A40", b"A41")
    seen = restore_mirror(store, tmp_path / "reader" / "exp")
    records = [payload for _, payload in read_journal(seen.root)]
    assert records == [b"A%d" % number for number in range(1, 40)] + [b"C1"]


def stage(home: Path, name: str, scratch: Path) -> str:
    source = scratch / name
    source.mkdir()
    (source / "w").write_text(name)
    return Stage(home, "id0", 1).seal(source).name


def root_at(path: Path) -> Path:
    (path / ".holdfast").mkdir(parents=True)
    return path


def test_a_stage_that_went_with_its_machine_takes_the_place_of_nothing(store: MemoryStore, tmp_path: Path) -> None:
    """One checkpoint is whole in the store, a newer one was only staged: the older one is found, not replaced."""
    rule = Retention(num_to_keep=2)
    lost, here = root_at(tmp_path / "lost"), root_at(tmp_path / "here")
    names = [stage(lost / "t", f"d{index}", tmp_path) for index in range(3)]
    done = RemoteJobPerformer(store, lost).perform(CommitJob(0, 1, str(lost / "t"), names[1], "id0", 1))
    assert isinstance(done, CommitEnded)
    assert done.digest
    state = State()
    history = [ev.TrialCreated(1.0, 0, "id0", {}, ""), ev.TrialStarted(1.0, 0, 1)]
    for index, name in enumerate(names):
        history.append(ev.Reported(1.0, 0, 1, 1, 0.1, {"x": index}))
        history.append(ev.CheckpointStaged(1.0, 0, 1, index, name, 9, 1))
    for event in [*history, ev.AttemptInterrupted(2.0, 0, 1, ev.Cause.DRIVER_LOST)]:
        apply(state, event, rule)

    class Clock:
        def now(self) -> float:
            return time.monotonic()

        def sleep(self, seconds: float) -> None:
            raise AssertionError

    threads = RemoteJobThreads(lambda: None, RemoteJobPerformer(store, here).perform)
    edge = RemoteCheckpointJobEdge(
        threads, state, DriverMemory(), Clock(), trial_dir=lambda n: here / "t", trouble=lambda text: None, rule=rule
    )
    for index in range(3):
        edge.prepare(cmd.Commit(0, index))
    for index in range(3):
        edge.submit(cmd.Commit(0, index))
    found: dict[int, ob.CommitEnded] = {}
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < 3 and time.monotonic() < deadline:
        found.update({each.index: each for each in edge.drain() if isinstance(each, ob.CommitEnded)})
    threads.close()
    assert {index: (each.damaged, each.superseded) for index, each in found.items()} == {
        0: (True, False),
        1: (False, False),
        2: (True, False),
    }


def test_a_local_file_that_is_gone_is_damage_and_not_trouble_with_the_store(store: MemoryStore, tmp_path: Path) -> None:
    root = root_at(tmp_path / "m")
    name = stage(root / "t", "d", tmp_path)
    commit(root / "t", name, 0, trial_id="id0", attempt=1)
    (root / "t" / "checkpoint_000000" / "w").unlink()
    outcome = RemoteJobPerformer(store, root).perform(CommitJob(0, 0, str(root / "t"), name, "id0", 1))
    assert isinstance(outcome, CommitEnded)
    assert outcome.damaged
    assert "w is missing" in outcome.message


def test_a_mirror_of_an_experiment_that_was_there_before_is_set_aside(store: MemoryStore, tmp_path: Path) -> None:
    mirror = tmp_path / "exp"
    (mirror / ".holdfast").mkdir(parents=True)
    (mirror / ".holdfast" / "spec.json").write_text("ONE")
    store.put(".holdfast/spec.json", b"ONE")
    driver = Machine(store, mirror)
    driver.ship(b"old")
    driver.journal.close()
    driver.shipper.close()
    store.delete(list(store.objects))
    store.put(".holdfast/spec.json", b"TWO")
    seen = restore_mirror(store, mirror, read_only=True)
    assert (Path(seen.root) / ".holdfast" / "spec.json").read_text() == "TWO"
    assert (mirror / ".holdfast" / "spec.json").read_text() == "ONE", "who only reads changes no mirror"
    opened = restore_mirror(store, mirror)
    assert (mirror / ".holdfast" / "spec.json").read_text() == "TWO"
    assert (Path(opened.superseded) / ".holdfast" / "spec.json").read_text() == "ONE"


def test_a_mirror_that_another_experiments_driver_works_on_is_left_alone(store: MemoryStore, tmp_path: Path) -> None:
    mirror = tmp_path / "exp"
    (mirror / ".holdfast").mkdir(parents=True)
    (mirror / ".holdfast" / "spec.json").write_text("ONE")
    store.put(".holdfast/spec.json", b"ONE")
    Machine(store, mirror)
    other = MemoryStore()
    other.put(".holdfast/spec.json", b"TWO")
    with pytest.raises(ExperimentLockedError, match=f"^The experiment {re.escape(other.url)} is being written by"):
        restore_mirror(other, mirror)
    assert (mirror / ".holdfast" / "spec.json").read_text() == "ONE"


def test_mirrors_are_told_apart_by_place_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "cache"))

    def mirror(address: str, staging: Path | None = None) -> Path:
        return mirror_root(Remote(parse(address)), None if staging is None else str(staging)).path

    chosen = mirror("s3://one/runs/exp", tmp_path / "scratch")
    assert chosen == tmp_path / "scratch" / "exp"
    mark_mirror(mirror_root(Remote(parse("s3://one/runs/exp"))))
    with pytest.raises(ExperimentExistsError, match=r"s3://two/runs/exp.*s3://one/runs/exp"):
        mirror("s3://two/runs/exp", tmp_path / "scratch")
    assert mirror("s3://two/runs/exp") != chosen
    assert mirror("s3://one/runs/exp", tmp_path / "scratch") == chosen
    assert mirror("s3://one/runs/exp") == chosen
    assert mirror("s3://one/runs/exp?region=eu-west-1") == chosen
    next((tmp_path / "cache").glob(f"*/{ELSEWHERE}")).write_text("")  # as a full disk may leave it
    assert all(
        path.is_absolute() and path.is_relative_to(tmp_path)
        for path in (mirror("s3://one/runs/exp"), mirror("s3://two/runs/exp"))
    )


def test_whoever_comes_second_replaces_nothing_of_the_first(store: MemoryStore, tmp_path: Path) -> None:
    def publish(text: str) -> bool:
        remote = Remote(parse("s3://bucket/exp"))
        remote.__dict__["store"] = store
        root = Root(tmp_path / text / "exp", remote=remote)
        root.objects.mkdir(parents=True)
        (root.objects / "settings.pkl").write_text(text)
        root.spec_file.write_text(text)
        return remote.publish(root, unfenced=False)

    assert publish("ONE")
    assert not publish("TWO")
    assert store.objects[".holdfast/objects/settings.pkl"] == b"ONE"


def test_credentials_in_a_file_system_object_are_not_stored() -> None:
    class FileSystem:
        protocol = ("s3",)

        def __init__(self, secret: str) -> None:
            self.secret = secret

        def ls(self, path: str) -> list[str]:
            return []

    run_config = RunConfig(name="e", storage_path="bucket/runs", storage_filesystem=FileSystem("TOPSECRET"))
    stored = dump_settings(_without_secrets(Settings({}, TuneConfig(), run_config)))
    assert b"TOPSECRET" not in stored
    assert run_config.storage_filesystem.secret == "TOPSECRET"
