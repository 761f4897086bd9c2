"""The simulator finds bugs that are there: each safeguard is taken away once, and its absence must be noticed."""

import pytest
from simulated_bugs import FOUND, PLANTED

from holdfast.testing.simulate import Simulation, repeat_line


def first_failure(seeds):
    for seed in seeds:
        try:
            Simulation(seed).run()
        except Exception as error:
            return seed, getattr(error, "invariant", type(error).__name__)
    return None


@pytest.mark.parametrize("bug", PLANTED.values(), ids=PLANTED)
def test_a_missing_safeguard_is_noticed_within_the_stated_number_of_seeds(bug, monkeypatch):
    bug.plant(monkeypatch)
    found = first_failure(range(bug.seeds))
    assert found is not None, f"{bug.plant.__name__} was not noticed in {bug.seeds} stories"
    assert found[1] in bug.invariants


@pytest.mark.parametrize("bug", FOUND.values(), ids=FOUND)
def test_a_repaired_bug_stays_repaired_and_its_story_would_still_tell(bug, monkeypatch):
    Simulation(bug.seed).run()
    bug.plant(monkeypatch)
    found = first_failure([bug.seed])
    assert found is not None, (
        f"with the bug as it was, {repeat_line(bug.seed)} tells nothing any more: the simulator draws other numbers "
        f"now. Look for the smallest seed that does, and put it into simulated_bugs.FOUND."
    )
    assert found[1] == bug.noticed
