"""Reading the journal: the history's records in order, from the start or from where a reader stopped.

Owns the difference between a torn tail (a write cut short by a crash: dropped, and said so) and damage (a record
that was whole and is not any more: an error, never a silent gap). Must never write, so it works on a live, a
dead and a read-only experiment alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from holdfast.errors import FencedError, JournalDamagedError
from holdfast.journal.frames import Scan, classify_tail, count_readable, count_unreadable, find_frame, scan
from holdfast.journal.position import START as START
from holdfast.journal.position import Position as Position
from holdfast.journal.reach import (
    DurableMark,
    End,
    foreign,
    lost_text,
    newest_mark,
    records_text,
    shortfall,
    snapshot_text,
    vouched_by,
    written_at,
)
from holdfast.journal.segments import (
    BrokenChain,
    Chain,
    SegmentLink,
    SegmentName,
    list_segments,
    parse_name,
    read_chain,
    relative_path,
    segment_path,
)
from holdfast.storage.local import REAL_DISK, Disk


class TornTail(NamedTuple):
    """A write that never finished; no reply was ever sent for what it held.

    Attributes:
        segment: File name of the segment.
        offset: Where it begins.
        dropped: Bytes that were left out.
    """

    segment: str
    offset: int
    dropped: int


class LinkContents(NamedTuple):
    """What was read of one segment.

    Attributes:
        found: The good records; offsets are counted from where the reading began.
        torn: What was left out behind them.
        damage: The error to raise behind them.
    """

    found: Scan
    torn: TornTail | None
    damage: JournalDamagedError | None


class SegmentPart(NamedTuple):
    """The good records of one segment, from where the reading began.

    Attributes:
        file: File name of the segment.
        start: Where the first of them begins.
        seq: Its number.
        payloads: Their payloads, in order.
    """

    file: str
    start: int
    seq: int
    payloads: list[bytes]


class JournalContents:
    """The records behind a position; iterate once for pairs of number and payload.

    Attributes:
        position: Behind the last record handed out with its whole segment; where to continue later.
        torn: What was left out at the end, once the iteration has ended. On a live journal it is usually a
            record that is just being written.
        vouched_by: Epoch of the driver that said how far the history must reach: if it is shorter, the iteration ends
            with an error. 0 if nobody has, or its word is lost; only checkpoints and result files can tell then.
    """

    def __init__(self, root: str, disk: Disk, after: Position, chain: Chain, mark: DurableMark | None) -> None:
        links, stumps = chain
        self.position = after
        self.vouched_by = vouched_by(mark, links[-1] if links else None)
        self.torn: TornTail | None = None
        self._root = root
        self._disk = disk
        self._links = links
        self._mark = mark
        if stumps:
            self.torn = TornTail(stumps[0].name.file, 0, stumps[0].size)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for part in self.parts():
            yield from zip(count(part.seq), part.payloads, strict=False)

    def parts(self) -> Iterator[SegmentPart]:
        """The same records, segment by segment, and where they stand. Iterate over one or the other."""
        last: bytes | None = None
        for index, link in enumerate(self._links):
            start, seq = link.body, link.name.first_seq
            if link.name.file == self.position.segment:
                start, seq = self.position.offset, self.position.next_seq
            part = read_link(self._root, self._disk, self._links[index:], start, seq)
            yield SegmentPart(link.name.file, start, seq, part.found.payloads)
            self.position = Position(link.name.file, start + part.found.offset, part.found.next_seq)
            self.torn = part.torn or self.torn
            last = part.found.payloads[-1] if part.found.payloads else last
            if part.damage is not None:
                raise part.damage
        short = shortfall(self._root, self._disk, self._mark, self._links, End(self.position, last))
        if short is not None:
            raise short


def read_journal(
    root: str | os.PathLike[str], *, after: Position | None = None, disk: Disk = REAL_DISK
) -> JournalContents:
    """Open the history of the experiment at ``root`` for reading.

    Args:
        root: The experiment's root. No journal there means no records.
        after: Where an earlier reading stopped; the start if None.
        disk: Where the root is.

    Raises:
        JournalDamagedError: Also later, while iterating, after everything before the damage was handed out.
        FencedError: ``after`` is no longer part of the history: a newer driver sealed the journal before it.
            Read again from the start.
    """
    root = os.path.abspath(root)
    after = after or START
    mark = newest_mark(root, disk)
    try:
        chain = read_chain(root, disk, back_to=after.segment)
    except BrokenChain as broken:
        raise chain_damage(root, disk, broken) from None
    if (strange := foreign(root, disk, chain.links)) is not None:
        raise strange
    if after.segment:
        after, links = _find_position(root, disk, after, chain.links)
        chain = chain._replace(links=links)
    return JournalContents(root, disk, after, chain, mark)


def no_contents(root: str | os.PathLike[str], disk: Disk = REAL_DISK) -> JournalContents:
    """Return the contents of a journal of which nothing can be read."""
    return JournalContents(os.path.abspath(root), disk, START, Chain([], []), None)


def bytes_behind(root: str | os.PathLike[str], position: Position | None = None) -> int:
    """Return about how many bytes there are to read behind ``position``: for showing progress, nothing else."""
    after = position or START
    total = -after.offset
    try:
        with os.scandir(os.path.dirname(segment_path(os.path.abspath(root), "x"))) as entries:
            for entry in entries:
                if entry.name >= after.segment and parse_name(entry.name) is not None:
                    total += entry.stat().st_size
    except OSError:  # whoever reads says why
        pass
    return max(0, total)


def holds_position(root: str | os.PathLike[str], position: Position, *, disk: Disk = REAL_DISK) -> bool:
    """Tell whether the history reaches as far as ``position``."""
    try:
        found = read_journal(root, after=position, disk=disk).position
    except (FencedError, JournalDamagedError):
        return False
    if not found.segment:
        return True
    path = segment_path(os.path.abspath(root), found.segment)
    return bool(disk.read(path, found.offset - 1, 1))


def read_link(root: str, disk: Disk, links: list[SegmentLink], start: int, seq: int) -> LinkContents:
    """Read one segment of the chain.

    Args:
        root: The experiment's root.
        disk: Where it is.
        links: The segment, and those behind it (to count what can be read there).
        start: Offset to begin at.
        seq: Number of the record there.
    """
    link = links[0]
    buffer = disk.read(segment_path(root, link.name.file), start)
    if link.seal is None:
        found = scan(buffer, seq)
        tail = classify_tail(buffer, found.offset, found.next_seq)
        if tail is None:
            return LinkContents(found, None, None)
        if tail.kind == "torn":
            return LinkContents(found, TornTail(link.name.file, start + found.offset, tail.size), None)
        return LinkContents(found, None, _damage(root, disk, links, start + found.offset, found.next_seq))
    end = link.seal.length - start
    found = scan(buffer, seq, 0, min(end, len(buffer)))
    if found.offset == end and found.next_seq == link.end_seq and found.crc in (link.seal.crc, None):
        return LinkContents(found, None, None)
    return LinkContents(found, None, _damage(root, disk, links, start + found.offset, found.next_seq))


def count_behind(root: str, disk: Disk, links: list[SegmentLink], offset: int, seq: int) -> int:
    """Count the records that can be read behind a damaged one.

    Args:
        root: The experiment's root.
        disk: Where it is.
        links: The damaged segment and those behind it.
        offset: Where the damaged record begins.
        seq: Its number.
    """
    total = 0
    for link in links:
        buffer = disk.read(segment_path(root, link.name.file))
        end = len(buffer) if link.seal is None else min(link.seal.length, len(buffer))
        if link is links[0]:
            total += count_readable(buffer, offset, seq, end)
        else:
            total += count_readable(buffer, link.body, link.name.first_seq, end)
    return total


def count_in_broken(root: str, disk: Disk, broken: BrokenChain) -> int:
    """Count the records that can be read in and behind a segment that breaks the chain."""
    later = broken.later
    behind = count_behind(root, disk, later, later[0].body, later[0].name.first_seq) if later else 0
    return behind + _count_inside(root, disk, broken)


def _count_inside(root: str, disk: Disk, broken: BrokenChain) -> int:
    try:
        buffer = disk.read(segment_path(root, broken.name.file))
    except FileNotFoundError:
        return 0
    seal = broken.later[0].header.prev if broken.later else None
    end = len(buffer) if seal is None else min(seal.length, len(buffer))
    return count_readable(buffer, 0, broken.name.first_seq, end)


def check_links(root: str, disk: Disk, links: list[SegmentLink]) -> None:
    """Compare the segments of a chain with what their successors say of them, by owner and size.

    Whoever begins in the middle, with a snapshot, never reads the segments before it. This is what they cost: their
    headers, which `read_chain` has read, and one byte of each.

    Raises:
        JournalDamagedError: A segment is another experiment's, or shorter than it was when its successor was made.
    """
    if (strange := foreign(root, disk, links)) is not None:
        raise strange
    for index, link in enumerate(links):
        if link.seal is not None and not disk.read(segment_path(root, link.name.file), link.seal.length - 1, 1):
            damage = read_link(root, disk, links[index:], link.body, link.name.first_seq).damage
            if damage is not None:
                raise damage


def check_chain(root: str | os.PathLike[str], disk: Disk = REAL_DISK) -> None:
    """Check that the history's segments are there and as long as they were, without reading their records.

    Raises:
        JournalDamagedError: As `read_journal` does.
    """
    root = os.path.abspath(root)
    try:
        links = read_chain(root, disk).links
    except BrokenChain as broken:
        raise chain_damage(root, disk, broken) from None
    check_links(root, disk, links)


def chain_damage(root: str, disk: Disk, broken: BrokenChain) -> JournalDamagedError:
    """Return the error for a segment that is missing or whose header is damaged."""
    file = relative_path(broken.name.file)
    before, last = _read_before(root, disk, broken.name)
    behind = count_in_broken(root, disk, broken)
    if broken.later:
        missing = broken.later[0].name.first_seq - 1 - before - _count_inside(root, disk, broken)
    else:
        mark = newest_mark(root, disk)
        missing = 0 if mark is None or mark.position is None else mark.position.next_seq - 1 - before - behind
    what = f"{file} cannot be used: {broken.reason}"
    return _error(root, disk, (file, 0, before + 1), (missing, behind, last), what)


def _damage(root: str, disk: Disk, links: list[SegmentLink], offset: int, seq: int) -> JournalDamagedError:
    link = links[0]
    file = relative_path(link.name.file)
    buffer = disk.read(segment_path(root, link.name.file))
    end = len(buffer) if link.seal is None else min(link.seal.length, len(buffer))
    missing = count_unreadable(buffer, offset, seq, end, link.end_seq)
    good = scan(buffer, link.name.first_seq, link.body, offset).payloads
    last = good[-1] if good else _read_before(root, disk, link.name)[1]
    behind = count_behind(root, disk, links, offset, seq)
    return _error(root, disk, (file, offset, seq), (missing, behind, last), f"{file} is damaged at byte {offset}")


def _read_before(root: str, disk: Disk, name: SegmentName) -> tuple[int, bytes | None]:
    """Return how many records in a row can be read before a segment, and the last of them."""
    next_seq, last = 1, None
    for each in list_segments(root, disk):
        if each >= name or each.first_seq > next_seq:
            continue
        buffer = disk.read(segment_path(root, each.file))
        hit = find_frame(buffer, 0, each.first_seq, len(buffer))
        if hit is None or hit[1] != each.first_seq:
            continue
        good = scan(buffer, each.first_seq, hit[0])
        stop = min(good.next_seq, name.first_seq)
        if stop > max(next_seq, each.first_seq):
            next_seq, last = stop, good.payloads[stop - 1 - each.first_seq]
    return next_seq - 1, last


def _error(
    root: str, disk: Disk, place: tuple[str, int, int], lost: tuple[int, int, bytes | None], what: str
) -> JournalDamagedError:
    """Return the error for a damaged place.

    Args:
        root: The experiment's root.
        disk: Where it is.
        place: File, offset, and the first record that cannot be read.
        lost: How many records are missing, how many behind them can be read, and the last one before them.
        what: What is wrong.
    """
    (file, offset, seq), (missing, readable, last) = place, lost
    since = written_at(last)
    summary = f"{what}. {lost_text(missing, since, which='written')}" if missing > 0 else what
    around = f"the {records_text(seq - 1)} before it, " if seq > 1 else ""
    around += f"{records_text(readable)} after it, " if readable else ""
    return JournalDamagedError(
        f"The journal of {root} is damaged at record {seq}: {summary}. What still exists: {around}"
        f"{snapshot_text(root, disk, seq - 1)}result files and checkpoints, all as they were. "
        f"Nothing was overwritten. Put the file back from a backup if there is one. Otherwise `holdfast verify {root}` "
        f"lists all damage, and `holdfast repair {root}` keeps a copy of everything, truncates the journal before the "
        f"damage, rebuilds what it can from snapshots, result files and checkpoints, and makes the experiment "
        f"resumable.",
        file=file,
        offset=offset,
        seq=seq,
        missing=missing if missing > 0 else None,
        since=since,
        summary=summary,
    )


def _find_position(
    root: str, disk: Disk, after: Position, links: list[SegmentLink]
) -> tuple[Position, list[SegmentLink]]:
    """Return where the reader continues, and the segments from there.

    A driver that did not trust the end of a segment has sealed it before the reader's place and begun the next one with
    a copy of what follows. If that is what the reader has read, it continues in the copy.
    """
    found = after
    while links and links[0].name.file == found.segment:
        first = links[0]
        if first.seal is None or found.offset <= first.seal.length:
            return found, links
        start, size = first.seal.length, found.offset - first.seal.length
        links = links[1:]
        read = disk.read(segment_path(root, first.name.file), start, size)
        if len(read) != size or read != disk.read(segment_path(root, links[0].name.file), links[0].body, size):
            break
        found = Position(links[0].name.file, links[0].body + size, found.next_seq)
    raise FencedError(
        f"The place in the journal of {root} where this reader stopped (record {after.next_seq}, segment "
        f"{after.segment}) is not part of the history any more: a newer driver took over and sealed the journal "
        f"before it. Nothing that was acknowledged is lost. Read the journal again from the start."
    )
