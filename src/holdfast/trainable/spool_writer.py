"""Reports that do not wait for their answer: a file keeps them until the driver has them in its journal (I1).

A trial that reports every few microseconds would spend its time waiting for answers, each of which says "continue".
Where nothing can say anything else, the driver lets it run ahead by some reports. Each of those is first written to the
attempt's own spool, which is what makes ``report()`` safe: if driver and trial are killed together, the next driver
takes from there what never arrived.

Owns the spool's format and place. Must never be needed while a driver is alive: what a trial sent arrives, whatever
becomes of the trial.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from holdfast.core.observations import Report
from holdfast.errors import DamageError
from holdfast.journal.frames import decode_header, encode_frames, encode_header, scan
from holdfast.storage.local import look_anew
from holdfast.storage.untrusted import read_regular

FOLDER = os.path.join(".holdfast", "ahead")

MAX_SPOOL_INTERVAL_S = 0.002
"""Reports further apart than this wait for their answer: that costs them little, and they learn a decision at once."""

MAX_SPOOL_BYTES = 1024 * 1024
"""A spool of this size waits until everything in it has arrived, and begins anew."""

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)\.hfr")
_decode = msgspec.msgpack.Decoder(Report).decode


class SpoolOwner(NamedTuple):
    """Whose spool it is.

    The epoch of its driver belongs to that: a power cut can make the journal forget an attempt whose spool is still
    there, and the next driver starts another one of the same number.
    """

    epoch: int
    n: int
    attempt: int


class _Header(msgspec.Struct):
    """What a spool begins with."""

    owner: SpoolOwner
    ordinal: int
    """Of its first report."""


_decode_header = msgspec.json.Decoder(_Header).decode


class Spool:
    """The writer's side: one attempt's file, made when it is first needed.

    Attributes:
        size: How many bytes of reports are in it.
    """

    def __init__(self, root: str, owner: SpoolOwner) -> None:
        self.size = 0
        self._owner = owner
        self._path = spool_path(root, owner)
        self._fd = -1

    def add(self, ordinal: int, report: bytes) -> bool:
        """Keep an encoded report; False if it may be kept or not: then nothing must be added any more.

        Durability:
            It survives the death of every process when this returns True; not a power cut.
        """
        record = encode_frames(ordinal, [report])
        if not self.size:
            first = _Header(self._owner, ordinal)
            record = encode_header(msgspec.json.encode(first) + b"\n") + record
        try:
            if self._fd < 0:
                self._fd = self._open()
            whole = os.write(self._fd, record) == len(record)
        except OSError:
            return False
        self.size += len(record)
        return whole

    def clear(self) -> bool:
        """Everything has arrived: begin anew. False if that cannot be done."""
        try:
            os.ftruncate(self._fd, 0)
        except OSError:
            return False
        self.size = 0
        return True

    def leave(self) -> None:
        """Add nothing any more, and leave the file to whoever needs it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def remove(self) -> None:
        """Everything has arrived, and nothing follows."""
        if self._fd >= 0:
            self.leave()
            _remove(self._path)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        try:
            return os.open(self._path, flags, 0o644)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(self._path))  # not its parents: an experiment that was moved away is gone
            return os.open(self._path, flags, 0o644)


def spool_path(root: str | os.PathLike[str], owner: SpoolOwner) -> str:
    """Where an attempt keeps what it has reported ahead."""
    return os.path.join(root, FOLDER, "{}-{}-{}.hfr".format(*owner))


class SpoolFolder:
    """The reader's side: the spools under an experiment's root."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = root

    def owners(self) -> list[SpoolOwner]:
        """Those who have left a spool."""
        folder = os.path.join(self._root, FOLDER)
        try:
            look_anew(os.path.dirname(folder))
            names = os.listdir(folder)
        except FileNotFoundError:
            return []
        return sorted(SpoolOwner(*map(int, match.groups())) for match in map(_NAME.fullmatch, names) if match)

    def read(self, owner: SpoolOwner, after: int) -> list[Report]:
        """What an attempt has reported after ``after``, up to the first gap; a torn end is left out."""
        try:
            data = read_regular(spool_path(self._root, owner))
        except FileNotFoundError:
            return []
        header = decode_header(data)
        if header is None:
            return []
        try:
            first = _decode_header(header.payload)
            if first.owner != owner or first.ordinal > after + 1:
                return []
            payloads = scan(data, first.ordinal, header.end).payloads[after + 1 - first.ordinal :]
            return [msgspec.structs.replace(_decode(payload), passed=True) for payload in payloads]
        except (ValueError, RecursionError) as error:  # its checksums are right: somebody has written it so
            raise DamageError(
                f"{spool_path(self._root, owner)} cannot be read: {error}. Nothing was changed. What it holds was "
                "reported and never journaled: keep a copy of it before you remove it."
            ) from error

    def forget(self, owners: Iterable[SpoolOwner]) -> None:
        """Remove these spools."""
        for owner in owners:
            _remove(spool_path(self._root, owner))


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # it costs space and nothing else
        os.remove(path)
