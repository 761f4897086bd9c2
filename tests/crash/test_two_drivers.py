"""One experiment, one writer: second drivers are refused, and one that was taken over while it slept is harmless."""

from __future__ import annotations

import signal
import socket

import msgspec
import pytest
from experiments import Plan
from lab import Driver, Lab, driver_crash, kill, until

from holdfast.controller.spec import read_spec
from holdfast.core import events as ev
from holdfast.storage.layout import Root

PLAN = Plan(trials=3, steps=20, every=5, pause_s=0.02)


def held(lab: Lab, at: int, plan: Plan = PLAN) -> Plan:
    """The same, but no trial continues to this step until ``release``: still at work whenever others have started."""
    (lab.folder / "hold").touch()
    return msgspec.structs.replace(plan, hold=str(lab.folder / "hold"), hold_at=at)


def release(lab: Lab) -> None:
    (lab.folder / "hold").unlink()


def started(lab: Lab, driver: Driver, reports: int = 10) -> None:
    """Wait until the first driver of an experiment has acknowledged some reports."""
    until(lambda: driver.ended or len(lab.acknowledged()) >= reports, lambda: driver.output)
    assert not driver.ended, driver.output


def epochs(lab: Lab) -> list[int]:
    return [event.epoch for event in lab.history() if isinstance(event, ev.EpochStarted)]


def test_a_second_driver_is_told_who_has_the_experiment_and_leaves(lab: Lab) -> None:
    first = lab.start(held(lab, at=3))
    started(lab, first, reports=2)
    second = lab.run(PLAN)
    assert second.process.returncode == 1
    assert "ExperimentLockedError" in second.output
    assert f"pid {first.pid} on {socket.gethostname()}" in second.output
    assert "takeover=True" in second.output
    release(lab)
    first.must_finish()
    lab.check_finished(PLAN)
    assert epochs(lab) == [1]


@pytest.mark.slow
@pytest.mark.parametrize("wake_at", ["while the other runs", "when the other has finished"])
def test_a_driver_that_was_taken_over_while_it_slept_stops_at_its_next_write(lab: Lab, wake_at: str) -> None:
    """SIGSTOP is what a suspended laptop or a paused virtual machine does to it."""
    first = lab.start(held(lab, at=6))
    started(lab, first)
    kill(first.pid, signal.SIGSTOP)
    before = lab.check_nothing_lost()
    second = lab.start(Plan(takeover=True))
    if wake_at == "while the other runs":
        until(lambda: epochs(lab) == [1, 2], lambda: second.output)
    else:
        release(lab)
        second.must_finish()
    kill(first.pid, signal.SIGCONT)
    assert first.wait() == 1, first.output
    assert "FencedError" in first.output
    assert f"taken over by pid {second.pid} on {socket.gethostname()}" in first.output
    assert "fit() has returned" not in first.output
    if wake_at == "while the other runs":
        assert not second.ended, second.output
        release(lab)
    second.must_finish()
    lab.check_no_process_left()
    lab.check_finished(PLAN)
    assert epochs(lab) == [1, 2]
    assert lab.history()[: len(before)] == before


@pytest.mark.slow
def test_a_take_over_of_a_living_driver_ends_it(lab: Lab) -> None:
    first = lab.start(held(lab, at=3))
    started(lab, first, reports=4)
    second = lab.start(Plan(takeover=True))
    assert first.wait() == 1, first.output
    assert f"taken over by pid {second.pid}" in first.output
    release(lab)
    second.must_finish()
    lab.check_no_process_left()
    lab.check_finished(PLAN)


@pytest.mark.slow
@pytest.mark.parametrize("takeover", [False, True])
def test_of_sixteen_simultaneous_restores_exactly_one_proceeds(lab: Lab, takeover: bool) -> None:
    lab.run(held(lab, at=16), **driver_crash("L5.after:3"))
    gate = lab.folder / "gate"
    drivers = [lab.start(Plan(gate=str(gate), takeover=takeover)) for _ in range(16)]
    until(lambda: all("ready" in driver.output for driver in drivers), "not everybody gets ready")
    gate.touch()
    until(lambda: sum(driver.ended for driver in drivers) == 15, "not everybody else leaves")
    release(lab)
    codes = [driver.wait() for driver in drivers]
    assert sorted(codes) == [0] + [1] * 15
    winner = drivers[codes.index(0)]
    for driver in drivers:
        if driver is not winner and not takeover:
            assert f"pid {winner.pid} on" in driver.output
        assert driver is winner or "ExperimentLockedError" in driver.output or "FencedError" in driver.output
    winner.must_finish()
    lab.check_no_process_left()
    lab.check_finished(PLAN, tidy=not takeover)
    if not takeover:
        assert epochs(lab) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("pause", [False, True], ids=["at once", "after all have a Tuner"])
def test_of_processes_that_begin_the_same_experiment_exactly_one_does(lab: Lab, pause: bool) -> None:
    """And what it has begun is what is stored: a restore continues with the same seed and the same names."""
    gate, creation_gate = lab.folder / "gate", lab.folder / "creation-gate"
    plan = Plan(trials=30, steps=4, every=2, seed=None, creation_gate=str(creation_gate))
    plan = held(lab, 1, plan)
    plan.gate = str(gate) if pause else ""
    drivers = [lab.start(plan) for _ in range(6)]
    until(lambda: all("ready" in driver.output for driver in drivers), "not everybody gets ready")
    creation_gate.touch()
    if pause:
        until(lambda: all(d.ended or d.output.count("ready") == 2 for d in drivers), "not everybody gets ready")
        gate.touch()
    until(lambda: sum(not driver.ended for driver in drivers) <= 1, "the losers do not leave")
    (winner,) = [driver for driver in drivers if driver.process.poll() in (None, 0)]
    for driver in drivers:
        assert driver is winner or driver.process.returncode == 1
        assert driver is winner or "Experiment" in driver.output.splitlines()[-1], driver.output
    until(lambda: len(lab.state().trials) > 5, lambda: winner.output)
    winner.kill()
    spec = read_spec(Root(lab.root))
    assert {trial.id[:5] for trial in lab.state().trials} == {spec.uid[:5]}
