"""Frames on the wire, however the stream is cut."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.storage.framing import Framing


@given(
    st.lists(st.binary(max_size=300), max_size=20),
    st.lists(st.integers(1, 400), min_size=1),
    st.sampled_from(["little", "big"]),
)
def test_payloads_come_out_whole_and_in_order_however_the_stream_is_cut(payloads, cuts, byteorder):
    framing = Framing(limit=300, byteorder=byteorder)
    stream = b"".join(map(framing.encode, payloads))
    decoder, found, turn = framing.decoder(), [], 0
    while stream:
        size = cuts[turn % len(cuts)]
        found += decoder.feed(stream[:size])
        stream, turn = stream[size:], turn + 1
    assert found == payloads
