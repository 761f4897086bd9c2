"""Checkers that are lied to must say so; one that never complains checks nothing.

Each test tells a story that is in order, then changes the ground truth behind the checkers' back.
"""

from dataclasses import replace

import pytest

from holdfast.testing.ledger import Sent, Violation
from holdfast.testing.scenario import FaultBudget
from holdfast.testing.simulate import Simulation


@pytest.fixture
def story():
    """A story without faults, with several trials that report and keep checkpoints."""

    def with_checkpoints(scenario):
        return replace(scenario, samples=3, checkpoint_every=1, steps=(4, 5, 6), restart=("skip", "resume", "skip"))

    simulation = Simulation(7, FaultBudget.none(), with_checkpoints)
    simulation.run()
    return simulation


def complaint(simulation):
    with pytest.raises(Violation) as caught:
        simulation.check()
    return caught.value.invariant


def test_the_story_is_in_order_before_anybody_lies(story):
    assert len(story.check().trials) == 3


def test_an_acknowledged_report_that_was_never_journaled_is_missed(story):
    story.world.ledger.reports[10_001] = Sent(n=0, attempt=1, epoch=1, ordinal=99, step=99, before=0, acked=True)
    assert complaint(story) == "I1"


def test_an_acknowledged_checkpoint_that_was_never_staged_is_missed(story):
    story.world.ledger.reports[1].sealed = ".sealed-1-ffffffff"
    assert complaint(story) == "I1"


def test_a_row_that_does_not_continue_the_one_before_it_is_noticed(story):
    story.world.ledger.reports[3].before = 777
    assert complaint(story) == "I6"


def test_a_report_of_another_attempt_is_noticed(story):
    story.world.ledger.reports[2].attempt += 1
    assert complaint(story) == "I6"


def test_a_checkpoint_that_holds_other_weights_is_noticed(story):
    name, weights = next(iter(story.world.store.made.items()))
    story.world.store.made[name] = weights._replace(link=weights.link + 1)
    assert complaint(story) == "I6"


def test_a_checkpoint_that_disappeared_is_noticed(story):
    store = story.world.store
    del store.checkpoints[min(store.checkpoints)]
    assert complaint(story) == "I3"


def test_a_state_that_differs_from_the_journal_is_noticed(story):
    story.state.trials[0].time_total += 1.0
    assert complaint(story) == "I6"


def test_a_counter_that_nobody_shows_is_compared_too(story):
    story.state.reports += 1
    assert complaint(story) == "I5"


def test_a_failure_that_was_never_counted_is_noticed(story):
    story.state.trials[1].failures += 1
    assert complaint(story) == "I8"


def test_a_changed_byte_of_the_journal_is_noticed(story):
    segments = [path for path in story.world.disk.files if path.endswith(".hfj")]
    seen = story.world.disk.files[segments[0]].seen
    seen[len(seen) // 2] ^= 0x01
    with pytest.raises(Violation):
        story.check()


def test_time_that_was_never_lived_is_noticed(story):
    story.world.ledger.lived_s = -1.0
    assert complaint(story) == "I5"
