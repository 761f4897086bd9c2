"""The simulator for experiments on a cluster: whole experiments on several machines, one seed a story.

    python tests/simulator --cluster --seed 7 --verbose
    python tests/simulator --cluster --seed 7 --count 500

The core, the loop, the journal, snapshots, checkpoint jobs and policies are the real ones, as in the local simulator
(``simulate``), and so are the choice of nodes (``engines.cluster.placement``) and the rule that stages are brought
before they are committed (``checkpoints.jobs.bringing``). Machines, network, the cluster and transfers are fakes.

What goes wrong, besides everything that can happen to a driver, its disk and its workers (see there):

    power_offs            a machine is off for up to 90 s, and comes back with an empty disk; capacity shrinks and grows
    crashes               it restarts within seconds: connections are reset
    blackouts             all machines are off at once
    short_cuts            a machine is cut off for less than the lease: nothing may be lost or doubled
    long_cuts             and for longer: both sides give up; words of the old attempts may arrive after it has healed
    short_freezes         a machine stands still for less than the lease
    long_freezes          and for longer; its processes continue for a moment when it is thawed
    lost_clusters         the cluster itself is lost for up to 30 s: all workers end, machines keep their stages
    late_nodes            a machine joins after the experiment has begun
    late_words            a message of an attempt that was given up arrives up to 30 s later
    silent_starts         a worker that was asked for never dials in
    failed_pushes         a start checkpoint cannot be sent to the node
    cut_transfers         a transfer of a stage fails half-way; its node may also be lost then
    slow_transfers        each piece of a transfer takes 2 s

The cluster notices the loss of a machine up to 45 s later, and would place workers there until then.

What is checked, besides what the local simulator checks: an attempt that ended because of a lost node had one, and this
does not count (I8); no old attempt's word becomes a record (I6, I7); a checkpoint counts as committed only if its bytes
are whole at the root, and is given up only if they are damaged or out of reach (I2); no worker is placed on a node that
the driver has given up (placement); trials that wait for resources continue when machines come, and everything ends
(liveness).
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from holdfast.controller.checkpoint_jobs import CheckpointJobEdge
from holdfast.controller.loop import JobEdge
from holdfast.core import events as ev
from holdfast.core.events import Cause
from holdfast.core.state import State
from holdfast.space.rng import Rng
from holdfast.testing.virtual_clock import FakeClock, Timeline
from holdfast.trainable.worker_messages import Run
from simulator.audit import Audit
from simulator.chaos import Chaos
from simulator.cluster_engine import FakeClusterEngine
from simulator.cluster_jobs import Bringing, ClusterStoreHost, ClusterStoreWorkers
from simulator.cluster_nodes import ClusterProcess
from simulator.engine import FakeEngine, FakeProcess
from simulator.fake_driver import SimDriver
from simulator.fake_trials import Stages
from simulator.fake_world import ROOT, StoreHost, WorkersHost, World
from simulator.ledger import Violation, Weights
from simulator.machines import Machines, NodeDisk, NodeFaults
from simulator.process import DriverProcess
from simulator.scenario import FaultBudget, Scenario, draw_budget, pick
from simulator.shadow_state import Account
from simulator.simulate import Simulation

SIZES = ((1.0,), (1.0, 1.0), (2.0,), (2.0, 1.0), (2.0, 2.0), (1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (4.0, 1.0))

UNCOMMITTED = (4, 4, 1, 0)
"""Checkpoints of a trial that may be on their way while it trains, by the seed."""


@dataclass(frozen=True, kw_only=True)
class ClusterScenario(Scenario):
    """An experiment on a cluster: reports wait for their answers there."""

    nodes: tuple[float, ...] = (1.0,)
    """CPUs of each machine; ``cpus`` is their sum."""

    @property
    def ahead(self) -> int:
        return 0

    @property
    def capacity_varies(self) -> bool:
        return True


def on_cluster(scenario: Scenario, nodes: tuple[float, ...]) -> ClusterScenario:
    """The same experiment on machines of these sizes."""
    known = {name: getattr(scenario, name) for name in Scenario.__dataclass_fields__}
    wide = scenario.wide_trials and max(nodes) >= 2.0
    return ClusterScenario(**{**known, "cpus": sum(nodes), "wide_trials": wide}, nodes=nodes)


class ClusterWorld(World):
    """Machines, and what is known about those that were lost.

    Attributes:
        lost_attempts: Those that were given up with their node or the cluster: (epoch, n, attempt).
        excused: Stages that could not be brought.
    """

    scenario: ClusterScenario

    def __init__(
        self, scenario: ClusterScenario, chaos: Chaos, timeline: Timeline, faults: Chaos, note: Callable[..., None]
    ) -> None:
        super().__init__(scenario, chaos, timeline)
        self.lost_attempts: set[tuple[int, int, int]] = set()
        self.excused: set[str] = set()
        self.machines = Machines(scenario.nodes, timeline, faults, self.store, note)


class ClusterWorkersHost(WorkersHost):
    """The driver's side of ``FakeClusterEngine``."""

    _world: ClusterWorld

    def stages_of(self, process: FakeProcess) -> Stages:
        assert isinstance(process, ClusterProcess)
        return NodeDisk(process.connection.node, self._world.store)

    def placed(self, process: FakeProcess, node: str, lost: str) -> None:
        self._process.machine.note(self._process, "place", process.key, "on", node)
        if lost:
            raise Violation("placement", f"attempt {process.key} is started on {node}, which was lost: {lost}")

    def refused(self, process: FakeProcess, cause: str) -> None:
        self._process.machine.note(self._process, process.key, "cannot begin:", cause)
        n, attempt = process.key
        self._world.ledger.begin(self._epoch, n, attempt, Weights(n, 0, 0)).end = cause

    def given_up(self, process: FakeProcess) -> None:
        self._process.machine.note(self._process, process.key, "is given up with its node")
        self._world.lost_attempts.add((self._epoch, *process.key))


