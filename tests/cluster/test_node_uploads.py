"""With a store, checkpoints go from their node to it and back: the driver's machine carries none of them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import NETWORK

from ray_cluster import HERE, RayHosts

sys.path.insert(0, str(HERE.parent))

from servers.install import Unavailable
from servers.seaweedfs import SeaweedFS

MB = 1 << 20
PORT = 9000
PLACES = "/tmp/ray /tmp/home /tmp/holdfast-* /dev/shm 2>/dev/null"


class StoreOfMachines:
    """A bucket that every machine reaches."""

    def __init__(self, cluster: RayHosts, server: SeaweedFS, bucket: str) -> None:
        self.cluster = cluster
        self.environment = server.environment(f"http://{NETWORK}.1:{PORT}")
        self.secret = server.secret_key
        self.root = f"s3://{bucket}/results"
        self.server = server
        self._store = server.store(bucket)

    def keys(self, part: str = "") -> list[str]:
        """All keys that have this in them, without those of the journal."""
        found = [entry["path"] for page in self._store.list() for entry in page]
        return sorted(key for key in found if part in key and "/.holdfast/" not in key)

    def content(self, key: str) -> bytes:
        return bytes(self._store.get(key).bytes())


@pytest.fixture
def store(cluster: RayHosts, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StoreOfMachines]:
    if importlib.util.find_spec("obstore") is None:
        pytest.skip("obstore is not installed here: pip install 'holdfast[cloud]'")
    server = SeaweedFS(tmp_path / "server")
    try:
        server.start()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with server:
        gate = subprocess.Popen(
            cluster.hosts.in_hub(
                *(sys.executable, str(HERE / "store_gate.py"), f"{NETWORK}.1", str(PORT)),
                f"/tmp/seaweedfs-s3-{server.port}.sock",
            ),
            stdout=subprocess.PIPE,
        )
        with gate:
            assert gate.stdout is not None
            assert gate.stdout.readline() == b"open\n"
            yield StoreOfMachines(cluster, server, server.bucket("experiments"))
            gate.kill()


def test_checkpoints_do_not_pass_through_the_drivers_machine(cluster: RayHosts, store: StoreOfMachines) -> None:
    before = {name: cluster.hosts.traffic(name) for name in "ab"}
    experiment = cluster.start(
        *("a", "uploads"),
        environment=store.environment,
        root=store.root,
        steps=4,
        bytes=48 * MB,
        requests={"CPU": 1, "host_b": 1},
    )
    [trial] = experiment.finish()["trials"]
    assert (trial["step"], trial["error"], trial["checkpoints"]) == (4, "", 4)
    assert len(store.keys("_manifest.json")) == 4
    moved = {name: cluster.hosts.traffic(name) - before[name] for name in "ab"}
    print(f"bytes in and out: a {moved['a']:,}, b {moved['b']:,}, checkpoints {4 * 48 * MB:,}")
    assert moved["b"] > 4 * 48 * MB
    assert moved["a"] < 48 * MB
    for name in "abc":  # neither files nor logs have the credentials
        found = cluster.hosts.run(name, "bash", "-c", f"grep -rlF '{store.secret}' {PLACES}; true")
        assert found == "", f"credentials on {name}"
    assert store.secret not in experiment.log.read_text()


@pytest.mark.cluster
def test_a_node_that_is_lost_while_it_uploads_leaves_no_half_of_a_checkpoint(
    cluster: RayHosts, store: StoreOfMachines
) -> None:
    cluster.hosts.limit("b", "100mbit")
    before = cluster.hosts.traffic("a")
    experiment = cluster.start(
        *("a", "halves"),
        environment=store.environment,
        root=store.root,
        steps=6,
        sleep_s=3.0,
        bytes=64 * MB,
        requests={"CPU": 1, "host_b": 1},
    )
    half = "checkpoint_000001/"
    experiment.wait_for(lambda: store.keys(f"{half}state.json"), "begin of the second upload")
    assert store.keys("checkpoint_000000/_manifest.json")
    assert not store.keys(f"{half}data")
    cluster.hosts.power_off("b")
    experiment.wait_for(lambda: store.keys(f"{half}_manifest.json"), "end of that upload")
    cluster.up("b")
    [trial] = experiment.finish()["trials"]
    assert (trial["step"], trial["error"]) == (6, "")
    experiment.check_steps(0, 6)
    starts = [note["step"] for note in experiment.notes(0) if note["what"] == "start"]
    assert starts == [0, 1]
    moved = cluster.hosts.traffic("a") - before
    print(f"bytes in and out: a {moved:,}, with a start from {64 * MB:,} bytes")
    assert moved < 48 * MB  # the checkpoint that it went on from came to the node from the store
    [left] = store.keys(half)
    assert store.content(left).startswith(b'{"given_up"')
    assert "it was on b, which was lost" in experiment.log.read_text()


def test_a_node_that_cannot_reach_the_store_is_named_and_its_checkpoints_are_brought(
    cluster: RayHosts, store: StoreOfMachines
) -> None:
    cluster.hosts.forbid("b", f"{NETWORK}.1")
    experiment = cluster.start(
        *("a", "brought"), environment=store.environment, root=store.root, steps=3, requests={"CPU": 1, "host_b": 1}
    )
    [trial] = experiment.finish()["trials"]
    cluster.hosts.power_off("b")  # its next life has the way back
    assert (trial["step"], trial["error"], trial["checkpoints"]) == (3, "", 3)
    assert len(store.keys("_manifest.json")) == 3
    text = experiment.log.read_text()
    assert text.count("b cannot use the store itself: ") == 1, text
    assert store.secret not in text


@pytest.mark.cluster
def test_a_driver_that_leaves_while_the_store_hangs_takes_along_what_is_on_nodes(
    cluster: RayHosts, store: StoreOfMachines
) -> None:
    settings = {"environment": store.environment, "root": store.root}
    place = {"requests": {"CPU": 1, "host_b": 1}}
    experiment = cluster.start("a", "leaves", **settings, steps=60, sleep_s=0.5, bytes=4 * MB, **place)
    experiment.wait_for(lambda: store.keys("checkpoint_000001/_manifest.json"), "two checkpoints")
    store.server.pause()
    saved = experiment.notes(0)[-1]["step"] + 4
    experiment.wait_for_step(0, saved)
    cluster.hosts.run("a", "pkill", "-INT", "-f", "cluster_trial.py")
    assert "Nothing is lost: it is all on this machine" in experiment.finish()["refused"]
    store.server.resume()
    again = cluster.start("a", "leaves", **settings, **place)
    [trial] = again.finish()["trials"]
    assert (trial["step"], trial["error"]) == (60, "")
    [_, start] = [note["step"] for note in experiment.notes(0) if note["what"] == "start"]
    assert start >= saved
