"""Segment files: their names, their header, and the chain that says which bytes are the history.

A segment is ``.holdfast/journal/<epoch>-<first record>.hfj``: a header frame, then record frames. The header
names the previous segment and seals it: its length, and the checksum of the last frame within that length. The
history is the chain from the newest segment back to the first. So whatever a driver that was taken over still
appends (behind the seal) or rotates to (a segment of an old epoch, outside the chain) is void without anybody
having to stop it.

Owns the layout of the directory. Must never change a segment that exists.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

import msgspec

from holdfast.errors import InternalError, NewerFormatError
from holdfast.journal.claims import Claim
from holdfast.journal.frames import decode_header, encode_header, find_frame
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.local import Disk

FORMAT = 1

_NAME = re.compile(r"(\d{8})-(\d{12})(?:\.(\d+))?\.hfj")
_HEADER_READ = 4096
_MAX_RANK = 10_000


class SegmentName(NamedTuple):
    """A segment's place in the order of all segments.

    Attributes:
        epoch: Of the driver that made it.
        first_seq: Number of its first record.
        rank: 0, or higher if the same driver had to begin again at the same record.
    """

    epoch: int
    first_seq: int
    rank: int = 0

    @property
    def file(self) -> str:
        """The file's name within the journal directory."""
        again = f".{self.rank}" if self.rank else ""
        return f"{self.epoch:08d}-{self.first_seq:012d}{again}.hfj"


class SegmentSeal(msgspec.Struct, frozen=True):
    """Where the part of a segment that counts ends.

    Attributes:
        segment: File name.
        length: Bytes that count.
        crc: Checksum of the last frame within them (the header frame if there is no record).
    """

    segment: str
    length: int
    crc: int


class SegmentHeader(msgspec.Struct, frozen=True):
    """The text of a segment's first frame.

    Attributes:
        format: Of the whole segment.
        epoch: Of the driver that made it.
        writer: That driver's claim.
        first_seq: Number of its first record.
        prev: Seal of the segment before it; None for the first.
        carried: Bytes of records that it was made with. They were synced before it got its name, so whoever sees it
            may rely on them, whatever has become of later syncs.
    """

    format: int
    epoch: int
    writer: str
    first_seq: int
    prev: SegmentSeal | None
    carried: int = 0


_decode_segment_header = msgspec.json.Decoder(SegmentHeader).decode


class SegmentLink(NamedTuple):
    """A segment as part of the chain.

    Attributes:
        name: The segment.
        header: Its header.
        body: Offset of its first record.
        header_crc: Checksum of its header frame.
        seal: The successor's word on how much of it counts; None for the newest.
        end_seq: Number of the record after its last, by the successor's word; None for the newest.
    """

    name: SegmentName
    header: SegmentHeader
    body: int
    header_crc: int
    seal: SegmentSeal | None
    end_seq: int | None


class Stump(NamedTuple):
    """A newest segment that died while it was being made: no header, no record.

    Attributes:
        name: The segment.
        size: Bytes in it.
    """

    name: SegmentName
    size: int


class Chain(NamedTuple):
    """The history's segments.

    Attributes:
        links: Oldest first.
        stumps: Newer files that never became segments.
    """

    links: list[SegmentLink]
    stumps: list[Stump]


class BrokenChain(Exception):
    """The chain cannot be followed back; the journal is damaged here.

    Attributes:
        name: The segment that cannot be used.
        reason: Why.
        later: The links behind it, oldest first.
    """

    def __init__(self, name: SegmentName, reason: str, later: list[SegmentLink]) -> None:
        super().__init__(reason)
        self.name = name
        self.reason = reason
        self.later = later


def journal_dir(root: str) -> str:
    """Return the directory of the segments."""
    return os.path.join(root, ".holdfast", "journal")


def segment_path(root: str, file: str) -> str:
    """Return the path of a segment."""
    return os.path.join(root, ".holdfast", "journal", file)


def relative_path(file: str) -> str:
    """Return a segment's path as messages name it, relative to the root."""
    return f".holdfast/journal/{file}"


def list_segments(root: str, disk: Disk) -> list[SegmentName]:
    """Return all segments, oldest first, whether or not they belong to the history."""
    found = (parse_name(file) for file in disk.list(journal_dir(root)))
    return sorted(name for name in found if name is not None)


