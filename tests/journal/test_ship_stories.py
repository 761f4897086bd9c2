"""Whole stories under a seed: drivers come, write, ship, die, sleep, wake and are taken over, on several machines.

The checkers know only what drivers appended and what they said was in the store. To repeat a failing story, run its
seed: ``pytest "tests/journal/test_ship_stories.py::test_a_story_keeps_every_promise[17]"``.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from shipping import Driver, Killed, Lab, history

from holdfast.errors import ExperimentLockedError, FencedError, StorageError
from holdfast.journal import segment_writer, verify_journal
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.testing.memory_store import Fault, FaultKind

PLACES = [
    "ship.before_put",
    "ship.after_put",
    "ship.before_note",
    "merge.before_put",
    "merge.before_delete",
    "restore_mirror.file",
    "restore_mirror.before_move",
]
MACHINES = ["one", "two", "three"]
STEPS = 60


class Story:
    """One seed's."""

    def __init__(self, lab: Lab, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lab = lab
        self.random = random.Random(seed)
        self.driver: Driver | None = None
        self.sleeping: list[Driver] = []
        self.dying: str = ""
        for module in ("shipper", "merging", "restore_mirror"):
            monkeypatch.setattr(f"holdfast.shipping.{module}.crashpoint", self._crashpoint)

    def _crashpoint(self, name: str) -> None:
        if name == self.dying:
            self.dying = ""
            raise Killed(name)

    def tell(self) -> None:
        acts = [
            *[self.write] * 8,
            *[self.wait] * 3,
            self.kill,
            self.die_somewhere,
            self.fall_asleep,
            *[self.wake] * 2,
            self.begin_fault,
            *[self.heal] * 2,
            self.lose_machine,
            self.look,
            self.leave,
        ]
        for _ in range(STEPS):
            if self.driver is None:
                self.begin()
            else:
                self.random.choice(acts)()
        self.heal()
        self.dying = ""
        self.end()

    # --- what happens

    def begin(self) -> None:
        machine = self.random.choice(MACHINES)
        takeover = self.random.random() < 0.7
        if self.random.random() < 0.1:
            self.dying = self.random.choice(PLACES[-2:])
        try:
            driver = self.lab.drive(machine, takeover=takeover)
        except (Killed, ExperimentLockedError, StorageError):
            self.lab.clock.sleep(self.random.choice([1, 70]))
            if self.random.random() < 0.3:
                self.heal()
            return
        finally:
            self.dying = ""
        self.check_found(driver)
        self.driver = driver

    def write(self) -> None:
        assert self.driver is not None
        self.guarded(
            lambda driver: driver.append(self.random.randrange(1, 6), size=self.random.choice([0, 0, 30, 400]))
        )
        if self.driver is not None and self.random.random() < 0.8:
            self.guarded(lambda driver: driver.ship(self.random.choice([0.1, 1, 1, 3])))

    def wait(self) -> None:
        self.guarded(lambda driver: driver.ship(self.random.choice([1, 5, 20])))

    def kill(self) -> None:
        assert self.driver is not None
        self.driver.kill()
        self.driver = None

    def die_somewhere(self) -> None:
        self.dying = self.random.choice(PLACES[:5])
        for _ in range(6):
            self.write()
            if self.driver is None:
                break
        self.dying = ""

    def fall_asleep(self) -> None:
        assert self.driver is not None
        self.sleeping.append(self.driver)
        self.driver = None

    def wake(self) -> None:
        """A driver that slept writes and ships; if somebody came meanwhile, it must not get far."""
        if not self.sleeping:
            return
        driver = self.sleeping.pop(self.random.randrange(len(self.sleeping)))
        current, self.driver = self.driver, driver
        self.write()
        self.wait()
        if current is None:
            return
        if self.driver is driver and not driver.shipper.trouble:
            driver.ship(20)
            assert driver.shipper.fenced or driver.shipper.trouble
        driver.kill()
        self.driver = current

    def begin_fault(self) -> None:
        kind: FaultKind = self.random.choice(["unreachable", "denied", "lost", "lost", "slow"])
        until = self.lab.clock.wall() + self.random.choice([2, 30, 300])
        self.lab.store.fail(Fault(kind, until=until, chance=self.random.choice([0.3, 1.0]), delay_s=0.5))

    def heal(self) -> None:
        self.lab.store.heal()

    def lose_machine(self) -> None:
        assert self.driver is not None
        self.kill()
        gone = self.random.choice(MACHINES)
        for driver in self.sleeping:
            if driver.machine == gone:
                driver.kill()
        self.sleeping = [driver for driver in self.sleeping if driver.machine != gone]
        shutil.rmtree(self.lab.root(gone), ignore_errors=True)

    def leave(self) -> None:
        assert self.driver is not None
        driver = self.driver
        self.driver = None
        if driver.leave():
            self.lab.promise(driver.history)

    def guarded(self, act: Callable[[Driver], None]) -> None:
        """Let the driver do something, unless it dies of it or finds out that it was taken over."""
        if self.driver is None:
            return
        driver = self.driver
        try:
            act(driver)
            ended = driver.shipper.fenced
        except (Killed, FencedError):
            ended = True
        if ended:
            driver.kill()
            self.driver = None

    # --- what must be true

    def look(self) -> None:
        try:
            found = self.lab.look()
        except StorageError:
            return
        assert found[: len(self.lab.promised)] == self.lab.promised

    def check_found(self, driver: Driver) -> None:
        assert driver.found[: len(self.lab.promised)] == self.lab.promised

    def end(self) -> None:
        if self.driver is None:
            self.lab.clock.sleep(100)
            self.driver = self.lab.drive("last", takeover=True)
            self.check_found(self.driver)
        driver = self.driver
        driver.append(3)
        driver.ship(100)
        driver.ship(100)
        if driver.shipper.fenced:  # a sleeper that nobody had told yet
            self.driver = driver = self.lab.drive("last", takeover=True)
            self.check_found(driver)
            driver.append(3)
            driver.ship(100)
            driver.ship(100)
        assert not driver.shipper.fenced
        assert driver.shipper.shipped_seq == len(driver.history)
        assert self.lab.look() == driver.history
        view = restore_mirror(self.lab.store, self.lab.root("final")).root
        assert history(view) == driver.history
        assert not [finding for finding in verify_journal(view) if finding.level == "damage"]
        for sleeper in self.sleeping:
            sleeper.kill()
            self.driver = sleeper
            for _ in range(3):
                self.guarded(lambda driver: (driver.append(), driver.ship(100))[0])
            assert self.driver is None
            assert self.lab.look() == driver.history


@pytest.mark.parametrize("seed", range(60))
def test_a_story_keeps_every_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 1500)
    story = Story(Lab(tmp_path, monkeypatch, merging=(5, 5)), seed, monkeypatch)
    story.tell()
