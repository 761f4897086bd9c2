"""Whole experiments in a store, on several machines, under faults: each seed is a story (``remote_story``).

A failure prints one line, which repeats the story when it is typed.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_bugs import PLANTED, RemoteBug

from simulator.remote_story import RemoteSimulation, repeat_line, tell

FAST = [range(start, start + 20) for start in range(0, 60, 20)]
SLOW = [range(start, start + 100) for start in range(100, 2100, 100)]
REPAIRED = {
    "the grace of trials began after a long wait for the store": 1002725,
    "a listing lagged behind the part that a claim had met": 1008076,
    "a listing lagged behind the parts that this machine had shipped": 1033822,
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Stories are about trouble, which drivers log."""
    logger = logging.getLogger("holdfast")
    before, logger.propagate = logger.propagate, False
    yield
    logger.propagate = before


def tell_all(seeds: range) -> list[RemoteSimulation]:
    stories = []
    for seed in seeds:
        try:
            stories.append(tell(seed))
        except Exception as error:
            pytest.fail(f"{repeat_line(seed)}  # {type(error).__name__}: {str(error)[:300]}", pytrace=False)
    return stories


def name(seeds: range) -> str:
    return f"{seeds.start}-{seeds.stop - 1}"


@pytest.mark.parametrize("seeds", FAST, ids=name)
def test_no_invariant_is_violated_in_a_store(seeds: range) -> None:
    tell_all(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SLOW, ids=name)
def test_no_invariant_is_violated_in_a_store_in_many_stories(seeds: range) -> None:
    tell_all(seeds)


@pytest.mark.parametrize("seed", REPAIRED.values(), ids=REPAIRED)
def test_a_story_that_once_violated_an_invariant_does_so_no_more(seed: int) -> None:
    tell_all(range(seed, seed + 1))


def test_stories_are_told_of_everything_that_can_go_wrong() -> None:
    """A fault that never strikes, or a machine that is never lost, would prove nothing."""
    met: Counter[str] = Counter()
    for story in tell_all(range(100, 140)):
        met["moved"] += story.machines > 1
        met["lost"] += len(story.lost)
        for _, _, facts in story.log:
            met.update(fact for fact in facts if isinstance(fact, str))
            met.update(type(fact).__name__ for fact in facts)
    faults = {"denied", "unreachable", "lost_answers", "late_requests", "repeated_requests", "is killed", "wakes"}
    events = {"CheckpointCommitted", "CheckpointRejected", "CheckpointsDropped", "CheckpointsDeleted"}
    assert {"moved", "lost", "merge.before_delete", *faults, *events} <= {what for what, count in met.items() if count}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_stories_leave_no_file_open() -> None:
    """One after the other they would use up what a process may have, and drivers are killed in most of them."""
    before = len(os.listdir("/proc/self/fd"))
    tell_all(range(100, 105))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("bug", PLANTED.values(), ids=PLANTED)
def test_a_missing_safeguard_is_noticed_within_the_stated_number_of_stories(
    bug: RemoteBug, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug.plant(monkeypatch)
    noticed = set()
    for seed in range(bug.seeds):
        try:
            tell(seed)
        except Exception as error:
            noticed.add(getattr(error, "invariant", type(error).__name__))
            if noticed & {*bug.noticed}:
                return
    pytest.fail(f"{bug.seeds} stories, and all that was noticed is {noticed}", pytrace=False)
