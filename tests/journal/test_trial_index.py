"""One trial's records are found without those of the others, and are what they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.core import events as ev
from holdfast.errors import JournalDamagedError
from holdfast.journal import segment_writer, trial_index
from holdfast.journal.epoch import claim_epoch
from holdfast.journal.log import Journal
from holdfast.journal.reader import read_journal
from holdfast.journal.segments import journal_dir
from holdfast.journal.trial_index import EXPERIMENT, TrialIndex

ABOUT_OTHERS = (ev.TrialStarted, ev.TrialReconfigured)


def write(root: Path, *events: ev.AnyEvent) -> None:
    journal = Journal.create_or_append(root, claim_epoch(root, takeover=True), threaded=False)
    for event in events:
        journal.append([ev.encode(event)])
    journal.close()


def report(n: int, loss: float, **more: object) -> ev.Reported:
    return ev.Reported(3.0, n, 1, 1, 0.5, {"loss": loss, **more})


def of_trial(n: int) -> list[ev.AnyEvent]:
    facts = ev.ErrorFacts("E", "m")
    return [
        ev.TrialCreated(1.0, n, f"t{n}", {}, ""),
        ev.TrialStarted(1.0, n, 1),
        report(n, 1.0),
        ev.CheckpointStaged(1.0, n, 1, 0, "s", 1, 1),
        ev.CheckpointCommitted(1.0, n, 0, "d", 1),
        ev.CheckpointRejected(1.0, n, 0, "r"),
        ev.CheckpointsDropped(1.0, n, (0,)),
        ev.CheckpointsDeleted(1.0, n, (0,)),
        ev.TrialPaused(1.0, n, 1),
        ev.TrialResumed(1.0, n),
        ev.TrialReconfigured(1.0, n, {}),
        ev.TrialResized(1.0, n, None),
        ev.AttemptFailed(1.0, n, 1, "c", facts),
        ev.AttemptInterrupted(1.0, n, 1, "c"),
        ev.TrialErrored(1.0, n, 1, "c", facts),
        ev.TrialTerminated(1.0, n, 1, "r"),
        ev.TrialRequeued(1.0, n, "resume"),
        ev.Noted(1.0, n, "t"),
        ev.UserRequested(1.0, n, "r", "note", "t"),
    ]


@pytest.mark.parametrize("n", [0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32])
def test_the_first_bytes_of_a_record_tell_its_trial(n: int) -> None:
    for event in of_trial(n):
        assert ev.subject(ev.encode(event)) == (None if isinstance(event, ABOUT_OTHERS) else n)


def test_every_kind_of_event_about_a_trial_is_known() -> None:
    kinds = {kind for kind in ev.AnyEvent.__args__ if "n" in kind.__struct_fields__}  # type: ignore[attr-defined]
    assert {type(event) for event in of_trial(0)} == kinds


@pytest.mark.parametrize(
    "event",
    [
        ev.EpochStarted(1.0, 1, "w", "h", 1),
        ev.WorkerJoined(1.0, 5, "h", "i", 1),
        ev.SearchAsked(1.0, 3),
        ev.BudgetRenewed(1.0),
        ev.Noted(1.0, -1, "t"),
        ev.UserRequested(1.0, -1, "r", "note", "t"),
        ev.DriverStopped(1.0, "r"),
    ],
)
def test_what_is_about_no_trial_has_to_be_decoded(event: ev.AnyEvent) -> None:
    assert ev.subject(ev.encode(event)) is None


def test_the_first_bytes_of_something_else_tell_nothing() -> None:
    payload = ev.encode(report(300, 1.0))
    assert all(ev.subject(payload[:size]) is None for size in range(15))
    assert ev.subject(b"\xff" * 40) is None


def test_events_of_trials_come_in_order_and_without_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 600)
    events = [ev.EpochStarted(1.0, 1, "w", "h", 1), ev.SearchAsked(1.0, 2), ev.Noted(1.0, -1, "t")]
    events += [event for pair in zip(of_trial(0), of_trial(1), of_trial(2), strict=True) for event in pair]
    write(tmp_path, *events, ev.DriverStopped(9.0, "r"))
    index = TrialIndex(tmp_path)
    assert len(os.listdir(journal_dir(str(tmp_path)))) > 2
    assert len(index) == 3
    assert list(index.events([1])) == of_trial(1)
    assert list(index.events([2, 0])) == [e for pair in zip(of_trial(0), of_trial(2), strict=True) for e in pair]
    assert [type(event) for event in index.events([EXPERIMENT])] == [ev.EpochStarted, ev.DriverStopped]
    assert list(index.events([7])) == []


def test_records_far_apart_and_large_ones_are_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_index, "MAX_GAP", 100)
    monkeypatch.setattr(trial_index, "MAX_RUN", 300)
    monkeypatch.setattr(trial_index, "LAST", 20)
    events = [report(i % 3, i, text="x" * (i * 7)) for i in range(60)]
    write(tmp_path, *events)
    assert list(TrialIndex(tmp_path).events([1])) == events[1::3]


def test_a_history_ends_where_its_reader_stopped(tmp_path: Path) -> None:
    write(tmp_path, ev.EpochStarted(1.0, 1, "w", "h", 1), report(0, 1.0))
    contents = read_journal(tmp_path)
    assert len(list(contents)) == 2
    write(tmp_path, ev.EpochStarted(2.0, 2, "w", "h", 1), report(0, 2.0))
    assert list(TrialIndex(tmp_path, end=contents.position).events([0])) == [report(0, 1.0)]
    assert list(TrialIndex(tmp_path, epoch=1).events([0])) == [report(0, 1.0)]
    assert list(TrialIndex(tmp_path, epoch=2).events([0])) == [report(0, 1.0), report(0, 2.0)]


def test_a_worker_is_who_had_that_number_then(tmp_path: Path) -> None:
    first, second = ev.WorkerJoined(1.0, 5, "h", "i", 1), ev.WorkerJoined(1.0, 5, "other", "i", 2)
    write(tmp_path, first, report(0, 1.0), second)
    index = TrialIndex(tmp_path)
    assert [index.worker(5, seq) for seq in (1, 2, 3, 4)] == [None, first, first, second]
    assert index.worker(6, 9) is None


def test_trials_that_continue_from_others_are_known(tmp_path: Path) -> None:
    write(
        tmp_path,
        ev.TrialStarted(1.0, 0, 1, 0, (0, 4)),
        ev.TrialReconfigured(1.0, 1, {}, "", (2, 0), 3),
        ev.TrialStarted(1.0, 2, 1, 0, (4, 0)),
        ev.TrialStarted(1.0, 4, 1, 0, (1, 0)),
    )
    index = TrialIndex(tmp_path)
    assert index.donors == {1: {2, 3}, 2: {4}, 4: {1}}
    assert [index.kin(n) for n in (0, 1, 3, 4)] == [{0}, {1, 2, 3, 4}, {3}, {1, 2, 3, 4}]


def test_a_journal_that_changes_behind_the_reader_is_damage(tmp_path: Path) -> None:
    write(tmp_path, report(0, 1.0), report(1, 2.0))
    index = TrialIndex(tmp_path)
    (file,) = (Path(journal_dir(str(tmp_path))) / name for name in os.listdir(journal_dir(str(tmp_path))))
    whole = file.read_bytes()
    for bad in (whole[:-9], whole[:-9] + b"\0" * 9, whole[: len(whole) // 3]):
        file.write_bytes(bad)
        with pytest.raises(JournalDamagedError, match="was changed while it was read") as error:
            list(index.events([1]))
        assert error.value.seq == 2


def test_a_record_that_cannot_be_is_damage(tmp_path: Path) -> None:
    write(tmp_path, ev.CheckpointStaged(1.0, 0, 1, 0, "../out", 1, 1))
    with pytest.raises(JournalDamagedError, match="record 1"):
        list(TrialIndex(tmp_path).events([0]))
