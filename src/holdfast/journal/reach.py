"""How far a history must reach: what was known to be durable, compared with what can be read.

A driver says in ``.holdfast/epochs/<epoch>.synced`` after each sync, and in ``<epoch>.released`` when it leaves, up to
where its journal is durable; a snapshot says of which record it is. A history that ends before that place has become
shorter. Every reader and every new driver compares through this file, so that none of them takes what is left for all.

Which mark counts: the newest, and only if no newer driver has begun a segment. That driver's header has sealed what was
before it, and whoever was taken over may have continued for a while and marked records that are void.

Owns the comparison and its error. Must never write, and must never need a mark: one that is missing or damaged proves
nothing. Then nobody vouches for the history (`vouched_by`), and whoever opens it compares it with result files.
"""

from __future__ import annotations

import re
import time
from typing import NamedTuple

import msgspec

from holdfast.core import events as ev
from holdfast.errors import DamageError, JournalDamagedError
from holdfast.journal.claims import Claim
from holdfast.journal.frames import decode_header
from holdfast.journal.position import START, Position, decode_position
from holdfast.journal.segments import SegmentLink, parse_name, relative_path
from holdfast.storage.local import Disk

_decode_claim = msgspec.json.Decoder(Claim).decode

REPAIRING = ".repairing"
"""Suffix of the file, beside an epoch's, that exists while a repair of that epoch is not complete."""

_EPOCHS = ".holdfast/epochs/"
_EPOCH = re.compile(r"(\d{8})(?:\.synced|\.released)?", re.ASCII)
_SNAPSHOT = re.compile(r"\d{12}\.hfs", re.ASCII)
_HEADER_READ = 64 * 1024


class DurableMark(NamedTuple):
    """Up to where a history was durable.

    Attributes:
        epoch: Of the driver that knew it.
        file: What says so, relative to the experiment's root.
        position: The place; None if only this can be told: that driver had begun a segment.
    """

    epoch: int
    file: str
    position: Position | None

    @property
    def is_last_word(self) -> bool:
        """Whether a driver said it of its own end; a snapshot only tells how far the journal was once."""
        return self.position is not None and self.file.startswith(_EPOCHS)


class End(NamedTuple):
    """Where reading has ended.

    Attributes:
        position: Behind the last record.
        last: That record's payload; None if it was read earlier.
    """

    position: Position
    last: bytes | None


NOTHING = End(START, None)


class _SnapshotPlace(msgspec.Struct):
    """What matters here of a snapshot's header."""

    seq: int
    position: Position


_decode_snapshot_place = msgspec.json.Decoder(_SnapshotPlace).decode


def newest_mark(root: str, disk: Disk) -> DurableMark | None:
    """Return the newest mark. Ask before reading the journal: a live driver only ever adds to both, in that order."""
    marks = [mark for mark in (_of_drivers(root, disk), _of_snapshots(root, disk)) if mark is not None]
    return max(marks, key=_age, default=None)


def binds(mark: DurableMark | None, head: SegmentLink | None) -> bool:
    """Tell whether a mark says how far a history must reach whose newest segment is ``head``."""
    if mark is None or (head is not None and head.name.epoch > mark.epoch):
        return False
    return mark.position is not None or head is None or head.name.epoch < mark.epoch


def vouched_by(mark: DurableMark | None, head: SegmentLink | None) -> int:
    """Return the epoch of the driver that said how far this history reaches; 0 if none has, or its word is lost."""
    return mark.epoch if mark is not None and mark.is_last_word and binds(mark, head) else 0


def shortfall(
    root: str, disk: Disk, mark: DurableMark | None, links: list[SegmentLink], end: End
) -> JournalDamagedError | None:
    """Compare where a history ends with where it must reach.

    Args:
        root: The experiment's root.
        disk: Where it is.
        mark: From `newest_mark`, asked before the journal was read.
        links: The history's segments, at least the newest; empty if there is none.
        end: Where reading has ended.

    Returns:
        The error to raise, or None if nothing is known to be missing.
    """
    head = links[-1] if links else None
    if head is not None and disk.exists(repairing_path(root, head.name.epoch)):
        return _unfinished_repair(root, head, end)
    if mark is None or not binds(mark, head):
        return None
    place = mark.position
    if place is None:
        text = f"{mark.file} says that epoch {mark.epoch} had begun a segment, and there is none"
        return _error(root, disk, f"{mark.epoch:08d}-*.hfj", text, None, end)
    name = parse_name(place.segment)
    if name is not None and (head is None or name > head.name):
        text = f"it is missing, and by {mark.file} the journal had {records_text(place.next_seq - 1)}"
        return _error(root, disk, place.segment, text, place, end)
    if end.position.next_seq < place.next_seq:
        text = (
            f"it ends with record {end.position.next_seq - 1} at byte {end.position.offset}, and by {mark.file} the "
            f"journal had {records_text(place.next_seq - 1)}"
        )
        return _error(root, disk, end.position.segment, text, place, end)
    return None


def foreign(root: str, disk: Disk, links: list[SegmentLink]) -> JournalDamagedError | None:
    """Find a segment that was made by another driver than the one that claimed its epoch here."""
    writers: dict[int, str | None] = {}
    for link in links:
        epoch = link.header.epoch
        if epoch not in writers:
            writers[epoch] = _claimed_by(root, disk, epoch)
        if writers[epoch] not in (None, link.header.writer):
            file = relative_path(link.name.file)
            summary = (
                f"it belongs to another experiment, or to another copy of this one: it was not written by the driver "
                f"that claimed epoch {epoch} here (.holdfast/epochs/{epoch:08d})"
            )
            return JournalDamagedError(
                f"The journal of {root} is damaged at record {link.name.first_seq}: {file}: {summary}. "
                f"The {records_text(link.name.first_seq - 1)} before it are not affected, and nothing was overwritten. "
                f"Put the right file back from a backup; or `holdfast repair {root}` keeps a copy of everything and "
                f"rebuilds what it can.",
                file=file,
                offset=0,
                seq=link.name.first_seq,
                summary=summary,
            )
    return None


