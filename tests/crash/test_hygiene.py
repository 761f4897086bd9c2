"""Nobody runs on: trials start processes that ignore every polite signal, and all of them are gone with the driver.

Each running trial has a child, a daemon that left its session and its parent, and a fork that executes nothing.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest
from experiments import Plan
from lab import Driver, Lab, driver_crash, kill, until

from holdfast.core.state import Status

PLAN = Plan(train="breeding", trials=3, steps=12, every=5, pause_s=0.02)
AFTER_KILL_S = 2.0
AFTER_END_S = 5.0


@pytest.fixture
def hold(lab: Lab) -> Path:
    """Trials of a held plan continue from their first checkpoint when this file is gone."""
    path = lab.folder / "hold"
    path.touch()
    return path


def held(hold: Path) -> Plan:
    return msgspec.structs.replace(PLAN, hold=str(hold), hold_at=7)


def grandchildren(lab: Lab) -> set[int]:
    """Pids of living processes that trials have started."""
    try:
        known = {int(name) for name in os.listdir(lab.folder / "grandchildren")}
    except FileNotFoundError:
        return set()
    return known & {process.pid for process in lab.processes()}


def with_grandchildren(lab: Lab, driver: Driver, count: int = 6) -> None:
    until(lambda: driver.ended or len(grandchildren(lab)) >= count, lambda: driver.output)
    assert not driver.ended, driver.output


def test_after_kill_9_of_the_driver_everything_below_it_is_gone(lab: Lab, hold: Path) -> None:
    driver = lab.start(held(hold))
    with_grandchildren(lab, driver)
    driver.kill()
    lab.check_no_process_left(AFTER_KILL_S)
    hold.unlink()
    lab.run(PLAN).must_finish()
    lab.check_no_process_left(AFTER_END_S)
    lab.check_finished(PLAN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
def test_a_driver_that_is_asked_to_end_takes_everybody_along_and_loses_no_trial(
    lab: Lab, hold: Path, number: signal.Signals, code: int
) -> None:
    """To the whole process group, as a terminal or a batch system does it."""
    driver = lab.start(held(hold))
    with_grandchildren(lab, driver)
    until(lambda: any(line.saved for line in lab.acknowledged()), lambda: driver.output)
    os.killpg(driver.pid, number)
    hold.unlink()
    assert driver.wait() == code, driver.output
    lab.check_no_process_left(AFTER_END_S)
    assert f'Tuner.restore("{lab.root}"' in driver.output
    assert ("fit() has returned" in driver.output) == (code == 0)
    state = lab.state()
    assert not state.running
    assert state.counts[Status.PENDING] >= 1
    assert all(trial.latest() for trial in state.trials if trial.attempt), "a trial was not given time to save"
    lab.check_tidy()
    lab.run(PLAN).must_finish()
    state = lab.check_finished(PLAN)
    assert state.total_failures == 0


@pytest.mark.slow
def test_an_impatient_person_at_the_keyboard_loses_no_trial(lab: Lab) -> None:
    """Ctrl+C until it is gone, while no trial comes to its next checkpoint."""
    hold = lab.folder / "hold"
    hold.touch()
    plan = Plan(train="breeding", trials=2, steps=8, every=4, pause_s=0.02, hold=str(hold), hold_at=5)
    assert lab.run(plan, **driver_crash("L6.after")).process.returncode == -9  # so there is something to wait for
    lab.check_no_process_left()
    driver = lab.start(plan)
    with_grandchildren(lab, driver, count=3)
    for pid in [process.pid for process in lab.processes() if process.is_worker]:
        kill(pid, signal.SIGSTOP)
    until(lambda: driver.ended or kill(driver.pid, signal.SIGINT), lambda: driver.output, step_s=2.0)
    assert driver.process.returncode == -signal.SIGINT, driver.output
    lab.check_no_process_left(AFTER_END_S)
    assert f'Tuner.restore("{lab.root}"' in driver.output
    hold.unlink()
    lab.run(plan).must_finish()
    assert lab.check_finished(plan).total_failures == 0


def test_when_the_experiment_ends_by_itself_nothing_is_left(lab: Lab) -> None:
    plan = Plan(train="breeding", trials=4, steps=4, every=2)
    lab.run(plan).must_finish()
    assert len(list((lab.folder / "grandchildren").iterdir())) == 12
    lab.check_no_process_left(AFTER_END_S)
    lab.check_finished(plan)


@pytest.mark.slow
def test_a_failure_that_ends_the_experiment_takes_everybody_along(lab: Lab) -> None:
    plan = Plan(train="failing", trials=4, max_failures=0, fail_fast=True)
    driver = lab.run(plan)
    assert "this trial fails" in driver.output
    lab.check_no_process_left(AFTER_END_S)
    assert lab.state().counts[Status.ERROR] >= 1
    assert lab.state().counts[Status.RUNNING] == 0


@pytest.mark.slow
def test_what_survives_driver_and_nanny_is_ended_by_the_next_driver(lab: Lab, hold: Path) -> None:
    """Nobody is left who could end the daemons; the note of the last driver says what they are known by."""
    driver = lab.start(held(hold))
    with_grandchildren(lab, driver)
    before = grandchildren(lab)
    (nanny,) = [process for process in lab.processes() if process.is_nanny]
    for pid in (driver.pid, nanny.pid):
        kill(pid, signal.SIGSTOP)
    for pid in (nanny.pid, driver.pid):
        kill(pid)
    driver.wait()
    assert grandchildren(lab), "this machine lets nobody survive: then there is nothing to test"
    hold.unlink()
    lab.run(PLAN).must_finish()
    assert not before & grandchildren(lab)
    lab.check_no_process_left(AFTER_END_S)
    lab.check_finished(PLAN)
