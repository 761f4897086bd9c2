"""Looking for damage in a journal, and letting an experiment continue after it.

Owns `verify_journal` and `repair_journal`. Must never change a byte of the journal: a repair copies everything, then
adds segments: their seals end the history before the damage, and the last one holds what could be rebuilt. Until that
one is there, a file beside the epoch's says so to every reader: a repair that was killed is not taken for a whole one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Literal, NamedTuple

from holdfast.errors import JournalDamagedError
from holdfast.journal.claims import Claim
from holdfast.journal.epoch import claim_epoch, release
from holdfast.journal.frames import Header, Scan, decode_header, encode_frames, find_frame, last_crc, scan
from holdfast.journal.position import Position, encode_position
from holdfast.journal.reach import NOTHING, End, foreign, newest_mark, repairing_path, shortfall
from holdfast.journal.reader import chain_damage, count_behind, count_in_broken, read_journal, read_link
from holdfast.journal.segments import (
    BrokenChain,
    SegmentLink,
    SegmentName,
    SegmentSeal,
    Stump,
    create_segment,
    journal_dir,
    list_segments,
    read_chain,
    relative_path,
    segment_path,
)
from holdfast.journal.snapshot import drop_unfit
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.local import REAL_DISK, Disk


class JournalFinding(NamedTuple):
    """Something that `verify_journal` saw.

    Attributes:
        level: "damage": records are lost or out of reach. "note": nothing is wrong.
        file: Path relative to the experiment's root.
        offset: Where in the file.
        seq: Number of the record concerned.
        message: What it is, in a sentence.
    """

    level: Literal["damage", "note"]
    file: str
    offset: int
    seq: int
    message: str


class RepairReport(NamedTuple):
    """What `repair_journal` did.

    Attributes:
        damage: What was wrong, in the order in which it was met; empty if the journal was whole.
        copy: Where everything was copied to first, relative to the root; empty if nothing was done.
        kept: Records before the damage, which the history still has.
        cut: Readable records behind the damage that are no longer part of it; the copy holds them.
        rebuilt: Records that were added in the place of those that are lost.
    """

    damage: list[JournalDamagedError]
    copy: str
    kept: int
    cut: int
    rebuilt: int = 0


class _Loose(NamedTuple):
    """A segment read on its own, without a chain that says how much of it counts."""

    name: SegmentName
    header: Header | None
    found: Scan

    def seal_before(self, seq: int) -> SegmentSeal:
        """Return the seal that ends it before record ``seq``."""
        assert self.header is not None
        kept = encode_frames(self.name.first_seq, self.found.payloads[: seq - self.name.first_seq])
        crc = last_crc(kept) if kept else self.header.crc
        return SegmentSeal(self.name.file, self.header.end + len(kept), crc)


class _Plan(NamedTuple):
    """How a repair continues.

    Attributes:
        damage: What is wrong.
        first_seq: First record of the new segment.
        prev: Its predecessor.
        carry: Records that it begins with.
        cut: Readable records that it leaves behind.
    """

    damage: JournalDamagedError
    first_seq: int
    prev: SegmentSeal | None
    carry: list[bytes]
    cut: int


def verify_journal(root: str | os.PathLike[str], *, disk: Disk = REAL_DISK) -> list[JournalFinding]:
    """Read every byte of every segment and return all that is noteworthy.

    Args:
        root: The experiment's root.
        disk: Where it is.

    Returns:
        Findings by file and offset; the journal is whole if none has the level "damage".
    """
    root = os.path.abspath(root)
    mark = newest_mark(root, disk)
    findings: list[JournalFinding] = []
    stumps: list[Stump] = []
    broken: SegmentName | None = None
    try:
        links, stumps = read_chain(root, disk)
    except BrokenChain as error:
        links, broken = error.later, error.name
        text = f"the segment cannot be used: {error.reason}"
        findings.append(_finding("damage", broken, 0, broken.first_seq, text))
    for stump in stumps:
        text = f"{stump.size} bytes of a segment that was not completely created; it held no record"
        findings.append(_finding("note", stump.name, 0, stump.name.first_seq, text))
    for link, successor in zip(links, [*links[1:], None], strict=False):
        findings += _verify_link(root, disk, link, successor)
    if broken is None and (strange := foreign(root, disk, links)) is not None:
        findings.append(JournalFinding("damage", strange.file, 0, strange.seq, strange.summary))
    if broken is None and not any(found.level == "damage" for found in findings):
        if (short := shortfall(root, disk, mark, links, end_of(root, disk, links))) is not None:
            findings.append(JournalFinding("damage", short.file, short.offset, short.seq, short.summary))
    known = {link.name for link in links} | {stump.name for stump in stumps} | {broken}
    for name in list_segments(root, disk):
        if name not in known and broken is None:
            text = "void: an older driver wrote it after a newer one had taken over"
            findings.append(_finding("note", name, 0, name.first_seq, text))
        elif name not in known:
            findings += _verify_loose(root, disk, name)
    return sorted(findings, key=lambda finding: (finding.file, finding.offset))


def repair_journal(
    root: str | os.PathLike[str],
    *,
    rebuild: Callable[[int], list[bytes]] | None = None,
    force: bool = False,
    disk: Disk = REAL_DISK,
) -> RepairReport:
    """Let the history of a damaged journal end before the damage, so that the experiment can continue.

    Nothing is lost by it: journal, epochs and snapshots are copied to ``.holdfast/damaged-<n>`` first, and the records
    behind the damage stay in their files too. A damaged header costs no record: those behind it are written again.

    Args:
        root: The experiment's root.
        rebuild: Is told the epoch of the repair once the history ends before the damage, and returns records for what
            is known to have happened after that. They are added as a whole or not at all.
        force: Rebuild also if the journal itself is whole.
        disk: Where it is.

    Raises:
        ExperimentLockedError: A live driver holds the experiment.

    Durability:
        Copy and repair survive a power cut when this returns. Killed before, it leaves an experiment that says that it
        is damaged, and can be repaired again.
    """
    root = os.path.abspath(root)
    plan = _plan(root, disk)
    if plan is None and not force:
        return RepairReport([], "", sum(1 for _ in read_journal(root, disk=disk)), 0)
    claim = claim_epoch(root, disk=disk)
    place: Position | None = None
    try:
        copy = _copy(root, disk)
        crashpoint("repair.copied")
        disk.write_atomic(repairing_path(root, claim.epoch), b"")
        crashpoint("repair.marked")
        damage: list[JournalDamagedError] = []
        cut = 0
        while (plan := _plan(root, disk, ours=claim.epoch)) is not None:
            damage.append(plan.damage)
            cut += plan.cut
            carry = encode_frames(plan.first_seq, plan.carry)
            create_segment(root, disk, claim, first_seq=plan.first_seq, prev=plan.prev, carry=carry)
            disk.sync_dir(journal_dir(root))
        kept, place, rebuilt = _complete(root, disk, claim, rebuild)
        return RepairReport(damage, copy, kept, cut, rebuilt)
    finally:
        release(root, claim, end=b"" if place is None else encode_position(place), disk=disk)


def _complete(
    root: str, disk: Disk, claim: Claim, rebuild: Callable[[int], list[bytes]] | None
) -> tuple[int, Position, int]:
    """Add what can be rebuilt, and declare the repair complete.

    Returns:
        How many records there were, the end of the history, and how many records were added.
    """
    crashpoint("repair.cut")
    payloads = rebuild(claim.epoch) if rebuild is not None else []
    links = read_chain(root, disk).links
    place = end_of(root, disk, links).position
    kept = place.next_seq - 1
    if payloads or not links or links[-1].name.epoch != claim.epoch:
        prev = _read_loose(root, disk, links[-1].name).seal_before(place.next_seq) if links else None
        carry = encode_frames(place.next_seq, payloads)
        link = create_segment(root, disk, claim, first_seq=place.next_seq, prev=prev, carry=carry)
        disk.sync_dir(journal_dir(root))
        place = Position(link.name.file, link.body + len(carry), place.next_seq + len(payloads))
    crashpoint("repair.rebuilt")
    drop_unfit(root, disk)
    disk.remove(repairing_path(root, claim.epoch))
    disk.sync_dir(os.path.dirname(repairing_path(root, claim.epoch)))
    crashpoint("repair.complete")
    return kept, place, len(payloads)


def end_of(root: str, disk: Disk, links: list[SegmentLink]) -> End:
    """Return where the history ends, by its newest segment."""
    if not links:
        return NOTHING
    head = links[-1]
    found = read_link(root, disk, [head], head.body, head.name.first_seq).found
    place = Position(head.name.file, head.body + found.offset, found.next_seq)
    return End(place, found.payloads[-1] if found.payloads else None)


def _finding(level: Literal["damage", "note"], name: SegmentName, offset: int, seq: int, text: str) -> JournalFinding:
    return JournalFinding(level, relative_path(name.file), offset, seq, text)


def _verify_link(root: str, disk: Disk, link: SegmentLink, successor: SegmentLink | None) -> list[JournalFinding]:
    buffer = disk.read(segment_path(root, link.name.file))
    if link.seal is None:
        return _verify_bytes(link.name, buffer, link.body, None)
    end = link.seal.length
    findings = _verify_bytes(link.name, buffer[:end], link.body, link.end_seq)
    # What the next segment begins with was copied from here, because nobody knew whether it was durable here.
    copied = min(len(buffer), end + successor.header.carried) if successor else end
    void = len(buffer) - max(end, scan(buffer, link.end_seq or 0, end, copied).offset)
    if void > 0:
        text = f"{void} bytes behind the seal are void"
        findings.append(_finding("note", link.name, len(buffer) - void, link.end_seq or 0, text))
    return findings


def _verify_loose(root: str, disk: Disk, name: SegmentName) -> list[JournalFinding]:
    """Check a segment of which the broken chain does not say whether it counts."""
    buffer = disk.read(segment_path(root, name.file))
    header = decode_header(buffer)
    if header is None:
        return [_finding("damage", name, 0, name.first_seq, "its header is damaged")]
    return _verify_bytes(name, buffer, header.end, None)


def _verify_bytes(name: SegmentName, buffer: bytes, start: int, end_seq: int | None) -> list[JournalFinding]:
    """Find every gap between good records, and what is wrong at the end (``end_seq`` None: nothing must follow)."""
    findings: list[JournalFinding] = []
    good = scan(buffer, name.first_seq, start)
    while (hit := find_frame(buffer, good.offset, good.next_seq, len(buffer))) is not None:
        text = f"{_unreadable(good.next_seq, hit[1])}; record {hit[1]} at byte {hit[0]} can be read"
        findings.append(_finding("damage", name, good.offset, good.next_seq, text))
        good = scan(buffer, hit[1], hit[0])
    rest = len(buffer) - good.offset
    if end_seq is None and rest:
        text = f"a torn tail of {rest} bytes: an incomplete write, for which no reply was sent"
        findings.append(_finding("note", name, good.offset, good.next_seq, text))
    elif end_seq is not None and (rest or good.next_seq != end_seq):
        findings.append(_finding("damage", name, good.offset, good.next_seq, _unreadable(good.next_seq, end_seq)))
    return findings


def _unreadable(first: int, end: int) -> str:
    if first >= end:
        return f"what stands before record {first} is no record"
    return f"record {first} cannot be read" if end == first + 1 else f"records {first} to {end - 1} cannot be read"


def _plan(root: str, disk: Disk, *, ours: int = 0) -> _Plan | None:
    """Find the first damage of the history and the segment that leads past it; None if there is no damage.

    That the repair of epoch ``ours`` is not complete is no damage.
    """
    mark = newest_mark(root, disk)
    try:
        links = read_chain(root, disk).links
    except BrokenChain as broken:
        return _bridge(root, disk, broken)
    for index, link in enumerate(links):
        found, _, damage = read_link(root, disk, links[index:], link.body, link.name.first_seq)
        if damage is not None:
            crc = link.header_crc if found.crc is None else found.crc
            cut = count_behind(root, disk, links[index:], damage.offset, damage.seq)
            return _Plan(damage, damage.seq, SegmentSeal(link.name.file, damage.offset, crc), [], cut)
        if (strange := foreign(root, disk, [link])) is not None:
            cut = count_behind(root, disk, links[index:], link.body, link.name.first_seq)
            return _before(root, disk, links[:index], strange, cut)
    if links and links[-1].name.epoch == ours:
        return None
    short = shortfall(root, disk, mark, links, end_of(root, disk, links))
    return None if short is None else _before(root, disk, links, short, 0)


def _before(root: str, disk: Disk, links: list[SegmentLink], damage: JournalDamagedError, cut: int) -> _Plan:
    """Plan to end the history with what its good segments hold."""
    if not links:
        return _Plan(damage, 1, None, [], cut)
    last = _read_loose(root, disk, links[-1].name, links[-1].seal.length if links[-1].seal else None)
    return _Plan(damage, last.found.next_seq, last.seal_before(last.found.next_seq), [], cut)


def _bridge(root: str, disk: Disk, broken: BrokenChain) -> _Plan:
    """Plan around a segment that is missing or whose header is damaged.

    Its number in the file name still tells which record it begins with, so the segment that holds the record
    before that one is its predecessor; and its own records, if they can be read, continue from there.
    """
    damage = chain_damage(root, disk, broken)
    first = broken.name.first_seq
    carry = _records_from(root, disk, broken)
    cut = count_in_broken(root, disk, broken) - len(carry)
    best: _Loose | None = None
    for name in reversed(list_segments(root, disk)):
        if name >= broken.name or name.first_seq > first or first == 1:
            continue
        loose = _read_loose(root, disk, name)
        if loose.found.next_seq < first:
            # There is a gap behind it. The longest history before a gap is what is left if nothing closes it.
            reachable = loose.header is not None or name.first_seq == 1
            if reachable and (best is None or loose.found.next_seq > best.found.next_seq):
                best = loose
        elif loose.header is not None:
            return _Plan(damage, first, loose.seal_before(first), carry, cut)
        else:
            carry = loose.found.payloads[: first - name.first_seq] + carry
            first = name.first_seq
    if first == 1:
        return _Plan(damage, 1, None, carry, cut)
    cut += len(carry)
    if best is None:
        return _Plan(damage, 1, None, [], cut)
    if best.header is None:
        return _Plan(damage, 1, None, best.found.payloads, cut)
    return _Plan(damage, best.found.next_seq, best.seal_before(best.found.next_seq), [], cut)


def _records_from(root: str, disk: Disk, broken: BrokenChain) -> list[bytes]:
    """Return the records of a segment with a damaged header, and of those behind it, up to the first gap."""
    records: list[bytes] = []
    next_seq = broken.name.first_seq
    names = [broken.name, *(link.name for link in broken.later)]
    ends = [broken.later[0].header.prev if broken.later else None, *(link.seal for link in broken.later)]
    for name, seal in zip(names, ends, strict=True):
        if name.first_seq != next_seq:
            break
        try:
            found = _read_loose(root, disk, name, seal.length if seal else None).found
        except FileNotFoundError:
            break
        records += found.payloads
        next_seq = found.next_seq
    return records


def _read_loose(root: str, disk: Disk, name: SegmentName, end: int | None = None) -> _Loose:
    """Read a segment's records, also if its header is damaged."""
    buffer = disk.read(segment_path(root, name.file))[:end]
    header = decode_header(buffer)
    if header is not None:
        return _Loose(name, header, scan(buffer, name.first_seq, header.end))
    hit = find_frame(buffer, 0, name.first_seq, len(buffer))
    if hit is None or hit[1] != name.first_seq:
        return _Loose(name, None, Scan([], 0, name.first_seq, None))
    return _Loose(name, None, scan(buffer, name.first_seq, hit[0]))


