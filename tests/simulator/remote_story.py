"""The simulator for experiments in a store: whole experiments on several machines, one seed a story.

    python tests/simulator --remote --seed 7 --verbose
    python tests/simulator --remote --seed 7 --count 500

The backend for stores, shipper, merging, remote checkpoint jobs, mirror restore and claims are the real ones, beside
all that the local simulator (``simulate``) runs. Each machine has a real directory for its mirror.

What goes wrong, besides workers, messages, interrupts, and suspended drivers (see there):

    driver_kills          kill -9 of driver and storage agent before or after any request, or at a named crash point
    lost machines         with everything on their disks; the next driver runs on another one
    two machines          a driver takes over on another machine while the first one is suspended, and wakes later
    outages, denials      the store does not answer, or refuses, for up to 100 s; a driver gives up after 60 s
    slow_times            each request takes seconds
    lost_requests         a request never arrives
    lost_answers          it is carried out, and nobody hears of it
    late_requests         its sender gives up, and it is carried out up to 3 s later, after others
    repeated_requests     it is carried out, and once more later
    lagging_lists         a listing shows what was there up to 2 s before

What is checked: what the server checks at each write (``bucket``); at the end, the records in the store against the
ledger of the fake workers (I1, I3, I5, I6, I8, I10, by ``audit``), every checkpoint in the store
against its record and its content (I2), and that a driver which has left claims only what is in the store (I9).

Not simulated: result files and artifacts, and power cuts, which the local simulator has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import xxhash

from holdfast.controller.opening import open_state
from holdfast.core import events as ev
from holdfast.core.state import DriverMemory, State
from holdfast.journal import liveness
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.space.rng import Rng
from holdfast.storage.local import AppendFile, RealDisk
from simulator.audit import Audit
from simulator.bucket import GIVEN_UP, MANIFEST
from simulator.checkers import check_over, same_state
from simulator.fake_driver import SimDriver
from simulator.journal_bytes import Entry, read_history
from simulator.ledger import Violation, Weights
from simulator.remote_driver import WEIGHTS, RemoteDriver, RemoteProcess, RemoteWorld
from simulator.scenario import FaultBudget, Scenario
from simulator.simulate import Simulation

LOCAL_ONLY = (
    *("power_cuts", "failed_writes", "failed_syncs", "full_disks", "store_troubles", "slow_stores"),
    *("rotten_checkpoints", "stubborn_checkpoints", "damaged_snapshots"),
)
"""Faults of a disk in memory, which is not there."""

HEAL_AFTER = 2000
"""Turns after which the network works: a story must end."""

_CRASHPOINTS = (
    *("holdfast.checkpoints.commit", "holdfast.checkpoints.delete", "holdfast.checkpoints.remote_checkpoints"),
    *("holdfast.shipping.merging", "holdfast.shipping.restore_mirror", "holdfast.shipping.shipper"),
)


@dataclass(frozen=True, kw_only=True)
class RemoteScenario(Scenario):
    """An experiment in a store: reports wait for their answers there."""

    @property
    def ahead(self) -> int:
        return 0


class RemoteAudit(Audit):
    """The audit of records, for checkpoints that are committed in a store."""

    def __init__(self, scenario: Scenario, world: RemoteWorld, machines: dict[int, str]) -> None:
        super().__init__(scenario, world.ledger, world.store, str(world.folder))
        self._objects = world.server.objects.objects
        self._machines = machines  # of each epoch, where its driver ran
        self._staged_in: dict[str, int] = {}  # of each stage, the epoch

    def staged(self, event: ev.CheckpointStaged) -> None:
        self._staged_in[event.sealed] = self._epoch
        super().staged(event)

    def committed(self, event: ev.CheckpointCommitted) -> None:
        kept = self._kept(event.n, event.index, "staged")
        if kept.sealed in self.store.lost_stages:
            raise Violation("I2", f"{event} was committed from a damaged stage")
        kept.stored, kept.digest = "committed", event.digest

    def rejected(self, event: ev.CheckpointRejected) -> None:
        kept = self.trials[event.n].kept.get(event.index)
        if kept is not None and kept.stored == "staged" and self._has_moved(kept.sealed):
            kept.stored = "bad"  # its upload was not complete when another machine took over
            return
        super().rejected(event)

    def _has_moved(self, sealed: str) -> bool:
        """Whether a driver has run on another machine since the stage was made, or does now."""
        made = self._staged_in[sealed]
        since = {machine for epoch, machine in self._machines.items() if made <= epoch <= self._epoch}
        return since != {self._machines[made]}

    def drop(self, event: ev.CheckpointsDropped) -> None:
        """A stage is given up, before it was ever committed, if newer ones that are whole will be."""
        kept = self.trials[event.n].kept
        if all(kept[index].stored != "staged" for index in event.indexes):
            super().drop(event)
            return
        hoped = [k for k in kept.values() if k.stored == "staged" and k.sealed not in self.store.lost_stages]
        for each in [*hoped, *(kept[index] for index in event.indexes)]:
            each.stored = "committed"
        super().drop(event)
        for each in hoped:
            if each.stored == "committed":
                each.stored = "staged"


class RemoteSimulation(Simulation):
    """One story of an experiment in a store."""

    world: RemoteWorld

    def __init__(self, seed: int, folder: Path, budget: FaultBudget | None = None) -> None:
        most = {**asdict(budget or FaultBudget()), **dict.fromkeys(LOCAL_ONLY, 0)}
        super().__init__(seed, FaultBudget(**most), _remote)
        rng = Rng([20261, seed])
        self.world = RemoteWorld(self.world.scenario, self.chaos, self.timeline, folder, rng)
        self.rng = rng
        self._machine = "m1"
        self.machines = 1
        self.lost: set[str] = set()
        self._drivers: list[RemoteDriver] = []  # type: ignore[assignment]

    def run(self) -> Audit:
        with _patched(self.world):
            try:
                return super().run()
            finally:
                for strand in self.world.strands:
                    strand.end()

    # --- drivers

    def _new_driver(self, resume: tuple[str, str, str]) -> SimDriver:
        if self._drivers and self.rng.random() < 0.5:
            self._move()
        process = RemoteProcess(self, len(self._drivers) + 1, self._machine, self.world)
        return RemoteDriver(self.world, process, resume)

    def _move(self) -> None:
        """The next driver runs on another machine; perhaps because this one was lost with its disk."""
        known = [f"m{number + 1}" for number in range(self.machines) if f"m{number + 1}" not in self.lost]
        if self.rng.random() < 0.4 and not any(self._is_asleep_on(self._machine) for _ in [0]):
            self.lost.add(self._machine)
            shutil.rmtree(self.world.folder / self._machine, ignore_errors=True)
        others = [machine for machine in known if machine != self._machine]
        if others and self.rng.random() < 0.5:
            self._machine = others[self.rng.integers(0, len(others))]
        else:
            self.machines += 1
            self._machine = f"m{self.machines}"

    def _is_asleep_on(self, machine: str) -> bool:
        return any(driver.machine == machine and not driver.process.dead for driver in self._drivers)

    def _damage_snapshots(self) -> None:
        pass

    def _advance(self, driver: SimDriver) -> None:
        super()._advance(driver)
        if self.steps > HEAL_AFTER:
            self.world.faults.heal()
        if self.world.server.violations:
            raise self.world.server.violations[0]

    def _check_prefix(self, durable_seq: int | None = None) -> None:
        """Whatever was in the store stays history, on whichever machine the next driver opens it (I4)."""
        found = [entry.payload for entry in self._read_history()]
        known = [entry.payload for entry in self.world.server.history()]
        if found[: len(known)] != known:
            raise Violation("I4", f"{len(known)} records are in the store; a mirror of {len(found)} begins otherwise")

    def _look_at(self, driver: SimDriver, state: State) -> None:
        if not driver.left:
            return
        self.note(driver.process, "leaves:", driver.interrupted or "finished")
        newest = self._driver is driver
        self._bury(driver)
        if newest:
            self._check_in_store(state, driver.memory)
            if not driver.interrupted and not self._special:
                self.finished = True
                self.state, self.memory = state, driver.memory

    def _check_in_store(self, state: State, memory: DriverMemory) -> None:
        """A driver has shut down gracefully: all of its state is in the store (I9)."""
        if state.running or (state.staged and not (memory.draining and memory.grace_over)):
            raise Violation("I9", f"a driver has left with {state.staged} uncommitted and {state.running} running")
        try:
            same_state(state, self._state_in_store(), "what the driver claims, and what is in the store")
        except Violation as error:
            raise Violation("I9", str(error)) from None

    def _state_in_store(self) -> State:
        """What an empty machine finds."""
        reader = tempfile.mkdtemp(prefix="reader-", dir=self.world.folder)
        root = restore_mirror(self.world.server.objects, f"{reader}/experiment", read_only=True).root
        return open_state(Path(root), self.world.scenario.retention).state

    # --- at the end

    def _read_history(self) -> list[Entry]:
        assert self._driver is not None
        assert isinstance(self._driver, RemoteDriver)
        folder = Path(self._driver.root, ".holdfast", "journal")
        return read_history({f"/.holdfast/journal/{path.name}": path.read_bytes() for path in folder.glob("*.hfj")})

    def check(self) -> Audit:
        history = self.world.server.history()
        self._excuse_lost_reports()
        audit = RemoteAudit(self.world.scenario, self.world, self._machines()).read(history)
        assert self.state is not None
        check_over(audit, self.state, self.memory, self._checkpoints(), "")
        self._check_contents(audit)
        return audit

    def _machines(self) -> dict[int, str]:
        """Where the driver of each epoch ran, also one that claimed the experiment and was refused a moment later."""
        known = {driver.claimed.epoch: driver.machine for driver in self._drivers if driver.claimed is not None}
        return {**self.world.server.machines, **known}

    def _excuse_lost_reports(self) -> None:
        """Only what is in the store survives a machine. So it is if a driver on another one has taken over."""
        world, machines = self.world, self._machines()
        drivers = {driver.claimed.epoch: driver for driver in self._drivers if driver.claimed is not None}
        for link, sent in world.ledger.reports.items():
            mine = drivers.get(sent.epoch)
            if mine is None or not sent.acked:
                continue
            moved = any(machine != mine.machine for epoch, machine in machines.items() if epoch > sent.epoch)
            if moved and sent.accepted_seq > mine.shipped_seq:
                world.ledger.void.add(link)

    def _checkpoints(self) -> dict[str, Any]:
        """The checkpoints in the store, as the checkers know directories."""
        server = self.world.server
        manifests = {key: data for key, data in server.objects.objects.items() if key.endswith(MANIFEST)}
        return {
            f"/{key.removesuffix(MANIFEST)}": SimpleNamespace(manifest=True, digest=json.loads(data)["self"])
            for key, data in manifests.items()
            if not data.startswith(GIVEN_UP) and key not in server.recreated
        }

    def _check_contents(self, audit: Audit) -> None:
        """What a committed checkpoint holds is what the trainable has saved."""
        objects = self.world.server.objects.objects
        for account in audit.trials:
            for kept in account.kept.values():
                if kept.stored != "committed":
                    continue
                key = f"t{account.n}/checkpoint_{kept.index:06d}"
                data = objects.get(f"{key}/{WEIGHTS}", b"")
                (entry,) = json.loads(objects[key + MANIFEST])["files"]
                saved = self.world.store.made[kept.sealed]
                if xxhash.xxh3_128_hexdigest(data) != entry["hash"] or Weights(*json.loads(data)) != saved:
                    raise Violation("I2", f"{key} in the store holds {data!r}, and {saved} was saved")


def _remote(scenario: Scenario) -> Scenario:
    return RemoteScenario(**{name: getattr(scenario, name) for name in scenario.__dataclass_fields__})


@contextlib.contextmanager
def _patched(world: RemoteWorld) -> Iterator[None]:
    """Crash points and machines are the story's."""

    def machine() -> str:
        return "nowhere" if world.running is None else world.running.place

    def withdraw(root: Any, claim: Any, **more: Any) -> None:
        if world.running is not None and world.running.dead:
            return  # a killed process tidies up nothing
        original(root, claim, **more)

    from holdfast.controller import remote_backend

    original = remote_backend.withdraw  # type: ignore[attr-defined]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_closing_files())
        for module in _CRASHPOINTS:
            stack.enter_context(mock.patch(f"{module}.crashpoint", world.crashpoint))
        for place in ("holdfast.journal.epoch.this_machine", "holdfast.controller.evidence.this_machine"):
            stack.enter_context(mock.patch(place, machine))
        stack.enter_context(mock.patch("holdfast.journal.epoch._host", machine))
        stack.enter_context(mock.patch("holdfast.controller.remote_backend.withdraw", withdraw))
        yield


