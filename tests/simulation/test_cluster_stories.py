"""Whole experiments on a cluster whose machines are lost, cut off and frozen: each seed is a story (``cluster_story``).

A failure prints one line, which repeats the story when it is typed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
from cluster_bugs import FOUND, PLANTED, ClusterBug

from holdfast.core import events as ev
from simulator.cluster_story import ClusterSimulation, calm, repeat_line
from simulator.machines import NodeFaults
from simulator.scenario import FaultBudget

FAST = [range(start, start + 50) for start in range(0, 400, 50)]
SLOW = [range(start, start + 500) for start in range(1000, 2000, 500)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Stories are about trouble, which drivers log."""
    logger = logging.getLogger("holdfast")
    before, logger.propagate = logger.propagate, False
    yield
    logger.propagate = before


def tell_all(seeds: range) -> list[ClusterSimulation]:
    stories = []
    for seed in seeds:
        story = ClusterSimulation(seed)
        try:
            story.run()
        except Exception as error:
            pytest.fail(f"{repeat_line(seed)}  # {type(error).__name__}: {str(error)[:300]}", pytrace=False)
        stories.append(story)
    return stories


def name(seeds: range) -> str:
    return f"{seeds.start}-{seeds.stop - 1}"


@pytest.mark.parametrize("seeds", FAST, ids=name)
def test_no_invariant_is_violated_on_a_cluster(seeds: range) -> None:
    tell_all(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SLOW, ids=name)
def test_no_invariant_is_violated_on_a_cluster_in_many_stories(seeds: range) -> None:
    tell_all(seeds)


def test_stories_are_told_of_everything_that_can_go_wrong() -> None:
    """A fault that never strikes, or an old attempt that never speaks again, would prove nothing."""
    met: Counter[str] = Counter()
    for story in tell_all(range(400, 460)):
        met["stage out of reach"] += len(story.world.excused)
        met["stage lost"] += len(story.world.store.lost_stages)
        for _, _, facts in story.log:
            met.update(fact for fact in facts if isinstance(fact, str))
            for event in facts:
                if isinstance(event, ev.AttemptInterrupted):
                    met[event.cause] += 1
    happened = {what for what, count in met.items() if count}
    assert {"power off:", "cut off:", "frozen:", "is back", "is thawed", "starts", "is not listed any more"} <= happened
    assert {"is given up with its node", "cannot begin:", "a word arrives late:", "a transfer is cut"} <= happened
    assert {"stage out of reach", "stage lost", ev.Cause.NODE_LOST, ev.Cause.STORAGE} <= happened


def test_every_kind_of_fault_strikes_in_the_first_stories() -> None:
    missing = {each.name for each in fields(NodeFaults)}
    for seed in range(200):
        story = ClusterSimulation(seed)
        story.run()
        missing -= {kind for kind, given in story.given.items() if story.world.machines.faults.left[kind] < given}
        if not missing:
            return
    pytest.fail(f"these faults never struck: {sorted(missing)}")


def test_a_cluster_in_order_needs_one_driver_and_loses_nothing() -> None:
    for seed in range(60):
        story = ClusterSimulation(seed, FaultBudget.none(), NodeFaults.none(), calm)
        audit = story.run()
        assert audit.counts["EpochStarted"] == 1
        for lost in ("AttemptInterrupted", "AttemptFailed", "TrialErrored", "CheckpointRejected"):
            assert lost not in audit.counts, repeat_line(seed)


def test_a_cut_or_a_freeze_shorter_than_the_lease_costs_nothing() -> None:
    faults = replace(NodeFaults.none(), short_cuts=4, short_freezes=4)
    struck = 0
    for seed in range(60):
        story = ClusterSimulation(seed, FaultBudget.none(), faults, calm)
        audit = story.run()
        struck += sum(facts[0] in ("cut off:", "frozen:") for _, _, facts in story.log)
        for lost in ("AttemptInterrupted", "AttemptFailed", "TrialErrored", "CheckpointRejected"):
            assert lost not in audit.counts, seed
    assert struck > 20


def test_the_loss_of_every_machine_costs_no_failure_and_ends_no_trial() -> None:
    """Trials may not fail once, and all machines are lost: all of them wait, and continue when machines come."""
    faults = replace(NodeFaults.none(), blackouts=3)
    waited = 0
    for seed in range(60):
        story = ClusterSimulation(
            seed, FaultBudget.none(), faults, lambda scenario: replace(calm(scenario), max_failures=0)
        )
        audit = story.run()
        waited += audit.counts.get("AttemptInterrupted", 0)
        assert {trial.status for trial in audit.trials} <= {"TERMINATED"}, seed
    assert waited > 20


def test_a_seed_repeats_its_story_exactly() -> None:
    for seed in (3, 11, 42, 123):
        stories = []
        for _ in range(2):
            story = ClusterSimulation(seed)
            story.run()
            stories.append([(at, number, list(map(str, facts))) for at, number, facts in story.log])
        assert stories[0] == stories[1]


def test_words_of_an_old_attempt_arrive_after_a_long_cut_and_are_refused() -> None:
    """Some come while a new attempt runs, some after the trial has ended; the audit would find each in the journal."""
    late = 0
    for seed in range(60):
        story = ClusterSimulation(seed, FaultBudget.none(), NodeFaults.none(), calm)
        story.world.machines.faults.left.update(long_cuts=3, long_freezes=2, late_words=20)
        story.run()
        late += sum(facts[0] == "a word arrives late:" for _, _, facts in story.log)
    assert late > 30


def first_failure(bug: ClusterBug) -> int | None:
    """The seed of the first story that ends with one of the bug's invariants violated."""
    for seed in range(bug.seeds):
        try:
            bug.story(seed).run()
        except Exception as error:
            if getattr(error, "invariant", type(error).__name__) in bug.noticed:
                return seed
    return None


@pytest.mark.parametrize("bug", PLANTED.values(), ids=PLANTED)
def test_a_missing_safeguard_is_noticed_within_the_stated_number_of_stories(
    bug: ClusterBug, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug.plant(monkeypatch)
    assert first_failure(bug) is not None


@pytest.mark.parametrize("bug", FOUND.values(), ids=FOUND)
def test_a_repaired_bug_stays_repaired_and_would_be_found_again(bug: ClusterBug) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug.plant(patch)
        seed = first_failure(bug)
    assert seed is not None
    bug.story(seed).run()
