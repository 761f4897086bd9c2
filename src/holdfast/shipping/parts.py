"""Parts: the journal as objects of a store, numbered, immutable, each with the hash of its predecessor.

A part is a header and the bytes that were appended to files below ``.holdfast/journal`` and ``.holdfast/epochs`` since
the previous part. Applied in order, the parts reproduce these files byte for byte. A merged object holds the bytes of
consecutive parts, one after the other, so that the hash chain continues through it as through single ones.

Owns names, bytes and the chain. Must never open a file, or know of a store.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

import msgspec
import xxhash

from holdfast.errors import JournalDamagedError, NewerFormatError
from holdfast.journal.claims import Claim
from holdfast.journal.reach import lost_text
from holdfast.storage.digest import digest_of

FORMAT = 1

PREFIX = ".holdfast/parts/"
"""Where the parts are, relative to the experiment's address."""

MARKS = ".holdfast/marks/"
"""Where empty objects say by their names which parts there are: a newest part that is gone is missed. Listed before the
parts, because it comes before them in the alphabet: a part whose mark is seen is there by the time parts are listed."""

EPOCHS = ".holdfast/epochs/"
PLACES = (".holdfast/journal/", EPOCHS)
"""The directories whose files parts hold."""

_MAGIC = b"hfpart\r\n"  # a copy that was made as text shows itself
_LAYOUT = struct.Struct("<8sIQ")  # magic, bytes of the header, bytes of the body
_DIGEST_BYTES = 16
_NAME = re.compile(re.escape(PREFIX) + r"(\d{12})(?:-(\d{12}))?\.hfp")
# Only what never changes once it is written. A driver's word on its syncs (``.synced``) is about its own disk.
_MARK = re.compile(re.escape(MARKS) + r"(\d{12})", re.ASCII)
_FILE = re.compile(
    rf"{re.escape(PLACES[0])}\d{{8}}-\d{{12}}(\.\d+)?\.hfj|{re.escape(EPOCHS)}\d{{8}}(\.released)?", re.ASCII
)


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of one file: where they stand in it, and how many there are.

    Attributes:
        file: Path relative to the experiment's root.
        offset: Where in the file they begin.
        size: How many bytes of the part's body they are.
    """

    file: str
    offset: int
    size: int


class PartHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a part says about itself.

    Attributes:
        format: Of the part.
        number: From 1, without gaps.
        by: The claim of the driver that made it.
        at: When, in seconds since 1970 by that driver's clock.
        prev: xxh3-128 of the bytes of the part before it; empty in the first one.
        seq: Last record of the journal that is in the store with this part.
        claims: Whether it is its driver's first one.
        released: Whether its driver has let go of the experiment with it.
        pieces: What the body consists of.
        uid: The experiment's; empty if an older holdfast made the part.
    """

    format: int = FORMAT
    number: int
    by: Claim
    at: float
    prev: str
    seq: int
    claims: bool = False
    released: bool = False
    pieces: list[Piece] = []
    uid: str = ""


_decode_part_header = msgspec.json.Decoder(PartHeader).decode


class Part(NamedTuple):
    """A part that was read and is whole.

    Attributes:
        header: What it says.
        body: The bytes of its pieces, one after the other.
        data: All of its bytes.
    """

    header: PartHeader
    body: bytes
    data: bytes

    @property
    def digest(self) -> str:
        """The hash that the next part names."""
        return digest_of(self.data)

    def contents(self) -> Iterator[tuple[Piece, bytes]]:
        """Return each piece and its bytes."""
        start = 0
        for piece in self.header.pieces:
            yield piece, self.body[start : start + piece.size]
            start += piece.size


class Span(NamedTuple):
    """An object of the store, by the numbers of the parts that it holds."""

    first: int
    last: int

    @property
    def key(self) -> str:
        """The object's key."""
        merged = f"-{self.last:012d}" if self.last > self.first else ""
        return f"{PREFIX}{self.first:012d}{merged}.hfp"


def part_key(number: int) -> str:
    """Return the key of a single part. Whoever makes that object is the writer of this number."""
    return Span(number, number).key


def next_key(key: str) -> str:
    """Return the key of the part that follows a single one."""
    span = parse_key(key)
    assert span is not None, key
    return part_key(span.last + 1)


def parse_key(key: str) -> Span | None:
    """Return which parts an object holds, or None if it is something else."""
    match = _NAME.fullmatch(key)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    return Span(first, last) if first >= 1 and (match[2] is None or last > first) else None


def mark_key(number: int) -> str:
    """Return the key that says that there is a part of this number."""
    return f"{MARKS}{number:012d}"


def parse_mark(key: str) -> int | None:
    """Return of which part a key says that it is there, or None if it is something else."""
    match = _MARK.fullmatch(key)
    return None if match is None else int(match[1])


def encode_part(header: PartHeader, body: bytes) -> bytes:
    """Return the bytes of a part."""
    assert sum(piece.size for piece in header.pieces) == len(body)
    text = msgspec.json.encode(header) + b"\n"
    data = _LAYOUT.pack(_MAGIC, len(text), len(body)) + text + body
    return data + xxhash.xxh3_128_digest(data)


def decode_parts(data: bytes, key: str) -> list[Part]:
    """Read a small object that holds one part or several; raises as `read_parts` does."""
    return list(read_parts(io.BytesIO(data), key))