@contextlib.contextmanager
def _closing_files() -> Iterator[None]:
    """Close what the drivers of a story have open. A killed one closes nothing, and no kernel does it in its place."""
    files: list[AppendFile] = []
    writers: list[str] = []

    def open_append(disk: RealDisk, path: str) -> AppendFile:
        files.append(opened(disk, path))
        return files[-1]

    def hold_lock(directory: str, writer: str) -> str:
        writers.append(writer)
        return liveness.hold_lock(directory, writer)

    opened = RealDisk.open_append
    with (
        mock.patch.object(RealDisk, "open_append", open_append),
        mock.patch("holdfast.journal.epoch.hold_lock", hold_lock),
    ):
        try:
            yield
        finally:
            for file in files:
                file.close()
            for writer in writers:
                liveness.drop_lock(writer)


def scratch() -> str:
    """Where mirrors live: in memory, if there is such a place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()


def tell(seed: int, budget: FaultBudget | None = None) -> RemoteSimulation:
    """Tell one story; it is over, and was checked, when this returns."""
    with tempfile.TemporaryDirectory(prefix="holdfast-story-", dir=scratch()) as folder:
        story = RemoteSimulation(seed, Path(folder), budget)
        try:
            story.run()
        except Exception as error:
            error.add_note(repeat_line(seed))
            error.story = story  # type: ignore[attr-defined]
            raise
    return story


def repeat_line(seed: int) -> str:
    """What to type to see the story of a seed."""
    return f"python tests/simulator --remote --seed {seed} --verbose"


def main(arguments: list[str] | None = None) -> int:
    """Tell one story, or several, and print the first that fails."""
    parser = argparse.ArgumentParser(
        prog="python tests/simulator --remote", description="Repeat a story of an experiment in a store."
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=1, help="tell so many stories, beginning with this seed")
    parser.add_argument("--verbose", action="store_true", help="print what happens")
    options = parser.parse_args(arguments)
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    logging.getLogger("holdfast").propagate = False
    for seed in range(options.seed, options.seed + options.count):
        try:
            story = tell(seed)
        except Exception as error:
            _print_story(error.story, options.verbose)  # type: ignore[attr-defined]
            if options.verbose:
                raise
            print(f"{type(error).__name__}: {str(error)[:600]}\n{repeat_line(seed)}")
            return 1
        if options.verbose:
            _print_story(story, True)
    print(f"{options.count} stories, no violation")
    return 0


def _print_story(story: RemoteSimulation, verbose: bool) -> None:
    if verbose:
        print(story.world.scenario)
        for at, number, facts in story.log:
            print(f"{at:10.3f}  driver {number}  {' '.join(map(str, facts))[:240]}")
