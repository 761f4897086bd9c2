"""What a damaged or missing part of the journal in a store has cost: how many records, and since when.

Whoever restores a mirror stops at the first part that cannot be used. This looks at the parts around it, after that,
for the error alone. Owns that account. Must never be needed: whatever it cannot read leaves the error as it was.
"""

from __future__ import annotations

import os
import tempfile
from typing import NamedTuple

from holdfast.errors import DamageError, JournalDamagedError, StorageError
from holdfast.journal.frames import FRAME_OVERHEAD, decode_header, frame_end
from holdfast.journal.segments import parse_name
from holdfast.shipping import parts
from holdfast.shipping.parts import Part, Span
from holdfast.shipping.progress_file import Shipped, read_note
from holdfast.shipping.remote_holder import look
from holdfast.storage.store import Fetching, Store


class _Around(NamedTuple):
    """The last part before the damage that can be used, and the first one behind it that can be read."""

    before: Part | None
    behind: Part | None


def measured(store: Store, root: str, damage: JournalDamagedError) -> JournalDamagedError:
    """Return the same error, with what is missing.

    Args:
        store: The experiment's address.
        root: The mirror, which may remember what it has shipped.
        damage: As it was raised for an object of the store; any other error is returned as it is.
    """
    span = parts.parse_key(damage.file)
    what = damage.summary.removeprefix(f"{damage.file} ")
    if span is None or not what:
        return damage
    try:
        around = _look_around(store, root, span)
    except (StorageError, DamageError, OSError):
        return damage
    before = around.before
    kept = 0 if before is None else before.header.seq
    missing = _missing(around, kept, read_note(root))
    since = None if before is None else before.header.at
    return parts.damaged(damage.file, what, offset=damage.offset, seq=kept + 1, missing=missing, since=since)


def _look_around(store: Store, root: str, span: Span) -> _Around:
    spans = look(store, parts.PREFIX).spans
    earlier = [each for each in spans if each.last < span.first]
    later = sorted(each for each in spans if each.first > span.first)
    before: Part | None = None
    behind: Part | None = None
    with tempfile.TemporaryDirectory(prefix=".holdfast.hydrating-", dir=root) as work:
        for each in [*sorted(earlier, key=_end)[-1:], *(each for each in spans if each == span)]:
            ends = _readable(store, each, work)
            if ends is not None and (before is None or _follows(before, ends[0])):
                before = ends[1]
        for each in later:
            ends = _readable(store, each, work)
            if ends is not None and _is_behind(before, ends[0]):
                behind = ends[0]
                break
    return _Around(before, behind)


def _end(span: Span) -> int:
    return span.last


def _readable(store: Store, span: Span, work: str) -> tuple[Part, Part] | None:
    """The first part of an object, and the last one before what is damaged in it; None if nothing can be read."""
    path = os.path.join(work, "object")
    first: Part | None = None
    last: Part | None = None
    try:
        store.fetch([Fetching(span.key, path)])
        with open(path, "rb") as file:
            for last in parts.read_parts(file, span.key):
                first = first or last
    except DamageError:
        pass
    return None if first is None or last is None else (first, last)


def _follows(before: Part, part: Part) -> bool:
    try:
        parts.check_link(before, part, "")
    except JournalDamagedError:
        return False
    return part.header.number == before.header.number + 1


def _is_behind(before: Part | None, part: Part) -> bool:
    """Whether a part is of the same experiment, and not of an older time."""
    if before is None:
        return True
    header, last = part.header, before.header
    same = not header.uid or not last.uid or header.uid == last.uid
    return same and header.number > last.number and header.seq >= last.seq


def _missing(around: _Around, kept: int, note: Shipped | None) -> int | None:
    """How many records stand between the two parts; None if that cannot be told."""
    if around.behind is not None:
        first = _first_record(around.behind)
        return max(0, first - 1 - kept) or None if first is not None else None
    return max(0, note.seq - kept) or None if note is not None else None


def _first_record(part: Part) -> int | None:
    """Number of the first record that a part holds."""
    counted = 0
    for piece, data in part.contents():
        if not piece.file.startswith(parts.PLACES[0]):
            continue
        name = parse_name(piece.file.removeprefix(parts.PLACES[0]))
        if piece.offset == 0 and name is not None:
            return name.first_seq - counted
        inside = _count(data)
        if inside is None:
            return None
        counted += inside
    return part.header.seq - counted + 1


def _count(data: bytes) -> int | None:
    """How many frames some bytes are; None if they are something else."""
    header = decode_header(data)
    offset, count = 0 if header is None else header.end, 0
    while offset + FRAME_OVERHEAD <= len(data):
        offset = frame_end(data, offset)
        count += 1
    return count if offset == len(data) else None
