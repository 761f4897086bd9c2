"""Frames: whatever is cut or flipped, no record changes and no record disappears without a word."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.journal.frames import (
    classify_tail,
    count_readable,
    decode_header,
    encode_frames,
    encode_header,
    last_crc,
    scan,
)

payload_lists = st.lists(st.binary(max_size=60), max_size=12)
some_payloads = st.lists(st.binary(max_size=60), min_size=1, max_size=12)
seqs = st.one_of(st.integers(1, 200), st.integers(65_500, 65_600), st.integers(2**32 - 8, 2**32 + 8))


@given(seqs, payload_lists)
def test_what_is_encoded_is_read_back(first_seq: int, payloads: list[bytes]) -> None:
    frames = encode_frames(first_seq, payloads)
    found = scan(frames, first_seq)
    assert found.payloads == payloads
    assert found.offset == len(frames)
    assert found.next_seq == first_seq + len(payloads)
    assert classify_tail(frames, found.offset, found.next_seq) is None
    if payloads:
        assert found.crc == last_crc(frames)


@given(seqs, some_payloads, st.data())
def test_a_cut_anywhere_keeps_every_whole_record_and_is_a_torn_tail(
    first_seq: int, payloads: list[bytes], data: st.DataObject
) -> None:
    frames = encode_frames(first_seq, payloads)
    cut = frames[: data.draw(st.integers(0, len(frames)))]
    found = scan(cut, first_seq)
    assert found.payloads == payloads[: len(found.payloads)]
    missing = encode_frames(first_seq + len(found.payloads), payloads[len(found.payloads) :][:1])
    assert len(cut) - found.offset < max(1, len(missing))
    tail = classify_tail(cut, found.offset, found.next_seq)
    assert tail is None if len(cut) == found.offset else tail is not None and tail.kind == "torn"


@given(seqs, some_payloads, st.integers(1, 9000))
def test_a_tail_of_zeros_is_torn(first_seq: int, payloads: list[bytes], zeros: int) -> None:
    frames = encode_frames(first_seq, payloads) + bytes(zeros)
    found = scan(frames, first_seq)
    assert found.payloads == payloads
    tail = classify_tail(frames, found.offset, found.next_seq)
    assert tail is not None
    assert (tail.kind, tail.size) == ("torn", zeros)


@settings(max_examples=300)
@given(seqs, some_payloads, st.data())
def test_a_flipped_bit_costs_at_most_its_own_record_and_is_always_seen(
    first_seq: int, payloads: list[bytes], data: st.DataObject
) -> None:
    frames = bytearray(encode_frames(first_seq, payloads))
    bit = data.draw(st.integers(0, len(frames) * 8 - 1))
    frames[bit // 8] ^= 1 << bit % 8
    damaged = bytes(frames)
    found = scan(damaged, first_seq)
    hit = len(found.payloads)
    assert found.payloads == payloads[:hit]
    assert hit < len(payloads)
    assert found.offset <= bit // 8 < found.offset + 12 + len(payloads[hit])
    tail = classify_tail(damaged, found.offset, found.next_seq)
    assert tail is not None
    assert tail.readable == len(payloads) - hit - 1
    assert tail.kind == ("torn" if hit == len(payloads) - 1 else "damaged")


@given(seqs, some_payloads, st.binary(min_size=1, max_size=40))
def test_records_behind_lost_ones_are_counted(first_seq: int, payloads: list[bytes], rubbish: bytes) -> None:
    frames = encode_frames(first_seq + 1, payloads)
    buffer = bytes(12) + rubbish.replace(b"\xc1", b"\x00") + frames
    assert count_readable(buffer, 0, first_seq, len(buffer)) == len(payloads)


def test_a_gap_of_more_than_65536_records_is_still_bridged() -> None:
    far = 1 + 70_000
    buffer = bytes(70_000 * 12) + encode_frames(far, [b"still here", b"and here"])
    assert count_readable(buffer, 0, 1, len(buffer)) == 2


@given(seqs, st.integers(1, 1000), some_payloads)
def test_frames_in_the_wrong_place_are_not_records(first_seq: int, shift: int, payloads: list[bytes]) -> None:
    frames = encode_frames(first_seq, payloads)
    assert scan(frames, first_seq + shift).payloads == []
    assert scan(frames + frames, first_seq).payloads == payloads


@given(st.binary(max_size=80), st.binary(max_size=40), st.data())
def test_a_header_is_read_back_or_refused(text: bytes, rest: bytes, data: st.DataObject) -> None:
    frame = encode_header(text)
    header = decode_header(frame + rest)
    assert header is not None
    assert (header.payload, header.end) == (text, len(frame))
    assert decode_header(frame[:-1]) is None
    flipped = bytearray(frame)
    bit = data.draw(st.integers(0, len(frame) * 8 - 1))
    flipped[bit // 8] ^= 1 << bit % 8
    assert decode_header(bytes(flipped) + rest) is None
