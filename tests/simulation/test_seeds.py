"""Whole experiments under faults: each seed is a story, and every invariant is checked in each.

A failure prints one line, which repeats the story when it is typed.
"""

from dataclasses import asdict

import pytest

from holdfast.journal import segment_writer
from simulator.fake_search import SEARCHERS
from simulator.scenario import FaultBudget
from simulator.schedulers_under_test import SCHEDULERS
from simulator.simulate import Simulation, repeat_line, with_policies

FAST = [range(start, start + 50) for start in range(0, 200, 50)]
SLOW = [range(start, start + 250) for start in range(200, 2700, 250)]


def tell(seeds, story=Simulation):
    for seed in seeds:
        simulation = story(seed)
        try:
            simulation.run()
        except Exception as error:
            pytest.fail(f"{repeat_line(seed)}  # {type(error).__name__}: {str(error)[:300]}", pytrace=False)


def name(seeds):
    return f"{seeds.start}-{seeds.stop - 1}"


@pytest.mark.parametrize("seeds", FAST, ids=name)
def test_no_invariant_is_violated_whatever_goes_wrong(seeds):
    tell(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SLOW, ids=name)
def test_no_invariant_is_violated_whatever_goes_wrong_in_many_stories(seeds):
    tell(seeds)


def test_a_driver_that_slept_before_it_opened_its_engine_ends_the_workers_of_its_successor_which_notices():
    tell([2960])


def tell_of(seeds, scheduler="", searcher=""):
    """Tell stories with these policies; what the scheduler decided in them."""
    decided = set()
    for seed in seeds:
        simulation = Simulation(seed, change=with_policies(scheduler, searcher))
        try:
            audit = simulation.run()
        except Exception as error:
            line = repeat_line(seed, scheduler, searcher)
            pytest.fail(f"{line}  # {type(error).__name__}: {str(error)[:300]}", pytrace=False)
        decided |= DECISIONS & audit.counts.keys()
        decided |= {"stop" for trial in audit.trials if trial.why.startswith(STOPS)}
    return decided


DECISIONS = {"TrialPaused", "TrialReconfigured", "TrialResized", "StoodStill"}
STOPS = ("AsyncHyperBand", "DEHB", "ResourceChanging")
DECIDES = {
    "asha": {"stop"},
    "asha by promotion": {"TrialPaused", "StoodStill"},
    "changing resources": {"stop", "TrialPaused", "TrialResized"},
    "copying": DECISIONS - {"TrialResized"},
    "copying, told again": DECISIONS - {"TrialResized"},
    "dehb": {"stop"},
    "hyperband": {"TrialPaused"},
    "hyperband for bohb": {"TrialPaused"},
    "median": {"TrialPaused"},
    "pasha": {"TrialPaused", "StoodStill"},
    "pb2": {"TrialPaused", "TrialReconfigured"},
    "pbt": {"TrialPaused", "TrialReconfigured"},
}
"""What each scheduler does at least in the first stories."""


@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
def test_every_scheduler_decides_the_same_however_often_it_is_interrupted(scheduler):
    assert tell_of(range(3000, 3025), scheduler) >= DECIDES[scheduler]


@pytest.mark.parametrize("searcher", sorted(SEARCHERS))
def test_every_searcher_suggests_the_same_however_often_it_is_interrupted(searcher):
    tell_of(range(3000, 3020), searcher=searcher)


@pytest.mark.slow
def test_no_invariant_is_violated_when_everything_goes_wrong_at_once():
    def storm(seed):
        simulation = Simulation(seed)
        simulation.chaos.left.update({kind: 2 * most for kind, most in asdict(FaultBudget()).items()})
        if simulation.world.scenario.stall_timeout_s is None:
            simulation.chaos.left["hangs"] = 0
        return simulation

    tell(range(400), storm)


def test_no_invariant_is_violated_when_segments_are_short_and_little_may_wait(monkeypatch):
    """Rotation, and syncs that an append has to run itself, in every story instead of after 16 MB."""
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 1200)
    monkeypatch.setattr(segment_writer, "MAX_WAITING_BYTES", 600)
    tell(range(80))


def test_a_story_without_faults_needs_one_driver_and_loses_nothing():
    for seed in range(60):
        simulation = Simulation(seed, FaultBudget.none())
        audit = simulation.run()
        if simulation.world.scenario.restart == ("skip", "resume", "skip"):
            assert audit.counts["EpochStarted"] == 1
        for lost in ("AttemptInterrupted", "AttemptFailed", "TrialErrored", "CheckpointRejected"):
            assert lost not in audit.counts, repeat_line(seed)


def test_a_seed_repeats_its_story_exactly():
    for seed in (3, 11, 42, 123):
        stories = []
        for _ in range(2):
            simulation = Simulation(seed)
            simulation.run()
            stories.append([(at, number, list(map(str, facts))) for at, number, facts in simulation.log])
        assert stories[0] == stories[1]


def test_every_kind_of_fault_strikes_in_the_first_stories():
    missing = set(FaultBudget().__dataclass_fields__)
    for seed in range(200):
        simulation = Simulation(seed)
        given = dict(simulation.chaos.left)
        simulation.run()
        missing -= {kind for kind, left in simulation.chaos.left.items() if left < given[kind]}
        if not missing:
            return
    pytest.fail(f"these faults never struck: {sorted(missing)}")
