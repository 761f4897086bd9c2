"""Reading: torn tails are dropped and named, damage is never passed over, a live journal can be followed."""

from __future__ import annotations

import random
import re

import pytest
from faulty_disk import FaultyDisk
from journal_tools import ROOT, forget_marks, numbered, records, reopen, segments

from holdfast.errors import FencedError, JournalDamagedError, NewerFormatError
from holdfast.journal import read_journal, repair_journal, segment_writer, verify_journal
from holdfast.journal.frames import encode_frames, encode_header
from holdfast.journal.reader import START, Position, holds_position
from holdfast.journal.segments import journal_dir


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 600)


def fill(disk: FaultyDisk, count: int, step: int = 1) -> None:
    journal = reopen(disk)
    first = journal.written_seq + 1
    for n in range(first, first + count, step):
        journal.append(numbered(n, min(n + step, first + count) - 1))
    journal.close()


def damages(disk: FaultyDisk) -> list[str]:
    return [finding.message for finding in verify_journal(ROOT, disk=disk) if finding.level == "damage"]


def test_no_journal_means_no_records(disk: FaultyDisk) -> None:
    contents = read_journal("/nowhere", disk=disk)
    assert list(contents) == []
    assert contents.position == START
    assert contents.torn is None
    assert verify_journal("/nowhere", disk=disk) == []


def test_a_journal_opened_and_never_written_is_whole(disk: FaultyDisk) -> None:
    for _ in range(5):
        reopen(disk)
    contents = read_journal(ROOT, disk=disk)
    assert list(contents) == []
    assert contents.torn is None
    assert verify_journal(ROOT, disk=disk) == []


# ------------------------------------------------------------------------------------------------ torn tails


def test_a_journal_cut_at_any_byte_of_its_tail_opens_and_goes_on(disk: FaultyDisk) -> None:
    fill(disk, 130)
    forget_marks(disk)  # or the cut would be damage: see test_shortened_journal.py
    head = disk.content(segments(disk)[0])
    whole = bytes(head)
    ends = [i for i in range(len(whole) + 1) if whole[i : i + 2] == b"\xc1\xf7" or i == len(whole)]
    for cut in range(max(len(whole) - 4096, ends[0]), len(whole)):
        head[:] = whole[:cut]
        kept = sum(1 for end in ends if end <= cut) - 1
        contents = read_journal(ROOT, disk=disk)
        assert [payload for _, payload in contents] == numbered(1, kept)
        assert contents.position.next_seq == kept + 1
        if cut == ends[kept]:
            assert contents.torn is None
        else:
            assert contents.torn is not None
            assert (contents.torn.offset, contents.torn.dropped) == (ends[kept], cut - ends[kept])


@pytest.mark.parametrize("tail", [b"\x00" * 5000, b"\xc1\xf7 garbage", b"\xff" * 20, b"\xc1\xf7" * 100])
def test_the_next_driver_seals_a_torn_tail_and_appends_behind_it(disk: FaultyDisk, tail: bytes) -> None:
    fill(disk, 5)
    disk.content(segments(disk)[0]).extend(tail)
    journal = reopen(disk)
    assert journal.torn is not None
    assert journal.torn.dropped == len(tail)
    journal.append(numbered(6, 8))
    contents = read_journal(ROOT, disk=disk)
    assert [payload for _, payload in contents] == numbered(1, 8)
    assert contents.torn is None
    assert damages(disk) == []
    assert f"{len(tail)} bytes behind the seal" in verify_journal(ROOT, disk=disk)[0].message


def test_a_segment_whose_making_was_cut_short_is_passed_over(disk: FaultyDisk) -> None:
    fill(disk, 3)
    for content in (b"", b"\xc1\xf8\x00", b"\x00" * 300):
        disk.create_exclusive(f"{journal_dir(ROOT)}/00000002-000000000004.hfj", content)
        contents = read_journal(ROOT, disk=disk)
        assert [payload for _, payload in contents] == numbered(1, 3)
        assert contents.torn is not None
        assert contents.torn.segment == "00000002-000000000004.hfj"
        disk.remove(f"{journal_dir(ROOT)}/00000002-000000000004.hfj")
    disk.create_exclusive(f"{journal_dir(ROOT)}/00000001-000000000004.hfj", b"\x00")
    fill(disk, 2)
    assert records(disk) == numbered(1, 5)


# ------------------------------------------------------------------------------------------------ damage


def read_damaged(disk: FaultyDisk) -> tuple[list[bytes], JournalDamagedError | None]:
    got: list[bytes] = []
    try:
        for _, payload in read_journal(ROOT, disk=disk):
            got.append(payload)
    except JournalDamagedError as error:
        return got, error
    return got, None


def readable_behind(error: JournalDamagedError) -> int:
    found = re.search(r"(\d+) records? after", str(error))
    return int(found[1]) if found else 0


