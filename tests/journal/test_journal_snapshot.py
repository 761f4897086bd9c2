"""Snapshots: fast when they are good, ignored when they are not, never needed."""

from __future__ import annotations

import errno

import pytest
from faulty_disk import FaultyDisk
from journal_tools import ROOT, forget_marks, numbered, records, reopen

from holdfast.errors import InternalError, JournalDamagedError
from holdfast.journal import Position, SnapshotStore, read_journal, repair_journal
from holdfast.journal.snapshot import damaged_snapshots

DIRECTORY = f"{ROOT}/.holdfast/snapshots"


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


def run(disk: FaultyDisk, rounds: int = 1) -> SnapshotStore:
    """A driver that loads, and then archives and snapshots after every three records."""
    journal = reopen(disk)
    store = SnapshotStore(ROOT, epoch=journal.claim.epoch, disk=disk)
    store.load()
    for _ in range(rounds):
        first = journal.written_seq + 1
        journal.append(numbered(first, first + 2))
        journal.sync()
        store.archive([b"done %d" % first])
        store.write(journal.synced_seq, journal.position, b"state %d" % journal.synced_seq)
    journal.close()
    return store


def check_loaded(disk: FaultyDisk, seq: int) -> None:
    snapshot = SnapshotStore(ROOT, disk=disk).load()
    assert snapshot is not None
    assert (snapshot.seq, snapshot.payload) == (seq, b"state %d" % seq)
    assert list(snapshot.archived) == [b"done %d" % n for n in range(1, seq, 3)]
    rest = [payload for _, payload in read_journal(ROOT, after=snapshot.position, disk=disk)]
    assert numbered(1, seq) + rest == records(disk)


def test_without_snapshots_there_is_none(disk: FaultyDisk) -> None:
    assert SnapshotStore(ROOT, disk=disk).load() is None


def test_the_newest_snapshot_is_loaded_with_its_archive_and_place_in_the_journal(disk: FaultyDisk) -> None:
    for rounds in range(1, 6):
        run(disk)
        check_loaded(disk, 3 * rounds)


def test_a_snapshot_survives_a_power_cut(disk: FaultyDisk) -> None:
    run(disk, 3)
    disk.power_cut()
    check_loaded(disk, 9)


def test_two_snapshots_are_kept(disk: FaultyDisk) -> None:
    run(disk, 5)
    assert [file for file in disk.list(DIRECTORY) if file.endswith(".hfs")] == [f"{12:012d}.hfs", f"{15:012d}.hfs"]