def parse_name(file: str) -> SegmentName | None:
    """Return what a file name says, or None if it is not a segment's."""
    match = _NAME.fullmatch(file)
    return SegmentName(int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def create_segment(
    root: str, disk: Disk, claim: Claim, *, first_seq: int, prev: SegmentSeal | None, carry: bytes = b""
) -> SegmentLink:
    """Make a new newest segment.

    Args:
        root: The experiment's root.
        disk: Where it is.
        claim: The writer.
        first_seq: Number of the first record that the segment will hold.
        prev: Seal of the segment before it.
        carry: Frames that it holds from the start. They appear together with the header or not at all.

    Durability:
        Header and ``carry`` survive a power cut once `Disk.sync_dir` of the journal directory has returned.
    """
    header = SegmentHeader(FORMAT, claim.epoch, claim.writer, first_seq, prev, len(carry))
    frame = encode_header(msgspec.json.encode(header) + b"\n")
    decoded = decode_header(frame)
    assert decoded is not None
    for rank in range(_MAX_RANK):
        name = SegmentName(claim.epoch, first_seq, rank)
        if disk.create_exclusive(segment_path(root, name.file), frame + carry):
            crashpoint("journal.rotate.created")
            return SegmentLink(name, header, decoded.end, decoded.crc, None, None)
    raise InternalError(
        f"Epoch {claim.epoch} of {root} has started {_MAX_RANK} segments at record {first_seq}: the "
        f"journal's storage keeps failing. Everything recorded is safe. Check the disk, then restore the experiment."
    )


def read_head(root: str, disk: Disk) -> tuple[SegmentLink | None, list[Stump]]:
    """Return the newest segment, and newer files that never became one.

    Raises:
        BrokenChain: It holds records but its header is damaged, or there is no segment where there must have been one.
    """
    stumps: list[Stump] = []
    for name in reversed(list_segments(root, disk)):
        link = _read_link(root, disk, name)
        if link is not None:
            return link, stumps
        buffer = disk.read(segment_path(root, name.file))
        if find_frame(buffer, 0, name.first_seq, len(buffer)) is not None:
            raise BrokenChain(name, "its header is damaged", [])
        stumps.append(Stump(name, len(buffer)))
    if not stumps and any(file.endswith(".hfs") for file in disk.list(os.path.join(root, ".holdfast", "snapshots"))):
        # Snapshots are made of a history, so there was one: this is no experiment that never began.
        raise BrokenChain(SegmentName(1, 1), "the file is missing, and so is every other segment", [])
    return None, stumps


def read_chain(root: str, disk: Disk, *, back_to: str = "") -> Chain:
    """Follow the chain from the newest segment back.

    Args:
        root: The experiment's root.
        disk: Where it is.
        back_to: Stop at this segment; follow to the first one if empty.

    Raises:
        BrokenChain: A segment is missing or its header is damaged.
    """
    link, stumps = read_head(root, disk)
    newest_first: list[SegmentLink] = []
    while link is not None:
        newest_first.append(link)
        if link.name.file == back_to:
            break
        link = _read_previous(root, disk, newest_first)
    return Chain(newest_first[::-1], stumps)


def _read_link(root: str, disk: Disk, name: SegmentName) -> SegmentLink | None:
    path = segment_path(root, name.file)
    frame = decode_header(disk.read(path, 0, _HEADER_READ))
    if frame is None:
        return None
    header = _decode(frame.payload, path)
    if (header.epoch, header.first_seq) != (name.epoch, name.first_seq):
        return None
    return SegmentLink(name, header, frame.end, frame.crc, None, None)


def _decode(text: bytes, path: str) -> SegmentHeader:
    # The checksum has matched, so a header that does not decode was written so: by a newer holdfast.
    try:
        header = _decode_segment_header(text)
        if header.format <= FORMAT:
            return header
        found = f"format {header.format}"
    except (ValueError, RecursionError) as error:
        found = f"a header that this version cannot read ({error})"
    raise NewerFormatError(
        f"{path} has {found}; this holdfast reads journals up to format {FORMAT}. Nothing was changed. "
        f"Upgrade it: pip install --upgrade holdfast"
    )


def _read_previous(root: str, disk: Disk, newest_first: list[SegmentLink]) -> SegmentLink | None:
    link = newest_first[-1]
    seal = link.header.prev
    if seal is None:
        return None
    name = parse_name(seal.segment)
    if name is None or name >= link.name:
        raise BrokenChain(link.name, f"it names {seal.segment!r} as its predecessor", newest_first[-2::-1])
    try:
        previous = _read_link(root, disk, name)
    except FileNotFoundError:
        raise BrokenChain(name, "the file is missing", newest_first[::-1]) from None
    if previous is None:
        raise BrokenChain(name, "its header is damaged", newest_first[::-1])
    return previous._replace(seal=seal, end_seq=link.name.first_seq)
