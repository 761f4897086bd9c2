"""Workers that are kept ready."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.observations import Died, Joined, Returned
from holdfast.testing.engine_contract import ContractDriver, driving
from loopback import Loopback

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="finds porters in /proc")]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loopback:
    return Loopback(tmp_path, monkeypatch)


@pytest.fixture
def sparing(cluster: Loopback) -> Iterator[ContractDriver]:
    """Keeps a spare worker."""
    cluster.spares = 1
    with driving(cluster.make) as driver:
        yield driver


def joined(driver: ContractDriver) -> list[int]:
    return [seen.worker for seen in driver.seen if isinstance(seen, Joined)]


def test_an_attempt_continues_in_a_spare_worker_that_was_there_before(
    cluster: Loopback, sparing: ContractDriver
) -> None:
    sparing.launch(0, ["report", {}], ["hang"])
    sparing.until(lambda: sparing.reports_of(0) and len(joined(sparing)) == 2)
    used = sparing.reports_of(0)[0].worker
    spare = next(worker for worker in joined(sparing) if worker != used)
    for pid in [sparing.engine._attempts[0, 1].pid]:  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGKILL)
    assert isinstance(sparing.end_of(0), Died)
    sparing.launch(0, ["report", {}], ["hang"], attempt=2)
    sparing.until(lambda: len(sparing.reports_of(0)) == 2)
    assert sparing.reports_of(0)[1].worker == spare
    sparing.until(lambda: len(joined(sparing)) == 3)  # another one is ready


def test_spare_workers_take_no_room_that_trials_need(cluster: Loopback, sparing: ContractDriver) -> None:
    for n in range(4):  # all that there is
        sparing.launch(n, ["report", {}], ["hang"])
    sparing.until(lambda: all(sparing.reports_of(n) for n in range(4)))
    assert len(joined(sparing)) == 4
    for n in range(4):
        sparing.engine.halt(n, 1, 0.0)
    for n in range(4):
        sparing.end_of(n)
    for n in (4, 5):  # each of them needs a whole node, of which the spare has a part
        sparing.launch(n, ["report", {}], resources={"CPU": 2.0})
    for n in (4, 5):
        assert isinstance(sparing.end_of(n), Returned)


def test_a_spare_worker_that_does_not_start_is_nobodys_failure(cluster: Loopback, sparing: ContractDriver) -> None:
    sparing.launch(0, ["report", {}], ["hang"])
    sparing.until(lambda: len(joined(sparing)) == 2)
    cluster.broken = 1
    sparing.launch(1, ["report", {}], ["hang"])  # in the spare; the next one is broken
    sparing.until(lambda: sparing.reports_of(1) and not cluster.broken)
    sparing.launch(2, ["report", {}])
    assert isinstance(sparing.end_of(2), Returned)
