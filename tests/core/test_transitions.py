"""The transition table is the law."""

import pytest
from world import World

from holdfast.core import events as ev
from holdfast.core.state import Status
from holdfast.core.transitions import TRANSITIONS, apply
from holdfast.errors import IllegalTransitionError


def test_an_event_that_the_table_does_not_know_raises_with_the_trials_story():
    world = World()
    world.fail()
    with pytest.raises(IllegalTransitionError, match=r"t0 is ERROR \(attempt 1, 0 rows, 1 failures\)"):
        apply(world.state, ev.TrialPaused(1.0, 0, 1), world.policies.rules.retention)


def test_every_status_in_the_table_is_public():
    assert {status for status, _ in TRANSITIONS} | set(TRANSITIONS.values()) == set(Status.ALL)


def test_final_trials_only_run_again_at_the_users_request():
    leaving = {event for (status, event), to in TRANSITIONS.items() if status in Status.FINAL and to == Status.PENDING}
    assert leaving == {ev.TrialRequeued}