@pytest.mark.usefixtures("small_segments")
def test_a_flipped_bit_is_named_wherever_it_is_and_costs_at_most_its_own_record(disk: FaultyDisk) -> None:
    fill(disk, 30)
    fill(disk, 15)
    everything = numbered(1, 45)
    rng = random.Random(7)
    for path in segments(disk):
        content = disk.content(path)
        is_newest = path == segments(disk)[-1]
        for byte in range(len(content)):
            mask = 1 << rng.randrange(8)
            content[byte] ^= mask
            got, error = read_damaged(disk)
            assert error is not None
            if is_newest and len(got) == 44:  # the last record, which a write cut short would look like
                assert (error.seq, error.missing) == (45, 1)
                assert damages(disk) == [error.summary]
            else:
                assert error.file.endswith(path.rpartition("/")[2])
                assert error.offset <= byte
                in_header = error.offset == 0
                assert got == ([] if in_header else everything[: error.seq - 1])
                assert readable_behind(error) == len(everything) - error.seq + in_header
                assert error.missing == (None if in_header else 1)
                assert damages(disk)
            content[byte] ^= mask
    assert read_damaged(disk) == (everything, None)


def test_the_error_says_where_it_is_and_what_to_do(disk: FaultyDisk) -> None:
    fill(disk, 9)
    content = disk.content(segments(disk)[0])
    content[content.index(b"record 4 ")] ^= 1
    got, error = read_damaged(disk)
    assert got == numbered(1, 3)
    assert error is not None
    assert (error.file, error.seq) == (".holdfast/journal/00000001-000000000001.hfj", 4)
    assert error.offset == content.index(b"ecord 4 ") - 13
    message = str(error)
    for part in ("record 4", "3 records before it", "5 records after", "holdfast verify", "holdfast repair"):
        assert part in message


def test_a_driver_does_not_append_to_a_damaged_journal(disk: FaultyDisk) -> None:
    fill(disk, 9)
    content = disk.content(segments(disk)[0])
    content[content.index(b"record 4 ")] ^= 1
    before = segments(disk)
    with pytest.raises(JournalDamagedError):
        reopen(disk)
    assert segments(disk) == before


@pytest.mark.usefixtures("small_segments")
def test_a_segment_that_is_missing_or_shortened_is_damage(disk: FaultyDisk) -> None:
    fill(disk, 40)
    path = segments(disk)[2]
    content = disk.content(path)
    whole = bytes(content)
    del content[-1:]
    got, error = read_damaged(disk)
    assert error is not None
    assert error.seq == len(got) + 1
    content[:] = whole
    disk.remove(path)
    got, error = read_damaged(disk)
    assert got == []
    assert error is not None
    assert "missing" in str(error)
    assert error.seq == int(path.rpartition("-")[2][:12])


def test_a_journal_of_a_newer_format_is_refused_politely(disk: FaultyDisk) -> None:
    disk.create_exclusive(f"{journal_dir(ROOT)}/00000001-000000000001.hfj", encode_header(b'{"format": 2}'))
    with pytest.raises(NewerFormatError, match="pip install --upgrade"):
        read_journal(ROOT, disk=disk)


# ------------------------------------------------------------------------------------------------ repair


def test_repairing_a_whole_journal_changes_nothing(disk: FaultyDisk) -> None:
    fill(disk, 9)
    before = segments(disk)
    report = repair_journal(ROOT, disk=disk)
    assert (report.damage, report.copy, report.kept, report.cut) == ([], "", 9, 0)
    assert segments(disk) == before


@pytest.mark.usefixtures("small_segments")
def test_every_flipped_bit_can_be_repaired_without_losing_a_record_before_it(disk: FaultyDisk) -> None:
    fill(disk, 12)
    fill(disk, 6)
    everything = numbered(1, 18)
    rng = random.Random(3)
    saved = {path: bytes(disk.content(path)) for path in disk._files}
    notes = dict(disk.notes)
    for path in segments(disk):
        for byte in range(0, len(saved[path]), 5):
            disk.content(path)[byte] ^= 1 << rng.randrange(8)
            damaged = bytes(disk.content(path))
            _, error = read_damaged(disk)
            assert error is not None
            report = repair_journal(ROOT, disk=disk)
            kept = records(disk)
            assert kept == everything[: len(kept)]
            assert report.kept == len(kept)
            assert bytes(disk.content(path)) == damaged
            in_header = error.offset == 0
            assert len(kept) == (len(everything) if in_header else error.seq - 1)
            assert report.cut == (0 if in_header else len(everything) - error.seq)
            copied = f"{ROOT}/{report.copy}/{path.rpartition('/')[2]}"
            assert bytes(disk.content(copied)) == damaged
            journal = reopen(disk)
            journal.append([b"goes on"])
            journal.close()
            assert records(disk) == [*kept, b"goes on"]
            disk.notes = dict(notes)
            for name in list(disk._files):
                if name in saved:
                    disk.content(name)[:] = saved[name]
                else:
                    disk.remove(name)
    assert records(disk) == everything


