"""Machines, drivers and a store, for the tests of shipping and of restoring a mirror. Journals and files are real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.journal import Journal, claim_epoch, read_journal
from holdfast.journal import epoch as epochs
from holdfast.journal.claims import Claim
from holdfast.shipping.claiming import claim_remote
from holdfast.shipping.remote_holder import refuse_live, remote_claim
from holdfast.shipping.restore_mirror import RestoredMirror, restore_mirror
from holdfast.shipping.shipper import Shipper
from holdfast.testing.memory_store import MemoryStore

EPOCH_ZERO = 1_700_000_000.0


class FakeClock:
    """Time passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds

    def wall(self) -> float:
        return EPOCH_ZERO + self.at


class Killed(BaseException):
    """The process died here; no handler may run on."""


class Lab:
    """Several machines and one store; knows which drivers' processes are alive."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, merging: tuple[int, int] = (256, 256)) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.store = MemoryStore(clock=self.clock.wall, sleep=self.clock.sleep)
        self.machine = "one"
        self.merging = merging
        self.alive: set[str] = set()
        self.drivers: list[Driver] = []
        self.promised: list[bytes] = []  # what was ever said to be in the store
        self.count = 0
        monkeypatch.setattr(epochs, "this_machine", lambda: self.machine)
        monkeypatch.setattr(epochs, "_host", lambda: self.machine)
        monkeypatch.setattr(epochs, "is_alive", self._is_alive)

    def _is_alive(self, claim: Claim, age_s: float) -> bool:
        return claim.writer in self.alive if claim.machine == self.machine else abs(age_s) < epochs.SILENCE_S

    def root(self, machine: str) -> str:
        return str(self.folder / machine / "experiment")

    @contextmanager
    def on(self, machine: str) -> Iterator[None]:
        before, self.machine = self.machine, machine
        try:
            yield
        finally:
            self.machine = before

    def drive(self, machine: str = "one", *, takeover: bool = False) -> Driver:
        """Start a driver."""
        with self.on(machine):
            driver = Driver(self, machine, takeover)
        self.drivers.append(driver)
        return driver

    def promise(self, told: list[bytes]) -> None:
        """A driver says that this is in the store. It may say so late, but never something else."""
        both = min(len(told), len(self.promised))
        assert told[:both] == self.promised[:both]
        self.promised = max(told, self.promised, key=len)

    def look(self, machine: str = "reader") -> list[bytes]:
        """Return the history that an empty machine finds in the store."""
        self.count += 1
        with self.on(machine):
            return history(restore_mirror(self.store, self.root(f"{machine}{self.count}"), read_only=True).root)


class Driver:
    """A driver as the real one is put together: refuse, restore_mirror, claim here, claim there, open, ship."""

    def __init__(self, lab: Lab, machine: str, takeover: bool) -> None:
        self.lab = lab
        self.machine = machine
        self.root = lab.root(machine)
        if not takeover:
            refuse_live(lab.store, remote_claim(lab.store, self.root))
        self.restored: RestoredMirror = restore_mirror(lab.store, self.root)
        self.claim = claim_epoch(self.root, takeover=takeover)
        start = claim_remote(lab.store, self.restored, self.claim, takeover=takeover)
        self.journal = Journal.create_or_append(self.root, self.claim, threaded=False)
        lab.alive.add(self.claim.writer)
        self.shipper = Shipper(lab.store, self.journal, start, clock=lab.clock, merging=lab.merging)
        self.found = history(self.root)
        self.history = [*self.found]
        self.successors: list[Claim | None] = []
        self.shipper.on_fenced = self.successors.append

    def append(self, count: int = 1, *, size: int = 0) -> None:
        for _ in range(count):
            self.lab.count += 1
            payload = b"record %d by epoch %d on %s " % (self.lab.count, self.claim.epoch, self.machine.encode())
            payload += b"x" * size
            self.journal.append([payload])
            self.history.append(payload)

    def ship(self, seconds: float = 1.0) -> None:
        """Sync, and let the shipper do what is due after some seconds."""
        self.journal.sync()
        self.lab.clock.sleep(seconds)
        self.step()

    def step(self) -> None:
        """Let the shipper work until it has nothing to do; hold it to what it says then."""
        before = self.shipper.shipped_seq
        with self.lab.on(self.machine):
            while self.shipper.step() == 0.0:
                pass
        if self.shipper.shipped_seq > before:
            self.lab.promise(self.history[: self.shipper.shipped_seq])

    def write(self, count: int = 1, *, size: int = 0) -> None:
        """Append and ship."""
        self.append(count, size=size)
        self.ship()

    def kill(self) -> None:
        """The process is gone; nothing is closed."""
        self.lab.alive.discard(self.claim.writer)

    def leave(self) -> bool:
        with self.lab.on(self.machine):
            self.journal.close()
            shipped = self.shipper.close()
        self.kill()
        return shipped


def history(root: str) -> list[bytes]:
    """Return the records of a root, having checked that their numbers have no gap."""
    found = list(read_journal(root))
    assert [seq for seq, _ in found] == list(range(1, len(found) + 1))
    payloads = [payload for _, payload in found]
    assert len(set(payloads)) == len(payloads)
    return payloads


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, place: str, nth: int = 1) -> Iterator[None]:
    """Let the process die when it passes a crash point the n-th time; that must happen."""
    left = nth

    def crashpoint(name: str) -> None:
        nonlocal left
        if name == place:
            left -= 1
            if left == 0:
                raise Killed(name)

    with monkeypatch.context() as patch:
        for module in ("shipper", "merging", "restore_mirror"):
            patch.setattr(f"holdfast.shipping.{module}.crashpoint", crashpoint)
        with pytest.raises(Killed):
            yield
