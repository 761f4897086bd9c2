"""kill -9 of drivers whose experiment is in a store: restored on the same machine, and on one that has nothing.

``HOLDFAST_CRASH_ROUNDS`` sets the number of experiments (default 1); ``HOLDFAST_CRASH_SEED`` the first seed.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest
from lab import kill, until
from remote_experiments import RemotePlan
from remote_lab import RemoteLab, now

from holdfast.core import events as ev

ROUNDS = int(os.environ.get("HOLDFAST_CRASH_ROUNDS", "1"))
FIRST_SEED = int(os.environ.get("HOLDFAST_CRASH_SEED", "1"))
DEATHS = 3
LOSS_S = 4.0
"""Two seconds are promised; a machine that is busy with many tests may be late."""

PLAN = RemotePlan(steps=20, every=4, pause_s=0.02, bytes=20_000)


def live_and_die(lab: RemoteLab, driver: Any, rng: random.Random) -> float:
    """Let the driver work for a while, kill somebody, and say when."""
    if rng.random() < 0.2:
        time.sleep(rng.uniform(0.0, 0.8))
    else:
        goal = len(lab.acknowledged()) + rng.randrange(1, 30)
        until(lambda: driver.ended or len(lab.acknowledged()) >= goal, "the driver does nothing")
        time.sleep(rng.uniform(0.0, 0.3))
    killed_at = now()
    if rng.random() < 0.5:
        lab.kill_all()
        driver.wait()
    else:
        driver.kill()
    return killed_at


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + ROUNDS))
def test_on_the_same_machine_nothing_that_was_acknowledged_is_lost(
    lab: RemoteLab, seed: int, uninterrupted: list[dict[str, Any]]
) -> None:
    rng = random.Random(seed)
    plan = RemotePlan(steps=20, every=rng.choice([1, 4]), pause_s=0.02, keep=rng.choice([None, 1, 2]))
    past: list[Any] = []
    for _ in range(DEATHS):
        driver = lab.start(plan)
        live_and_die(lab, driver, rng)
        assert driver.process.returncode in (0, -9), driver.output
        assert "Traceback" not in driver.output, driver.output
        lab.check_no_process_left()
        history = lab.check_nothing_lost() if lab.journal_bytes() else []
        assert history[: len(past)] == past, "the past has changed"
        lab.check_rework(history)
        lab.check_manifests_are_whole()
        past = history
    lab.start(plan).must_finish()
    lab.check_finished(plan, uninterrupted)
    lab.check_stored()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + ROUNDS))
def test_on_an_empty_machine_only_the_last_moments_are_lost(
    lab: RemoteLab, seed: int, uninterrupted: list[dict[str, Any]]
) -> None:
    """Each driver's machine is gone with it. What the store has is a prefix of what happened, and is continued with."""
    rng = random.Random(1000 + seed)
    plan = RemotePlan(steps=24, every=4, pause_s=0.03, keep=rng.choice([None, 1]), bytes=rng.choice([2_000, 200_000]))
    saved: dict[int, int] = {}
    past = 0
    for life in range(DEATHS):
        driver = lab.start(plan, f"m{life}")
        killed_at = live_and_die(lab, driver, rng)
        assert driver.process.returncode in (0, -9), driver.output
        lab.check_no_process_left()
        if lab.keys(".holdfast/parts/"):
            stored, full = lab.stored_history(), lab.history()
            # A driver that was killed while it opened the experiment has no mirror yet.
            assert not full or stored == full[: len(stored)], "the store has another history than the machine had"
            lab.check_continued(saved, past, full)
            # Counted from the newest part: how soon parts follow one another is tested with a clock of its own.
            lab.check_lost_little(min(killed_at, lab.last_part_at()), stored, LOSS_S)
            lab.check_manifests_are_whole()
            saved, past = lab.saved_rows(stored), len(stored)
            forget_lost(lab, stored)
        else:
            lab.side.unlink(missing_ok=True)
        lab.lose(f"m{life}")
    lab.start(plan, "last").must_finish()
    lab.check_continued(saved, past, lab.history())
    lab.check_finished(plan, uninterrupted)
    lab.check_stored()


def forget_lost(lab: RemoteLab, stored: list[Any]) -> None:
    """What was lost with a machine is no ground truth for what follows."""
    tokens = {event.metrics["token"] for event in stored if isinstance(event, ev.Reported)}
    lines = lab.side.read_bytes().splitlines(keepends=True) if lab.side.exists() else []
    lab.side.write_bytes(b"".join(line for line in lines if any(token.encode() in line for token in tokens)))


def test_killing_only_workers_and_nanny_costs_nothing(lab: RemoteLab) -> None:
    driver = lab.start(PLAN)
    lab.started(driver, reports=10)
    for victim in lab.processes():
        if victim.is_worker or victim.is_nanny:
            kill(victim.pid)
    driver.must_finish()
    lab.check_finished(PLAN)
    lab.check_stored()
