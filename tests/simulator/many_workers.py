"""One experiment with as many workers as a large cluster has, some of whose machines are lost meanwhile.

    python tests/simulator --workers 10000

Prints the CPU time per journaled event, which must not grow with the number of workers (I10).

Owns the story, and a choice of nodes that takes constant time: it is the driver that is measured, not the fake. Must
never say how long anything may take.
"""

from __future__ import annotations

import argparse
import gc
import logging
import time
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from holdfast.controller.driver import CALM_GC
from holdfast.core.retention import Retention
from holdfast.core.state import State
from holdfast.engines.cluster.remote_worker import Request
from simulator.audit import Audit
from simulator.cluster_engine import FakeClusterEngine
from simulator.cluster_story import ClusterAudit, ClusterDriver, ClusterScenario, ClusterSimulation, ClusterWorkersHost
from simulator.engine import FakeEngine
from simulator.fake_driver import SimDriver
from simulator.fake_world import WorkersHost
from simulator.machines import NodeFaults
from simulator.process import DriverProcess
from simulator.scenario import FaultBudget

ON_A_NODE = 20
STEPS = 4
SEED = 1  # with no limit to the backlog
LOST_FROM_S, LOST_UNTIL_S = 1.0, 6.0
"""Machines are lost while most trials run."""


class ManyEngine(FakeClusterEngine):
    """Chooses among nodes with a free CPU without looking at those that have none; every trial asks for one."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._free: dict[str, float] = {}
        self._open: dict[str, None] = {}

    def _connect(self, identity: str) -> bool:
        connected = super()._connect(identity)
        if connected:
            self._free[identity] = self._nodes[identity].facts.resources["CPU"]
            self._open[identity] = None
        return connected

    def _choose(self, request: Request) -> str | None:
        while self._open:
            where = next(iter(self._open))
            known = self._nodes.get(where)
            if known is not None and known.usable:
                return where
            del self._open[where]
        return None

    def _occupy(self, number: int, where: str, request: Request) -> None:
        super()._occupy(number, where, request)
        self._free[where] -= 1.0
        if self._free[where] < 1.0:
            self._open.pop(where, None)

    def _vacate(self, number: int) -> None:
        held = self._taken.get(number)
        super()._vacate(number)
        if held is not None:
            self._free[held[0]] += 1.0
            self._open[held[0]] = None

    def _make_room(self, request: Request) -> None:
        """All requests are equal: an idle worker would have been used."""


class ManyDriver(ClusterDriver):
    """A driver of so many workers."""

    def _make_engine(self, host: WorkersHost) -> FakeEngine:
        assert isinstance(host, ClusterWorkersHost)
        return ManyEngine(self.world.machines, host)


class ManyAudit(ClusterAudit):
    """The audit of records, without what looks at all trials for each of them."""

    def _check_limits(self) -> None:
        """The engine has as many places as there are trials."""


class ManySimulation(ClusterSimulation):
    """The story of ``workers`` trials that run at the same time.

    Args:
        workers: How many.
        lost: One machine of so many is lost, cut off or frozen.
    """

    def __init__(self, workers: int, lost: int = 10) -> None:
        nodes = (float(ON_A_NODE),) * (workers // ON_A_NODE)
        super().__init__(SEED, FaultBudget.none(), NodeFaults.none(), partial(_many, nodes=nodes))
        self.max_steps = 40 * workers
        machines, struck = self.world.machines, self.world.machines.nodes[::lost]
        for place, node in enumerate(struck):
            at = LOST_FROM_S + (LOST_UNTIL_S - LOST_FROM_S) * place / len(struck)
            happens = (machines.power_off, machines.cut, machines.freeze)[place % 3]
            self.timeline.later(at, partial(happens, node, 15.0))
        self.struck = len(struck)

    def drive(self) -> None:
        """Run the experiment to its end, without the checks."""
        self._drive(None)

    @property
    def events(self) -> int:
        """How many were journaled."""
        journal = self._drivers[-1].journal
        return int(journal.written_seq)

    def note(self, process: DriverProcess, *facts: object) -> None:
        """A line for each action of so many workers would be most of the work."""

    def _new_driver(self, resume: tuple[str, str, str]) -> ClusterDriver:
        return ManyDriver(self.world, DriverProcess(self, len(self._drivers) + 1), resume)

    def _make_audit(self) -> Audit:
        return ManyAudit(self.world)

    def _look_at(self, driver: SimDriver, state: State) -> None:
        if driver.left:  # folding so large a journal on the way would be most of the work
            super()._look_at(driver, state)


def _many(scenario: ClusterScenario, nodes: tuple[float, ...]) -> ClusterScenario:
    samples = int(sum(nodes))
    plain = replace(scenario, scheduler="", searcher="", pause_at=0, stop_at=0, stop_after_good=0, stop_all_after=0)
    plain = replace(plain, is_class=False, at_end=False, returns_last=False, wide_trials=False, save_chance=0.0)
    plain = replace(plain, time_budget_s=None, stall_timeout_s=30.0, snapshot_chance=0.0, durability="group")
    plain = replace(plain, max_failures=0, fail_fast=False, max_concurrent=0, lookahead=256, retention=Retention())
    return replace(
        plain,
        samples=samples,
        nodes=nodes,
        cpus=sum(nodes),
        steps=(STEPS,),
        step_s=2.0,
        checkpoint_every=STEPS - 1,
        restart=("skip", "resume", "skip"),
    )


class Figures(NamedTuple):
    """What a story has cost; ``events`` were journaled."""

    events: int
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.events} events, {self.cpu_s:.1f} s of CPU, {1e6 * self.cpu_s / self.events:.0f} us per event"


def tell(workers: int) -> tuple[ManySimulation, Audit, Figures]:
    """Tell the story; the time is that of the drivers and fakes, without the checks at the end."""
    story = ManySimulation(workers)
    thresholds = gc.get_threshold()
    gc.set_threshold(*CALM_GC)  # as a driver does
    try:
        began = time.process_time()
        story.drive()
        cpu_s = time.process_time() - began
    finally:
        gc.set_threshold(*thresholds)
    audit = story.check()
    return story, audit, Figures(sum(audit.counts.values()), cpu_s)


def main(arguments: list[str] | None = None) -> int:
    """Print what so many workers cost, and a quarter of them."""
    parser = argparse.ArgumentParser(prog="python tests/simulator", description="A cluster of many workers.")
    parser.add_argument("--workers", type=int, required=True)
    options = parser.parse_args(arguments)
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    for workers in (options.workers // 4, options.workers):
        story, _, figures = tell(workers)
        print(f"{workers} workers on {len(story.world.machines.nodes)} nodes, {story.struck} struck: {figures}")
    return 0
