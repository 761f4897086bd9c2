"""Merge many small parts into one object, so that the next driver has few objects to list and to download.

Owns the creation of merged objects and the deletion of single parts. A part is deleted only after the merged object was
read back and contains it, and never if it is among the newest parts. The first part of a driver is never deleted: a
driver that was taken over and wakes up, however late, tries to create exactly that number, and must find it taken (I4).

Any number of drivers, dead or fenced ones too, may merge at the same time: the bytes of a merged object follow from its
name. 256 parts can be a gigabyte, next to a training that needs the memory: they are streamed one by one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator

import xxhash

from holdfast.shipping import parts
from holdfast.shipping.parts import Part, Span
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.store import Fetching, Sending, Store

MERGED = 256
"""How many parts become one object."""

KEPT = 256
"""How many of the newest parts stay single objects: somebody may just have listed them."""

FETCHED_AT_ONCE = 16
"""So many parts are on the scratch disk at a time, beside the merged object."""

SCRATCH_PREFIX = ".holdfast.merging-"


class Merger:
    """Merges the parts of one experiment, from time to time."""

    def __init__(self, store: Store, root: str, *, size: int = MERGED, kept: int = KEPT) -> None:
        """Look at an experiment.

        Args:
            store: Where its parts are.
            root: A directory for scratch files, on a disk with some space: its mirror.
            size: How many parts to merge at a time.
            kept: How many of the newest parts to leave single.
        """
        self._store = store
        self._root = root
        self._size = size
        self._kept = kept
        self._claims: set[int] = set()

    def run(self) -> None:
        """Merge what can be merged, then delete what nobody needs any more.

        Raises:
            JournalDamagedError: A part is damaged. Nothing that depends on it was deleted.
            StorageError: The store does not do it; the next run continues.
        """
        spans = [span for stat in self._store.list(parts.PREFIX) if (span := parts.parse_key(stat.key))]
        singles = {span.first for span in spans if span.first == span.last}
        merged = [span for span in spans if span.last > span.first]
        scratch = tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=self._root)
        try:
            first = _reach(merged) + 1
            while singles.issuperset(range(first, first + self._size)):
                merged.append(self._merge(range(first, first + self._size), scratch))
                first += self._size
            newest = max((span.last for span in spans), default=0)
            for span in merged:
                surplus = singles.intersection(range(span.first, min(span.last, newest - self._kept) + 1))
                if surplus - self._claims:
                    self._delete(span, surplus, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _merge(self, numbers: range, scratch: str) -> Span:
        """Put the parts of these numbers into one object; never more than one of them is in memory."""
        span = Span(numbers[0], numbers[-1])
        path = os.path.join(scratch, "merged")
        hasher = xxhash.xxh3_128()
        before: Part | None = None
        with open(path, "wb") as file:
            for part in self._read([Span(number, number) for number in numbers], scratch):
                if before is not None:
                    parts.check_link(before, part, parts.part_key(part.header.number))
                file.write(part.data)
                hasher.update(part.data)
                before = part
        crashpoint("merge.before_put")
        self._store.send([Sending(path, span.key)])
        # The hash that `send` returns is of what left this machine. From now on readers prefer the merged object, and
        # soon it is the only copy: one that the store has damaged must be found while every part is still there.
        back = self._store.fetch([Fetching(span.key, path)])
        if back[0] != hasher.hexdigest():
            raise parts.damaged(span.key, "is not what was just written there")
        os.remove(path)
        return span

    def _delete(self, span: Span, surplus: set[int], scratch: str) -> None:
        # Its parts name each other's hashes: if the last one is the one that is there, so are all before it.
        witness = max(surplus)
        single = next(self._read([Span(witness, witness)], scratch)).digest
        claims: set[int] = set()
        for part in self._read([span], scratch):
            number = part.header.number
            if number == witness and part.digest != single:
                raise parts.damaged(span.key, f"holds another part {witness} than {parts.part_key(witness)}")
            if part.header.claims:
                claims.add(number)
        crashpoint("merge.before_delete")
        # Claims stay for ever, though the merged object has them too. A driver that was taken over continues with
        # the number behind its last part, and that is its successor's claim. If the number were free, its records would
        # count as durable, and no reader would ever see them. Claiming survives a free number because it lists the
        # parts once more; a driver that ships one part a second cannot do that for each.
        self._store.delete([parts.part_key(number) for number in sorted(surplus - claims)])
        self._claims |= claims

    def _read(self, spans: list[Span], scratch: str) -> Iterator[Part]:
        for at in range(0, len(spans), FETCHED_AT_ONCE):
            batch = spans[at : at + FETCHED_AT_ONCE]
            paths = [os.path.join(scratch, f"{index}.hfp") for index in range(len(batch))]
            self._store.fetch([Fetching(span.key, path) for span, path in zip(batch, paths, strict=True)])
            for span, path in zip(batch, paths, strict=True):
                with open(path, "rb") as file:
                    yield from parts.read_parts(file, span.key)
                os.remove(path)


def _reach(merged: Iterable[Span]) -> int:
    """Return up to which part there are merged objects without a gap."""
    reach = 0
    for span in sorted(merged):
        if span.first <= reach + 1:
            reach = max(reach, span.last)
    return reach
