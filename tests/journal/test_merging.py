"""Merging parts, and reading what was merged, beside a training that needs the memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.journal import Journal, claim_epoch, read_journal
from holdfast.shipping import parts
from holdfast.shipping.claiming import claim_remote
from holdfast.shipping.merging import Merger
from holdfast.shipping.parts import Span
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.shipping.shipper import Shipper
from holdfast.storage.filesystems import FilesystemStore, LocalFiles
from holdfast.storage.transfers import Transfers

RECORD_BYTES = 2_000_000
COUNT = 64
MEMORY = 64 * 1024 * 1024


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FilesystemStore]:
    """One on disk, which keeps nothing in memory."""
    transfers = Transfers(files_at_once=2, bytes_in_flight=16_000_000, part_bytes=8_000_000)
    yield FilesystemStore(LocalFiles(), str(tmp_path / "store"), transfers)
    transfers.close()


def ship_large_parts(store: FilesystemStore, root: Path) -> int:
    """A journal whose parts together are more than may be in memory. Returns how many parts there are."""
    (root / ".holdfast").mkdir(parents=True)
    restored = restore_mirror(store, root)
    claim = claim_epoch(root)
    start = claim_remote(store, restored, claim)
    journal = Journal.create_or_append(root, claim, threaded=False)
    shipper = Shipper(store, journal, start, merging=(1_000_000, 0))
    for number in range(COUNT):
        journal.append([bytes([number]) * RECORD_BYTES])
        journal.sync()
        shipper.request(journal.written_seq)
        shipper.step()
    journal.close()
    assert shipper.close()
    return len(store.list(parts.PREFIX))


@contextmanager
def within(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak:,} bytes were in memory"


def test_many_large_parts_are_merged_and_read_in_little_memory(store: FilesystemStore, tmp_path: Path) -> None:
    root = tmp_path / "one" / "exp"
    count = ship_large_parts(store, root)
    with within(MEMORY):
        Merger(store, str(root), size=count, kept=0).run()
    keys = {stat.key for stat in store.list(parts.PREFIX)}
    assert keys == {Span(1, count).key, parts.part_key(1)}, "the claim stays"
    with within(MEMORY):
        restored = restore_mirror(store, tmp_path / "two" / "exp")
    assert restored.shipped.number == count
    sizes = [len(payload) for _, payload in read_journal(restored.root)]
    assert sizes == [RECORD_BYTES] * COUNT
    assert not list(root.glob(".holdfast.merging-*"))