class ClusterDriver(SimDriver):
    """One driver of an experiment on a cluster."""

    world: ClusterWorld

    def _make_hosts(self, epoch: int) -> tuple[StoreHost, WorkersHost]:
        store_host = ClusterStoreHost(self.world, self.process, self.world.excused)
        return store_host, ClusterWorkersHost(self.world, self.process, epoch, store_host, self.root)

    def _make_engine(self, host: WorkersHost) -> FakeEngine:
        assert isinstance(host, ClusterWorkersHost)
        return FakeClusterEngine(self.world.machines, host)

    def _job_edge(self, state: State, clock: FakeClock, host: StoreHost) -> JobEdge:
        assert isinstance(self.engine, FakeClusterEngine)
        assert isinstance(host, ClusterStoreHost)
        bringing = Bringing(self.engine, self.world.store, self.process)
        return CheckpointJobEdge(
            ClusterStoreWorkers(self.world.store, bringing, host),
            state,
            clock,
            trial_dir=self._trial_dir,
            trouble=lambda text: None,
        )

    def _most_uncommitted(self) -> int:
        return UNCOMMITTED[self.world.scenario.seed % len(UNCOMMITTED)]

    def _run_message(self, state: State, n: int) -> Run:
        request = state.trials[n].request
        return msgspec.structs.replace(
            super()._run_message(state, n), resources={"CPU": 1.0} if request is None else request
        )


class ClusterAudit(Audit):
    """The audit of records, for attempts and stages on machines that may be lost."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world.scenario, world.ledger, world.store, ROOT)
        self._world = world

    def interrupted(self, event: ev.AttemptInterrupted) -> None:
        given_up = (self._epoch, event.n, event.attempt) in self._world.lost_attempts
        if event.cause != Cause.NODE_LOST and not (event.cause == Cause.ENGINE_LOST and given_up):
            super().interrupted(event)
            return
        trial = self._current(event)
        if not given_up:
            raise Violation("I8", f"{event}, and its node was never lost")
        trial.status, trial.verdict = "PENDING", ""

    def rejected(self, event: ev.CheckpointRejected) -> None:
        kept = self.trials[event.n].kept.get(event.index)
        if kept is not None and kept.stored == "staged" and kept.sealed in self._world.excused:
            kept.stored = "bad"
            return
        super().rejected(event)

    def _check_saved_at_end(self, trial: Account, event: ev.TrialTerminated) -> None:
        """What an attempt says at its end can be lost with its machine, before the driver hears of it."""
        if (self._epoch, event.n, event.attempt) not in self._world.lost_attempts:
            super()._check_saved_at_end(trial, event)


class ClusterSimulation(Simulation):
    """One story of an experiment on a cluster.

    Args:
        seed: Which.
        budget: The most that may go wrong on the driver's machine and in its workers.
        faults: And with machines.
        change: May replace the drawn scenario by another one.

    Attributes:
        given: How many faults of each kind machines may have.
    """

    world: ClusterWorld

    def __init__(
        self,
        seed: int,
        budget: FaultBudget | None = None,
        faults: NodeFaults | None = None,
        change: Callable[[ClusterScenario], ClusterScenario] = lambda scenario: scenario,
    ) -> None:
        rng = Rng([20262, seed])
        sizes = pick(rng, SIZES)
        super().__init__(seed, budget, lambda scenario: change(on_cluster(scenario, sizes)))
        most: Any = faults or NodeFaults()
        self.given = draw_budget(rng, most)
        node_chaos = Chaos(rng, dict(self.given), lambda: self.timeline.now)
        scenario = self.world.scenario
        self.world = ClusterWorld(scenario, self.chaos, self.timeline, node_chaos, self._note_machines)

    def _note_machines(self, *facts: object) -> None:
        self.log.append((self.timeline.now, 0, facts))

    def _new_driver(self, resume: tuple[str, str, str]) -> ClusterDriver:
        return ClusterDriver(self.world, DriverProcess(self, len(self._drivers) + 1), resume)

    def _make_audit(self) -> Audit:
        return ClusterAudit(self.world)


def calm(scenario: ClusterScenario) -> ClusterScenario:
    """The same experiment, resumed in the usual way."""
    return replace(scenario, restart=("skip", "resume", "skip"))


def repeat_line(seed: int) -> str:
    """What to type to see the story of a seed."""
    return f"python tests/simulator --cluster --seed {seed} --verbose"


def main(arguments: list[str] | None = None) -> int:
    """Tell one story, or several, and print the first that fails."""
    parser = argparse.ArgumentParser(
        prog="python tests/simulator --cluster", description="Repeat a story of an experiment on a cluster."
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=1, help="tell so many stories, beginning with this seed")
    parser.add_argument("--verbose", action="store_true", help="print what happens")
    options = parser.parse_args(arguments)
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    for seed in range(options.seed, options.seed + options.count):
        story = ClusterSimulation(seed)
        try:
            story.run()
        except Exception as error:
            if options.verbose:
                _print_story(story)
                raise
            print(f"{type(error).__name__}: {str(error)[:600]}\n{repeat_line(seed)}")
            return 1
        if options.verbose:
            _print_story(story)
    print(f"{options.count} stories, no violation")
    return 0


def _print_story(story: ClusterSimulation) -> None:
    print(story.world.scenario)
    for at, number, facts in story.log:
        print(f"{at:10.3f}  driver {number}  {' '.join(map(str, facts))[:240]}")
