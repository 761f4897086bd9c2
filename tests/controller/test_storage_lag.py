"""When durability lags is told once, with its beginning, and that it is over."""

from __future__ import annotations

from holdfast.controller.storage_lag import LAG_S, StorageLagWatch
from holdfast.core.observations import Observation, StorageLag, StorageLagOver


class FakeJournal:
    """Numbers that a test sets."""

    def __init__(self) -> None:
        self.written_seq = self.synced_seq = 0
        self.blocked: OSError | None = None


def looks(watch: StorageLagWatch, start: float, end: float) -> list[Observation]:
    """Look four times a second."""
    found: list[Observation] = []
    at = start
    while at < end:
        found += watch.look(at)
        at += 0.25
    return found


def test_a_lag_is_told_with_its_beginning_and_its_end() -> None:
    journal = FakeJournal()
    watch = StorageLagWatch(journal)
    assert looks(watch, 100.0, 110.0) == []
    journal.written_seq, journal.blocked = 5, OSError("unreachable")
    assert looks(watch, 110.0, 110.0 + LAG_S) == []
    assert looks(watch, 110.0 + LAG_S, 130.0) == [StorageLag(110.0, "unreachable")]
    journal.written_seq = 9
    assert looks(watch, 130.0, 140.0) == []
    journal.synced_seq = 9
    assert looks(watch, 140.0, 150.0) == [StorageLagOver(110.0)]


def test_a_journal_that_is_always_written_and_synced_soon_does_not_lag() -> None:
    journal = FakeJournal()
    watch = StorageLagWatch(journal)
    found: list[Observation] = []
    for step in range(200):
        journal.written_seq, journal.synced_seq = 10 * step + 10, 10 * step
        found += watch.look(100.0 + 0.25 * step)
    assert found == []


def test_a_driver_that_was_suspended_did_not_lag() -> None:
    journal = FakeJournal()
    watch = StorageLagWatch(journal)
    journal.written_seq = 3
    assert looks(watch, 100.0, 101.0) == []
    assert looks(watch, 500.0, 501.0) == []
    journal.synced_seq = 3
    assert looks(watch, 501.0, 502.0) == []


def test_a_time_in_which_nothing_could_be_written_is_told_afterwards() -> None:
    watch = StorageLagWatch(FakeJournal())
    watch.was_blocked(100.0, 103.0, OSError("full"))
    assert looks(watch, 103.0, 104.0) == []
    watch.was_blocked(110.0, 140.0, OSError("full"))
    assert looks(watch, 140.0, 141.0) == [StorageLag(110.0, "full"), StorageLagOver(110.0)]
