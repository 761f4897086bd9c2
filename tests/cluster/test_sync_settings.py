"""How checkpoints come from the nodes of a cluster: each, or only the newest; with commands and functions of users."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_cluster import HERE, RayHosts

ON_B = {"CPU": 1, "host_b": 1}
COPY = f"{sys.executable} {HERE / 'copy_over_tcp.py'}"


@contextlib.contextmanager
def copies_served(cluster: RayHosts) -> Iterator[Path]:
    """Machines send their directories to whoever asks; yields where each copy is written down."""
    logs = [cluster.side.parent / f"copies-{name}.log" for name in "bc"]
    servers = [cluster.hosts.start(name, *COPY.split(), "serve", log=log) for name, log in zip("bc", logs, strict=True)]
    notes = cluster.side / "copies"
    notes.unlink(missing_ok=True)
    try:
        yield notes
    finally:
        for server in servers:
            server.terminate()
            server.wait(30)


def test_only_the_newest_checkpoint_is_brought_at_the_end_of_each_attempt(cluster: RayHosts) -> None:
    sync = {"sync_on_checkpoint": False, "sync_period": 10000}
    experiment = cluster.start("a", "newest", steps=30, requests=ON_B, max_failures=1, sync=sync)
    note = experiment.wait_for_step(0, 12)
    cluster.hosts.run("b", "kill", "-9", str(note["pid"]))
    trial = experiment.finish()["trials"][0]
    assert (trial["step"], trial["saved"], trial["error"]) == (30, 30, "")
    experiment.check_steps(0, 30)
    first, second = [note["step"] for note in experiment.notes(0) if note["what"] == "start"]
    assert (first, second >= 12) == (0, True)
    # The first one of all, the newest of the attempt that was killed, and the newest of the other.
    assert trial["checkpoints"] == 3


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["command", "function"])
def test_a_syncer_gets_the_address_of_the_node(cluster: RayHosts, kind: str) -> None:
    with copies_served(cluster) as notes:
        syncer = f"{COPY} {notes} {{source}} {{target}}" if kind == "command" else f"function:{notes}"
        experiment = cluster.start("a", f"copied-{kind}", trials=2, steps=4, requests=ON_B, sync={"syncer": syncer})
        trials = experiment.finish()["trials"]
    found = [(trial["step"], trial["saved"], trial["checkpoints"], trial["artifact"]) for trial in trials]
    assert found == [(4, 4, 4, True)] * 2, experiment.log.read_text()
    copies = [line.split() for line in notes.read_text().splitlines()]
    root = f"/tmp/results/copied-{kind}/"
    brought = [source for source, target in copies if target.startswith(root) and target.endswith("/")]
    assert len(brought) == 8
    assert all(source.startswith(f"root@{cluster.hosts.ip('b')}:/tmp/holdfast-") for source in brought)
    assert all(source.endswith("/") for source in brought)


@pytest.mark.cluster
@pytest.mark.parametrize("command", ["false", "true"])
def test_a_syncer_that_cannot_copy_from_a_node_is_refused(cluster: RayHosts, command: str) -> None:
    sync = {"syncer": f"{command} {{source}} {{target}}"}
    told = cluster.start("a", f"uncopied-{command}", sync=sync).finish()["refused"]
    why = "Its exit code was 1" if command == "false" else "has not arrived"
    assert "cannot copy checkpoints from b (" in told
    assert f"root@{cluster.hosts.ip('b')}:/tmp/holdfast-" in told
    assert why in told
    assert "Nothing was run" in told