def repairing_path(root: str, epoch: int) -> str:
    """Return the file that exists while the repair of this epoch is not complete."""
    return f"{root}/.holdfast/epochs/{epoch:08d}{REPAIRING}"


def _age(mark: DurableMark) -> tuple[int, int]:
    return mark.epoch, 0 if mark.position is None else mark.position.next_seq


def _of_drivers(root: str, disk: Disk) -> DurableMark | None:
    found = (_EPOCH.fullmatch(name) for name in disk.list(f"{root}/.holdfast/epochs"))
    for epoch in sorted({int(match[1]) for match in found if match}, reverse=True):
        mark = _of_driver(root, disk, epoch)
        if mark is not None:
            return mark
    return None


def _of_driver(root: str, disk: Disk, epoch: int) -> DurableMark | None:
    marks: list[DurableMark] = []
    for suffix in (".synced", ".released"):
        file = f".holdfast/epochs/{epoch:08d}{suffix}"
        try:
            place = decode_position(disk.read(f"{root}/{file}"))
        except (OSError, DamageError):
            continue
        if place is not None and _epoch_of(place) != epoch:
            place = None
        # A driver makes ".synced" when it has a segment; ".released" also if it came to nothing.
        if place is not None or suffix == ".synced":
            marks.append(DurableMark(epoch, file, place))
    return max(marks, key=_age, default=None)


def _of_snapshots(root: str, disk: Disk) -> DurableMark | None:
    names = [name for name in disk.list(f"{root}/.holdfast/snapshots") if _SNAPSHOT.fullmatch(name)]
    for name in sorted(names, reverse=True):
        file = f".holdfast/snapshots/{name}"
        try:
            frame = decode_header(disk.read(f"{root}/{file}", 0, _HEADER_READ))
            if frame is None:
                continue
            place = _decode_snapshot_place(frame.payload).position
        except (OSError, DamageError, ValueError, RecursionError):
            continue  # a live driver has replaced it, or it is damaged
        if place.segment:
            return DurableMark(_epoch_of(place), file, place)
    return None


def _epoch_of(place: Position) -> int:
    name = parse_name(place.segment)
    return 0 if name is None else name.epoch


def _claimed_by(root: str, disk: Disk, epoch: int) -> str | None:
    try:
        claim = _decode_claim(disk.read(f"{root}/.holdfast/epochs/{epoch:08d}"))
    except (OSError, DamageError, ValueError, RecursionError):
        return None
    return claim.writer or None


def records_text(count: int) -> str:
    """Return a number of records in words."""
    return "1 record" if count == 1 else f"{count} records"


def lost_text(missing: int | None, since: float | None, *, which: str = "everything") -> str:
    """Return in a sentence how many records are missing, and since when."""
    lost = "An unknown number of records is"
    if missing:
        lost = f"{records_text(missing)} {'is' if missing == 1 else 'are'}"
    when = "" if since is None else f", {which} after {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(since))}"
    return f"{lost} missing{when}"


def snapshot_text(root: str, disk: Disk, kept: int) -> str:
    """Name the newest snapshot, for a list, if it knows more than the first ``kept`` records; else ""."""
    snapshot = _of_snapshots(root, disk)
    if snapshot is None or snapshot.position is None or snapshot.position.next_seq <= kept + 1:
        return ""
    return f"a snapshot of record {snapshot.position.next_seq - 1}, "


def written_at(last: bytes | None) -> float | None:
    """Return when a record was written; None if that is not known."""
    if last is None:
        return None
    try:
        return ev.decode(last).at
    except (ValueError, RecursionError):
        return None


def _error(root: str, disk: Disk, segment: str, what: str, place: Position | None, end: End) -> JournalDamagedError:
    kept = end.position.next_seq - 1
    missing = None if place is None else max(0, place.next_seq - 1 - kept)
    since = written_at(end.last)
    summary = f"{what}. {lost_text(missing, since)}"
    file = relative_path(segment)
    return JournalDamagedError(
        f"The journal of {root} has lost records: {file}: {summary}. What still exists: the first "
        f"{records_text(kept)}, {snapshot_text(root, disk, kept)}result files and checkpoints, all as they were. "
        f"Nothing was overwritten. Put the file back from a backup if there is one. Otherwise `holdfast verify {root}` "
        f"lists all damage, and `holdfast repair {root}` keeps a copy of everything, rebuilds what it can from "
        f"snapshots, result files and checkpoints, and makes the experiment resumable.",
        file=file,
        offset=end.position.offset if segment == end.position.segment else 0,
        seq=kept + 1,
        missing=missing,
        since=since,
        summary=summary,
    )


def _unfinished_repair(root: str, head: SegmentLink, end: End) -> JournalDamagedError:
    return JournalDamagedError(
        f"The journal of {root} is damaged, and its repair (epoch {head.name.epoch}) was interrupted or is under way. "
        f"Everything is safe in .holdfast/damaged-<n>. Type `holdfast repair {root}` again.",
        file=f".holdfast/epochs/{head.name.epoch:08d}{REPAIRING}",
        offset=0,
        seq=end.position.next_seq,
        summary="a repair was interrupted, or is under way",
    )
