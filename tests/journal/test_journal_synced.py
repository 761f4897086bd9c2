"""How much a power cut would take now: told by the live driver, read by anybody."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from faulty_disk import FaultyDisk
from journal_tools import ROOT, numbered, reopen, segments

from holdfast.journal import Journal, claim_epoch, oldest_volatile, release, segment_writer
from holdfast.journal.durable_mark import published

EIO = OSError(errno.EIO, "Input/output error")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


def test_nothing_is_volatile_where_there_is_no_driver(tmp_path: Path) -> None:
    assert oldest_volatile(tmp_path) is None
    claim = claim_epoch(tmp_path)
    assert oldest_volatile(tmp_path) is None
    release(tmp_path, claim)
    assert oldest_volatile(tmp_path) is None


def test_the_oldest_record_that_was_not_synced_is_found(tmp_path: Path) -> None:
    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path), threaded=False)
    assert oldest_volatile(tmp_path) is None
    for first in (1, 4, 7):
        journal.append(numbered(first, first + 1))
        journal.append(numbered(first + 2, first + 2))
        assert oldest_volatile(tmp_path) == numbered(first, first)[0]
        assert journal.sync()
        assert oldest_volatile(tmp_path) is None
    journal.append(numbered(10, 10))
    journal.close()
    assert oldest_volatile(tmp_path) is None


def test_a_sync_that_hangs_shows_as_a_record_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that would tell of it is the one that hangs: that it says nothing new is what is seen."""
    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path))
    journal.append(numbered(1, 1))
    assert journal.wait_synced(1, 30)
    begun, may_end = threading.Event(), threading.Event()
    real = os.fdatasync

    def hang(fd: int) -> None:
        begun.set()
        assert may_end.wait(30)
        real(fd)

    monkeypatch.setattr("holdfast.storage.local._sync_data", hang)
    journal.append(numbered(2, 3))
    assert begun.wait(30)
    assert oldest_volatile(tmp_path) == numbered(2, 2)[0]
    may_end.set()
    assert journal.wait_synced(3, 30)
    journal.close()


def test_a_sync_that_fails_leaves_nothing_volatile_once_the_records_are_durable_elsewhere(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 2))
    disk.fail("sync", EIO)
    disk.fail("create", EIO)
    assert not journal.sync()
    assert oldest_volatile(ROOT, disk=disk) == numbered(1, 1)[0]
    assert journal.sync()
    assert oldest_volatile(ROOT, disk=disk) is None
    journal.append(numbered(3, 3))
    assert oldest_volatile(ROOT, disk=disk) == numbered(3, 3)[0]


def test_records_of_a_full_segment_are_durable_when_the_next_one_begins(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 100)
    journal = reopen(disk)
    for n in range(1, 10):
        journal.append(numbered(n, n))
        position = published(ROOT, journal.claim.epoch, disk)
        assert position is not None
        assert position.next_seq <= journal.synced_seq + 1
    assert len(segments(disk)) > 2
    assert journal.sync()
    assert oldest_volatile(ROOT, disk=disk) is None


def test_a_segment_whose_name_is_not_durable_yet_is_not_called_durable(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 2))
    disk.fail("sync", EIO)
    disk.fail("sync_dir", EIO)
    assert not journal.sync()
    position = published(ROOT, journal.claim.epoch, disk)
    assert position is not None
    assert position.next_seq == 1


def test_a_driver_that_cannot_tell_goes_on(tmp_path: Path) -> None:
    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path), threaded=False)
    (tmp_path / ".holdfast" / "epochs" / "00000001.synced").unlink()
    (tmp_path / ".holdfast" / "epochs" / "00000001.synced").mkdir()
    journal.append(numbered(1, 2))
    assert journal.sync()
    assert oldest_volatile(tmp_path) is None
    journal.close()
