"""kill -9 at random moments, of whoever is there, again and again until the experiment is done.

``HOLDFAST_CRASH_ROUNDS`` sets the number of experiments (default 3); ``HOLDFAST_CRASH_SEED`` the first seed. A failure
names its seed; the moments of death depend on the machine as well, so repeat with many rounds.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from experiments import Plan
from lab import Driver, Lab, kill, until

ROUNDS = int(os.environ.get("HOLDFAST_CRASH_ROUNDS", "3"))
FIRST_SEED = int(os.environ.get("HOLDFAST_CRASH_SEED", "1"))
MAX_LIVES = 60

VICTIMS = ("driver", "driver", "nanny", "worker", "everybody", "everybody")
BLAMELESS = ("driver", "driver", "nanny")
"""Deaths that no trial can be blamed for."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + ROUNDS))
def test_whoever_is_killed_nothing_is_lost_or_counted_twice(
    lab: Lab, seed: int, uninterrupted: list[dict[str, Any]]
) -> None:
    """One experiment, killed until it is done; every second one with a snapshot at every chance."""
    rng = random.Random(seed)
    plan = Plan(
        train=rng.choice(["chain", "chain", "class"]),
        every=rng.choice([1, 3, 5]),
        bytes=rng.choice([2_000, 2_000, 400_000]),
        keep=rng.choice([None, 1, 2]),
        cpus=rng.choice([1, 2, 4]),
        segment_bytes=rng.choice([0, 6_000]),
        durability=rng.choice(["group", "group", "sync"]),
    )
    environment = {"TUNE_GLOBAL_CHECKPOINT_S": "0"} if seed % 2 else {}
    past: list[Any] = []
    for _ in range(MAX_LIVES):
        driver = lab.start(plan, **environment)
        live_and_die(lab, driver, rng, VICTIMS)
        lab.check_no_process_left()
        history = lab.check_nothing_lost() if lab.journal_bytes() else []
        assert history[: len(past)] == past, "the past has changed"
        lab.check_rework(history)
        past = history
        if driver.process.returncode == 0:
            break
        assert driver.process.returncode == -9, driver.output
        assert "Traceback" not in driver.output, driver.output
    driver.must_finish()
    lab.check_finished(plan, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + (ROUNDS + 2) // 3))
def test_deaths_that_are_not_a_trials_fault_are_never_counted_against_it(lab: Lab, seed: int) -> None:
    """I8: with max_failures=0 one counted death would end a trial in ERROR."""
    rng = random.Random(seed)
    plan = Plan(max_failures=0)
    for _ in range(MAX_LIVES):
        driver = lab.start(plan)
        live_and_die(lab, driver, rng, BLAMELESS)
        lab.check_no_process_left()
        if driver.process.returncode == 0:
            break
    driver.must_finish()
    assert lab.check_finished(plan).total_failures == 0


def live_and_die(lab: Lab, driver: Driver, rng: random.Random, victims: Sequence[str]) -> None:
    """Let the driver work for a while, and kill somebody; return when the driver is gone."""
    while not driver.ended:
        work_for_a_while(lab, driver, rng)
        victim = rng.choice(victims)
        if victim == "driver":
            driver.kill()
        elif victim == "everybody":
            lab.kill_all()
            driver.wait()
        else:
            wanted = [p for p in lab.processes() if (p.is_nanny if victim == "nanny" else p.is_worker)]
            if wanted:
                kill(rng.choice(wanted).pid)


def work_for_a_while(lab: Lab, driver: Driver, rng: random.Random) -> None:
    """Until some bytes were journaled, sometimes only for a moment; then up to 20 ms more."""
    if rng.random() < 0.2:
        time.sleep(rng.uniform(0.0, 0.4))
        return
    enough = lab.journal_bytes() + rng.randrange(200, 12_000)
    until(lambda: driver.ended or lab.journal_bytes() >= enough, "the driver does nothing")
    time.sleep(rng.uniform(0.0, 0.02))
