"""People who ask the drivers of a story for things, through request files on its disk.

Owns what was really asked for (the ledger knows), and when. Draws from a generator of its own, so that a story without
them is the same as ever. Must never know what a driver makes of a request.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import msgspec

from holdfast.controller.request_files import UserRequest
from holdfast.core.events import Action, UserRequested
from holdfast.space.rng import Rng
from simulator.journal_bytes import read_history
from simulator.ledger import Violation
from simulator.process import DriverProcess
from simulator.scenario import MORE_SAMPLES, pick

if TYPE_CHECKING:
    from simulator.fake_driver import SimDriver
    from simulator.fake_world import World

MOST_REQUESTS = 8
MOST_STOPS = 2
"""Of all, in one story: each one costs a driver."""

FOLDER = "/experiment/.holdfast/requests"
WEIGHTED = (Action.STOP, Action.STOP, Action.NOTE, Action.NOTE, Action.TAG, Action.UNTAG, Action.SAMPLES, "nonsense")


class Users:
    """Everybody who asks.

    Args:
        seed: Of the story.
        world: Where they ask.
    """

    def __init__(self, seed: int, world: World) -> None:
        self._rng = Rng([20261, seed])
        self._world = world
        self._left = self._rng.integers(1, MOST_REQUESTS + 1)
        self._stops = MOST_STOPS

    def visit(self, driver: SimDriver) -> None:
        """A driver begins: plan what it is asked for, some of it at the same moment."""
        while self._left and self._rng.random() < 0.7:
            self._left -= 1
            delay_s = self._rng.uniform(0.0, pick(self._rng, (0.0, 1.0, 5.0, 20.0)))
            for _ in range(2 if self._rng.random() < 0.3 else 1):
                self._world.timeline.later(delay_s, lambda: self._ask(driver))

    def _ask(self, driver: SimDriver) -> None:
        """Ask the driver as it was known when somebody thought of it: it may be dead by now."""
        if driver.claimed is None:
            return
        action, trial = pick(self._rng, WEIGHTED), self._trial(driver)
        if action == Action.STOP and not trial:
            if not self._stops:
                return
            self._stops -= 1
        number = len(self._world.ledger.asked) + 1
        request = UserRequest(
            epoch=driver.claimed.epoch,
            action=action,
            trial="" if action == Action.SAMPLES else trial,
            text=f"note {number}" if action == Action.NOTE else "",
            tags=(f"tag{self._rng.integers(0, 4)}",) if action in (Action.TAG, Action.UNTAG) else (),
            num_samples=self._samples() if action == Action.SAMPLES else 0,
        )
        request_id = f"{number:032x}"
        self._world.ledger.asked[request_id] = request
        if action == Action.STOP and not trial:
            self._world.ledger.told_to_end.add(request.epoch)
        data = msgspec.json.encode(request) if self._rng.random() < 0.95 else b'{"epoch": 1,'
        self._world.disk.put(f"{FOLDER}/{request_id}.json", data).name_durable = True
        driver.process.machine.note(driver.process, "is asked:", request_id[-2:], request)

    def _samples(self) -> int:
        return self._world.scenario.samples + self._rng.integers(-1, MORE_SAMPLES + 1)

    def _trial(self, driver: SimDriver) -> str:
        trials = driver.controller.state.trials if driver.controller is not None else []
        if not trials or self._rng.random() < 0.15:
            return ""
        return "nobody" if self._rng.random() < 0.1 else pick(self._rng, trials).id


class DiskRequests:
    """The requests on a story's disk, as one driver sees them (``controller.request_files.RequestSource``)."""

    def __init__(self, world: World, process: DriverProcess) -> None:
        self._world = world
        self._process = process

    def names(self) -> list[str] | None:
        prefix = f"{FOLDER}/"
        return [path.removeprefix(prefix) for path in self._world.disk.files if path.startswith(prefix)] or None

    def look_again(self) -> None:
        """It always looks."""

    def read(self, name: str) -> bytes:
        self._process.step("read request")
        try:
            return bytes(self._world.disk.file(f"{FOLDER}/{name}").seen)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name) from None

    def remove(self, name: str) -> None:
        """Whoever asked takes this for an answer that no power cut takes back."""
        self._process.step("remove request")
        request_id = name.removesuffix(".json")
        if f"{FOLDER}/{name}" not in self._world.disk.files:
            return
        durable = read_history(self._world.disk.durable())
        if not any(answers(entry.event, request_id) for entry in durable):
            raise Violation("requests", f"{request_id} is removed, and no durable record answers it")
        self._world.ledger.acknowledged.add(request_id)
        self._world.disk.drop(f"{FOLDER}/{name}")
        self._process.step("request removed")


def answers(event: object, request_id: str) -> bool:
    """Whether a record is the answer to a request."""
    told = event.id if isinstance(event, UserRequested) else getattr(event, "request", "")
    return bool(told) and told == request_id
