"""The simulator: whole experiments under injected faults, one seed a story.

    python tests/simulator --seed 7 --verbose
    python tests/simulator --seed 7 --count 500 --scheduler pbt --searcher learning

The core, the loop, the journal, snapshots, replay, checkpoint jobs, the proposers and most schedulers
(``schedulers_under_test``) are the real ones. The clock, the disk, the store, the engine and its workers are fakes of
this package, and so are most searchers (``fake_search``); everything happens in one thread. Whatever is random is
drawn from one generator, so a seed repeats its story exactly. In one of eight stories nothing can tell a trial to
stop, so that it reports ahead of the answers and keeps what it has reported itself (``trainable.spool_writer``);
there, a driver that opens ends the workers that others have left.

Fault budget, the most that can happen in one story (``FaultBudget``); a story gets about half of the kinds:

    driver_kills          kill -9 of the driver between any two actions (each write, sync, create, launch, reply, halt,
                          commit step, ...), in the middle of a write, while it opens, several times in a row; its
                          workers live on for up to 2 s
    power_cuts            the machine loses power at such a moment: all that was not fsynced may be lost, wholly or from
                          some byte on, in the journal, in stages and in renames; only durable promises are checked
    takeovers             the driver is suspended at any action, another one takes over and runs on, the first one wakes
    interrupts            SIGINT at any time; trials save what they can and the driver leaves
    second_interrupts     SIGINT again: the driver leaves after its current turn
    third_interrupts      and again: KeyboardInterrupt at any action of the loop
    worker_deaths         exit, signal, out of memory, preemption, loss of a node; its last messages may be lost
    worker_exceptions     the trainable raises, also when it is told to stop, or reports a full disk
    hangs                 the trainable does nothing any more
    late_messages         a message arrives up to 10 s late, those behind it wait
    repeated_messages     a copy arrives up to 40 s later, also after the attempt's end and the next one's start
    lost_replies          the worker never gets the reply and sends its report again
    failed_writes         EIO after a part of the bytes
    failed_syncs          fsync fails; what it should have covered never becomes durable, whatever later fsyncs claim
    full_disks            ENOSPC after a part of the bytes, for up to 90 s
    store_troubles        commits, verifications and deletions fail for up to 20 s
    slow_stores           each of their steps takes 3 s, for up to 30 s
    full_stores           workers wait for space before they can stage, up to 100 s
    spoiled_stages        a stage is damaged before it can be committed
    rotten_checkpoints    a committed checkpoint is damaged later
    stubborn_checkpoints  a checkpoint cannot be deleted
    failed_loads          the trainable fails to load a good checkpoint
    clock_jumps           the wall clock is set by up to 2 h before the next driver starts
    damaged_snapshots     a snapshot or archive is damaged, or its directory emptied, between two drivers
    slow_searches         a configuration takes seconds to come
    failed_callbacks      a user's callback raises when a trial has finished

In stories with ``--asking``, users stop trials and drivers, note, tag and add samples through request files
(``users``): at any time, several at once, for drivers that are dead by then, and in files that are malformed.

Not simulated: pages of one file that reach the disk out of order. Object stores have stories of their own
(``remote_story``), and so have clusters (``cluster_story``).
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable
from dataclasses import replace

from holdfast.core.state import DriverMemory, State
from holdfast.errors import OwnershipError, StorageError
from holdfast.space.rng import Rng
from holdfast.testing.virtual_clock import Timeline
from simulator.audit import Audit
from simulator.chaos import Chaos
from simulator.checkers import check_claims, check_over, refold, reopen, same_state
from simulator.disk import Killed
from simulator.fake_driver import SimDriver
from simulator.fake_search import SEARCHERS
from simulator.fake_world import ROOT, World
from simulator.journal_bytes import Entry, read_history
from simulator.ledger import Violation
from simulator.process import DriverProcess
from simulator.replay_check import ReplayCheck, check_search
from simulator.scenario import FaultBudget, Scenario, draw_budget, draw_scenario
from simulator.schedulers_under_test import SCHEDULERS
from simulator.users import Users

MAX_STEPS = 6000
"""Turns of all drivers of a story together; the liveness bound."""

RESTART_S = 3.0
ORPHANS_LIVE_S = 2.0
REFOLD_EVERY = 61  # turns
COMPARE_EVERY = 3  # snapshots
USUAL = ("skip", "resume", "skip")


class Simulation:
    """One story.

    Args:
        seed: Which.
        budget: The most that may go wrong.
        change: May replace the drawn scenario by another one.
        asking: Users ask the drivers for things.

    Attributes:
        log: What happened: time, driver, facts.
        finished: The experiment is over.
    """

    def __init__(
        self,
        seed: int,
        budget: FaultBudget | None = None,
        change: Callable[[Scenario], Scenario] = lambda scenario: scenario,
        *,
        asking: bool = False,
    ) -> None:
        rng = Rng([20260, seed])
        scenario = change(draw_scenario(seed, rng))
        left = draw_budget(rng, budget or FaultBudget())
        if scenario.stall_timeout_s is None:
            left["hangs"] = 0  # nobody would ever notice
        self.seed = seed
        self.timeline = Timeline()
        self.chaos = Chaos(rng, left, lambda: self.timeline.now)
        self.world = World(scenario, self.chaos, self.timeline)
        self._users = Users(seed, self.world) if asking else None
        self.log: list[tuple[float, int, tuple[object, ...]]] = []
        self.finished = False
        self.steps = 0
        self.state: State | None = None
        self.memory = DriverMemory()
        self._drivers: list[SimDriver] = []
        self._driver: SimDriver | None = None
        self._busy: set[int] = set()
        self._blackout = False
        self._special = scenario.restart != USUAL
        self._known: list[bytes] = []
        self._began: dict[int, float] = {}

    max_steps = MAX_STEPS

    def run(self) -> Audit:
        """Tell the story to its end and check everything.

        Raises:
            Violation: An invariant does not hold.
        """
        self._drive(None)
        for driver in self._drivers:
            if not driver.process.dead:
                self._bury(driver)
        return self.check()

    def check(self) -> Audit:
        """Check what must hold when the story is over."""
        history = self._read_history()
        world = self.world
        audit = self._make_audit().read(history)
        if world.scenario.scheduler:
            ReplayCheck(world.scenario, audit.scheduled).check(history)
        if world.scenario.searcher:
            check_search(world.scenario, history, audit.told)
        assert self.state is not None
        check_over(audit, self.state, self.memory, world.store.checkpoints, ROOT)
        same_state(self.state, refold(ROOT, world.disk, world.scenario.retention), "the last driver, and the journal")
        if self.state.lived_s > world.ledger.lived_s + 1e-3:
            raise Violation("I5", f"{self.state.lived_s} s were lived, really {world.ledger.lived_s} s")
        return audit

    def _make_audit(self) -> Audit:
        return Audit(self.world.scenario, self.world.ledger, self.world.store, ROOT)

    # --- the machine (process.Machine)

    def kill(self, process: DriverProcess) -> None:
        """``kill -9``; its workers follow, not at once."""
        driver = self._drivers[process.number - 1]
        self.note(process, "is killed")
        self._bury(driver)
        if self.chaos.strikes("power_cuts", 0.6):
            self._blackout = True

    def suspend(self, process: DriverProcess) -> None:
        """The process sleeps; another driver takes over meanwhile."""
        driver = self._drivers[process.number - 1]
        if self._driver is not driver:
            return
        self.note(process, "is suspended")
        process.suspended = True
        self._driver = None
        self._drive(self.chaos.rng.integers(0, 60))
        self.note(process, "wakes")
        process.wake()

    def note(self, process: DriverProcess, *facts: object) -> None:
        self.log.append((self.timeline.now, process.number, facts))

    # --- drivers

    def _drive(self, turns: int | None) -> None:
        """Run drivers one after the other until the experiment is finished, or for so many turns."""
        while not self.finished and (turns is None or turns > 0):
            turns = None if turns is None else turns - 1
            self.steps += 1
            if self.steps > self.max_steps:
                raise Violation("liveness", f"the story does not end: {self._where()}")
            if self._blackout:
                self._lose_power()
            if self._driver is None:
                self._driver = self._start_driver()
            for driver in [self._driver, *self._drivers[-4:]]:
                if not driver.process.dead and not driver.process.suspended and driver.process.number not in self._busy:
                    self._advance(driver)

    def _where(self) -> str:
        driver = self._driver
        if driver is None or not driver.is_open:
            return "no driver is open"
        state, memory = driver.controller.state, driver.controller.memory
        return f"{state.counts}, memory {vars(memory)}, search ended: {state.search_ended!r}"

    def _start_driver(self) -> SimDriver:
        self.timeline.wall_offset += self.chaos.clock_jump_s()
        self._damage_snapshots()
        resume = USUAL
        if self._drivers and self._special:
            resume, self._special = self.world.scenario.restart, False
        driver = self._new_driver(resume)
        process = driver.process
        self._drivers.append(driver)
        self._began[process.number] = self.timeline.now
        self.note(process, "starts:", resume)
        if self._users is not None:
            self._users.visit(driver)
        delay_s = self.chaos.interrupt_after_s()
        if delay_s is not None:
            self.timeline.later(delay_s, lambda: self._interrupt(driver))
        return driver

    def _new_driver(self, resume: tuple[str, str, str]) -> SimDriver:
        return SimDriver(self.world, DriverProcess(self, len(self._drivers) + 1), resume)

    def _interrupt(self, driver: SimDriver) -> None:
        if driver.process.dead or not driver.is_open:
            return
        driver.end("SIGINT")
        if self.chaos.strikes("second_interrupts", 0.5):
            self.timeline.later(self.chaos.rng.uniform(0.0, 3.0), lambda: driver.end("SIGINT"))
        if self.chaos.strikes("third_interrupts", 0.5):
            driver.process.interrupt_in = self.chaos.rng.integers(0, 30)

    def _advance(self, driver: SimDriver) -> None:
        number = driver.process.number
        opened = driver.journal is not None
        self._busy.add(number)
        try:
            driver.advance()
        except Killed:
            if not driver.process.dead:
                raise
        except (OwnershipError, OSError, KeyboardInterrupt) as error:
            if driver.is_open and isinstance(error, OSError) and not isinstance(error, StorageError):
                raise  # an engine or store turns outside failures into observations; this one reached the loop
            self.note(driver.process, "gives up:", type(error).__name__)
            driver.abort()
            self._bury(driver)
            self.timeline.pass_time(RESTART_S, lambda: False)
        finally:
            self._busy.discard(number)
        if driver.process.dead:
            return
        if not opened and driver.journal is not None:
            self._check_prefix()
        if driver.is_open:
            self._look_at(driver, driver.controller.state)

    def _look_at(self, driver: SimDriver, state: State) -> None:
        world = self.world
        journal = driver.journal
        assert journal is not None
        if driver.snapshot_seq >= 0 and self._driver is driver:
            driver.snapshot_seq = -1
            same_state(state, refold(ROOT, world.disk, world.scenario.retention), "from a snapshot, and from the start")
        elif driver.snapshots >= COMPARE_EVERY and self._driver is driver and journal.blocked is None:
            driver.snapshots = 0
            same_state(state, reopen(ROOT, world.disk, world.scenario.retention), "live, and from its last snapshot")
        elif self.steps % REFOLD_EVERY == 0 and self._driver is driver and journal.blocked is None:
            same_state(state, refold(ROOT, world.disk, world.scenario.retention), "live, and from the journal")
        if driver.left:
            self.note(driver.process, "leaves:", driver.interrupted or "finished")
            newest = self._driver is driver
            self._bury(driver)
            if not newest:
                return  # it was suspended on its way out, and somebody has continued meanwhile
            check_claims(ROOT, world.disk, world.scenario.retention, state, driver.memory)
            if not driver.interrupted and not self._special:
                self.finished = True
                self.state, self.memory = state, driver.memory

    def _bury(self, driver: SimDriver) -> None:
        """A driver is gone; the journal keeps what it wrote."""
        process = driver.process
        process.dead = True
        self.world.ledger.lived_s += self.timeline.now - self._began[process.number]
        if driver.engine is not None:
            driver.engine.abandon(lambda: self.chaos.rng.uniform(0.0, ORPHANS_LIVE_S))
        if self._driver is driver:
            self._driver = None

    # --- what happens to the machine

    def _lose_power(self) -> None:
        self._blackout = False
        synced = [driver.journal.synced_seq for driver in self._drivers if driver.journal is not None]
        durable_seq = max(synced, default=0)
        for driver in self._drivers:
            if not driver.process.dead:
                self._bury(driver)
            if driver.engine is not None:
                driver.engine.close()
        self.log.append((self.timeline.now, 0, ("power cut; durable up to", durable_seq)))
        self.world.disk.power_cut(self.chaos.survives)
        self.world.store.power_cut(self.chaos.survives)
        self.world.lose_spools()
        self.world.ledger.power_cut(durable_seq)
        self._check_prefix(durable_seq)

    def _damage_snapshots(self) -> None:
        folder = os.path.join(ROOT, ".holdfast", "snapshots") + "/"
        files = sorted(path for path in self.world.disk.files if path.startswith(folder))
        if not files or not self.chaos.strikes("damaged_snapshots", 0.7):
            return
        if self.chaos.rng.random() < 0.3:
            for path in files:
                del self.world.disk.files[path]
            return
        seen = self.world.disk.files[files[self.chaos.rng.integers(0, len(files))]].seen
        seen[self.chaos.rng.integers(0, len(seen))] ^= 0x40

    # --- one history

    def _read_history(self) -> list[Entry]:
        files = {path: bytes(file.seen) for path, file in self.world.disk.files.items()}
        return read_history(files)

    def _check_prefix(self, durable_seq: int | None = None) -> None:
        """What was history stays history, also if a driver that was taken over wakes and writes on (I4)."""
        known = self._known if durable_seq is None else self._known[:durable_seq]
        found = [entry.payload for entry in self._read_history()]
        if found[: len(known)] != known:
            raise Violation("I4", f"{len(known)} records were history; now it is another one of {len(found)}")
        self._known = found


def repeat_line(seed: int, scheduler: str = "", searcher: str = "", *, asking: bool = False) -> str:
    """What to type to see the story of a seed."""
    line = f"python tests/simulator --seed {seed} --verbose{' --asking' if asking else ''}"
    line += f" --scheduler {scheduler!r}" if scheduler else ""
    return line + (f" --searcher {searcher!r}" if searcher else "")


def with_policies(scheduler: str = "", searcher: str = "") -> Callable[[Scenario], Scenario]:
    """Stories as they are drawn, but with this scheduler and this searcher; "" leaves the choice to the seed."""

    def change(scenario: Scenario) -> Scenario:
        if searcher:
            scenario = replace(scenario, searcher=searcher)
        return scenario.with_scheduler(scheduler) if scheduler else scenario

    return change


def main(arguments: list[str] | None = None) -> int:
    """Tell one story, or several, and print the first that fails."""
    parser = argparse.ArgumentParser(
        prog="python tests/simulator",
        description="Repeat a story of an experiment on one machine; with --remote, of one in a store.",
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=1, help="tell so many stories, beginning with this seed")
    parser.add_argument("--scheduler", choices=sorted(SCHEDULERS), default="", help="instead of the one that was drawn")
    parser.add_argument("--searcher", choices=sorted(SEARCHERS), default="", help="instead of the one that was drawn")
    parser.add_argument("--asking", action="store_true", help="users ask the drivers for things")
    parser.add_argument("--verbose", action="store_true", help="print what happens")
    options = parser.parse_args(arguments)
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    for seed in range(options.seed, options.seed + options.count):
        change = with_policies(options.scheduler, options.searcher)
        simulation = Simulation(seed, change=change, asking=options.asking)
        try:
            simulation.run()
        except Exception as error:
            _print_story(simulation)
            line = repeat_line(seed, options.scheduler, options.searcher, asking=options.asking)
            print(f"{type(error).__name__}: {error}\n{line}")
            return 1
        if options.verbose:
            _print_story(simulation)
    print(f"{options.count} stories, no violation")
    return 0


def _print_story(simulation: Simulation) -> None:
    print(simulation.world.scenario)
    for at, number, facts in simulation.log:
        print(f"{at:10.3f}  driver {number}  {' '.join(map(str, facts))}")
