"""A cluster of 10,000 workers, one of whose machines in ten is lost, cut off or frozen."""

from __future__ import annotations

import sys

import pytest

from simulator.many_workers import STEPS, ManySimulation, tell


@pytest.mark.parametrize("workers", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_workers_end_right_although_machines_are_lost(workers: int) -> None:
    story, audit, figures = tell(workers)
    print(f"{workers} workers: {figures}")  # never asserted: what each event costs is read by people
    assert len(audit.trials) == workers
    assert {trial.status for trial in audit.trials} == {"TERMINATED"}
    assert {trial.training.step for trial in audit.trials} == {STEPS}
    assert {len(trial.rows) for trial in audit.trials} == {STEPS}
    assert {trial.failures for trial in audit.trials} == {0}
    assert audit.counts["AttemptInterrupted"] == len(story.world.lost_attempts) > workers // 20


def calls_per_event(workers: int) -> float:
    """How many functions are called for each event that is journaled: the same on every machine."""
    calls = 0

    def count(frame: object, what: str, argument: object) -> None:
        nonlocal calls
        calls += what == "call"

    story = ManySimulation(workers)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        story.drive()
    finally:
        sys.setprofile(before)
    return calls / story.events


def test_an_event_does_not_cost_more_where_there_are_more_workers() -> None:
    assert calls_per_event(1_600) < 1.1 * calls_per_event(400)
