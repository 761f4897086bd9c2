"""The part of a local mirror's journal that is durable on this machine and not uploaded yet.

Follows the chain of segments, as readers do, so that nothing is uploaded that a successor has sealed off. A piece ends
with a whole record and holds no record that is not fsynced; a segment is uploaded only after the segment before it is
in the store up to its seal. So the store holds, after every part, a journal that can be read.

Owns the account of what was uploaded. Must never write, and must never know of the store.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from holdfast.errors import JournalDamagedError
from holdfast.journal.claims import Claim
from holdfast.journal.epoch import fenced_error
from holdfast.journal.frames import FRAME_OVERHEAD, scan
from holdfast.journal.reader import chain_damage, read_link
from holdfast.journal.segments import BrokenChain, SegmentLink, read_chain, relative_path, segment_path
from holdfast.shipping.parts import Piece
from holdfast.shipping.progress_file import Extent, Shipped
from holdfast.storage.local import Disk

PART_BYTES = 4 * 1024 * 1024
"""A part is closed when it has grown to this size. One record that is larger still travels whole."""


class Batch(NamedTuple):
    """What the next part should hold.

    Attributes:
        pieces: Which bytes of which files.
        body: These bytes.
        seq: Last record that is in the store with them.
        next_seq: Number of the record behind the last piece, in that piece's file.
        more: Whether there was more than fits.
    """

    pieces: list[Piece]
    body: bytes
    seq: int
    next_seq: int
    more: bool


class _Taken(NamedTuple):
    """What can be shipped of one segment: the bytes behind those shipped, the next record, and why it ends there."""

    data: bytes
    next_seq: int
    ends: str  # "sealed": continue with the next segment; "synced", "full"


class PendingRecords:
    """The local journal, as its shipper sees it.

    Attributes:
        seq: Last record that is in the store.
    """

    def __init__(self, root: str, disk: Disk, claim: Claim, shipped: Shipped) -> None:
        """Find out where shipping has to continue.

        Raises:
            JournalDamagedError: The local journal is damaged.
        """
        self.seq = shipped.seq
        self._root = root
        self._disk = disk
        self._claim = claim
        self._files = dict(shipped.files)
        self._hashers: dict[str, xxhash.xxh3_128] = {}
        self._back_to = ""
        self._cursors: dict[str, tuple[int, int]] = {}  # where in a segment which record begins
        for link in self._links():
            cursor = self._cursor(link)
            self.seq = max(self.seq, cursor[1] - 1)
            self._back_to = link.name.file
            if link.seal is None or self._done(link) < link.seal.length:
                break

    @property
    def files(self) -> dict[str, Extent]:
        """How much of each file is in the store."""
        return dict(self._files)

    def collect(self, synced: int, limit: int = PART_BYTES) -> Batch:
        """Return what to ship next.

        Args:
            synced: Last record that the local journal has made durable; ask for it before this call.
            limit: How many bytes are enough.

        Raises:
            FencedError: A newer driver works on this mirror.
            JournalDamagedError: The local journal is damaged.
            OSError: It cannot be read.
        """
        pieces: list[Piece] = []
        bodies: list[bytes] = []
        seq, next_seq, room, more = self.seq, 0, limit, False
        links = self._links()
        for index, link in enumerate(links):
            done = self._done(link)
            if link.seal is not None and done >= link.seal.length:
                continue
            if room <= 0:
                more = True
                break
            taken = self._take(links[index:], synced, room)
            if taken.data:
                pieces.append(Piece(relative_path(link.name.file), done, len(taken.data)))
                bodies.append(taken.data)
                room -= len(taken.data)
                next_seq = taken.next_seq
                seq = max(seq, next_seq - 1)
            if taken.ends != "sealed":
                more = taken.ends == "full"
                break
        return Batch(pieces, b"".join(bodies), seq, next_seq, more)

    def shipped(self, batch: Batch) -> None:
        """Note that a batch is in the store."""
        start = 0
        for file, offset, size in ((piece.file, piece.offset, piece.size) for piece in batch.pieces):
            hasher = self._hashers.get(file)
            if hasher is None:
                hasher = xxhash.xxh3_128(self._disk.read(f"{self._root}/{file}", 0, offset) if offset else b"")
            hasher.update(batch.body[start : start + size])
            # Only the newest segment grows; the hash of a finished one is never needed again.
            self._hashers = {file: hasher}
            self._files[file] = Extent(offset + size, hasher.hexdigest())
            self._back_to = file.rpartition("/")[2]
            self._cursors = {self._back_to: (offset + size, batch.next_seq)}
            start += size
        self.seq = max(self.seq, batch.seq)

    def _links(self) -> list[SegmentLink]:
        try:
            links = read_chain(self._root, self._disk, back_to=self._back_to).links
        except BrokenChain as broken:
            raise chain_damage(self._root, self._disk, broken) from None
        if links and links[-1].name.epoch > self._claim.epoch:
            raise fenced_error(self._root, self._claim, disk=self._disk)
        return links

    def _done(self, link: SegmentLink) -> int:
        known = self._files.get(relative_path(link.name.file))
        return known.size if known is not None else 0

    def _cursor(self, link: SegmentLink) -> tuple[int, int]:
        """Return the last place of a segment, within what was shipped, at which a record begins; and its number."""
        file = link.name.file
        if file not in self._cursors:
            done = self._done(link)
            start, seq = link.body, link.name.first_seq
            if link.end_seq is not None and link.seal is not None and done >= link.seal.length:
                return link.seal.length, link.end_seq
            if done > link.body:
                found = scan(self._disk.read(segment_path(self._root, file), start, done - start), seq)
                start, seq = start + found.offset, found.next_seq
            self._cursors = {file: (start, seq)}
        return self._cursors[file]

    def _take(self, links: list[SegmentLink], synced: int, room: int) -> _Taken:
        link = links[0]
        path = segment_path(self._root, link.name.file)
        done = self._done(link)
        offset, seq = self._cursor(link)
        limit = link.seal.length if link.seal is not None else None
        # A segment that repeats records of an older one replaces it as soon as its header is in the store. So these
        # records go with the header, however many they are: the history in the store must never become shorter.
        whole = done == 0 and seq <= self.seq
        size = -1 if limit is None else limit - offset
        wanted = room if not whole and (size < 0 or room < size) else size
        buffer = self._disk.read(path, offset, wanted)
        found = scan(buffer, seq)
        if not found.payloads and len(buffer) == wanted:  # one record that is larger than a part
            buffer = self._disk.read(path, offset, size)
            found = scan(buffer, seq)
            found = found._replace(payloads=found.payloads[:1])
        kept = found.payloads[: max(0, synced - seq + 1)]
        end = offset + sum(map(len, kept)) + FRAME_OVERHEAD * len(kept)
        head = self._disk.read(path, 0, link.body) if done == 0 else b""
        data = head + buffer[max(0, done - offset) : end - offset]
        next_seq = seq + len(kept)
        if end == limit:
            return _Taken(data, next_seq, "sealed")
        if next_seq > synced or len(kept) < len(found.payloads):
            return _Taken(data, next_seq, "synced")
        if wanted != size and kept:
            return _Taken(data, next_seq, "full")
        raise self._damage(links, end, next_seq)

    def _damage(self, links: list[SegmentLink], offset: int, seq: int) -> JournalDamagedError:
        """Return the error for a record that was durable here and cannot be read."""
        found = read_link(self._root, self._disk, links, links[0].body, links[0].name.first_seq)
        file = relative_path(links[0].name.file)
        return found.damage or JournalDamagedError(
            f"The journal of {self._root} is damaged at record {seq}: {file} ends at byte {offset}, although later "
            f"records were synced. The {seq - 1} records before it are in the store, and nothing was overwritten. "
            f"Check the disk; `holdfast verify {self._root}` lists all damage.",
            file=file,
            offset=offset,
            seq=seq,
        )
