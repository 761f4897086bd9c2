"""What an attempt has written beside its checkpoints is on the driver's disk when its end is told."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.backoff import Backoff
from holdfast.core.events import Cause
from holdfast.core.observations import Died, Raised, Returned, Waiting
from holdfast.engines.cluster import collector
from holdfast.engines.cluster.carrier import Carrier
from holdfast.engines.cluster.tree_stream import TransferCut
from holdfast.testing.engine_contract import ContractDriver, driving
from loopback import Loopback

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="finds porters in /proc")]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loopback:
    monkeypatch.setattr(collector, "RETRY", Backoff(first_s=0.05, longest_s=0.05))
    return Loopback(tmp_path, monkeypatch)


@pytest.fixture
def driver(cluster: Loopback) -> Iterator[ContractDriver]:
    with driving(cluster.make) as driver:
        yield driver


class FullDisk:
    """The driver's disk has no room for files of nodes, until ``has_room``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_room = False
        self.tries = 0
        self._write = os.pwrite
        monkeypatch.setattr(os, "pwrite", self._pwrite)

    def _pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        if self.has_room:
            return self._write(fd, data, offset)
        self.tries += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def text_of(cluster: Loopback, name: str = "dump.txt", n: int = 0) -> str:
    path = Path(cluster.root, f"trial_{n}", name)
    return path.read_text() if path.exists() else "(not brought)"


def waiting(driver: ContractDriver) -> list[str]:
    return [o.text for o in driver.seen if isinstance(o, Waiting)]


def test_files_of_a_worker_that_exits_are_brought(cluster: Loopback, driver: ContractDriver) -> None:
    driver.launch(0, ["report", {}], ["append", "dump.txt", "why"], ["exit", 7])
    end = driver.end_of(0)
    assert (end.cause, text_of(cluster)) == (Cause.EXIT, "why")


def test_files_of_a_worker_that_is_killed_are_brought(cluster: Loopback, driver: ContractDriver) -> None:
    driver.launch(0, ["append", "dump.txt", "why"], ["report", {}], ["hang"], resources=cluster.place)
    driver.until(lambda: driver.reports_of(0))
    os.kill(cluster.pids("b")[0], signal.SIGKILL)
    end = driver.end_of(0)
    assert (end.cause, text_of(cluster)) == (Cause.SIGNAL, "why")
    driver.launch(0, ["append", "dump.txt", "!"], attempt=2, resources=cluster.place)
    assert isinstance(driver.end_of(0, 2), Returned)


def test_files_of_an_attempt_that_the_driver_ends_are_brought(cluster: Loopback, driver: ContractDriver) -> None:
    driver.launch(0, ["append", "dump.txt", "why"], ["report", {}], ["hang"])
    driver.until(lambda: driver.reports_of(0))
    driver.engine.halt(0, 1, 0.0)
    assert isinstance(driver.end_of(0), Died)
    assert text_of(cluster) == "why"


def test_files_of_attempts_are_brought_when_the_bridge_is_lost(cluster: Loopback, driver: ContractDriver) -> None:
    driver.launch(0, ["append", "dump.txt", "why"], ["report", {}], ["hang"])
    driver.until(lambda: driver.reports_of(0))
    cluster.lose_bridge()
    assert driver.end_of(0).cause == Cause.ENGINE_LOST
    assert text_of(cluster) == "why"


@pytest.mark.parametrize("last", [None, ["exit", 7], ["raise", "boom"]])
def test_files_wait_for_space_on_the_drivers_disk(
    cluster: Loopback, driver: ContractDriver, monkeypatch: pytest.MonkeyPatch, last: list[object] | None
) -> None:
    disk = FullDisk(monkeypatch)
    driver.launch(0, ["append", "dump.txt", "why"], *([] if last is None else [last]))
    driver.until(lambda: disk.tries > 2 * collector.MAX_TRIES)
    assert driver.ends_of(0) == []
    assert driver.engine.is_waiting(0, 1)  # type: ignore[attr-defined]  # so that its silence is no stall
    (told,) = waiting(driver)
    assert "its files wait on" in told
    assert "No space left on device" in told
    disk.has_room = True
    kind = {"exit": Died, "raise": Raised}.get(str(last and last[0]), Returned)
    assert isinstance(driver.end_of(0), kind)
    assert text_of(cluster) == "why"
    assert waiting(driver) == [told, ""]
    driver.launch(1, ["report", {}])
    assert isinstance(driver.end_of(1), Returned)


@pytest.mark.parametrize("last", [None, ["exit", 7]])
def test_an_attempt_that_waits_for_space_can_be_ended_and_is_not_done(
    cluster: Loopback, driver: ContractDriver, monkeypatch: pytest.MonkeyPatch, last: list[object] | None
) -> None:
    FullDisk(monkeypatch)
    driver.launch(0, ["append", "dump.txt", "why"], *([] if last is None else [last]))
    driver.first(Waiting)
    driver.engine.halt(0, 1, 0.0)
    assert isinstance(driver.end_of(0), Died)
    assert len(driver.ends_of(0)) == 1


@pytest.mark.parametrize("last", [None, ["exit", 7]])
def test_a_node_that_is_lost_while_its_files_wait_for_space(
    cluster: Loopback, driver: ContractDriver, monkeypatch: pytest.MonkeyPatch, last: list[object] | None
) -> None:
    FullDisk(monkeypatch)
    script = [["append", "dump.txt", "why"], *([] if last is None else [last])]
    driver.launch(0, *script, resources=cluster.place)
    driver.first(Waiting)
    cluster.lose()
    driver.end_of(0)
    assert len(driver.ends_of(0)) == 1


def test_a_connection_that_is_cut_is_tried_again(
    cluster: Loopback, driver: ContractDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = [True]
    bring = Carrier.bring_changed

    def cut_once(self: Carrier, *arguments: object) -> None:
        if cuts and cuts.pop():
            raise TransferCut("reset by peer")
        bring(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Carrier, "bring_changed", cut_once)
    driver.launch(0, ["append", "dump.txt", "why"])
    assert isinstance(driver.end_of(0), Returned)
    assert text_of(cluster) == "why"
