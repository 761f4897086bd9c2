"""The table of a checkpoint's way into a store."""

from __future__ import annotations

import pytest

from holdfast.controller.remote_commit import TRANSITIONS, CommitState, CommitStep, RemoteCommit
from holdfast.errors import InternalError

ENDS = {CommitState.COMMITTED, CommitState.FAILED, CommitState.SUPERSEDED}


def after(*steps: CommitStep) -> CommitState:
    commit = RemoteCommit()
    for step in steps:
        commit.take(step)
    return commit.state


def test_every_state_can_be_reached_and_only_ends_have_no_way_on() -> None:
    reached = {CommitState.STAGED}
    for _ in CommitState:
        reached |= {target for (state, _), target in TRANSITIONS.items() if state in reached}
    assert reached == set(CommitState)
    assert set(CommitState) - {state for state, _ in TRANSITIONS} == ENDS


def test_an_upload_whose_turn_comes_during_the_reading_waits_for_its_end() -> None:
    assert after(CommitStep.READ_BACK, CommitStep.TURN) == CommitState.HELD
    assert after(CommitStep.READ_BACK, CommitStep.TURN, CommitStep.READ) == CommitState.UPLOADING


def test_an_upload_that_has_not_begun_may_be_read_back_first() -> None:
    assert after(CommitStep.TURN, CommitStep.READ_BACK, CommitStep.READ) == CommitState.UPLOADING


@pytest.mark.parametrize("state", sorted(set(CommitState) - ENDS))
def test_whatever_waits_can_be_given_up(state: CommitState) -> None:
    assert RemoteCommit(state=state).take(CommitStep.GIVE_UP) == CommitState.SUPERSEDED


@pytest.mark.parametrize("end", sorted(ENDS))
@pytest.mark.parametrize("step", CommitStep)
def test_nothing_follows_an_end(end: CommitState, step: CommitStep) -> None:
    with pytest.raises(InternalError, match=f"that is {end} cannot be {step}"):
        RemoteCommit(state=end).take(step)