@pytest.mark.usefixtures("small_segments")
def test_a_journal_damaged_in_several_places_is_repaired_before_the_first(disk: FaultyDisk) -> None:
    fill(disk, 40)
    paths = segments(disk)
    assert len(paths) >= 4
    first = disk.content(paths[0])
    first[first.index(b"record 5 ")] ^= 1
    disk.content(paths[1])[20] ^= 1
    disk.content(paths[2])[20] ^= 1
    disk.remove(paths[3])
    assert len(damages(disk)) >= 3
    report = repair_journal(ROOT, disk=disk)
    assert records(disk) == numbered(1, 4)
    assert report.kept == 4
    assert damages(disk) == []


@pytest.mark.usefixtures("small_segments")
def test_two_damaged_headers_in_a_row_cost_no_record(disk: FaultyDisk) -> None:
    fill(disk, 40)
    for path in segments(disk)[:2]:
        disk.content(path)[20] ^= 1
    report = repair_journal(ROOT, disk=disk)
    assert report.kept == 40
    assert records(disk) == numbered(1, 40)


def test_a_second_repair_keeps_the_copy_of_the_first(disk: FaultyDisk) -> None:
    fill(disk, 9)
    for n in (7, 3):
        content = disk.content(segments(disk)[0])
        content[content.index(b"record %d " % n)] ^= 1
        repair_journal(ROOT, disk=disk)
    assert records(disk) == numbered(1, 2)
    assert {"damaged-1", "damaged-2"} <= set(disk.list(f"{ROOT}/.holdfast"))


# ------------------------------------------------------------------------------------------------ following


@pytest.mark.usefixtures("small_segments")
def test_a_live_journal_is_followed_from_where_the_reader_stopped(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    rng = random.Random(1)
    position = None
    got: list[bytes] = []
    for _ in range(60):
        first = journal.written_seq + 1
        journal.append(numbered(first, first + rng.randrange(4)))
        if rng.random() < 0.2:
            journal = reopen(disk)
        if rng.random() < 0.5:
            contents = read_journal(ROOT, after=position, disk=disk)
            got += [payload for _, payload in contents]
            position = contents.position
            assert got == numbered(1, len(got))
            assert position.next_seq == len(got) + 1
    assert got == numbered(1, len(got))
    assert len(segments(disk)) > 5


def test_a_record_that_is_half_written_is_read_when_it_is_whole(disk: FaultyDisk) -> None:
    fill(disk, 3)
    forget_marks(disk)
    content = disk.content(segments(disk)[0])
    whole = bytes(content)
    del content[-5:]
    contents = read_journal(ROOT, disk=disk)
    assert len(list(contents)) == 2
    assert contents.torn is not None
    content[:] = whole
    later = read_journal(ROOT, after=contents.position, disk=disk)
    assert list(later) == [(3, numbered(3, 3)[0])]


def test_the_writers_position_and_the_readers_agree(disk: FaultyDisk) -> None:
    journal = reopen(disk)
    journal.append(numbered(1, 3))
    contents = read_journal(ROOT, disk=disk)
    assert len(list(contents)) == 3
    assert contents.position == journal.position


def test_a_reader_that_saw_void_records_is_told_to_start_again(disk: FaultyDisk) -> None:
    zombie = reopen(disk)
    zombie.append(numbered(1, 3))
    reopen(disk)
    zombie._writer.queue([b"void"])
    zombie._writer.drain()
    with pytest.raises(FencedError, match="from the start"):
        read_journal(ROOT, after=zombie.position, disk=disk)


def test_a_reader_goes_on_where_what_it_has_read_was_written_again(disk: FaultyDisk) -> None:
    """The next driver does not trust what nobody had synced: it seals before the reader's place and copies the rest."""
    first = reopen(disk)
    first.append(numbered(1, 8))
    contents = read_journal(ROOT, disk=disk)
    assert len(list(contents)) == 8
    position = contents.position
    for last in (9, 10, 11):
        journal = reopen(disk)
        journal.append(numbered(last, last))
    assert holds_position(ROOT, position, disk=disk)
    found = list(read_journal(ROOT, after=position, disk=disk))
    assert found == list(enumerate(numbered(9, 11), 9))


def test_a_reader_of_which_a_copy_does_not_hold_what_it_has_read_is_told_to_start_again(disk: FaultyDisk) -> None:
    first = reopen(disk)
    first.append(numbered(1, 8))
    second = reopen(disk)
    second.append(numbered(9, 9))
    # What the driver that was taken over still writes into its own segment is void, even if it looks like the copy.
    void = encode_frames(9, [numbered(9, 9)[0].replace(b"record", b"retold")])
    disk.content(segments(disk)[0]).extend(void)
    size = len(disk.content(segments(disk)[0]))
    with pytest.raises(FencedError, match="Read the journal again"):
        read_journal(ROOT, after=Position(segments(disk)[0].rpartition("/")[2], size, 10), disk=disk)