def read_parts(stream: BinaryIO, key: str) -> Iterator[Part]:
    """Read an object that holds one part or several, one after the other: a merged one may be large.

    Args:
        stream: Its bytes, from the start.
        key: Its key, which says what numbers it must hold.

    Raises:
        JournalDamagedError: It is not what was written there.
        NewerFormatError: It was written by a newer holdfast.
    """
    span = parse_key(key)
    assert span is not None
    end = stream.seek(0, io.SEEK_END)
    before: Part | None = None
    number = span.first
    offset = stream.seek(0)
    while offset < end or before is None:
        part = _read_one(stream, offset, end, key)
        if part.header.number != number:
            raise damaged(key, f"holds part {part.header.number} where {number} belongs")
        if before is not None:
            check_link(before, part, key)
        yield part
        before, number = part, number + 1
        offset += len(part.data)
    if span.last != number - 1:
        raise damaged(key, f"ends with part {number - 1}, not with {span.last}")


def _read_one(stream: BinaryIO, start: int, end: int, key: str) -> Part:
    layout = stream.read(_LAYOUT.size)
    if len(layout) < _LAYOUT.size:
        raise damaged(key, f"ends at byte {end}, in the middle of a part", offset=start)
    magic, text_size, body_size = _LAYOUT.unpack(layout)
    rest = text_size + body_size + _DIGEST_BYTES  # not to be believed yet: it may be more than there is memory
    if magic != _MAGIC or end - start < _LAYOUT.size + rest:
        raise damaged(key, f"has no whole part at byte {start}", offset=start)
    data = layout + stream.read(rest)
    view = memoryview(data)
    if xxhash.xxh3_128_digest(view[:-_DIGEST_BYTES]) != view[-_DIGEST_BYTES:]:
        raise damaged(key, f"does not match its checksum at byte {start}", offset=start)
    body_at = _LAYOUT.size + text_size
    header = _decode_header(data[_LAYOUT.size : body_at], key)
    body = data[body_at:-_DIGEST_BYTES]
    if sum(piece.size for piece in header.pieces) != len(body) or not all(map(_is_allowed, header.pieces)):
        raise damaged(key, "names files that no part holds", offset=start)
    return Part(header, body, data)


def _decode_header(text: bytes, key: str) -> PartHeader:
    # The checksum has matched, so a header that does not decode was written so: by a newer holdfast.
    try:
        header = _decode_part_header(text)
        if header.format <= FORMAT:
            return header
        found = f"format {header.format}"
    except (ValueError, RecursionError) as error:
        found = f"a header that this version cannot read ({error})"
    raise NewerFormatError(
        f"{key} has {found}; this holdfast reads parts up to format {FORMAT}. Nothing was changed. "
        f"Upgrade it: pip install --upgrade holdfast"
    )


def _is_allowed(piece: Piece) -> bool:
    # Whoever can write to the store must not be able to write elsewhere on the machines that read it.
    return is_shipped(piece.file) and piece.offset >= 0 and piece.size >= 0


def is_shipped(file: str) -> bool:
    """Tell whether a file, by its path relative to the root, is one that parts hold."""
    return _FILE.fullmatch(file) is not None


def check_link(before: Part, part: Part, key: str) -> None:
    """Check that one part follows another.

    Args:
        before: The part that is known to be right.
        part: The one with the next number.
        key: Where it was found.

    Raises:
        JournalDamagedError: It was made to follow another one, or by somebody who had not claimed the experiment.
    """
    header, last = part.header, before.header
    if header.uid and last.uid and header.uid != last.uid:
        raise damaged(key, "belongs to another experiment", seq=last.seq + 1)
    if header.prev != before.digest:
        raise damaged(key, f"does not follow the part {last.number} that is there", seq=last.seq + 1)
    if header.by.writer != last.by.writer and not (header.claims and header.by.epoch > last.by.epoch):
        raise damaged(
            key,
            f"was written by pid {header.by.pid} on {header.by.host} (epoch {header.by.epoch}) without a claim",
            seq=last.seq + 1,
        )


def cover(spans: Iterable[Span], *, after: int = 0) -> list[Span]:
    """Choose as few objects as possible that hold every part behind ``after``.

    Args:
        spans: What the store has.
        after: Number of the last part that is not needed.

    Returns:
        Objects in order. The first may begin before ``after``, and each one before the end of the one before it.

    Raises:
        JournalDamagedError: A number is missing though there are later ones.
    """
    chosen: list[Span] = []
    reach = best = after
    candidate: Span | None = None
    for span in sorted(spans):
        if span.last <= reach:
            continue
        if span.first > reach + 1:
            if candidate is None:
                raise _missing(reach + 1, span)
            chosen.append(candidate)
            reach, candidate = candidate.last, None
            if span.first > reach + 1:
                raise _missing(reach + 1, span)
        if span.last > best:
            best, candidate = span.last, span
    if candidate is not None:
        chosen.append(candidate)
    return chosen


def _missing(number: int, later: Span) -> JournalDamagedError:
    return damaged(part_key(number), f"is missing, although there is {later.key}")


def damaged(
    key: str, what: str, *, offset: int = 0, seq: int = 0, missing: int | None = None, since: float | None = None
) -> JournalDamagedError:
    """Return the error for an object that is not what was written there; `lost_parts` finds out what that has cost."""
    lost = f" {lost_text(missing, since, which='written')}." if missing or since is not None else ""
    return JournalDamagedError(
        f"The journal in the store is damaged: {key} {what}.{lost} The parts before it are not affected, and nothing "
        f"was overwritten. Put the object back from another version or copy of the bucket. The machine that wrote it "
        f"has the same records in its mirror. Otherwise: `holdfast copy URL DIR --before-damage` copies the usable "
        f"part to a local directory, and `holdfast repair DIR` rebuilds the rest from result files and checkpoints.",
        file=key,
        offset=offset,
        seq=seq,
        missing=missing,
        since=since,
        summary=f"{key} {what}",
    )
