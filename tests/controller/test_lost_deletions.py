"""Checkpoints that are in a journal without its end, and not on disk: which were deleted, and which are missing."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.controller.lost_deletions import Absent, absent_checkpoints
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State, Trial
from holdfast.core.transitions import apply

ALL = Retention()
TWO = Retention(num_to_keep=2)


def history(*, committed: int, staged: int = 0, dropped: Collection[int] = (), rule: Retention = ALL) -> State:
    """One trial that has saved with each of its reports."""
    state = State()
    events: list[ev.AnyEvent] = [ev.TrialCreated(1.0, 0, "abcde_00000", {}, "0"), ev.TrialStarted(1.0, 0, 1)]
    for index in range(committed + staged):
        events.append(ev.Reported(2.0, 0, 1, 1, 1.0, {"loss": 1.0}))
        events.append(ev.CheckpointStaged(2.0, 0, 1, index, f".sealed-{index}", 10, 1))
        if index < committed:
            events.append(ev.CheckpointCommitted(2.0, 0, index, "digest", 10))
    if dropped:
        events.append(ev.CheckpointsDropped(3.0, 0, tuple(dropped)))
        events.append(ev.CheckpointsDeleted(3.0, 0, tuple(dropped)))
    for event in events:
        apply(state, event, rule)
    return state


def judged(
    state: State, there: Collection[int], rule: Retention, *, snapshot: Trial | None = None, left: Collection[int] = ()
) -> Absent:
    names = {f"checkpoint_{index:06d}" for index in there}
    return absent_checkpoints(state, state.trials[0], rule, names, snapshot=snapshot, left=left)


def test_what_the_rule_does_not_keep_was_deleted() -> None:
    assert judged(history(committed=4), {2, 3}, TWO) == Absent((0, 1), ())


def test_what_the_rule_keeps_is_missing() -> None:
    assert judged(history(committed=4), {2}, TWO) == Absent((0, 1), (3,))
    assert judged(history(committed=3), {0, 2}, ALL) == Absent((), (1,))


def test_one_that_was_never_committed_does_not_excuse_that_another_is_missing() -> None:
    assert judged(history(committed=3, staged=1), {2}, TWO) == Absent((0,), (1,))


def test_a_staged_one_may_have_been_committed_and_deleted_since() -> None:
    state = history(committed=1, staged=3)
    for index in (2, 3):
        apply(state, ev.CheckpointCommitted(3.0, 0, index, "digest", 10), TWO)
    assert judged(state, {2, 3}, TWO) == Absent((0, 1), ())


def test_one_whose_commit_is_unfinished_is_left_to_the_next_driver() -> None:
    assert judged(history(committed=1, staged=1), {0}, ALL) == Absent((), ())


def test_a_snapshot_knows_what_was_deleted_for_another_reason() -> None:
    later = history(committed=4, dropped=[1]).trials[0]
    assert judged(history(committed=3), {0, 2}, ALL, snapshot=later) == Absent((1,), ())
    earlier = history(committed=1).trials[0]
    assert judged(history(committed=3), {0, 2}, ALL, snapshot=earlier) == Absent((), (1,))


def test_steps_that_the_trial_has_repeated_since_need_no_checkpoint() -> None:
    assert judged(history(committed=3), {0}, ALL, left={1, 2}) == Absent((1, 2), ())
