"""Snapshots: a folded state next to the journal, so that reopening need not read all of it.

A snapshot is ``.holdfast/snapshots/<record>.hfs``: a header frame and one payload. What no later record changes
any more is not written again with every snapshot but appended once to an archive, ``archive-<epoch>.hfa``; a
snapshot names the archives and how much of each belongs to it. A driver appends to its own archive only.

Owns the snapshot directory. Must never be needed: every file in it can be deleted, damaged or out of date, and
`SnapshotStore.load` then says None and the journal is read from an earlier place.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec

from holdfast.errors import DamageError, InternalError
from holdfast.journal.frames import decode_header, encode_frames, encode_header, scan
from holdfast.journal.reader import Position, holds_position
from holdfast.storage.local import REAL_DISK, TEMP_PREFIX, AppendFile, Disk

FORMAT = 1

KEPT = 2
"""How many snapshots are kept: the newest, and one to fall back to."""

_SNAPSHOT = re.compile(r"(\d{12})\.hfs")
_ARCHIVE = re.compile(r"archive-(\d{8})(?:\.\d+)?\.hfa")
_MAX_RANK = 1000
_log = logging.getLogger("holdfast.journal")


class _ArchivePart(msgspec.Struct, frozen=True):
    """How much of an archive belongs to a snapshot: bytes and records."""

    file: str
    length: int
    count: int


class _Header(msgspec.Struct, frozen=True):
    """The text of a snapshot's first frame."""

    format: int
    seq: int
    position: Position
    archives: list[_ArchivePart]


_decode_header = msgspec.json.Decoder(_Header).decode


class _Unusable(Exception):
    """Why a snapshot cannot be used."""


class _Damaged(_Unusable):
    """It is not what was written: nobody will ever use it."""


class Snapshot:
    """A state that can be continued from.

    Attributes:
        seq: Last record folded into it.
        position: Where the journal continues behind that record.
        payload: The state, as it was given to `SnapshotStore.write`.
    """

    def __init__(self, seq: int, position: Position, payload: bytes, archived: list[list[bytes]]) -> None:
        self.seq = seq
        self.position = position
        self.payload = payload
        self._archived = archived

    @property
    def archived(self) -> Iterator[bytes]:
        """The archive's records, in the order in which they were archived."""
        return chain.from_iterable(self._archived)


class SnapshotStore:
    """The snapshots of one experiment. A driver loads first, then archives and writes."""

    def __init__(self, root: str | os.PathLike[str], *, epoch: int = 0, disk: Disk = REAL_DISK) -> None:
        """Look at the snapshots of an experiment.

        Args:
            root: The experiment's root.
            epoch: The driver's epoch; 0 for one who only reads.
            disk: Where the root is.
        """
        self._root = os.path.abspath(root)
        self._directory = os.path.join(self._root, ".holdfast", "snapshots")
        self._disk = disk
        self._epoch = epoch
        self._finished: list[_ArchivePart] = []  # archives that later snapshots include and nobody appends to
        self._own: _ArchivePart | None = None
        self._file: AppendFile | None = None
        self._damaged: set[int] = set()  # seen by `load`, for the next `write` to remove

    def load(self) -> Snapshot | None:
        """Return the newest snapshot that is whole and fits the journal, or None.

        What is archived from now on follows what the returned snapshot has archived.
        """
        for seq in sorted(self._snapshots(), reverse=True):
            try:
                return self._load(seq)
            except (_Unusable, OSError, DamageError) as error:
                if isinstance(error, _Damaged):
                    self._damaged.add(seq)
                _log.warning(
                    "snapshot %s of %s is not used (%s): the journal is read from further back", seq, self._root, error
                )
        return None

    def load_any(self) -> Snapshot | None:
        """Return the newest snapshot that is whole, also if the journal has become shorter than that."""
        for seq in sorted(self._snapshots(), reverse=True):
            try:
                return self._read(seq)[0]
            except (_Unusable, OSError) as error:
                _log.warning("snapshot %s of %s is not used: %s", seq, self._root, error)
        return None

    def peek(self) -> Snapshot | None:
        """Return the newest snapshot that is whole and fits the journal, without what is archived; or None."""
        for seq in sorted(self._snapshots(), reverse=True):
            try:
                snapshot = self._read(seq, archives=False)[0]
                if holds_position(self._root, snapshot.position, disk=self._disk):
                    return snapshot
            except (_Unusable, OSError):
                continue  # whoever opens the experiment says so
        return None

    def numbers(self) -> list[int]:
        """Return of which records there are snapshots, oldest first."""
        return sorted(self._snapshots())

    def place(self, seq: int) -> Position:
        """Return where in the journal the snapshot of record ``seq`` stands."""
        return self._header(seq)[0].position

    def damage_of(self, seq: int) -> str:
        """Say what of the snapshot of record ``seq`` is damaged, its archives included; "" if nothing is."""
        try:
            self._read(seq)
        except _Damaged as error:
            # A live driver may have removed it, and after that an archive.
            return str(error) if self._disk.exists(self._path(_snapshot_file(seq))) else ""
        except (_Unusable, OSError, DamageError):  # of another version, or the disk does not give it
            return ""
        return ""

    def archive(self, records: Sequence[bytes]) -> None:
        """Append records that no later snapshot has to repeat.

        Raises:
            OSError: They are not archived; do not write a snapshot that relies on them.

        Durability:
            None, until the next `write`.
        """
        if not records:
            return
        own = self._own or self._create_archive()
        assert self._file is not None
        frames = encode_frames(own.count + 1, records)
        rest = memoryview(frames)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            # What follows half a frame cannot be read: the next records need another file.
            self.close()
            raise
        self._own = _ArchivePart(own.file, own.length + len(frames), own.count + len(records))

    def write(self, seq: int, position: Position, payload: bytes) -> None:
        """Store a state, and remove all snapshots but this one and the one before it.

        Args:
            seq: Last record folded into the state. It must be durable already.
            position: Where the journal continues behind it.
            payload: The state, without what was archived.

        Raises:
            OSError: Nothing was stored; the earlier snapshots are untouched.

        Durability:
            The snapshot survives a power cut when this returns.
        """
        if position.next_seq != seq + 1 or not self._epoch:
            raise InternalError(
                f"A snapshot of record {seq} was to be written at {position} by epoch {self._epoch}: the position "
                f"must be the one behind that record, and a reader's store cannot write."
            )
        if self._file is not None:
            self._file.sync()
        parts = self._finished + ([self._own] if self._own else [])
        header = encode_header(msgspec.json.encode(_Header(FORMAT, seq, position, parts)) + b"\n")
        data = header + encode_frames(seq, [payload])
        self._disk.write_atomic(self._path(_snapshot_file(seq)), data, label="snapshot")
        try:
            self._prune(seq, {part.file for part in parts})
        except OSError as error:
            _log.debug("removing old snapshots failed, the next one tries again: %s", error)

    def close(self) -> None:
        """Let go of the archive file. What is archived later goes to a new one."""
        if self._own is not None:
            self._finished.append(self._own)
            self._own = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _path(self, file: str) -> str:
        return os.path.join(self._directory, file)

    def _snapshots(self) -> list[int]:
        matches = (_SNAPSHOT.fullmatch(file) for file in self._disk.list(self._directory))
        return [int(match[1]) for match in matches if match]

    def _create_archive(self) -> _ArchivePart:
        header = encode_header(msgspec.json.encode({"format": FORMAT, "epoch": self._epoch}) + b"\n")
        for rank in range(_MAX_RANK):
            file = f"archive-{self._epoch:08d}{f'.{rank}' if rank else ''}.hfa"
            if self._disk.create_exclusive(self._path(file), header):
                self._disk.sync_dir(self._directory)
                self._file = self._disk.open_append(self._path(file))
                self._own = _ArchivePart(file, len(header), 0)
                return self._own
        raise InternalError(
            f"Epoch {self._epoch} of {self._root} has begun {_MAX_RANK} archives: its storage fails all the time. "
            f"The journal is safe. Check the disk, then restore the experiment."
        )

    def _load(self, seq: int) -> Snapshot:
        snapshot, archives = self._read(seq)
        if not holds_position(self._root, snapshot.position, disk=self._disk):
            raise _Unusable(f"the journal's history does not reach record {seq} where it says")
        self._finished = archives
        return snapshot

    def _read(self, seq: int, *, archives: bool = True) -> tuple[Snapshot, list[_ArchivePart]]:
        header, buffer, end = self._header(seq)
        body = scan(buffer, seq, end)
        if len(body.payloads) != 1 or body.offset != len(buffer):
            raise _Damaged("its content is damaged")
        archived = [self._read_archive(part) for part in header.archives] if archives else []
        return Snapshot(seq, header.position, body.payloads[0], archived), header.archives

    def _header(self, seq: int) -> tuple[_Header, bytes, int]:
        """Return a snapshot's header, all of its bytes, and where its content begins."""
        buffer = self._disk.read(self._path(_snapshot_file(seq)))
        frame = decode_header(buffer)
        if frame is None:
            raise _Damaged("its header is damaged")
        try:
            header = _decode_header(frame.payload)
        except (ValueError, RecursionError) as error:
            raise _Unusable(f"its header was written by another version of holdfast: {error}") from None
        if header.format > FORMAT:
            raise _Unusable(f"it has format {header.format}")
        if header.seq != seq:
            raise _Damaged(f"it is of record {header.seq}")
        return header, buffer, frame.end

    def _read_archive(self, part: _ArchivePart) -> list[bytes]:
        if _ARCHIVE.fullmatch(part.file) is None or part.length < 0:
            raise _Damaged(f"{part.file!r} is not the name of an archive")
        try:
            buffer = self._disk.read(self._path(part.file), 0, part.length)
        except FileNotFoundError:
            raise _Damaged(f"{part.file} is missing") from None
        header = decode_header(buffer)
        found = scan(buffer, 1, header.end) if header else None
        if found is None or found.offset != part.length or len(found.payloads) != part.count:
            raise _Damaged(f"{part.file} does not hold {part.count} records in {part.length} bytes")
        return found.payloads

    def _prune(self, seq: int, needed: set[str]) -> None:
        """Remove what neither the snapshot just written nor the one before it needs.

        A snapshot of a later record cannot be of this history any more: it was cut by a repair. A damaged one is no
        snapshot to fall back to.
        """
        older = sorted(known for known in self._snapshots() if known < seq and known not in self._damaged)[1 - KEPT :]
        surplus = [_snapshot_file(known) for known in set(self._snapshots()) - {seq, *older}]
        files = self._disk.list(self._directory)
        surplus += [file for file in files if file.startswith(TEMP_PREFIX)]
        archives = {file for file in files if (match := _ARCHIVE.fullmatch(file)) and int(match[1]) < self._epoch}
        if archives - needed:
            surplus += sorted(archives - needed - self._named_by(older))
        for file in surplus:
            self._disk.remove(self._path(file))

    def _named_by(self, snapshots: list[int]) -> set[str]:
        """Return the archives that some snapshots name; a snapshot that cannot be read names none."""
        named: set[str] = set()
        for seq in snapshots:
            frame = decode_header(self._disk.read(self._path(_snapshot_file(seq))))
            if frame is not None:
                try:
                    header = _decode_header(frame.payload)
                except (ValueError, RecursionError):
                    continue
                named.update(part.file for part in header.archives)
        return named


def damaged_snapshots(root: str | os.PathLike[str], *, disk: Disk = REAL_DISK) -> list[tuple[str, str]]:
    """Return the snapshots that are damaged, or name an archive that is, relative to the root, and why."""
    store = SnapshotStore(root, disk=disk)
    found = []
    for seq in store.numbers():
        if reason := store.damage_of(seq):
            found.append((f".holdfast/snapshots/{_snapshot_file(seq)}", reason))
    return found


def drop_unfit(root: str, disk: Disk) -> None:
    """Remove the snapshots that are damaged, and those of records that a repair has cut; the repair keeps a copy."""
    store = SnapshotStore(root, disk=disk)
    for seq in store.numbers():
        try:
            fits = not store.damage_of(seq) and holds_position(root, store.place(seq), disk=disk)
        except (_Unusable, OSError):
            continue
        if not fits:
            disk.remove(os.path.join(root, ".holdfast", "snapshots", _snapshot_file(seq)))


def _snapshot_file(seq: int) -> str:
    return f"{seq:012d}.hfs"
