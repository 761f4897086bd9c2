"""A journal that has become shorter than somebody knew it to be durable is damaged: nobody takes the rest for all."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from faulty_disk import FaultyDisk, Killed
from journal_tools import ROOT, forget_marks, numbered, records, reopen, segments

from holdfast.core import events as ev
from holdfast.errors import JournalDamagedError
from holdfast.journal import (
    Journal,
    SnapshotStore,
    claim_epoch,
    read_journal,
    release,
    repair_journal,
    segment_writer,
    verify_journal,
)
from holdfast.journal.claims import Claim
from holdfast.journal.reader import check_chain
from holdfast.journal.recovery import RepairReport
from holdfast.journal.segments import read_chain


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 600)


def write(disk: FaultyDisk, count: int) -> Journal:
    """A driver that appends and syncs, and has not left."""
    journal = reopen(disk)
    first = journal.written_seq + 1
    journal.append(numbered(first, first + count - 1))
    journal.sync()
    return journal


def missing(disk: FaultyDisk) -> int | None:
    """How many records readers, verify and the next driver say are missing; None if none of them says anything."""
    told: list[int | None] = []
    for look in (lambda: records(disk), lambda: reopen(disk).close()):
        try:
            look()
        except JournalDamagedError as error:
            told.append(error.missing)
        else:
            told.append(None)
    found = [finding for finding in verify_journal(ROOT, disk=disk) if finding.level == "damage"]
    if told[0] is None:
        check_chain(ROOT, disk)
    assert told[0] == told[1]
    assert bool(found) == (told[0] is not None)
    return told[0]


@pytest.mark.parametrize("leave", [True, False], ids=["finished", "killed"])
def test_every_cut_below_the_mark_is_noticed_by_readers_verify_and_the_next_driver(
    disk: FaultyDisk, leave: bool
) -> None:
    journal = write(disk, 12)
    if leave:
        journal.close()
        disk.notes.clear()  # what the driver said when it left is enough
    path = segments(disk)[0]
    head = disk.content(path)
    whole = bytes(head)
    ends = [i for i in range(len(whole) + 1) if whole[i : i + 2] == b"\xc1\xf7" or i == len(whole)]
    for cut in range(len(whole)):
        head[:] = whole[:cut]
        kept = max(0, sum(1 for end in ends if end <= cut) - 1)
        assert missing(disk) == 12 - kept, f"cut at byte {cut}"
        assert segments(disk) == [path], "a driver that refuses must not have begun a segment"
    head[:] = whole
    assert missing(disk) is None


def test_the_error_says_which_file_how_many_records_since_when_and_what_to_type(tmp_path: Path) -> None:
    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path), threaded=False)
    journal.append([ev.encode(ev.Noted(1_700_000_000.0 + n, -1, "x" * n)) for n in range(10)])
    journal.close()
    (segment,) = (tmp_path / ".holdfast" / "journal").iterdir()
    os.truncate(segment, segment.stat().st_size // 2)
    with pytest.raises(JournalDamagedError) as caught:
        list(read_journal(tmp_path))
    error = caught.value
    assert error.file == f".holdfast/journal/{segment.name}"
    assert error.missing is not None
    kept = 10 - error.missing
    assert (error.seq, error.since) == (kept + 1, 1_700_000_000.0 + kept - 1)
    message = str(error)
    for part in (f"{error.missing} records are missing", "everything after 20", f"the first {kept} records"):
        assert part in message
    for command in ("verify", "repair"):
        assert f"holdfast {command} {tmp_path}" in message


@pytest.mark.usefixtures("small_segments")
def test_a_newest_segment_that_is_gone_is_noticed(disk: FaultyDisk) -> None:
    write(disk, 8).close()
    journal = reopen(disk)
    for n in range(9, 40):
        journal.append(numbered(n, n))
        journal.sync()
    assert len(segments(disk)) > 3
    disk.remove(segments(disk)[-1])
    with pytest.raises(JournalDamagedError, match=r"it is missing, and by \.holdfast/epochs/00000002\.synced"):
        records(disk)
    assert missing(disk) is not None


@pytest.mark.usefixtures("small_segments")
def test_an_older_segment_that_is_gone_or_cut_is_noticed_by_whoever_begins_behind_it(disk: FaultyDisk) -> None:
    """A snapshot spares its readers the segments before it: what is wrong there must be found by names and sizes."""
    for _ in range(2):
        journal = write(disk, 0)
        for n in range(journal.written_seq + 1, journal.written_seq + 30):
            journal.append(numbered(n, n))
        journal.close()
    everything, files = records(disk), segments(disk)
    assert len(files) > 4
    check_chain(ROOT, disk)
    seals = [link.seal for link in read_chain(ROOT, disk).links]
    for path, seal in zip(files[:-1], seals, strict=False):
        whole = bytes(disk.content(path))
        assert seal is not None
        for cut in (0, 20, seal.length // 2, seal.length - 1):
            disk.content(path)[:] = whole[:cut]
            with pytest.raises(JournalDamagedError, match="holdfast repair") as caught:
                check_chain(ROOT, disk)
            error = caught.value
            assert error.file.endswith(path.rpartition("/")[2])
            readable = int((re.search(r"(\d+) records? after", str(error)) or "00")[1])
            assert error.seq - 1 + (error.missing or 0) + readable == len(everything)
            assert missing(disk) == error.missing
            assert segments(disk) == files, "a driver that refuses must not have begun a segment"
        disk.content(path)[:] = whole
        check_chain(ROOT, disk)
    disk.remove(files[1])
    disk.remove(files[2])
    with pytest.raises(JournalDamagedError, match="the file is missing") as caught:
        check_chain(ROOT, disk)
    begins = [int(path.rpartition("-")[2].removesuffix(".hfj")) for path in files]
    assert caught.value.file.endswith(files[2].rpartition("/")[2])
    assert (caught.value.seq, caught.value.missing) == (begins[1], begins[3] - begins[1])


def test_the_error_about_an_older_segment_says_since_when_records_are_missing(tmp_path: Path) -> None:
    for n in range(3):
        journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path), threaded=False)
        journal.append([ev.encode(ev.Noted(1_700_000_000.0 + 10 * n + k, -1, "x")) for k in range(4)])
        journal.close()
    _, middle, _ = sorted((tmp_path / ".holdfast" / "journal").iterdir())
    middle.unlink()
    with pytest.raises(JournalDamagedError, match="4 records are missing, written after 20") as caught:
        check_chain(tmp_path)
    assert (caught.value.seq, caught.value.missing, caught.value.since) == (5, 4, 1_700_000_003.0)
    for part in ("the 4 records before it", "4 records after it", f"holdfast repair {tmp_path}"):
        assert part in str(caught.value)


def test_all_segments_gone_is_noticed(disk: FaultyDisk) -> None:
    write(disk, 5)
    disk.remove(segments(disk)[0])
    assert missing(disk) == 5


def test_a_driver_killed_before_its_first_segment_is_no_damage(disk: FaultyDisk) -> None:
    write(disk, 5).close()
    claim_epoch(ROOT, disk=disk)
    assert records(disk) == numbered(1, 5)
    assert missing(disk) is None


def test_a_mark_that_cannot_be_read_proves_that_its_driver_had_a_segment(disk: FaultyDisk) -> None:
    write(disk, 5).close()
    write(disk, 3)
    disk.notes[f"{ROOT}/.holdfast/epochs/00000002.synced"] = b"half a mark"
    assert records(disk) == numbered(1, 8)
    disk.remove(f"{ROOT}/.holdfast/journal/00000002-000000000006.hfj")
    with pytest.raises(JournalDamagedError, match="epoch 2 had begun a segment, and there is none"):
        records(disk)


def test_what_a_driver_says_that_was_taken_over_binds_nobody(disk: FaultyDisk) -> None:
    zombie = write(disk, 3)
    heir = reopen(disk)
    zombie._writer.queue(numbered(4, 9))
    zombie._writer.drain()
    zombie.sync()
    zombie._publish()
    assert records(disk) == numbered(1, 3)
    heir.append([b"other"])
    assert records(disk) == [*numbered(1, 3), b"other"]
    assert missing(disk) is None


def test_a_journal_from_before_the_marks_opens(disk: FaultyDisk) -> None:
    """Drivers used to leave an empty file, and a copy in a store has no other."""
    write(disk, 6).close()
    forget_marks(disk)
    disk.create_exclusive(f"{ROOT}/.holdfast/epochs/00000001.released", b"")
    assert missing(disk) is None
    assert records(disk) == numbered(1, 6)


def test_a_driver_whose_syncs_fail_never_promises_too_much(disk: FaultyDisk) -> None:
    """Each failure moves what is not sure to a new segment; after a power cut the mark is still true."""
    journal = write(disk, 3)
    for round_ in range(1, 5):
        disk.fail("sync", OSError(5, "Input/output error"))
        journal.append(numbered(3 + round_, 3 + round_))
        journal.sync()
        assert records(disk) == numbered(1, 3 + round_)
    journal.close()
    disk.power_cut()
    assert missing(disk) is None


def test_no_kill_and_no_power_cut_at_any_step_gives_a_false_alarm(disk: FaultyDisk) -> None:
    def story(disk: FaultyDisk) -> None:
        for _ in range(3):
            journal = reopen(disk)
            store = SnapshotStore(ROOT, epoch=journal.claim.epoch, disk=disk)
            store.load()
            first = journal.written_seq + 1
            journal.append(numbered(first, first + 2))
            journal.sync()
            store.write(journal.synced_seq, journal.position, b"state")
            journal.append(numbered(first + 3, first + 4))
            journal.close()

    story(disk)
    steps = len(disk.steps)
    for lights_out in (False, True):
        for step in range(steps):
            victim = FaultyDisk()
            victim.kill_at(step, torn_part=0.5)
            with pytest.raises(Killed):
                story(victim)
            if lights_out:
                victim.power_cut()
            victim.survive()
            assert missing(victim) is None, f"step {step}"


def test_a_segment_of_another_experiment_is_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        journal = Journal.create_or_append(tmp_path / name, claim_epoch(tmp_path / name), threaded=False)
        journal.append(numbered(1, 4))
        journal.close()
    (segment,) = (tmp_path / "one" / ".holdfast" / "journal").iterdir()
    other = tmp_path / "two" / ".holdfast" / "journal" / segment.name
    segment.write_bytes(other.read_bytes())
    with pytest.raises(JournalDamagedError, match="belongs to another experiment"):
        read_journal(tmp_path / "one")
    claim = claim_epoch(tmp_path / "one")
    with pytest.raises(JournalDamagedError, match="belongs to another experiment"):
        Journal.create_or_append(tmp_path / "one", claim, threaded=False)
    release(tmp_path / "one", claim)
    assert any(found.level == "damage" for found in verify_journal(tmp_path / "one"))
    assert repair_journal(tmp_path / "one").kept == 0
    assert list(read_journal(tmp_path / "one")) == []


def test_a_live_journal_can_be_read_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 2000)
    done = threading.Event()
    journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path))

    def drive() -> None:
        for n in range(1, 1500):
            journal.append(numbered(n, n))
            if n % 7 == 0:
                journal.request_sync()
        journal.close()
        done.set()

    driver = threading.Thread(target=drive)
    driver.start()
    last = 0
    while not done.is_set():
        found = sum(1 for _ in read_journal(tmp_path))
        assert found >= last
        last = found
    driver.join()
    assert sum(1 for _ in read_journal(tmp_path)) == 1499


# ------------------------------------------------------------------------------------------------ repair


def rebuilder(payloads: list[bytes]) -> Callable[[int], list[bytes]]:
    return lambda epoch: payloads


def repair_as_another_process(disk: FaultyDisk, rebuild: Callable[[int], list[bytes]]) -> RepairReport:
    """Repair as somebody who finds the claims of this process, and the process gone."""
    for file in list(disk._files):
        name = file.rpartition("/")[2]
        if "/epochs/" in file and name.isdigit():
            claim = msgspec.json.decode(bytes(disk.content(file)), type=Claim)
            disk.content(file)[:] = msgspec.json.encode(msgspec.structs.replace(claim, process_start=1)) + b"\n"
    return repair_journal(ROOT, rebuild=rebuild, disk=disk)


def test_a_repair_ends_the_history_where_it_is_and_adds_what_was_rebuilt(disk: FaultyDisk) -> None:
    write(disk, 9).close()
    head = disk.content(segments(disk)[0])
    short = bytes(head[:-60])
    head[:] = short
    left = 9 - (missing(disk) or 0)
    report = repair_as_another_process(disk, rebuilder([b"rebuilt"]))
    assert (report.kept, report.rebuilt, len(report.damage)) == (left, 1, 1)
    assert records(disk) == [*numbered(1, left), b"rebuilt"]
    assert missing(disk) is None
    assert bytes(disk.content(f"{ROOT}/{report.copy}/{segments(disk)[0].rpartition('/')[2]}")) == short
    assert f"{ROOT}/{report.copy}/epochs/00000001.released" in disk._files


def test_a_repair_of_a_journal_that_is_gone_begins_a_new_one(disk: FaultyDisk) -> None:
    write(disk, 5)
    disk.remove(segments(disk)[0])
    assert repair_as_another_process(disk, rebuilder([b"a", b"b"])).kept == 0
    assert records(disk) == [b"a", b"b"]


def test_a_repair_drops_snapshots_of_records_that_are_gone_and_keeps_a_copy(disk: FaultyDisk) -> None:
    journal = write(disk, 6)
    SnapshotStore(ROOT, epoch=1, disk=disk).write(6, journal.position, b"state")
    journal.close()
    del disk.content(segments(disk)[0])[-30:]
    report = repair_journal(ROOT, disk=disk)
    assert SnapshotStore(ROOT, disk=disk).numbers() == []
    assert f"{ROOT}/{report.copy}/snapshots/000000000006.hfs" in disk._files
    assert missing(disk) is None


@pytest.mark.parametrize("lights_out", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("gone", [False, True], ids=["cut", "gone"])
def test_a_repair_that_is_killed_anywhere_leaves_damage_or_all_of_what_it_rebuilt(
    disk: FaultyDisk, lights_out: bool, gone: bool
) -> None:
    def damaged() -> tuple[FaultyDisk, int]:
        disk = FaultyDisk()
        write(disk, 9).close()
        disk.sync_dir(f"{ROOT}/.holdfast/epochs")
        if gone:
            disk.remove(segments(disk)[0])
        else:
            file = disk._files[segments(disk)[0]]
            del file.seen[-60:]
            file.sync()
        return disk, len(disk.steps)

    disk, before = damaged()
    left = 9 - (missing(disk) or 0)
    rebuilt = [b"rebuilt 1", b"rebuilt 2"]
    whole = [*numbered(1, left), *rebuilt]
    disk, before = damaged()
    repair_journal(ROOT, rebuild=rebuilder(rebuilt), disk=disk)
    for step in range(before, len(disk.steps)):
        victim, _ = damaged()
        victim.kill_at(step)
        with pytest.raises(Killed):
            repair_journal(ROOT, rebuild=rebuilder(rebuilt), disk=victim)
        if lights_out:
            victim.power_cut()
        victim.survive()
        try:
            assert records(victim) == whole, f"step {step}"
        except JournalDamagedError:
            repair_as_another_process(victim, lambda epoch, victim=victim: _unknown(victim, rebuilt))  # type: ignore[misc]
            assert records(victim) == whole, f"step {step}"


def _unknown(disk: FaultyDisk, payloads: list[bytes]) -> list[bytes]:
    """What of it the history does not have yet, as a real rebuild would find out."""
    found: list[bytes] = []
    try:
        for _, payload in read_journal(ROOT, disk=disk):
            found.append(payload)
    except JournalDamagedError:
        pass  # that the repair is not complete
    return [payload for payload in payloads if payload not in found]
