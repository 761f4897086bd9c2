"""Other stores than the one that most tests here use: the same story on each, and a store that is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lab import until
from remote_experiments import RemotePlan
from remote_lab import RemoteLab
from test_remote_crash_points import forget_lost

PLAN = RemotePlan(trials=2, steps=6, every=2, keep=2, pause_s=0.02, max_failures=0)
SCHEMES = {"moto": "s3", "azurite": "az", "gcs": "gs"}


def begin_lose_and_finish(lab: RemoteLab, plan: RemotePlan) -> None:
    # The last checkpoint of each trial is uploaded; an earlier one only if the store is quicker than the training.
    first = lab.run(plan, HOLDFAST_CRASH=f"O3.after:{plan.trials}")
    assert first.process.returncode == -9, first.output
    lab.check_no_process_left()
    lab.lose("a")
    forget_lost(lab)
    lab.run(plan, "b").must_finish()
    assert lab.check_finished(plan).total_failures == 0
    lab.check_stored()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCHEMES)
def test_an_experiment_survives_the_loss_of_its_machine_in_every_store(
    request: pytest.FixtureRequest, machines: Callable[..., RemoteLab], kind: str
) -> None:
    lab = machines(request.getfixturevalue(kind), scheme=SCHEMES[kind])
    begin_lose_and_finish(lab, PLAN)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["azurite"])
def test_a_second_driver_is_refused_in_every_store(
    request: pytest.FixtureRequest, machines: Callable[..., RemoteLab], kind: str
) -> None:
    lab = machines(request.getfixturevalue(kind), scheme=SCHEMES[kind])
    hold = lab.folder / "hold"
    hold.touch()
    plan = RemotePlan(trials=2, steps=8, every=4, hold=str(hold), hold_at=3)
    first = lab.start(plan)
    lab.started(first, reports=2)
    second = lab.run(plan, "b")
    assert second.process.returncode == 1
    assert f"pid {first.pid}" in second.output
    third = lab.start(RemotePlan(takeover=True), "c")
    until(lambda: lab.last_epoch() == 2 or third.ended, lambda: third.output)
    hold.unlink()
    assert first.wait() == 1, first.output
    assert f"taken over by pid {third.pid}" in first.output
    third.must_finish()
    forget_lost(lab)
    lab.check_finished(plan)
    lab.check_stored()


def test_a_store_that_cannot_keep_drivers_apart_is_refused(machines: Callable[..., RemoteLab], rclone: Any) -> None:
    lab = machines(rclone)
    driver = lab.run(PLAN)
    assert driver.process.returncode == 1
    last = driver.output.splitlines()[-1]
    assert "UnsafeStoreError" in last
    assert "SyncConfig(unfenced_store=True)" in last
    assert not lab.keys(), "something was left there"


@pytest.mark.slow
def test_a_store_that_cannot_keep_drivers_apart_is_used_if_the_user_insists(
    machines: Callable[..., RemoteLab], rclone: Any
) -> None:
    lab = machines(rclone)
    begin_lose_and_finish(lab, RemotePlan(trials=2, steps=6, every=2, keep=2, pause_s=0.02, unfenced=True))
