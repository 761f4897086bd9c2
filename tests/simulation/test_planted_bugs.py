"""The simulator finds bugs that are there: each safeguard is taken away once, and its absence must be noticed."""

import pytest
from repaired_bugs import FOUND
from simulated_bugs import PLANTED


def first_failure(tell, seeds, kinds):
    """The seed of the first story that ends with one of these invariants violated, or exceptions."""
    for seed in range(seeds):
        try:
            tell(seed).run()
        except Exception as error:
            if getattr(error, "invariant", type(error).__name__) in kinds:
                return seed
    return None


@pytest.mark.parametrize("bug", PLANTED.values(), ids=PLANTED)
def test_a_missing_safeguard_is_noticed_within_the_stated_number_of_seeds(bug, monkeypatch):
    bug.plant(monkeypatch)
    assert first_failure(bug.story, bug.seeds, bug.noticed) is not None


@pytest.mark.parametrize("bug", FOUND.values(), ids=FOUND)
def test_a_repaired_bug_stays_repaired_and_would_be_found_again(bug):
    with pytest.MonkeyPatch.context() as patch:
        bug.plant(patch)
        seed = first_failure(bug.story, bug.seeds, bug.noticed)
    assert seed is not None
    bug.story(seed).run()
