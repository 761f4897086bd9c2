"""The engine for clusters when things come and go in the middle of something."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.backoff import Backoff
from holdfast.core.events import Cause
from holdfast.core.observations import Capacity, Died, Hint, Raised, Returned
from holdfast.engines.cluster import actor_worker, cluster_pool
from holdfast.testing.engine_contract import ContractDriver, driving
from holdfast.trainable.worker_messages import Decision
from loopback import Loopback

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="finds porters in /proc")]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loopback:
    monkeypatch.setattr(cluster_pool, "REVIVE_S", 0.2)
    return Loopback(tmp_path, monkeypatch)


@pytest.fixture
def driver(cluster: Loopback) -> Iterator[ContractDriver]:
    with driving(cluster.make) as driver:
        yield driver


def cpus(driver: ContractDriver) -> float:
    return [o for o in driver.seen if isinstance(o, Capacity)][-1].resources["CPU"]


def test_a_porter_that_dies_while_its_workers_live(cluster: Loopback, driver: ContractDriver) -> None:
    driver.answers[0, 1] = ""
    driver.launch(0, ["report", {}], ["report", {}], resources=cluster.place)
    driver.until(lambda: driver.reports_of(0))
    cluster.kill_porter("b")
    end = driver.end_of(0)
    assert isinstance(end, Died)
    assert end.cause == Cause.NODE_LOST
    driver.until(lambda: cpus(driver) == 2)
    driver.until(lambda: cpus(driver) == 4)  # another porter has come
    driver.until(lambda: not cluster.pids("b"))  # what was there has ended itself, and gave its place back
    for n in (1, 2):
        driver.launch(n, ["report", {}], ["hang"], resources=cluster.place)
    driver.until(lambda: driver.reports_of(1) and driver.reports_of(2))
    assert len(driver.ends_of(0)) == 1


def test_a_worker_that_never_dials_in_is_not_the_fault_of_its_trial(
    cluster: Loopback, driver: ContractDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_pool, "START", Backoff(first_s=0.2, longest_s=60.0))
    cluster.mute = 1
    driver.launch(0, ["report", {}])
    assert isinstance(driver.end_of(0), Returned)
    assert len(driver.ends_of(0)) == 1


def test_a_worker_that_ends_before_it_dials_in_is_started_again(cluster: Loopback, driver: ContractDriver) -> None:
    cluster.broken = 3
    driver.launch(0, ["report", {}])
    assert isinstance(driver.end_of(0), Returned)


def test_an_attempt_whose_workers_never_start_is_given_back(cluster: Loopback, driver: ContractDriver) -> None:
    cluster.broken = cluster_pool.MAX_STARTS
    driver.launch(0, ["report", {}])
    end = driver.end_of(0)
    assert isinstance(end, Died)
    assert end.cause == Cause.ENGINE_LOST
    hint = driver.first(Hint)
    assert "no worker can be started: 5 tries in a row have failed, the last with: ActorDiedError" in hint.text
    driver.launch(0, ["report", {}], attempt=2)
    assert isinstance(driver.end_of(0, 2), Returned)


def test_a_request_that_the_cluster_refuses_is_not_tried_again(cluster: Loopback, driver: ContractDriver) -> None:
    cluster.refused = "licence resource quantities >1 must be whole numbers"
    driver.launch(0, ["report", {}])
    end = driver.end_of(0)
    assert isinstance(end, Raised)
    assert end.final
    assert (end.error.type, cluster.refused in end.error.message) == ("ValueError", True)


def test_it_is_said_once_that_no_machine_has_what_an_attempt_asks_for(
    cluster: Loopback, driver: ContractDriver
) -> None:
    for n in (0, 1):
        driver.launch(n, ["report", {}], resources={"CPU": 3.0})
    driver.launch(2, ["report", {}])
    assert isinstance(driver.end_of(2), Returned)
    (hint,) = [o for o in driver.seen if isinstance(o, Hint)]
    assert "waits and cannot start. A trial asks for {'CPU': 3.0}, and no node of the cluster has as much" in hint.text
    assert "has {'CPU': 2.0}" in hint.text
    assert "an autoscaler is not asked for one" in hint.text


@pytest.mark.parametrize("phase", ["asked", "waiting", "pushed"])
def test_an_attempt_is_halted_before_it_runs(cluster: Loopback, driver: ContractDriver, phase: str) -> None:
    driver.first(Capacity)
    if phase == "waiting":
        for n in range(1, 5):
            driver.launch(n, ["report", {}], ["hang"])
        driver.until(lambda: all(driver.reports_of(n) for n in range(1, 5)))
    driver.launch(0, ["report", {}])
    if phase == "pushed":
        driver.until(lambda: driver.engine.output_files())  # type: ignore[attr-defined]
    driver.engine.halt(0, 1, 0.0)
    assert isinstance(driver.end_of(0), Died)
    if phase == "waiting":
        driver.engine.halt(1, 1, 0.0)
        driver.end_of(1)
    driver.launch(5, ["report", {}])
    assert isinstance(driver.end_of(5), Returned)
    assert (len(driver.ends_of(0)), driver.reports_of(0)) == (1, [])


def test_a_trial_that_closes_its_connection_fails(cluster: Loopback) -> None:
    """Otherwise it would be tried again for ever, as if its machine had been lost."""
    cluster.runner = "loopback:close_descriptors"
    with driving(cluster.make) as driver:
        driver.launch(0)
        end = driver.end_of(0)
        assert end.cause == Cause.EXIT
        assert "closed its connection" in end.detail


def test_output_that_the_driver_does_not_read_neither_fills_the_memory_nor_the_disk_of_its_node(
    cluster: Loopback, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limit = 16 << 20
    done = tmp_path / "done"
    monkeypatch.setenv("CHATTER_DONE", str(done))
    cluster.runner = "loopback:chatter"
    with driving(cluster.make, max_output_bytes=limit) as driver:
        driver.launch(0, resources=cluster.place)
        driver.until(lambda: any(cluster.scratch.rglob("worker-*.log")))
        porter = cluster.porters("b")[0]
        before = resident_bytes(porter)
        deadline = time.monotonic() + 60
        while not done.exists() or on_disk(cluster.scratch) > 2 * limit:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert resident_bytes(porter) < before + (64 << 20)
        assert isinstance(driver.end_of(0), Returned)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def on_disk(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def test_only_a_worker_that_asked_for_gpus_has_them_and_is_not_reused(
    cluster: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system shows all GPUs of a machine to every process, also to those of trials that asked for none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    cluster.runner = "loopback:report_devices"
    cluster.offer("b", GPU=2.0)
    with driving(cluster.make) as driver:
        seen = []
        for n, gpus in enumerate([0.0, 0.0, 1.0, 1.0]):
            driver.launch(n, resources={**cluster.place, "GPU": gpus})
            driver.end_of(n)
            seen.append(driver.reports_of(n)[0].metrics)
    assert [each["gpus"] for each in seen] == ["", "", "0,1", "0,1"]
    assert [seen[n]["pid"] == seen[n + 1]["pid"] for n in (0, 2)] == [True, False]


def test_workers_that_end_with_the_agent_of_their_node_are_not_counted(cluster: Loopback) -> None:
    with subprocess.Popen(["sleep", "1000"]) as agent:
        cluster.agents["b"] = agent.pid
        with driving(cluster.make) as driver:
            driver.answers[0, 1] = ""
            driver.launch(0, ["report", {}], ["report", {}], resources=cluster.place)
            driver.until(lambda: driver.reports_of(0))
            for pid in cluster.pids("b"):
                os.kill(pid, signal.SIGKILL)
            agent.kill()
            assert driver.end_of(0).cause == Cause.NODE_LOST
            del cluster.agents["b"]
            driver.launch(0, ["report", {}], attempt=2, resources=cluster.place)
            assert isinstance(driver.end_of(0, 2), Returned)
            assert len(driver.ends_of(0)) == 1


def test_a_worker_that_another_process_terminates_is_preempted(cluster: Loopback, driver: ContractDriver) -> None:
    driver.launch(0, ["report", {}], ["hang"], resources=cluster.place)
    driver.until(lambda: driver.reports_of(0))
    [pid] = cluster.pids("b")
    os.kill(pid, signal.SIGTERM)
    end = driver.end_of(0)
    assert isinstance(end, Died)
    assert (end.cause, "SIGTERM from another process" in end.detail) == (Cause.PREEMPTED, True)


def test_the_clusters_handler_of_sigterm_is_put_back() -> None:
    def handle(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with actor_worker._sigterm_ends():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_lost_bridge_interrupts_and_is_replaced(cluster: Loopback, driver: ContractDriver) -> None:
    driver.answers[0, 1] = ""
    driver.launch(0, ["report", {}], ["report", {}])
    driver.until(lambda: driver.reports_of(0))
    cluster.lose_bridge()
    end = driver.end_of(0)
    assert isinstance(end, Died)
    assert end.cause == Cause.ENGINE_LOST
    for n in range(4):
        driver.launch(n, ["report", {}], attempt=2)
    for n in range(4):
        assert isinstance(driver.end_of(n, 2), Returned)
    assert len(driver.ends_of(0)) == 1


def test_the_end_of_ray_on_the_drivers_machine_interrupts_everything_and_the_cluster_is_joined_again(
    cluster: Loopback,
) -> None:
    cluster.drivers = "a"
    with subprocess.Popen(["sleep", "1000"]) as agent:
        cluster.agents["a"] = agent.pid
        with driving(cluster.make) as driver:
            driver.answers[0, 1] = ""
            driver.launch(0, ["report", {}], ["report", {}], resources=cluster.place)
            driver.until(lambda: driver.reports_of(0))
            del cluster.agents["a"]
            agent.kill()
            end = driver.end_of(0)
            assert (end.cause, "Ray has ended on" in end.detail) == (Cause.ENGINE_LOST, True)
            for n in range(4):
                driver.launch(n, ["report", {}], attempt=2)
            for n in range(4):
                assert isinstance(driver.end_of(n, 2), Returned)
            assert len(driver.ends_of(0)) == 1


def test_idle_workers_make_room_on_the_node_that_is_needed(
    cluster: Loopback, driver: ContractDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_pool, "START", Backoff(first_s=600.0, longest_s=600.0))  # no start may have to fail
    for n in range(4):
        driver.launch(n, ["report", {}])
    for n in range(4):
        driver.end_of(n)
    for n in (4, 5):
        driver.launch(n, ["report", {}], resources={"CPU": 2.0})
    for n in (4, 5):
        assert isinstance(driver.end_of(n), Returned)


def test_a_request_waits_without_failing_until_a_node_has_room(
    cluster: Loopback, driver: ContractDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.first(Capacity)
    for n, where in enumerate("ab"):
        driver.launch(n, ["report", {}], ["hang"], resources={"CPU": 1.0, f"host_{where}": 1.0})
    driver.until(lambda: driver.reports_of(0) and driver.reports_of(1))
    monkeypatch.setattr(cluster_pool, "START", Backoff(first_s=0.05, longest_s=0.05))
    driver.launch(2, ["report", {}], resources={"CPU": 2.0})
    for _ in range(10):
        driver.step(0.1)  # starts of it would have failed by now
    monkeypatch.setattr(cluster_pool, "START", Backoff(first_s=60.0, longest_s=60.0))
    driver.engine.halt(0, 1, 0.0)
    assert isinstance(driver.end_of(2), Returned)


def test_a_node_that_the_cluster_drops_takes_its_attempts_with_it(cluster: Loopback, driver: ContractDriver) -> None:
    driver.answers[0, 1] = ""
    driver.launch(0, ["report", {}], ["report", {}], resources=cluster.place)
    driver.until(lambda: driver.reports_of(0))
    with cluster.without("b"):
        assert driver.end_of(0).cause == Cause.NODE_LOST
        driver.until(lambda: not cluster.pids("b"))
    driver.until(lambda: cpus(driver) == 4)
    driver.launch(0, ["report", {}], attempt=2, resources=cluster.place)
    assert isinstance(driver.end_of(0, 2), Returned)


def test_attempts_on_a_node_that_is_taken_away_are_preempted(cluster: Loopback, driver: ContractDriver) -> None:
    driver.launch(0, ["report", {}], ["hang"], resources=cluster.place)
    driver.launch(1, ["report", {}], ["hang"], resources={"CPU": 1.0, "host_a": 1.0})
    driver.until(lambda: driver.reports_of(0) and driver.reports_of(1))
    cluster.drain("b", time.time() + 1.0)
    end = driver.end_of(0)
    assert (end.cause, end.detail) == (Cause.PREEMPTED, "b is taken away by the cluster")
    assert cpus(driver) == 2
    assert driver.ends_of(1) == []
    assert "its trials save if they can" in driver.first(Hint).text
    driver.launch(0, ["report", {}], attempt=2, resources=cluster.place)
    driver.launch(2, ["report", {}])
    assert isinstance(driver.end_of(2), Returned)
    assert driver.engine.is_waiting(0, 2)  # type: ignore[attr-defined]


def test_an_attempt_on_such_a_node_ends_as_soon_as_it_has_saved(cluster: Loopback, driver: ContractDriver) -> None:
    driver.answers[0, 1] = ""
    driver.launch(0, ["report", {}], ["stage", ".sealed-1-0011aabbccdd", "weights"], ["hang"], resources=cluster.place)
    driver.until(lambda: driver.reports_of(0))
    cluster.drain("b", time.time() + 1e6)
    driver.first(Hint)
    driver.engine.reply(0, 1, Decision(1, "go"))
    assert driver.end_of(0).cause == Cause.PREEMPTED
    assert len(driver.reports_of(0)) == 2


def test_what_was_printed_last_is_here_when_the_end_is_told(cluster: Loopback) -> None:
    """Also if the next attempt of the trial appends to the same file on another node."""
    with driving(cluster.make, log_to_file=("stdout", "stdout")) as driver:
        for attempt in range(1, 6):
            where = {"CPU": 1.0, f"host_{'ab'[attempt % 2]}": 1.0}
            driver.launch(0, ["append", "stdout", f"{attempt}\n"], attempt=attempt, resources=where)
            assert isinstance(driver.end_of(0, attempt), Returned)
            assert Path(cluster.root, "trial_0", "stdout").read_text() == "".join(
                f"{k}\n" for k in range(1, attempt + 1)
            )


def test_close_ends_everything_in_every_phase(cluster: Loopback) -> None:
    with driving(cluster.make) as driver:
        for n in range(7):
            driver.launch(n, ["report", {}], ["hang"])
        driver.until(lambda: driver.reports_of(0))
    with contextlib.suppress(FileNotFoundError):
        assert list(cluster.scratch.iterdir()) == []
    deadline = time.monotonic() + 30
    while cluster.pids("a") + cluster.pids("b"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
