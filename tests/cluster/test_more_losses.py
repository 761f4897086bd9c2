"""Losses that take longer to show: crashes, long cuts, machines that freeze or come back, full disks, slow links."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ray_cluster import Experiment, RayHosts

pytestmark = pytest.mark.cluster

ON_B = {"CPU": 1, "host_b": 1}
NOBODY = "pgrep -f '[c]luster.porter|[W]orkerActor'; true"


def victim_of(notes: list[dict[str, Any]]) -> dict[str, Any]:
    return next(note for note in notes if note["host"] != "a")


def wait_until(done: Any, what: str, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def is_running(cluster: RayHosts, host: str, pid: int) -> bool:
    """Whether a process of that machine lives; one that waits to be reaped does not."""
    line = cluster.hosts.run(host, "bash", "-c", f"grep -s ^State /proc/{pid}/status; true")
    return bool(line) and "Z" not in line


def check_all(experiment: Experiment, trials: int, steps: int, limit_s: float = 240.0) -> list[dict[str, Any]]:
    found = experiment.finish(limit_s)["trials"]
    assert [(trial["step"], trial["error"]) for trial in found] == [(steps, "")] * trials
    for k in range(trials):
        experiment.check_steps(k, steps)
    return found


def test_a_machine_that_crashes_costs_no_failure_and_no_step(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "crash", trials=3, steps=80, every=5)
    victim = victim_of([experiment.wait_for_step(k, 6) for k in range(3)])["host"]
    cluster.hosts.crash(victim)
    assert victim not in {trial["host"] for trial in check_all(experiment, 3, 80)}


def test_after_a_long_cut_the_old_attempt_is_gone_before_the_machine_is_back(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "cut", trials=3, steps=300, every=5, children=True)
    notes = [experiment.wait_for_step(k, 6) for k in range(3)]
    trial, note = next((k, note) for k, note in enumerate(notes) if note["host"] != "a")
    left = [note["pid"], *(each["of"] for each in experiment.notes(trial) if each["what"] == "child")]
    cluster.hosts.cut(note["host"])
    for pid in left:  # while nobody can tell them anything
        wait_until(lambda pid=pid: not is_running(cluster, note["host"], pid), f"process {pid} of {left} lives")
    wait_until(lambda: not cluster.hosts.run(note["host"], "bash", "-c", NOBODY), "somebody is left there")
    cluster.hosts.heal(note["host"])
    check_all(experiment, 3, 300)
    attempts = [each["pid"] for each in experiment.notes(trial) if each["what"] == "start"]
    assert attempts[0] == note["pid"]
    assert len(attempts) == 2
    acknowledged = [each["pid"] for each in experiment.notes(trial) if each["what"] == "ack"]
    assert acknowledged == sorted(acknowledged, key=attempts.index)  # nothing of the old one after the new one's first


def test_a_machine_comes_back_with_an_empty_disk(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "empty", trials=1, steps=60, every=5, requests=ON_B)
    experiment.wait_for_step(0, 6)
    cluster.hosts.power_off("b")
    cluster.up("b")
    assert check_all(experiment, 1, 60)[0]["host"] == "b"


def test_all_machines_are_lost_and_one_returns(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "all", trials=2, steps=60, every=5, requests={"CPU": 1, "host_c": 1})
    for k in range(2):
        experiment.wait_for_step(k, 6)
    cluster.hosts.power_off("b")
    cluster.hosts.power_off("c")
    experiment.wait_for(lambda: "waits for a machine" in experiment.log.read_text(), "word of the loss")
    cluster.up("c")
    check_all(experiment, 2, 60)


def test_a_full_disk_of_the_driver_makes_trials_wait(cluster: RayHosts) -> None:
    make = "mkdir -p /tmp/small && mount -t tmpfs -o size=16m none /tmp/small"
    cluster.hosts.run("a", "bash", "-c", make)
    try:
        settings = {"root": "/tmp/small", "bytes": 2 << 20, "requests": ON_B}
        experiment = cluster.start("a", "full", trials=1, steps=15, **settings)
        experiment.wait_for(lambda: "No space left" in experiment.log.read_text(), "word of the full disk")
        cluster.hosts.run("a", "mount", "-o", "remount,size=256m", "/tmp/small")
        assert check_all(experiment, 1, 15)[0]["checkpoints"] == 15
    finally:
        cluster.hosts.run("a", "umount", "-l", "/tmp/small")


def test_a_slow_link_only_takes_longer(cluster: RayHosts) -> None:
    cluster.hosts.limit("b", "24mbit")
    try:
        experiment = cluster.start("a", "slow", trials=1, steps=4, bytes=8 << 20, requests=ON_B)
        assert check_all(experiment, 1, 4)[0]["checkpoints"] == 4
        assert [note["what"] for note in experiment.notes(0)].count("start") == 1
    finally:
        cluster.hosts.power_off("b")


def test_a_worker_that_is_killed_while_its_checkpoint_travels_loses_nothing(cluster: RayHosts) -> None:
    cluster.hosts.limit("b", "80mbit")
    try:
        settings = {"bytes": 64 << 20, "requests": ON_B, "max_failures": 1}
        experiment = cluster.start("a", "travel", trials=1, steps=2, sleep_s=0.5, **settings)
        note = experiment.wait_for_step(0, 1)
        cluster.hosts.run("b", "kill", "-9", str(note["pid"]))
        check_all(experiment, 1, 2)
        starts = [note["step"] for note in experiment.notes(0) if note["what"] == "start"]
        assert starts == [0, 1]
    finally:
        cluster.hosts.power_off("b")


def test_a_machine_that_freezes_is_given_up_and_may_thaw(cluster: RayHosts) -> None:
    """Its kernel answers for it, so only the cluster's own health checks notice."""
    experiment = cluster.start("a", "frozen", trials=3, steps=120, every=5)
    notes = [experiment.wait_for_step(k, 6) for k in range(3)]
    trial, note = next((k, note) for k, note in enumerate(notes) if note["host"] != "a")
    cluster.hosts.freeze(note["host"])
    try:
        experiment.wait_for(
            lambda: [each for each in experiment.notes(trial) if each["what"] == "start"][1:], "second attempt", 240.0
        )
    finally:
        cluster.hosts.freeze(note["host"], thaw=True)
    wait_until(lambda: not is_running(cluster, note["host"], note["pid"]), "the old attempt lives")
    check_all(experiment, 3, 120)
    cluster.hosts.power_off(note["host"])  # its node has been given up by the cluster