def test_every_damaged_byte_of_a_snapshot_leads_to_the_one_before(
    disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    run(disk, 3)
    content = disk.content(f"{DIRECTORY}/{9:012d}.hfs")
    for byte in range(len(content)):
        content[byte] ^= 4
        check_loaded(disk, 6)
        content[byte] ^= 4
    assert f"snapshot 9 of {ROOT} is not used" in caplog.text
    check_loaded(disk, 9)


@pytest.mark.parametrize("victim", [f"{9:012d}.hfs", f"{6:012d}.hfs", "archive-00000001.hfa"])
def test_the_next_driver_replaces_a_damaged_snapshot(disk: FaultyDisk, victim: str) -> None:
    """Otherwise it would stay as the one to fall back to, or as damage for ever."""
    run(disk, 3)
    disk.content(f"{DIRECTORY}/{victim}")[-3] ^= 4
    assert damaged_snapshots(ROOT, disk=disk)
    journal = reopen(disk)
    store = SnapshotStore(ROOT, epoch=journal.claim.epoch, disk=disk)
    store.load()
    for _ in range(2):
        journal.append([b"more"])
        journal.sync()
        store.write(journal.synced_seq, journal.position, b"state")
    journal.close()
    assert damaged_snapshots(ROOT, disk=disk) == []


def test_a_damaged_snapshot_is_not_kept_to_fall_back_to(disk: FaultyDisk) -> None:
    run(disk, 3)
    disk.content(f"{DIRECTORY}/{9:012d}.hfs")[-3] ^= 4
    run(disk)
    assert SnapshotStore(ROOT, disk=disk).numbers() == [6, 12]
    assert damaged_snapshots(ROOT, disk=disk) == []


def test_a_damaged_archive_makes_only_the_snapshots_that_need_it_useless(disk: FaultyDisk) -> None:
    run(disk, 1)
    run(disk, 1)
    archive = disk.content(f"{DIRECTORY}/archive-00000002.hfa")
    archive[-1] ^= 1
    check_loaded(disk, 3)
    disk.remove(f"{DIRECTORY}/archive-00000001.hfa")
    assert SnapshotStore(ROOT, disk=disk).load() is None


def test_all_files_can_be_deleted(disk: FaultyDisk) -> None:
    run(disk, 3)
    for file in disk.list(DIRECTORY):
        disk.remove(f"{DIRECTORY}/{file}")
    assert SnapshotStore(ROOT, disk=disk).load() is None
    assert records(disk) == numbered(1, 9)
    journal = reopen(disk)
    assert journal.written_seq == 9


def test_a_snapshot_ahead_of_the_journal_is_not_used_and_proves_that_records_are_missing(disk: FaultyDisk) -> None:
    """The journal came back from an older backup."""
    run(disk, 2)
    forget_marks(disk)
    head = disk.content(f"{ROOT}/.holdfast/journal/00000001-000000000001.hfj")
    del head[-10:]
    snapshot = SnapshotStore(ROOT, disk=disk).load()
    assert snapshot is not None
    assert snapshot.seq == 3
    with pytest.raises(JournalDamagedError, match=r"000000000006\.hfs the journal had 6 records. 1 record is missing"):
        records(disk)
    for file in [file for file in disk.list(DIRECTORY) if file != f"{3:012d}.hfs"]:
        if file.endswith(".hfs"):
            disk.remove(f"{DIRECTORY}/{file}")
    check_loaded(disk, 3)


def test_a_snapshot_of_void_records_is_not_used(disk: FaultyDisk) -> None:
    zombie = reopen(disk)
    zombie.append(numbered(1, 3))
    reopen(disk)
    zombie._writer.queue([b"void"])
    zombie._writer.drain()
    SnapshotStore(ROOT, epoch=1, disk=disk).write(4, zombie.position, b"state 4")
    assert SnapshotStore(ROOT, disk=disk).load() is None


def test_after_a_repair_that_cut_the_history_new_snapshots_replace_the_old(disk: FaultyDisk) -> None:
    run(disk, 4)
    content = disk.content(f"{ROOT}/.holdfast/journal/00000001-000000000001.hfj")
    content[content.index(b"record 8 ")] ^= 1
    repair_journal(ROOT, disk=disk)
    assert records(disk) == numbered(1, 7)
    assert SnapshotStore(ROOT, disk=disk).load() is None
    journal = reopen(disk)
    store = SnapshotStore(ROOT, epoch=journal.claim.epoch, disk=disk)
    store.load()
    store.write(7, journal.position, b"state 7")
    snapshot = SnapshotStore(ROOT, disk=disk).load()
    assert snapshot is not None
    assert (snapshot.seq, list(snapshot.archived)) == (7, [])


def test_archives_that_no_kept_snapshot_needs_are_removed(disk: FaultyDisk) -> None:
    run(disk, 2)
    disk.content(f"{DIRECTORY}/archive-00000001.hfa")[-1] ^= 1
    disk.remove(f"{DIRECTORY}/{3:012d}.hfs")
    store = run(disk, 3)
    assert "archive-00000001.hfa" not in disk.list(DIRECTORY)
    store.close()


def test_a_failed_archive_goes_on_in_another_file(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 3))
    journal.sync()
    store = SnapshotStore(ROOT, epoch=1, disk=disk)
    store.archive([b"one"])
    disk.fail("write", OSError(errno.ENOSPC, "full"))
    with pytest.raises(OSError, match="full"):
        store.archive([b"two"])
    store.archive([b"two"])
    store.archive([])
    store.write(3, journal.position, b"state")
    snapshot = SnapshotStore(ROOT, disk=disk).load()
    assert snapshot is not None
    assert list(snapshot.archived) == [b"one", b"two"]


def test_a_failed_write_keeps_the_earlier_snapshots(disk: FaultyDisk) -> None:
    store = run(disk, 2)
    disk.fail("replace", OSError(errno.ENOSPC, "full"))
    with pytest.raises(OSError, match="full"):
        store.write(6, Position("00000001-000000000001.hfj", 100, 7), b"x")
    check_loaded(disk, 6)


def test_a_readers_store_and_a_wrong_position_are_refused(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    with pytest.raises(InternalError):
        SnapshotStore(ROOT, disk=disk).write(0, journal.position, b"")
    with pytest.raises(InternalError):
        SnapshotStore(ROOT, epoch=1, disk=disk).write(5, journal.position, b"")
