"""Trials that report faster than they are answered: what ran ahead of a driver is safe, whoever is killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from experiments import Plan
from lab import Driver, Lab, kill, until

from holdfast.cli.copy import copy_experiment
from holdfast.trainable.spool_writer import SpoolFolder

SPRINT = Plan(trials=2, steps=12_000, every=4000, pause_s=0.0, sprints=True)


def under_way(lab: Lab, driver: Driver, reports: int = 200) -> None:
    """Wait until so many more reports have returned."""
    goal = len(lab.acknowledged()) + reports
    until(lambda: driver.ended or len(lab.acknowledged()) >= goal, lambda: driver.output)
    assert not driver.ended, driver.output


def put_to_sleep(lab: Lab, driver: Driver) -> int:
    """Stop a driver whose trials then run as far ahead as they may; how many reports it has not read."""
    while True:
        under_way(lab, driver)
        kill(driver.pid, signal.SIGSTOP)
        until_at_rest(lab)
        unread = len(lab.ran_ahead())
        if unread:
            return unread
        kill(driver.pid, signal.SIGCONT)  # every trial was waiting for an answer just then, as a slow one does


def until_at_rest(lab: Lab) -> None:
    """Wait until no report has returned for a while."""
    seen: list[int] = []

    def at_rest() -> bool:
        seen.append(len(lab.acknowledged()))
        return len(seen) > 20 and seen[-1] == seen[-20]

    until(at_rest, "trials run ahead of a sleeping driver without end")


def test_what_ran_ahead_of_a_driver_that_was_killed_is_found_by_the_next(lab: Lab) -> None:
    first = lab.start(SPRINT)
    unread = put_to_sleep(lab, first)
    assert 0 < unread <= 2 * 64
    lab.kill_all()
    lab.check_no_process_left()
    assert SpoolFolder(lab.root).owners()
    lab.run(SPRINT).must_finish()
    lab.check_finished(SPRINT)
    assert not SpoolFolder(lab.root).owners()


@pytest.mark.slow
def test_what_ran_ahead_goes_along_when_the_experiment_is_copied(lab: Lab, tmp_path: Path) -> None:
    driver = lab.start(SPRINT)
    put_to_sleep(lab, driver)
    lab.kill_all()
    driver.wait()  # until then its process, though dead, is there
    lab.check_no_process_left()
    copy_experiment(str(lab.root), str(tmp_path / "elsewhere" / "exp"))
    lab.root = tmp_path / "elsewhere" / "exp"
    lab.run(SPRINT, lab.root).must_finish()
    lab.check_finished(SPRINT)


@pytest.mark.slow
def test_what_ran_ahead_of_a_driver_that_was_taken_over_in_its_sleep_counts(lab: Lab) -> None:
    first = lab.start(SPRINT)
    assert put_to_sleep(lab, first) > 0
    second = lab.start(Plan(takeover=True))
    second.must_finish()
    kill(first.pid, signal.SIGCONT)
    assert first.wait() == 1, first.output
    assert "FencedError" in first.output
    lab.check_finished(SPRINT)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["everybody", "driver", "workers", "nanny"])
def test_whoever_is_killed_in_a_sprint_no_report_is_lost(lab: Lab, victim: str) -> None:
    driver = lab.start(SPRINT)
    for _ in range(4):
        under_way(lab, driver, reports=700)
        for process in lab.processes():
            roles = {"workers": process.is_worker, "nanny": process.is_nanny, "driver": process.pid == driver.pid}
            if roles.get(victim, True):
                kill(process.pid)
        if victim in ("everybody", "driver"):
            driver.wait()
            lab.check_no_process_left()
            driver = lab.start(SPRINT)
    driver.must_finish()
    lab.check_finished(SPRINT)


@pytest.mark.slow
def test_an_interrupted_driver_has_read_everything_when_it_leaves(lab: Lab) -> None:
    driver = lab.start(SPRINT)
    under_way(lab, driver)
    kill(driver.pid, signal.SIGINT)
    assert driver.wait() == 0, driver.output
    lab.check_nothing_lost()
    assert not SpoolFolder(lab.root).owners()
    lab.run(SPRINT).must_finish()
    lab.check_finished(SPRINT)
