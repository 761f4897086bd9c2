"""Parts: what is written is read back, every change is noticed, and any set of objects is covered or the gap named."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import JournalDamagedError, NewerFormatError
from holdfast.journal.claims import Claim
from holdfast.shipping import parts
from holdfast.shipping.parts import Part, PartHeader, Piece, Span

CLAIM = Claim(epoch=3, writer="w", host="h", pid=7, machine="m", process_start=1, claimed_at=2.0)
SEGMENT = ".holdfast/journal/00000003-000000000001.hfj"

bodies = st.lists(st.binary(max_size=40), max_size=4)
spans = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 6)).map(lambda pair: Span(pair[0], pair[0] + pair[1])), max_size=14
)


def make(number: int, pieces: list[bytes], prev: str = "", **changes: object) -> Part:
    header = PartHeader(
        number=number,
        by=CLAIM,
        at=1.0,
        prev=prev,
        seq=number,
        pieces=[Piece(SEGMENT, 10 * index, len(data)) for index, data in enumerate(pieces)],
    )
    header = msgspec.structs.replace(header, **changes)
    body = b"".join(pieces)
    return Part(header, body, parts.encode_part(header, body))


def chain(lengths: list[list[bytes]], first: int = 1) -> list[Part]:
    made: list[Part] = []
    for pieces in lengths:
        made.append(make(first + len(made), pieces, made[-1].digest if made else ""))
    return made


@given(bodies, st.integers(1, 10**12 - 1), st.booleans(), st.booleans())
def test_what_is_encoded_is_read_back(pieces: list[bytes], number: int, claims: bool, released: bool) -> None:
    part = make(number, pieces, claims=claims, released=released)
    found = parts.decode_parts(part.data, parts.part_key(number))
    assert found == [part]
    assert [data for _, data in found[0].contents()] == pieces


@given(bodies, st.data())
def test_every_flipped_bit_and_every_cut_is_noticed(pieces: list[bytes], data: st.DataObject) -> None:
    part = make(5, pieces)
    place = data.draw(st.integers(0, len(part.data) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    flipped = part.data[:place] + bytes([part.data[place] ^ bit]) + part.data[place + 1 :]
    for damaged in (flipped, part.data[:place], part.data + b"x"):
        with pytest.raises(JournalDamagedError) as info:
            parts.decode_parts(damaged, parts.part_key(5))
        assert info.value.file == parts.part_key(5)


@given(st.lists(bodies, min_size=2, max_size=6), st.integers(1, 1000))
def test_a_merged_object_holds_its_parts_and_their_chain(lengths: list[list[bytes]], first: int) -> None:
    made = chain(lengths, first)
    span, data = Span(first, first + len(made) - 1), b"".join(part.data for part in made)
    assert parts.decode_parts(data, span.key) == made
    for index in range(len(made)):  # a part that is left out, or repeated
        for wrong in (made[:index] + made[index + 1 :], made[:index] + made[index : index + 1] + made[index:]):
            with pytest.raises(JournalDamagedError):
                parts.decode_parts(b"".join(part.data for part in wrong), span.key)


@given(spans, st.integers(0, 12))
def test_objects_that_cover_all_parts_are_found_or_the_first_gap_is_named(found: list[Span], after: int) -> None:
    held = {number for span in found for number in range(span.first, span.last + 1) if number > after}
    missing = min((n for n in range(after + 1, max(held, default=after) + 1) if n not in held), default=None)
    if missing is not None:
        with pytest.raises(JournalDamagedError, match="is missing") as info:
            parts.cover(found, after=after)
        assert info.value.file == parts.part_key(missing)
        return
    chosen = parts.cover(found, after=after)
    covered = {number for span in chosen for number in range(span.first, span.last + 1) if number > after}
    assert covered == held
    assert set(chosen) <= set(found)
    for index in range(len(chosen)):  # none is superfluous
        rest = chosen[:index] + chosen[index + 1 :]
        assert {n for span in rest for n in range(span.first, span.last + 1) if n > after} != held


@given(st.integers(1, 10**12 - 2), st.integers(0, 1000))
def test_names_are_read_back_and_stand_in_order(first: int, more: int) -> None:
    span = Span(first, min(first + more, 10**12 - 1))
    assert parts.parse_key(span.key) == span
    assert parts.part_key(first) < parts.part_key(first + 1)


@pytest.mark.parametrize("name", ["1.hfp", "000000000000.hfp", "000000000002-000000000002.hfp", "000000000001.hfp.tmp"])
def test_other_names_are_not_parts(name: str) -> None:
    assert parts.parse_key(parts.PREFIX + name) is None


@pytest.mark.parametrize(
    "file",
    [
        "spec.json",
        ".holdfast/journal/../../escaped",
        ".holdfast/epochs/00000001.synced",
        "/etc/passwd",
        ".holdfast/journal/",
    ],
)
def test_a_part_cannot_name_other_files(file: str) -> None:
    header = msgspec.structs.replace(make(1, []).header, pieces=[Piece(file, 0, 0)])
    with pytest.raises(JournalDamagedError, match="names files that no part holds"):
        parts.decode_parts(parts.encode_part(header, b""), parts.part_key(1))


def test_a_newer_format_is_not_taken_for_damage() -> None:
    with pytest.raises(NewerFormatError, match="format 2"):
        parts.decode_parts(make(1, [b"x"], format=2).data, parts.part_key(1))
    text = b'{"format":2,"whatever":1}\n'
    data = parts._LAYOUT.pack(parts._MAGIC, len(text), 0) + text
    with pytest.raises(NewerFormatError, match="cannot read"):
        parts.decode_parts(data + parts.xxhash.xxh3_128_digest(data), parts.part_key(1))


def test_a_part_under_another_number_is_damage() -> None:
    with pytest.raises(JournalDamagedError, match="holds part 4 where 5 belongs"):
        parts.decode_parts(make(4, []).data, parts.part_key(5))


def test_another_writer_must_begin_with_a_claim_of_a_higher_epoch() -> None:
    first = make(1, [])
    other = msgspec.structs.replace(CLAIM, writer="v")
    newer = msgspec.structs.replace(other, epoch=4)
    parts.check_link(first, make(2, [], first.digest, by=newer, claims=True), "key")
    for by, claims in ((newer, False), (other, True), (other, False)):
        with pytest.raises(JournalDamagedError, match="without a claim"):
            parts.check_link(first, make(2, [], first.digest, by=by, claims=claims), "key")
