"""Appending: what is accepted, what is durable, and who may do it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from faulty_disk import FaultyDisk
from journal_tools import ROOT, numbered, records, reopen, segments

from holdfast.errors import (
    FencedError,
    InternalError,
    InvalidInputError,
    OwnershipError,
    StorageError,
)
from holdfast.journal import Journal, claim_epoch, holder, read_journal, segment_writer

EIO = OSError(errno.EIO, "Input/output error")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


def test_appended_records_are_read_back_with_their_numbers(tmp_path: Path) -> None:
    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path))
    assert journal.append([b"one", b"two"]) == 2
    assert journal.append([]) == 2
    assert journal.append([b""]) == 3
    assert journal.written_seq == journal.accepted_seq == 3
    assert list(read_journal(tmp_path)) == [(1, b"one"), (2, b"two"), (3, b"")]
    journal.close()


def test_the_next_driver_goes_on_with_the_numbers(disk: FaultyDisk) -> None:
    for first in (1, 4, 7):
        journal = reopen(disk)
        assert journal.written_seq == first - 1
        journal.append(numbered(first, first + 2))
        journal.close()
    assert records(disk) == numbered(1, 9)


def test_a_batch_is_one_write(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    before = disk.steps.count("write")
    journal.append(numbered(1, 100))
    assert disk.steps.count("write") == before + 1


def test_opening_removes_what_dead_drivers_left_and_spares_what_a_successor_writes(tmp_path: Path) -> None:
    """A driver that is slow to open must not take the half-made segment of the one that took over from it."""
    Journal.create_or_append(tmp_path, claim_epoch(tmp_path)).close()
    directory = tmp_path / ".holdfast" / "journal"
    left, half_made = directory / ".tmp-1-left", directory / ".tmp-2-half-made"
    left.touch()
    os.utime(left, (0, 0))
    slow = claim_epoch(tmp_path)
    claim_epoch(tmp_path, takeover=True)
    half_made.touch()
    after_the_claim = os.stat(tmp_path / ".holdfast" / "epochs" / f"{slow.epoch:08d}").st_mtime + 1
    os.utime(half_made, (after_the_claim, after_the_claim))
    Journal.create_or_append(tmp_path, slow).close()
    assert not left.exists()
    assert half_made.exists()


def test_close_releases_the_experiment_and_may_be_repeated(tmp_path: Path) -> None:
    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path))
    journal.close()
    journal.close()
    found = holder(tmp_path)
    assert found is not None
    assert found.released
    with pytest.raises(InternalError, match="closed"):
        journal.append([b"late"])


def test_close_without_release_keeps_the_experiment(tmp_path: Path) -> None:
    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path))
    journal.close(release=False)
    found = holder(tmp_path)
    assert found is not None
    assert found.alive


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="'fast'"):
        Journal.create_or_append(tmp_path, claim_epoch(tmp_path), durability="fast")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ durability


def test_the_sync_thread_makes_records_durable_without_being_asked(tmp_path: Path) -> None:
    told = threading.Event()
    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path))
    journal.on_synced = lambda seq: told.set() if seq == 2 else None
    journal.append([b"a", b"b"])
    assert told.wait(10)
    assert journal.synced_seq == 2
    journal.close()


def test_waiting_for_a_sync_returns_when_the_record_is_durable(tmp_path: Path) -> None:
    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path))
    for n in range(1, 20):
        assert journal.append([b"x"]) == n
        journal.request_sync()
        assert journal.wait_synced(n, timeout=10)
        assert journal.synced_seq >= n
    assert not journal.wait_synced(1000, timeout=0.01)
    journal.close()


def test_group_durability_leaves_the_sync_to_others_and_sync_durability_does_not(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append([b"a"])
    assert (journal.accepted_seq, journal.synced_seq) == (1, 0)
    assert journal.sync()
    assert journal.synced_seq == 1
    journal.close()
    journal = reopen(disk, durability="sync")
    journal.append([b"b"])
    assert journal.accepted_seq == journal.synced_seq == 2
    disk.power_cut()
    assert records(disk) == [b"a", b"b"]


def test_a_take_over_during_a_sync_keeps_the_reply_back(disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others share the disk, whoever takes over reads what was synced, and not what was written."""
    journal = reopen(disk, durability="sync")
    sync = journal.sync

    def slow_sync() -> bool:
        claim_epoch(ROOT, takeover=True, disk=disk)
        return sync()

    monkeypatch.setattr(journal, "sync", slow_sync)
    with pytest.raises(FencedError):
        journal.append([b"one"])


def test_synced_records_survive_a_power_cut_and_others_may_not(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 5))
    journal.sync()
    journal.append(numbered(6, 9))
    disk.power_cut()
    assert records(disk) == numbered(1, 5)


def test_a_seal_never_promises_what_a_power_cut_can_take_away(disk: FaultyDisk) -> None:
    """A driver is killed; its last records are in the page cache alone. The next one seals them; power fails."""
    journal = reopen(disk)
    journal.append(numbered(1, 5))
    reopen(disk)
    disk.power_cut()
    assert records(disk) == numbered(1, 5)


def test_a_sync_covers_what_was_written_before_it_began(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append([b"a"])
    ticket = journal._writer.begin_sync()
    assert ticket is not None
    journal.append([b"b"])
    ticket.file.sync()
    journal._writer.end_sync(ticket)
    assert (journal.synced_seq, journal.written_seq) == (1, 2)
    assert journal.sync()
    assert journal.synced_seq == 2


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_sync_that_ends_after_its_segment_was_given_up_has_nothing_to_say(disk: FaultyDisk, succeeds: bool) -> None:
    journal = reopen(disk)
    journal.append([b"a"])
    ticket = journal._writer.begin_sync()
    assert ticket is not None
    disk.fail("write", EIO)
    journal.append([b"b"])
    assert journal.flush()
    assert len(segments(disk)) == 2
    if succeeds:
        journal._writer.end_sync(ticket)
    else:
        journal._writer.fail_sync(ticket, EIO)
    assert len(segments(disk)) == 2
    assert journal.synced_seq == 1
    assert journal.sync()
    disk.power_cut()
    assert records(disk) == [b"a", b"b"]


def test_when_too_much_waits_for_a_sync_the_append_runs_it(disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "MAX_WAITING_BYTES", 1000)
    journal = reopen(disk)
    for n in range(1, 100):
        journal.append(numbered(n, n))
    assert journal.synced_seq > 0
    assert len(journal._writer._unsynced) < 40


# ------------------------------------------------------------------------------------------------ rotation


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 600)


@pytest.mark.usefixtures("small_segments")
def test_a_journal_of_many_segments_reads_as_one(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    for n in range(1, 101):
        journal.append(numbered(n, n))
    assert len(segments(disk)) > 5
    assert records(disk) == numbered(1, 100)
    disk.power_cut()
    assert len(records(disk)) > 80


@pytest.mark.usefixtures("small_segments")
def test_a_rotation_that_the_disk_refuses_does_not_stop_the_appends(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    for step in ("create", "created", "sync", "sync_dir", "open"):
        disk.fail(step, EIO)
        for _ in range(30):
            n = journal.append([b"x" * 50])
            # Somebody may read, or take over, at any time.
            assert len(records(disk)) >= journal.accepted_seq
    assert journal.flush()
    assert records(disk) == [b"x" * 50] * n


@pytest.mark.usefixtures("small_segments")
def test_rotations_report_what_they_made_durable(tmp_path: Path) -> None:
    told: list[int] = []
    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path))
    journal.on_synced = told.append
    for _ in range(50):
        journal.append([b"x" * 50])
    journal.close()
    assert told == sorted(set(told))
    assert told[-1] == 50


# ------------------------------------------------------------------------------------------------ ownership


def test_a_fenced_driver_cannot_append_flush_or_release(disk: FaultyDisk) -> None:
    old = reopen(disk)
    old.append([b"a"])
    new = reopen(disk)
    with pytest.raises(FencedError, match="epoch 2"):
        old.append([b"void"])
    with pytest.raises(FencedError):
        old.flush()
    assert old.fenced
    old.close()
    new.append([b"b"])
    assert records(disk) == [b"a", b"b"]
    found = holder(ROOT, disk=disk)
    assert found is not None
    assert not found.released


def test_what_a_woken_driver_writes_past_the_check_is_void_and_not_acknowledged(disk: FaultyDisk) -> None:
    """It is stopped between the look for a newer epoch and the write, and sleeps through a take-over."""
    old = reopen(disk)
    old.append([b"a"])

    class TakenOverMeanwhile:
        def __init__(self, real: object) -> None:
            self._real = real

        def write(self, data: bytes) -> int:
            new = reopen(disk)
            new.append([b"b"])
            return self._real.write(data)  # type: ignore[attr-defined,no-any-return]

    old._writer._file = TakenOverMeanwhile(old._writer._file)  # type: ignore[assignment]
    with pytest.raises(FencedError):
        old.append([b"void"])
    assert records(disk) == [b"a", b"b"]


@pytest.mark.usefixtures("small_segments")
def test_segments_that_a_woken_driver_rotates_to_are_void(disk: FaultyDisk) -> None:
    old = reopen(disk)
    old.append(numbered(1, 5))
    new = reopen(disk)
    new.append(numbered(6, 8))
    zombie = old._writer
    for n in range(50):
        zombie.queue([b"void %d" % n])
        zombie.drain()
        if zombie.wants_rotation:
            zombie.rotate()
    assert any("/00000001-0000000000" in path for path in segments(disk)[1:])
    assert records(disk) == numbered(1, 8)
    third = reopen(disk)
    third.append(numbered(9, 9))
    assert records(disk) == numbered(1, 9)


def test_a_claim_that_was_overtaken_before_its_first_segment_cannot_open(disk: FaultyDisk) -> None:
    slow = claim_epoch(ROOT, disk=disk)
    reopen(disk).append([b"a"])
    with pytest.raises(FencedError):
        Journal.create_or_append(ROOT, slow, disk=disk, threaded=False)
    assert records(disk) == [b"a"]


def test_a_forked_child_cannot_write_the_journal(tmp_path: Path) -> None:
    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path), threaded=False)
    journal.append([b"a"])
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: journal.append([b"no"]), journal.flush, journal.sync, journal.request_sync):
            try:
                call()
            except OwnershipError:
                refused += 1
        journal.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    found = holder(tmp_path)
    assert found is not None
    assert not found.released
    journal.append([b"b"])
    assert list(read_journal(tmp_path)) == [(1, b"a"), (2, b"b")]
    journal.close()


def test_an_error_in_the_callback_stops_the_journal_loudly(tmp_path: Path) -> None:
    def bug(seq: int) -> None:
        raise ZeroDivisionError

    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path))
    journal.on_synced = bug
    journal.append([b"a"])
    assert journal.wait_synced(1, timeout=10)
    assert journal._thread is not None
    journal._thread.join(10)
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        journal.append([b"b"])
    assert list(read_journal(tmp_path)) == [(1, b"a")]


def test_a_disk_without_a_journal_directory_that_can_be_made_is_a_storage_error(tmp_path: Path) -> None:
    claim = claim_epoch(tmp_path)
    (tmp_path / ".holdfast" / "journal").write_text("in the way")
    with pytest.raises(StorageError, match="restore"):
        Journal.create_or_append(tmp_path, claim)
