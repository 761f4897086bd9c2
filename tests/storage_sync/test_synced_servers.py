"""The same with the tools that people use, and servers at the other end: rsync over ssh, the aws command line, S3."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import synced
from sync_tools import until
from synced import EPOCHS, HELD, tuner

import holdfast as tune
from holdfast.storage import agent_client
from holdfast.sync.store_syncer import StoreSyncer
from servers import aws
from servers.sshd import Sshd


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """What the machine has."""
    return tmp_path / "here"


@pytest.fixture(autouse=True)
def _own_agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One that other tests have left knows their credentials."""
    agents = agent_client._Agents()
    monkeypatch.setattr(agent_client, "_agents", agents)
    yield
    agents.stop()


def epochs(result: tune.Result) -> list[int]:
    return [row["epoch"] for row in result.metrics_history]


@pytest.mark.slow
def test_rsync_over_ssh_brings_a_killed_experiment_to_another_machine(
    sshd: Sshd, rsync: str, tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"{rsync} --delete {{exclude}} {{source}} {{target}}"
    address = f"{sshd.host}:{tmp_path}/remote"
    remote = tmp_path / "remote" / "exp"
    remote.parent.mkdir()  # rsync makes one directory, not two
    driver = synced.start_driver(address, command, **{HELD: "3"})
    try:
        until(lambda: len(list(remote.glob("*/checkpoint_000002/_manifest.json"))) == 2, "the copies of checkpoints")
        until(lambda: list(remote.glob(".holdfast/.sync-seal.json")), "the journal's copy")
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    shutil.rmtree(here)
    config = tune.SyncConfig(syncer=command)
    results = tune.Tuner.restore(f"{address}/exp", trainable=synced.train, sync_config=config).fit()
    assert [epochs(result) for result in results] == [list(range(EPOCHS))] * 2
    assert (remote / ".holdfast").is_dir()


@pytest.mark.slow
def test_what_aws_has_copied_is_an_experiment_in_a_store(bucket: str, here: Path, monkeypatch, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="upload_dir"):
        made = tuner(f"{bucket}/runs", f"{aws.SYNC} {{source}} {{target}}", sync={"sync_on_checkpoint": False})
    before = [result.metrics_history for result in made.fit()]
    shutil.rmtree(here)
    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "cache"))
    assert tune.Tuner.can_restore(f"{bucket}/runs/exp")
    natively = tune.Tuner.restore(f"{bucket}/runs/exp").fit()
    assert [result.metrics_history for result in natively] == before
    assert natively[0].checkpoint.to_dict()["epoch"] == EPOCHS - 1


class Counts(tune.DurableTrainable):
    def setup(self, config: dict[str, int]) -> None:
        self.x = 0

    def step(self) -> dict[str, object]:
        self.x += 1
        return {"x": self.x, "place": self.remote_checkpoint_dir, "done": self.x == 3}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, int]:
        return {"x": self.x}

    def load_checkpoint(self, checkpoint: dict[str, int]) -> None:
        self.x = checkpoint["x"]


@pytest.fixture
def s3(seaweedfs, bucket_name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a bucket that holdfast finds through the environment."""
    for name in agent_client.credentials(os.environ):
        monkeypatch.delenv(name)
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{seaweedfs.bucket(bucket_name)}"


def test_a_durable_trainable_saves_to_s3_and_comes_back_from_there(s3: str) -> None:
    users = agent_client._agents._users
    first = Counts(f"{s3}/kept", {})
    first.train()
    path = first.save()
    first.train()
    newer = first.save()
    first.delete_checkpoint(path)
    shutil.rmtree(first.logdir)
    second = Counts(f"{s3}/kept", {})
    second.restore(newer)
    assert second.x == 2
    assert os.listdir(second.logdir) == [Path(newer).name]
    for one in (first, second):
        one.stop()
    assert agent_client._agents._users == users
    shutil.rmtree(second.logdir)


def test_a_durable_trainable_in_an_experiment_in_s3_has_its_place_there(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "cache"))
    config = tune.RunConfig(name="exp", storage_path=f"{s3}/runs", verbose=0)
    (result,) = tune.Tuner(Counts, run_config=config).fit()
    assert result.metrics["place"] == result.path
    assert result.path.startswith(f"{s3}/runs/exp/")
    assert result.checkpoint.to_dict()["x"] == 3


@pytest.mark.parametrize("far", [True, False])
def test_a_store_syncer_copies_what_has_changed(far: bool, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    remote = f"{request.getfixturevalue('s3')}/deep/er" if far else str(tmp_path / "remote")
    source = tmp_path / "source"
    for name in ("a/one", "a/two", "leave/three", "four.tmp", "empty"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name if name != "empty" else "")
    (source / "a" / "link").symlink_to("one")
    (source / "a" / "loop").symlink_to("..")
    (source / "a" / "nowhere").symlink_to("missing")
    users = agent_client._agents._users
    syncer = StoreSyncer()
    assert syncer.sync_up(str(source), remote, ["leave/*", "*.tmp"])
    syncer.wait()
    (source / "a" / "two").write_text("2")
    assert syncer.sync_up(str(source), remote, ["leave/*", "*.tmp"])
    syncer.wait()
    target = tmp_path / "target"
    assert syncer.sync_down(remote, str(target))
    syncer.wait()
    expected = {"a/one": "a/one", "a/two": "2", "a/link": "a/one", "empty": ""}
    assert {rel: (target / rel).read_text() for rel in expected} == expected
    assert sum(path.is_file() for path in target.rglob("*")) == len(expected)
    (target / "a" / "one").write_text("changed")
    assert syncer.sync_down(remote, str(target))
    syncer.wait()
    assert (target / "a" / "one").read_text() == "a/one"
    assert syncer.delete(f"{remote}/a")
    syncer.wait()
    assert syncer.sync_down(remote, str(tmp_path / "after"))
    syncer.wait()
    assert os.listdir(tmp_path / "after") == ["empty"]
    assert syncer.sync_up(str(source), remote, ["leave/*", "*.tmp"])
    syncer.wait()
    assert syncer.sync_down(remote, str(tmp_path / "after"))
    syncer.wait()
    assert (tmp_path / "after" / "a" / "two").read_text() == "2"
    syncer.close()
    assert agent_client._agents._users == users