def set_aside_snapshots(root: str | os.PathLike[str], files: list[str], *, disk: Disk = REAL_DISK) -> str:
    """Remove snapshots that nobody can use, and keep a copy. The journal has all that they say.

    Args:
        root: The experiment's root.
        files: Which ones, relative to the root.
        disk: Where it is.

    Returns:
        Where the copy is, relative to the root.

    Durability:
        The copy survives a power cut before anything is removed.
    """
    root = os.path.abspath(root)
    copy = _new_copy(root, disk)
    _copy_folder(root, disk, "snapshots", copy)
    for file in files:
        disk.remove(os.path.join(root, file))
    return copy


def _copy(root: str, disk: Disk) -> str:
    copy = _new_copy(root, disk)
    for file in disk.list(journal_dir(root)):
        disk.write_atomic(os.path.join(root, copy, file), disk.read(segment_path(root, file)))
    for folder in ("epochs", "snapshots"):
        _copy_folder(root, disk, folder, copy)
    return copy


def _new_copy(root: str, disk: Disk) -> str:
    taken = set(disk.list(os.path.join(root, ".holdfast")))
    name = next(f"damaged-{n}" for n in count(1) if f"damaged-{n}" not in taken)
    return f".holdfast/{name}"


def _copy_folder(root: str, disk: Disk, folder: str, copy: str) -> None:
    source = os.path.join(root, ".holdfast", folder)
    for file in disk.list(source):
        disk.write_atomic(os.path.join(root, copy, folder, file), disk.read(os.path.join(source, file)))
