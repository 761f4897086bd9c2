"""The simulator finds bugs that are there: each safeguard is taken away once, and its absence must be noticed."""

import pytest
from simulated_bugs import FOUND, PLANTED

from holdfast.testing.simulate import Simulation, repeat_line


def first_failure(tell, seeds):
    """The first story that ends badly: its seed, and the invariant or the kind of exception."""
    for seed in range(seeds):
        try:
            tell(seed).run()
        except Exception as error:
            return seed, getattr(error, "invariant", type(error).__name__)
    return None


@pytest.mark.parametrize("bug", PLANTED.values(), ids=PLANTED)
def test_a_missing_safeguard_is_noticed_within_the_stated_number_of_seeds(bug, monkeypatch):
    bug.plant(monkeypatch)
    found = first_failure(Simulation, bug.seeds)
    assert found is not None, f"{bug.plant.__name__} was not noticed in {bug.seeds} stories"
    assert found[1] in bug.invariants, repeat_line(found[0])


@pytest.mark.parametrize("bug", FOUND.values(), ids=FOUND)
def test_a_repaired_bug_stays_repaired_and_would_be_found_again(bug, monkeypatch):
    assert first_failure(bug.story, bug.seeds) is None
    bug.plant(monkeypatch)
    found = first_failure(bug.story, bug.seeds)
    assert found is not None, f"{bug.plant.__name__} was not noticed in {bug.seeds} stories"
    assert found[1] in bug.noticed
