"""Checkers that are lied to must say so; one that never complains checks nothing.

Each test tells a story that is in order, then changes the ground truth behind the checkers' back.
"""

from dataclasses import replace

import pytest

from holdfast.schedulers.view import ExperimentView
from simulator.audit import Audit
from simulator.fake_search import TellTale
from simulator.ledger import Sent, Violation
from simulator.scenario import FaultBudget
from simulator.schedulers_under_test import CopyingScheduler
from simulator.simulate import Simulation


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


@pytest.fixture
def copies():
    """A story without faults in which a scheduler makes copies of trials, and a searcher learns."""

    def plenty(scenario):
        changed = {"samples": 6, "checkpoint_every": 1, "steps": (9,), "cpus": 4.0, "searcher": "learning"}
        return replace(scenario.with_scheduler("copying"), restart=("skip", "resume", "skip"), **changed)

    for seed in range(100):
        simulation = Simulation(seed, FaultBudget.none(), plenty)
        simulation.run()
        if any(life.start.n != n for (_, n, _), life in simulation.world.ledger.lives.items()):
            return simulation
    pytest.fail("there is no such story")


def test_a_copy_that_began_with_something_else_than_the_donor_saved_is_noticed(copies):
    lives = copies.world.ledger.lives
    copy = next(life for (_, n, _), life in lives.items() if life.start.n != n)
    copy.start = copy.start._replace(link=copy.start.link + 1)
    assert complaint(copies) == "I2"


def test_a_scheduler_that_would_have_decided_otherwise_is_noticed(copies, monkeypatch):
    monkeypatch.setattr(CopyingScheduler, "on_trial_result", lambda self, view, trial, result: self.CONTINUE)
    assert complaint(copies) == "I5"


def test_a_request_that_nobody_made_is_noticed(copies, monkeypatch):
    monkeypatch.setattr(ExperimentView, "reconfigure_trial", lambda self, trial, config, **more: False)
    assert complaint(copies) == "I5"


def test_a_searcher_that_would_have_suggested_something_else_is_noticed(copies, monkeypatch):
    monkeypatch.setattr(TellTale, "suggest", lambda self, trial_id: {"lr": 0.5, "width": 16})
    assert complaint(copies) == "I5"


def test_something_that_a_searcher_never_heard_of_is_noticed(copies, monkeypatch):
    told = Audit._tell_end
    monkeypatch.setattr(Audit, "_tell_end", lambda self, trial, *, error: told(self, trial, error=not error))
    assert complaint(copies) == "I5"
