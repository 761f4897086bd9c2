"""Looking for damage in a journal, and letting an experiment go on after it.

Owns `verify_journal` and `repair_journal`. Must never delete or change a byte: a repair copies the journal, then
adds a segment whose seal ends the history before the damage.
"""

from __future__ import annotations

import os
from itertools import count
from typing import Literal, NamedTuple

from holdfast.errors import JournalDamagedError
from holdfast.journal.epoch import claim_epoch, release
from holdfast.journal.frames import Header, Scan, decode_header, encode_frames, find_frame, last_crc, scan
from holdfast.journal.reader import chain_damage, count_behind, count_in_broken, read_journal, read_link
from holdfast.journal.segments import (
    BrokenChain,
    Link,
    Seal,
    SegmentName,
    Stump,
    create_segment,
    journal_dir,
    list_segments,
    read_chain,
    relative_path,
    segment_path,
)
from holdfast.storage.local import REAL_DISK, Disk


class Finding(NamedTuple):
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
        kept: Records that the history has now.
        cut: Readable records behind the damage that are no longer part of it; the copy holds them.
    """

    damage: list[JournalDamagedError]
    copy: str
    kept: int
    cut: int


class _Loose(NamedTuple):
    """A segment read on its own, without a chain that says how much of it counts."""

    name: SegmentName
    header: Header | None
    found: Scan

    def seal_before(self, seq: int) -> Seal:
        """Return the seal that ends it before record ``seq``."""
        assert self.header is not None
        kept = encode_frames(self.name.first_seq, self.found.payloads[: seq - self.name.first_seq])
        crc = last_crc(kept) if kept else self.header.crc
        return Seal(self.name.file, self.header.end + len(kept), crc)


class _Plan(NamedTuple):
    """How a repair goes on.

    Attributes:
        damage: What is wrong.
        first_seq: First record of the new segment.
        prev: Its predecessor.
        carry: Records that it begins with.
        cut: Readable records that it leaves behind.
    """

    damage: JournalDamagedError
    first_seq: int
    prev: Seal | None
    carry: list[bytes]
    cut: int


def verify_journal(root: str | os.PathLike[str], *, disk: Disk = REAL_DISK) -> list[Finding]:
    """Read every byte of every segment and return all that is noteworthy.

    Args:
        root: The experiment's root.
        disk: Where it is.

    Returns:
        Findings by file and offset; the journal is whole if none has the level "damage".
    """
    root = os.path.abspath(root)
    findings: list[Finding] = []
    stumps: list[Stump] = []
    broken: SegmentName | None = None
    try:
        links, stumps = read_chain(root, disk)
    except BrokenChain as error:
        links, broken = error.later, error.name
        text = f"the segment cannot be used: {error.reason}"
        findings.append(_finding("damage", broken, 0, broken.first_seq, text))
    for stump in stumps:
        text = f"{stump.size} bytes of a segment whose making was cut short; it held no record"
        findings.append(_finding("note", stump.name, 0, stump.name.first_seq, text))
    for link, successor in zip(links, [*links[1:], None], strict=False):
        findings += _verify_link(root, disk, link, successor)
    known = {link.name for link in links} | {stump.name for stump in stumps} | {broken}
    for name in list_segments(root, disk):
        if name not in known and broken is None:
            text = "void: an older driver wrote it after a newer one had taken over"
            findings.append(_finding("note", name, 0, name.first_seq, text))
        elif name not in known:
            findings += _verify_loose(root, disk, name)
    return sorted(findings, key=lambda finding: (finding.file, finding.offset))


def repair_journal(root: str | os.PathLike[str], *, disk: Disk = REAL_DISK) -> RepairReport:
    """Let the history of a damaged journal end before the damage, so that the experiment can go on.

    Nothing is deleted: the journal is copied to ``.holdfast/damaged-<n>`` first, and the records behind the damage
    stay in their files too. A damaged header costs no record: those behind it are written again.

    Args:
        root: The experiment's root.
        disk: Where it is.

    Raises:
        ExperimentLockedError: A live driver holds the experiment.

    Durability:
        Copy and repair survive a power cut when this returns.
    """
    root = os.path.abspath(root)
    plan = _plan(root, disk)
    if plan is None:
        return RepairReport([], "", sum(1 for _ in read_journal(root, disk=disk)), 0)
    claim = claim_epoch(root, disk=disk)
    try:
        copy = _copy(root, disk)
        damage: list[JournalDamagedError] = []
        cut = 0
        while plan is not None:
            damage.append(plan.damage)
            cut += plan.cut
            carry = encode_frames(plan.first_seq, plan.carry)
            create_segment(root, disk, claim, first_seq=plan.first_seq, prev=plan.prev, carry=carry)
            disk.sync_dir(journal_dir(root))
            plan = _plan(root, disk)
        return RepairReport(damage, copy, sum(1 for _ in read_journal(root, disk=disk)), cut)
    finally:
        release(root, claim, disk=disk)


def _finding(level: Literal["damage", "note"], name: SegmentName, offset: int, seq: int, text: str) -> Finding:
    return Finding(level, relative_path(name.file), offset, seq, text)


def _verify_link(root: str, disk: Disk, link: Link, successor: Link | None) -> list[Finding]:
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


def _verify_loose(root: str, disk: Disk, name: SegmentName) -> list[Finding]:
    """Check a segment of which the broken chain does not say whether it counts."""
    buffer = disk.read(segment_path(root, name.file))
    header = decode_header(buffer)
    if header is None:
        return [_finding("damage", name, 0, name.first_seq, "its header is damaged")]
    return _verify_bytes(name, buffer, header.end, None)


def _verify_bytes(name: SegmentName, buffer: bytes, start: int, end_seq: int | None) -> list[Finding]:
    """Find every gap between good records, and what is wrong at the end (``end_seq`` None: nothing must follow)."""
    findings: list[Finding] = []
    good = scan(buffer, name.first_seq, start)
    while (hit := find_frame(buffer, good.offset, good.next_seq, len(buffer))) is not None:
        text = f"{_unreadable(good.next_seq, hit[1])}; record {hit[1]} at byte {hit[0]} can be read"
        findings.append(_finding("damage", name, good.offset, good.next_seq, text))
        good = scan(buffer, hit[1], hit[0])
    rest = len(buffer) - good.offset
    if end_seq is None and rest:
        text = f"a torn tail of {rest} bytes: a write cut short, for which no reply was sent"
        findings.append(_finding("note", name, good.offset, good.next_seq, text))
    elif end_seq is not None and (rest or good.next_seq != end_seq):
        findings.append(_finding("damage", name, good.offset, good.next_seq, _unreadable(good.next_seq, end_seq)))
    return findings


def _unreadable(first: int, end: int) -> str:
    if first >= end:
        return f"what stands before record {first} is no record"
    return f"record {first} cannot be read" if end == first + 1 else f"records {first} to {end - 1} cannot be read"


def _plan(root: str, disk: Disk) -> _Plan | None:
    """Find the first damage of the history and the segment that leads past it; None if there is no damage."""
    try:
        links = read_chain(root, disk).links
    except BrokenChain as broken:
        return _bridge(root, disk, broken)
    for index, link in enumerate(links):
        found, _, damage = read_link(root, disk, links[index:], link.body, link.name.first_seq)
        if damage is not None:
            crc = link.header_crc if found.crc is None else found.crc
            cut = count_behind(root, disk, links[index:], damage.offset, damage.seq)
            return _Plan(damage, damage.seq, Seal(link.name.file, damage.offset, crc), [], cut)
    return None


def _bridge(root: str, disk: Disk, broken: BrokenChain) -> _Plan:
    """Plan around a segment that is missing or whose header is damaged.

    Its number in the file name still tells which record it begins with, so the segment that holds the record
    before that one is its predecessor; and its own records, if they can be read, go on from there.
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


def _copy(root: str, disk: Disk) -> str:
    private = os.path.join(root, ".holdfast")
    taken = set(disk.list(private))
    copy = next(f"damaged-{n}" for n in count(1) if f"damaged-{n}" not in taken)
    for file in disk.list(journal_dir(root)):
        disk.write_atomic(os.path.join(private, copy, file), disk.read(segment_path(root, file)))
    return f".holdfast/{copy}"
