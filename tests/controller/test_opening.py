"""A state that comes from a snapshot is the one that was stored, and a snapshot holds no more than it must."""

from __future__ import annotations

import gc
from typing import Any

import msgspec

from holdfast.controller.opening import SnapshotRecord, archive_record, collector_paused, snapshot_payload, state_from
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State, Trial, WorkerFacts
from holdfast.core.transitions import apply
from simulator.checkers import durable_fields

RULE = Retention(score_attribute="score", num_to_keep_overall=2)
_decode = msgspec.msgpack.Decoder(SnapshotRecord).decode
_decode_trial = msgspec.msgpack.Decoder(Trial).decode


def failed_trials(count: int) -> State:
    """Each trial had a worker of its own, saved a checkpoint and failed."""
    state = State()
    events: list[Any] = [ev.EpochStarted(1.0, 1, "w", "h", 1)]
    for n in range(count):
        events += [
            ev.TrialCreated(2.0, n, f"t{n}", {}, str(n)),
            ev.WorkerJoined(2.0, n + 1, "host", "10.0.0.1", 1000 + n),
            ev.TrialStarted(2.0, n, 1),
            ev.Reported(3.0, n, 1, n + 1, 0.5, {"score": float(n % 5)}),
            ev.CheckpointStaged(3.0, n, 1, 0, f".sealed-1-{n:08x}", 10, 1),
            ev.CheckpointCommitted(3.0, n, 0, "digest", 10),
            ev.TrialErrored(4.0, n, 1, "exception", ev.ErrorFacts("E", "boom")),
        ]
    for event in [*events, ev.WorkerJoined(5.0, count + 1, "host", "10.0.0.1", 999)]:
        apply(state, event, RULE)
    return state


def test_a_state_comes_back_from_a_snapshot_as_it_was() -> None:
    state = failed_trials(20)
    archived = [_decode_trial(archive_record(trial)) for trial in state.trials]
    again = state_from(_decode(snapshot_payload(state, [], {})), archived, RULE)
    assert durable_fields(again) == durable_fields(state)
    assert len(again.overall) == len(again.workers) - 1 == 20


def test_a_snapshot_knows_the_backlog_oldest_first_and_that_trials_wait_for_it() -> None:
    state = State()
    for n in range(2):
        apply(state, ev.TrialCreated(1.0, n, f"t{n}", {}, str(n)), RULE)
        apply(state, ev.TrialStarted(1.0, n, 1), RULE)
    for at, n, index in [(2.0, 1, 0), (3.0, 0, 0), (4.0, 1, 1)]:
        apply(state, ev.CheckpointStaged(at, n, 1, index, f".sealed-{n}-{index}", 10 + index, 1), RULE)
    apply(state, ev.BacklogFilled(5.0, 3, 31, 20), RULE)
    again = state_from(_decode(snapshot_payload(state, state.trials, {})), [], RULE)
    assert durable_fields(again) == durable_fields(state)
    assert (again.staged_bytes, again.full_since, again.full_limit) == (31, 5.0, 20)
    assert list(again.staged) == list(state.staged) == [(1, 0), (0, 0), (1, 1)]


def test_a_snapshot_knows_why_the_driver_ended_and_what_has_to_change() -> None:
    state = failed_trials(1)
    apply(state, ev.DriverStopped(6.0, "MetricMissingError: no loss", "metric"), RULE)
    again = state_from(_decode(snapshot_payload(state, state.trials, {})), [], RULE)
    assert (again.stopped, again.needs_change) == ("MetricMissingError: no loss", "metric")


def test_a_snapshot_does_not_grow_with_the_trials_that_have_ended() -> None:
    few, many = (snapshot_payload(failed_trials(count), [], {}) for count in (10, 200))
    assert len(many) <= len(few) + 8  # larger numbers, not more of them


def test_a_snapshot_that_still_holds_every_worker_can_be_read() -> None:
    state = failed_trials(3)
    record = _decode(snapshot_payload(state, [], {}))
    record.workers = dict(state.workers)
    record.overall = list(state.overall)
    archived = [_decode_trial(archive_record(trial)) for trial in state.trials]
    for trial in archived:
        trial.where = None
    again = state_from(record, archived, RULE)
    assert durable_fields(again) == durable_fields(state)
    assert again.trials[2].where == WorkerFacts("host", "10.0.0.1", 1002)


def test_pausing_the_collector_leaves_it_as_it_was() -> None:
    was_on = gc.isenabled()
    try:
        for switch, is_on in ((gc.enable, True), (gc.disable, False)):
            switch()
            with collector_paused():
                assert not gc.isenabled()
            assert gc.isenabled() == is_on
        gc.enable()
        gc.freeze()  # as a process does that is about to fork: what was frozen stays so
        with collector_paused():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
        gc.enable() if was_on else gc.disable()


def test_what_was_decoded_without_the_collector_is_not_walked_through_at_once() -> None:
    with collector_paused():
        kept = [[number] for number in range(5000)]
    assert gc.get_count()[0] < 1000
    assert len(kept) == 5000
