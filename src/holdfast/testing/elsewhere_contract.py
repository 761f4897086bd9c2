"""What every engine must do whose workers are on other machines, as functions that take such machines.

Each check gets ``Machines``. ``CHECKS`` is all of them; give them to ``pytest.mark.parametrize``.

Owns: the behaviour that ``engines.base.RunsElsewhere`` promises. Must never: rely on how an engine runs its workers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Protocol

from holdfast.core.events import Cause
from holdfast.core.observations import Capacity, Died, Returned
from holdfast.engines.base import Engine, MakesAttemptsWait, RunsElsewhere
from holdfast.errors import CheckpointDamagedError, InvalidInputError
from holdfast.testing.engine_contract import ContractDriver, driving
from holdfast.testing.scripted import STAGED

STAGE = ".sealed-1-0011aabbccdd"


class Machines(Protocol):
    """A cluster with a machine that may be lost."""

    @property
    def root(self) -> str:
        """The experiment's directory on the driver's disk; no other machine sees it."""

    @property
    def place(self) -> dict[str, float]:
        """A request that only the machine can meet that may be lost."""

    def make(self) -> Engine:
        """A new engine, not yet opened, whose workers run ``holdfast.testing.scripted``."""

    def lose(self) -> None:
        """Lose that machine, with everything on it."""

    def lose_all(self) -> None:
        """Lose all other machines at once, in a way that lets them be used again after a few seconds."""


MakeMachines = Callable[[], Machines]


def check_capacity_shrinks_with_a_lost_machine(make: MakeMachines) -> None:
    with _driving(make) as (machines, driver):
        before = driver.first(Capacity).resources["CPU"]
        machines.lose()
        driver.until(lambda: [o for o in driver.seen if isinstance(o, Capacity) and o.resources["CPU"] < before])
        left = next(o for o in reversed(driver.seen) if isinstance(o, Capacity))
        assert all(size.get(name, 0.0) <= left.resources[name] for size in left.machines for name in size)
        driver.launch(0, ["report", {}])
        assert isinstance(driver.end_of(0), Returned)


def check_the_last_machine_is_used_again_after_all_were_lost(make: MakeMachines) -> None:
    """The core must hear of both: otherwise it would start nothing any more."""
    with _driving(make) as (machines, driver):
        before = driver.first(Capacity).resources["CPU"]
        machines.lose()
        driver.until(lambda: _newest_capacity(driver).resources["CPU"] < before)
        machines.lose_all()
        driver.until(lambda: not _newest_capacity(driver).resources.get("CPU"))
        driver.until(lambda: _newest_capacity(driver).resources.get("CPU"))
        driver.launch(0, ["report", {}])
        assert isinstance(driver.end_of(0), Returned)


def check_an_attempt_without_a_machine_says_that_it_waits(make: MakeMachines) -> None:
    """It cannot report, so its silence must not count against the trial."""
    with _driving(make) as (machines, driver):
        before = driver.first(Capacity)
        machines.lose()
        driver.until(lambda: [o for o in driver.seen if isinstance(o, Capacity) and o != before])
        driver.launch(0, ["report", {}], resources=machines.place)
        assert isinstance(driver.engine, MakesAttemptsWait)
        driver.launch(1, ["report", {}], ["hang"])
        driver.until(lambda: driver.reports_of(1))
        assert driver.engine.is_waiting(0, 1)
        assert not driver.engine.is_waiting(1, 1)
        for n in (0, 1):
            driver.engine.halt(n, 1, 0.0)
            assert isinstance(driver.end_of(n), Died)


def check_the_attempts_of_a_lost_machine_are_told_once(make: MakeMachines) -> None:
    with _driving(make) as (machines, driver):
        driver.answers[0, 1] = ""
        driver.launch(0, ["report", {}], ["report", {}], resources=machines.place)
        driver.until(lambda: driver.reports_of(0))
        machines.lose()
        end = driver.end_of(0)
        assert isinstance(end, Died)
        assert end.cause == Cause.NODE_LOST
        driver.launch(0, ["report", {}], attempt=2)
        assert isinstance(driver.end_of(0, 2), Returned)
        assert len(driver.ends_of(0)) == 1


def check_a_stage_is_brought_while_its_attempt_runs(make: MakeMachines) -> None:
    with _driving(make) as (machines, driver):
        trial_dir = _stage(machines, driver)
        _bring(driver.engine, trial_dir)
        with open(os.path.join(machines.root, trial_dir, STAGE, STAGED)) as file:
            assert file.read() == "weights"
        _bring(driver.engine, trial_dir)  # again does nothing
        driver.engine.halt(0, 1, 0.0)
        driver.end_of(0)


def check_a_stage_outlives_the_worker_that_made_it(make: MakeMachines) -> None:
    with _driving(make) as (machines, driver):
        trial_dir = _stage(machines, driver)
        driver.engine.halt(0, 1, 0.0)
        driver.end_of(0)
        _bring(driver.engine, trial_dir)
        assert os.path.exists(os.path.join(machines.root, trial_dir, STAGE, STAGED))


def check_a_stage_is_lost_with_its_machine(make: MakeMachines) -> None:
    with _driving(make) as (machines, driver):
        trial_dir = _stage(machines, driver)
        machines.lose()
        driver.end_of(0)
        try:
            _bring(driver.engine, trial_dir)
        except CheckpointDamagedError:
            pass
        else:
            raise AssertionError("a lost stage was brought")
        assert not os.path.exists(os.path.join(machines.root, trial_dir, STAGE))


def check_a_stage_that_is_not_wanted_is_not_brought(make: MakeMachines) -> None:
    with _driving(make) as (machines, driver):
        trial_dir = _stage(machines, driver)
        assert isinstance(driver.engine, RunsElsewhere)
        assert driver.engine.is_elsewhere(trial_dir, STAGE)
        driver.engine.drop(trial_dir, STAGE)
        assert not driver.engine.is_elsewhere(trial_dir, STAGE)
        _bring(driver.engine, trial_dir)
        assert not os.path.exists(os.path.join(machines.root, trial_dir, STAGE))


def check_a_request_that_no_machine_can_meet_is_refused(make: MakeMachines) -> None:
    with _driving(make) as (machines, driver):
        engine = driver.engine
        assert isinstance(engine, RunsElsewhere)
        engine.check_request(machines.place, [])
        for request in ({"CPU": 1e6}, {"CPU": 1.0, "no_such_thing": 1.0}):
            try:
                engine.check_request(request, [])
            except InvalidInputError:
                continue
            raise AssertionError(f"{request} was accepted")


@contextlib.contextmanager
def _driving(make: MakeMachines) -> Iterator[tuple[Machines, ContractDriver]]:
    machines = make()
    with driving(machines.make) as driver:
        yield machines, driver


def _newest_capacity(driver: ContractDriver) -> Capacity:
    return next(o for o in reversed(driver.seen) if isinstance(o, Capacity))


def _stage(machines: Machines, driver: ContractDriver) -> str:
    """Have an attempt on the machine that may be lost seal a stage; returns the trial's directory."""
    driver.answers[0, 1] = ""
    driver.launch(0, ["stage", STAGE, "weights"], ["hang"], resources=machines.place)
    driver.until(lambda: driver.reports_of(0))
    os.makedirs(os.path.join(machines.root, "trial_0"), exist_ok=True)
    return "trial_0"


def _bring(engine: Engine, trial_dir: str) -> None:
    """From another thread, as the loop has to run meanwhile."""
    from concurrent.futures import ThreadPoolExecutor

    assert isinstance(engine, RunsElsewhere)
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(engine.bring, trial_dir, STAGE, 1)
        while not job.done():
            engine.poll(0.05)
        job.result()


CHECKS: list[Callable[[MakeMachines], None]] = [
    check_capacity_shrinks_with_a_lost_machine,
    check_the_last_machine_is_used_again_after_all_were_lost,
    check_an_attempt_without_a_machine_says_that_it_waits,
    check_the_attempts_of_a_lost_machine_are_told_once,
    check_a_stage_is_brought_while_its_attempt_runs,
    check_a_stage_outlives_the_worker_that_made_it,
    check_a_stage_is_lost_with_its_machine,
    check_a_stage_that_is_not_wanted_is_not_brought,
    check_a_request_that_no_machine_can_meet_is_refused,
]