def test_a_killed_bridge_costs_no_failure_and_no_step(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "bridge", trials=3, steps=60, every=5)
    for k in range(3):
        experiment.wait_for_step(k, 6)
    cluster.hosts.run("a", "pkill", "-9", "-f", "[c]luster.bridge")
    check_all(experiment, 3, 60)


def test_the_end_of_ray_on_the_drivers_machine_costs_no_failure_and_no_step(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "raylet", trials=4, steps=60, every=5)
    for k in range(4):
        experiment.wait_for_step(k, 6)
    cluster.hosts.run("a", "pkill", "-9", "raylet")
    experiment.wait_for(lambda: "Ray has ended on a" in experiment.log.read_text(), "word of the loss")
    cluster.start_again("a")
    check_all(experiment, 4, 60)


def test_without_ray_on_the_drivers_machine_the_run_ends_and_can_be_restored(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "no-raylet", trials=4, steps=60, every=5)
    for k in range(4):
        experiment.wait_for_step(k, 6)
    cluster.hosts.run("a", "pkill", "-9", "raylet")
    told = experiment.finish(120.0)
    assert "Ray has ended on a, the driver's own node" in told["refused"]
    assert "4 trials unfinished" in told["refused"]
    cluster.start_again("a")
    check_all(cluster.start("a", "no-raylet"), 4, 60)


@pytest.mark.parametrize("who", ["worker", "driver"])
def test_children_that_detached_themselves_end_with_their_trial(cluster: RayHosts, who: str) -> None:
    experiment = cluster.start("a", f"children-{who}", trials=3, steps=100000, children=True)
    notes = [experiment.wait_for_step(k, 3) for k in range(3)]
    trial, note = next((k, note) for k, note in enumerate(notes) if note["host"] != "a")
    children = [each["of"] for each in experiment.notes(trial) if each["what"] == "child"]
    assert len(children) == 2
    assert all(is_running(cluster, note["host"], pid) for pid in children)
    if who == "worker":
        cluster.hosts.run(note["host"], "kill", "-9", str(note["pid"]))
    else:
        cluster.hosts.run("a", "pkill", "-9", "-f", "cluster_trial.py")
    for pid in children:
        wait_until(lambda pid=pid: not is_running(cluster, note["host"], pid), f"child {pid} of {children} lives")
    cluster.hosts.run("a", "bash", "-c", "pkill -9 -f [c]luster_trial.py; true")
    experiment.process.wait(60)


def test_a_killed_driver_is_restored_on_a_fresh_cluster(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "fresh", trials=3, steps=40, every=5)
    for k in range(3):
        experiment.wait_for_step(k, 6)
    cluster.hosts.run("a", "pkill", "-9", "-f", "cluster_trial.py")
    experiment.process.wait(60)
    cluster.restart("a", "b", "c")
    check_all(cluster.start("a", "fresh"), 3, 40)


def test_a_cluster_that_is_restarted_under_a_driver_is_joined_again(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "restarted", trials=3, steps=60, every=5)
    for k in range(3):
        experiment.wait_for_step(k, 6)
    cluster.restart("a", "b", "c")
    check_all(experiment, 3, 60)


def test_out_of_memory_on_a_machine_is_counted_and_named(cluster: RayHosts) -> None:
    """Ray's monitor sees the memory of the machine below all of these, which others use as well."""
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(facts[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    threshold = (total - free + (1 << 20)) / total  # 1 GiB more than now
    cluster.up("m", RAY_memory_usage_threshold=f"{threshold:.3f}", RAY_memory_monitor_refresh_ms="100")
    try:
        settings = {"requests": {"CPU": 1, "host_m": 1}, "takes": 4 << 30}
        told = cluster.start("a", "memory", steps=4, **settings).finish()["trials"][0]
        assert "out of memory on m" in told["error"]
    finally:
        cluster.leave("m")
