"""What the journal's tests share: a root, opening it again and again, and damaging its files."""

from __future__ import annotations

import os
import sys

from faulty_disk import FaultyDisk

from holdfast.journal import Journal, claim_epoch, read_journal
from holdfast.journal.segments import journal_dir

ROOT = "/exp"
DRIVER = [sys.executable, os.path.join(os.path.dirname(__file__), "journal_driver.py")]


def reopen(disk: FaultyDisk, **options: object) -> Journal:
    """Open the journal as the next driver would."""
    claim = claim_epoch(ROOT, takeover=True, disk=disk)
    return Journal.create_or_append(ROOT, claim, disk=disk, threaded=False, **options)  # type: ignore[arg-type]


def records(disk: FaultyDisk) -> list[bytes]:
    """Return the payloads of the history, having checked that their numbers have no gap."""
    found = list(read_journal(ROOT, disk=disk))
    assert [seq for seq, _ in found] == list(range(1, len(found) + 1))
    return [payload for _, payload in found]


def segments(disk: FaultyDisk) -> list[str]:
    """Return the paths of all segments, oldest first."""
    return [f"{journal_dir(ROOT)}/{file}" for file in disk.list(journal_dir(ROOT))]


def numbered(first: int, last: int) -> list[bytes]:
    """Return distinct payloads."""
    return [b"record %d " % n + b"x" * (n % 50) for n in range(first, last + 1)]


def forget_marks(disk: FaultyDisk) -> None:
    """Remove what drivers said of their syncs, as if the power had failed before any of it reached the disk."""
    disk.notes.clear()
    for file in disk.list(f"{ROOT}/.holdfast/epochs"):
        if file.endswith(".released"):
            disk.remove(f"{ROOT}/.holdfast/epochs/{file}")
