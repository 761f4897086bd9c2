"""Death at every step: whatever was accepted is there afterwards, and the journal continues.

"Killed" is the death of the process: what it wrote stays. "Power" also takes everything that was not synced.
"""

from __future__ import annotations

import errno
import random

import pytest
from faulty_disk import FaultyDisk, Killed
from journal_tools import ROOT, numbered, records, reopen

from holdfast.errors import FencedError
from holdfast.journal import Journal, SnapshotStore, read_journal, segment_writer
from holdfast.journal.recovery import verify_journal

EIO = OSError(errno.EIO, "Input/output error")
ENOSPC = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 300)


class Ledger:
    """What the journal has promised."""

    def __init__(self) -> None:
        self.accepted = 0
        self.durable = 0

    def note(self, journal: Journal) -> None:
        self.accepted = max(self.accepted, journal.accepted_seq)
        self.durable = max(self.durable, journal.synced_seq)


def live(disk: FaultyDisk, ledger: Ledger) -> None:
    """A driver's life: opening, appends, rotations, syncs (one of them fails), a snapshot, the end."""
    journal = reopen(disk)
    snapshots = SnapshotStore(ROOT, epoch=journal.claim.epoch, disk=disk)
    snapshots.load()
    for n in range(6):
        first = journal._writer.last_seq + 1
        journal.append(numbered(first, first + n))
        ledger.note(journal)
        if n == 2:
            disk.fail("sync", EIO)
        if n % 2 == 0:
            journal.sync()
            ledger.note(journal)
        if n == 4:
            snapshots.archive([b"archived by %d" % journal.claim.epoch])
            snapshots.write(journal.synced_seq, journal.position, b"state %d" % journal.synced_seq)
    journal.close()
    ledger.note(journal)


def live_twice(disk: FaultyDisk, ledger: Ledger) -> None:
    live(disk, ledger)
    live(disk, ledger)


def check(disk: FaultyDisk, promised: int) -> None:
    found = records(disk)
    assert len(found) >= promised
    assert found == numbered(1, len(found))
    assert [finding for finding in verify_journal(ROOT, disk=disk) if finding.level == "damage"] == []
    snapshot = SnapshotStore(ROOT, disk=disk).load()
    if snapshot is not None:
        rest = [payload for _, payload in read_journal(ROOT, after=snapshot.position, disk=disk)]
        assert snapshot.payload == b"state %d" % snapshot.seq
        assert numbered(1, snapshot.seq) + rest == found


@pytest.mark.parametrize("death", ["killed", "power"])
@pytest.mark.parametrize("torn_part", [0.0, 0.6])
def test_death_at_every_step_of_two_drivers_loses_nothing_that_was_promised(death: str, torn_part: float) -> None:
    total = FaultyDisk()
    live_twice(total, Ledger())
    for step in range(len(total.steps)):
        disk, ledger = FaultyDisk(), Ledger()
        disk.kill_at(step, torn_part)
        with pytest.raises(Killed):
            live_twice(disk, ledger)
        if death == "power":
            disk.power_cut()
            check(disk, ledger.durable)
        else:
            disk.survive()
            check(disk, ledger.accepted)
        live(disk, ledger)
        check(disk, ledger.durable)


def test_twenty_deaths_in_a_row_lose_nothing_that_was_promised() -> None:
    """Each driver dies a few steps later than the one before, many of them while they open the journal."""
    disk, ledger = FaultyDisk(), Ledger()
    for n in range(20):
        disk.kill_at(len(disk.steps) + 2 * n, torn_part=n / 20)
        with pytest.raises(Killed):
            live_twice(disk, ledger)
        disk.survive()
        check(disk, ledger.accepted)
    live(disk, ledger)
    check(disk, ledger.accepted)


@pytest.mark.parametrize("seed", range(150))
def test_random_faults_deaths_and_takeovers_keep_every_promise(seed: int) -> None:
    rng = random.Random(seed)
    disk = FaultyDisk()
    journal = reopen(disk)
    zombies: list[Journal] = []
    accepted: dict[int, bytes] = {}
    durable: dict[int, bytes] = {}
    sent: list[bytes] = []
    # Nobody can know of a sync that failed in a process which then died before it could write the records again;
    # they are in the page cache and nowhere else. Three faults at once, if power fails then: not promised.
    power_may_fail = True

    def start_again() -> Journal:
        disk.survive()
        disk.capacity = None
        sent[:] = records(disk)
        return reopen(disk)

    for _ in range(40):
        fault = rng.choice(["none"] * 4 + ["write", "sync", "create", "created", "sync_dir", "open", "full"])
        if fault == "full":
            disk.capacity = sum(len(file.seen) for file in disk._files.values()) + rng.randrange(200)
        elif fault != "none":
            disk.fail(fault, rng.choice([EIO, ENOSPC]), rng.randrange(1, 3))
        new = [rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(1, 5))]
        sent += new
        journal.append(new)
        if rng.random() < 0.3:
            disk.capacity = None
            journal.flush()
        if rng.random() < 0.4:
            journal.sync()
        accepted.update({seq: sent[seq - 1] for seq in range(len(accepted) + 1, journal.accepted_seq + 1)})
        durable.update({seq: sent[seq - 1] for seq in range(len(durable) + 1, journal.synced_seq + 1)})
        end = rng.random()
        if end < 0.08:
            zombies.append(journal)
            power_may_fail = power_may_fail and not journal._writer._broken
            journal = start_again()
        elif end < 0.16 and power_may_fail:
            disk.power_cut()
            accepted = dict(durable)
            zombies.clear()
            journal = start_again()
        for zombie in zombies:
            with pytest.raises(FencedError):
                zombie.append([b"void"])
            zombie._writer.queue([b"void"])
            zombie._writer.drain()
        found = dict(read_journal(ROOT, disk=disk))
        assert accepted.items() <= found.items()
        assert durable.items() <= found.items()
    disk.survive()
    disk.capacity = None
    journal.close()
    assert list(dict(read_journal(ROOT, disk=disk)).values()) == sent
