"""Frames on the wire, however the stream is cut."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.trainable.messages import FrameBuffer


@given(st.lists(st.binary(max_size=300), max_size=20), st.lists(st.integers(1, 400), min_size=1))
def test_payloads_come_out_whole_and_in_order_however_the_stream_is_cut(payloads, cuts):
    stream = b"".join(len(payload).to_bytes(4, "little") + payload for payload in payloads)
    buffer, found, turn = FrameBuffer(), [], 0
    while stream:
        size = cuts[turn % len(cuts)]
        found += buffer.feed(stream[:size])
        stream, turn = stream[size:], turn + 1
    assert found == payloads
