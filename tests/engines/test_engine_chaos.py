"""Random kills and halts of everything at once: each attempt still ends once, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable

import pytest
from engine_harness import LocalDriver, gone

from holdfast.core.observations import Joined
from holdfast.engines import process_tree

Drive = Callable[..., LocalDriver]

TRIALS = 60
AT_ONCE = 5
CODE = """
    for _ in range(config["steps"]):
        report(pid=os.getpid())
    if config["steps"] % 5 == 0:
        raise ValueError("as planned")
    if config["steps"] % 7 == 0:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
"""


@pytest.mark.parametrize("seed", range(3))
def test_each_attempt_ends_exactly_once_whatever_is_killed(
    drive: Drive, seed: int, new_children: Callable[[], list[int]]
) -> None:
    rng = random.Random(seed)
    driver = drive(gpus=2)
    running: dict[int, int] = {}
    launched = 0
    while launched < TRIALS or running:
        while len(running) < AT_ONCE and launched < TRIALS:
            steps, gpus = rng.randint(0, 40), rng.choice((0.0, 0.0, 0.0, 0.5, 0.6))
            driver.code(launched, CODE, steps=steps, gpus=gpus)
            running[launched] = 1
            launched += 1
        strike(driver, rng, list(running))
        driver.step(0.05)
        for n in [n for n in running if driver.ends_of(n)]:
            del running[n]
    assert [len(driver.ends_of(n)) for n in range(TRIALS)] == [1] * TRIALS
    engine = driver.engine
    assert (engine._attempts, len(engine._waiting)) == ({}, 0)
    assert engine._gpus.take(2.0) == ("0", "1"), "every device came back"
    pids = [o.pid for o in driver.seen if isinstance(o, Joined)]
    engine.close()
    assert gone(pids)
    assert new_children() == []


def strike(driver: LocalDriver, rng: random.Random, running: list[int]) -> None:
    chance = rng.random()
    workers = [o.pid for o in driver.seen[-200:] if isinstance(o, Joined) and process_tree.is_running(o.pid)]
    if chance < 0.06 and running:
        driver.engine.halt(rng.choice(running), 1, rng.choice((0.0, 0.001, 10.0)))
    elif chance < 0.12 and workers:
        signal_quietly(rng.choice(workers), rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)))
    elif chance < 0.13 and workers:
        pool = driver.engine._pool
        assert pool is not None
        assert pool._nanny is not None
        signal_quietly(pool._nanny.pid, signal.SIGKILL)


def signal_quietly(pid: int, signum: signal.Signals) -> None:
    assert pid != os.getpid()
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass
