"""A disk that is full or fails: records wait, or go elsewhere, and none is lost or doubled."""

from __future__ import annotations

import copy
import errno

import pytest
from faulty_disk import FaultyDisk, Killed
from journal_tools import ROOT, numbered, records, reopen, segments

from holdfast.errors import StorageFullError
from holdfast.journal import Journal, claim_epoch, segment_writer, verify_journal

ENOSPC = OSError(errno.ENOSPC, "No space left on device")
EIO = OSError(errno.EIO, "Input/output error")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


# ------------------------------------------------------------------------------------------------ a full disk


def test_a_full_disk_blocks_and_a_flush_goes_on_exactly_where_it_stopped(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 3))
    room = sum(len(disk.content(path)) for path in [*segments(disk), f"{ROOT}/.holdfast/epochs/00000001"])
    disk.capacity = room + 40
    assert journal.append(numbered(4, 6)) == 6
    assert journal.blocked is not None
    assert journal.blocked.errno == errno.ENOSPC
    assert journal.accepted_seq == 3
    assert journal.append(numbered(7, 8)) == 8
    assert not journal.flush()
    assert journal.accepted_seq == 3
    assert len(segments(disk)) == 1

    disk.capacity = None
    assert journal.flush()
    assert journal.blocked is None
    assert journal.accepted_seq == 8
    assert len(segments(disk)) == 1
    assert records(disk) == numbered(1, 8)


@pytest.mark.parametrize("room", range(0, 60, 7))
def test_a_driver_killed_on_a_full_disk_leaves_a_torn_tail_and_no_damage(disk: FaultyDisk, room: int) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 3))
    disk.capacity = sum(len(file.seen) for file in disk._files.values()) + room
    journal.append(numbered(4, 4))
    accepted = journal.accepted_seq
    disk.capacity = None
    assert reopen(disk).written_seq == len(records(disk)) == accepted


def test_appending_tries_again_by_itself_once_there_is_space(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    disk.fail("write", ENOSPC)
    journal.append([b"a"])
    assert journal.blocked is not None
    journal.append([b"b"])
    assert journal.blocked is None
    assert records(disk) == [b"a", b"b"]


def test_no_more_than_the_limit_waits_in_memory(disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "MAX_WAITING_BYTES", 100)
    journal = reopen(disk)
    disk.capacity = 0
    journal.append([b"x" * 200])
    with pytest.raises(StorageFullError, match="Free some space"):
        journal.append([b"refused"])
    disk.capacity = None
    assert journal.flush()
    assert records(disk) == [b"x" * 200]


def test_closing_on_a_full_disk_does_not_pretend(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append([b"a"])
    disk.capacity = 0
    journal.append([b"b", b"c"])
    disk.capacity = sum(len(file.seen) for file in disk._files.values())
    with pytest.raises(StorageFullError, match="last 2 records"):
        journal.close()
    assert records(disk) == [b"a"]


def test_opening_on_a_full_disk_says_so(disk: FaultyDisk) -> None:
    claim = claim_epoch(ROOT, disk=disk)
    disk.capacity = 0
    with pytest.raises(StorageFullError, match="cannot be opened"):
        Journal.create_or_append(ROOT, claim, disk=disk, threaded=False)


# ------------------------------------------------------------------------------------------------ a failing disk


def test_after_a_failed_write_everything_goes_on_in_a_new_segment(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 2))
    disk.fail("write", EIO)
    journal.append(numbered(3, 4))
    assert journal.blocked is EIO
    assert journal.accepted_seq == 2
    assert journal.flush()
    assert journal.accepted_seq == 4
    assert len(segments(disk)) == 2
    assert records(disk) == numbered(1, 4)


def test_after_a_failed_fsync_what_it_covered_is_durable_elsewhere(
    disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel drops the pages of a failed fsync and lets the next one succeed: never ask the same file again."""
    journal = reopen(disk)
    journal.append(numbered(1, 3))
    journal.sync()
    journal.append(numbered(4, 6))
    disk.fail("sync", EIO)
    assert journal.sync()
    assert journal.synced_seq == 6
    assert "written again into a new segment" in caplog.text
    journal.append(numbered(7, 7))
    assert records(disk) == numbered(1, 7)
    disk.power_cut()
    assert records(disk) == numbered(1, 6)
    assert reopen(disk).written_seq == 6


def test_fsyncs_that_fail_before_anything_was_durable_give_distinct_segments(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    for n in range(1, 4):
        journal.append(numbered(n, n))
        disk.fail("sync", EIO)
        assert journal.sync()
    disk.power_cut()
    assert records(disk) == numbered(1, 3)


def test_a_failed_fsync_on_a_full_disk_is_made_good_later(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 3))
    disk.fail("sync", EIO)
    disk.capacity = 0
    assert not journal.sync()
    assert journal.blocked is not None
    journal.append(numbered(4, 4))
    assert (journal.written_seq, journal.synced_seq) == (3, 0)
    disk.capacity = None
    assert journal.flush()
    assert journal.sync()
    assert journal.synced_seq == 4
    disk.power_cut()
    assert records(disk) == numbered(1, 4)


def test_a_failed_fsync_of_the_previous_drivers_segment_copies_it(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 3))
    disk.fail("sync", EIO)
    again = reopen(disk)
    assert again.written_seq == again.synced_seq == 3
    disk.power_cut()
    assert records(disk) == numbered(1, 3)


def test_what_a_dead_drivers_failed_sync_has_lost_is_saved_by_the_next_driver(disk: FaultyDisk) -> None:
    """It died before it could write its records again. The kernel calls the next driver's sync of them a success."""
    journal = reopen(disk)
    journal.append(numbered(1, 3))
    assert journal.sync()
    journal.append(numbered(4, 6))
    disk.fail("sync", EIO)
    disk.fail("create", Killed())
    with pytest.raises(Killed):
        journal.sync()
    disk.survive()

    again = reopen(disk)
    assert again.written_seq == again.synced_seq == 6
    disk.power_cut()
    assert records(disk) == numbered(1, 6)
    again = reopen(disk)
    again.append(numbered(7, 7))
    assert records(disk) == numbered(1, 7)
    assert [finding.level for finding in verify_journal(ROOT, disk=disk)] == ["note"]


def test_only_what_nobody_was_sure_of_is_written_again_and_only_once(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 30))
    assert journal.sync()
    journal.append(numbered(31, 32))
    for _ in range(4):
        reopen(disk)
    copies = [sum(payload in disk.content(path) for path in segments(disk)) for payload in numbered(1, 32)]
    assert copies == [1] * 30 + [2] * 2
    assert verify_journal(ROOT, disk=disk) == []
    assert records(disk) == numbered(1, 32)


def test_after_a_driver_that_left_in_order_nothing_is_written_again(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 30))
    journal.close()
    reopen(disk)
    old, new = segments(disk)
    assert len(disk.content(new)) < len(disk.content(old)) / 3
    assert verify_journal(ROOT, disk=disk) == []


def test_a_hint_of_the_dead_driver_that_is_lost_or_damaged_costs_a_copy_and_nothing_else(disk: FaultyDisk) -> None:
    for damage in (lambda data: b"", lambda data: data[:20], lambda data: data[:-3] + b"xxx", lambda data: data + b"x"):
        journal = reopen(disk)
        journal.append(numbered(journal.written_seq + 1, journal.written_seq + 5))
        journal.sync()
        last = journal.written_seq
        path = f"{ROOT}/.holdfast/epochs/{journal.claim.epoch:08d}.synced"
        disk.notes[path] = damage(disk.notes[path])
        reopen(disk)
        disk.power_cut()
        assert records(disk) == numbered(1, last)


def test_a_new_segment_has_a_durable_name_before_anything_in_it_is_acknowledged(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 100)
    journal = reopen(disk, durability="sync")
    for n in range(1, 20):
        disk.steps.clear()
        if n % 5 == 0:
            disk.fail("sync_dir", EIO)
        journal.append(numbered(n, n))
        steps = disk.steps
        for made in [k for k, step in enumerate(steps) if step == "created"]:
            assert "write" not in steps[made : steps.index("sync_dir", made)]
        acknowledged = journal.accepted_seq
        if journal.blocked is None:
            assert acknowledged == n
        survivors = copy.deepcopy(disk)
        survivors.power_cut()
        assert len(records(survivors)) >= acknowledged


@pytest.mark.parametrize("step", ["create", "created", "sync_dir", "open"])
def test_a_replacement_that_fails_half_way_is_repeated(disk: FaultyDisk, step: str) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 3))
    disk.fail("sync", EIO)
    disk.fail(step, EIO)
    journal.sync()
    journal.append(numbered(4, 5))
    assert journal.sync()
    assert journal.synced_seq == 5
    disk.power_cut()
    assert records(disk) == numbered(1, 5)


def test_an_interrupt_in_the_middle_of_a_write_loses_and_doubles_nothing(disk: FaultyDisk) -> None:
    """Ctrl+C raises between the system call and the note that it was done."""
    for step in ("write", "written"):
        journal = reopen(disk)
        before = journal.written_seq
        journal.append(numbered(before + 1, before + 2))
        disk.fail(step, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            journal.append(numbered(before + 3, before + 4))
        journal.append(numbered(before + 5, before + 5))
        assert journal.sync()
        assert records(disk) == numbered(1, before + 5)


def test_a_sync_after_an_interrupted_write_is_sound(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    disk.fail("written", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        journal.append(numbered(1, 2))
    disk.fail("sync", EIO)
    journal.sync()
    assert journal.flush()
    assert journal.sync()
    disk.power_cut()
    assert records(disk) == numbered(1, 2)
