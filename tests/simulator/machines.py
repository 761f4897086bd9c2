"""Simulated machines of a cluster: power, network, disks, and what the cluster itself knows about them.

A machine that is switched off or crashes loses its processes and its disk, and comes back under another name, as on
Ray. One that is cut off keeps training; one that is frozen stands still. Whoever is connected to it hears nothing
until it is back, or gives it up when the lease is over; so do its own processes.

Owns the truth about machines, and when something happens to one. Must never know what a driver believes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Protocol

from holdfast.engines.cluster.handshake import LEASE_S
from holdfast.testing.virtual_clock import Timeline
from holdfast.trainable.worker_messages import Run
from simulator.chaos import Chaos
from simulator.checkpoint_store import CheckpointStore, StageDir
from simulator.ledger import Weights
from simulator.scenario import pick

if TYPE_CHECKING:
    from simulator.cluster_nodes import ClusterProcess

SHORT_S = (0.1, 2.0, 8.0)
LONG_S = (12.0, 25.0, 60.0)
OFF_S = (5.0, 20.0, 90.0)
REBOOT_S = (0.5, 4.0)
JOIN_S = (0.2, 5.0)
"""From the start of a machine until the cluster lists it."""

NOTICE_S = (0.5, 45.0)
"""How long the cluster lists a machine that is gone."""

LATE_LEASE_S = 2.0
"""By how much the ends of a lease may differ: each side has a clock of its own."""


@dataclass(frozen=True, kw_only=True)
class NodeFaults:
    """How often each kind of fault may strike machines in one story; the table in ``cluster_story`` explains them."""

    power_offs: int = 2
    crashes: int = 1
    short_cuts: int = 3
    long_cuts: int = 2
    short_freezes: int = 2
    long_freezes: int = 1
    blackouts: int = 1
    late_nodes: int = 1
    late_words: int = 6
    lost_clusters: int = 1
    silent_starts: int = 2
    failed_pushes: int = 2
    cut_transfers: int = 4
    slow_transfers: int = 2

    @classmethod
    def none(cls) -> NodeFaults:
        """Machines are in order."""
        return cls(**{each.name: 0 for each in fields(cls)})


INCIDENTS = ("power_offs", "crashes", "short_cuts", "long_cuts", "short_freezes", "long_freezes", "blackouts")


class SimNode:
    """One machine.

    Attributes:
        boot: How often it has started.
        listed: The cluster says that it is alive.
        disk: Sealed stages, by trial directory and name.
        processes: Attempts that run here, whoever has started them.
        stalled: What its processes do when it is thawed.
    """

    def __init__(self, name: str, cpus: float) -> None:
        self.name = name
        self.cpus = cpus
        self.boot = 1
        self.powered = True
        self.cut = False
        self.frozen = False
        self.listed = True
        self.disk: dict[tuple[str, str], StageDir] = {}
        self.processes: dict[ClusterProcess, None] = {}
        self.stalled: list[Callable[[], None]] = []

    @property
    def id(self) -> str:
        """What the cluster calls it; another one after each start."""
        return f"{self.name}.{self.boot}"

    @property
    def is_reachable(self) -> bool:
        return self.powered and not self.cut and not self.frozen


class NodeWatcher(Protocol):
    """A driver's engine, as far as machines go."""

    def node_silent(self, node: SimNode) -> None:
        """Nothing comes from it any more."""

    def node_back(self, node: SimNode, former: str) -> None:
        """It can be reached again; ``former`` is what it was called before."""

    def nodes_changed(self) -> None:
        """The cluster lists other machines than before."""


class Machines:
    """All machines of a story.

    Args:
        sizes: CPUs of each.
        timeline: The story's time.
        faults: What may still happen.
        store: Of the experiment's root, for what is lost with a machine.
        note: Takes a line of the story.
    """

    def __init__(
        self,
        sizes: tuple[float, ...],
        timeline: Timeline,
        faults: Chaos,
        store: CheckpointStore,
        note: Callable[..., None],
    ) -> None:
        self.nodes = [SimNode(f"node{number}", cpus) for number, cpus in enumerate(sizes, 1)]
        self.watchers: list[NodeWatcher] = []
        self.timeline = timeline
        self.faults = faults
        self._store = store
        self.note = note
        self._slow_until = 0.0
        if len(self.nodes) > 1 and faults.strikes("late_nodes", 0.5):
            self._off(self.nodes[-1])
            self.nodes[-1].listed = False
            timeline.later(faults.rng.uniform(0.5, 20.0), partial(self._start, self.nodes[-1]))

    def between(self, span: tuple[float, float]) -> float:
        """A time out of a span."""
        return self.faults.rng.uniform(*span)

    def lease_s(self) -> float:
        """How long one side of a connection waits."""
        return LEASE_S + self.between((0.0, LATE_LEASE_S))

    # --- what goes wrong

    def trouble(self, node: SimNode, chance: float = 0.02) -> None:
        """Something happens on this machine: now and then, something happens to it, or to another one."""
        for kind in INCIDENTS:
            if self.faults.left[kind] and self.faults.strikes(kind, chance):
                struck = node if self.faults.rng.random() < 0.8 else pick(self.faults.rng, self.nodes)
                self.timeline.later(self.between((0.0, 0.05)), partial(self._happens, kind, struck))
                return

    def _happens(self, kind: str, node: SimNode) -> None:
        if kind == "blackouts":
            for each in self.nodes:
                self._happens("power_offs", each)
            return
        if not node.is_reachable:
            return
        match kind:
            case "power_offs":
                self.power_off(node, self._within(OFF_S))
            case "crashes":
                self.power_off(node, self.between(REBOOT_S))
            case "short_cuts":
                self.cut(node, self._within(SHORT_S))
            case "long_cuts":
                self.cut(node, self._longer())
            case "short_freezes":
                self.freeze(node, self._within(SHORT_S))
            case "long_freezes":
                self.freeze(node, self._longer())

    def _within(self, longest: tuple[float, ...]) -> float:
        return self.faults.rng.uniform(0.05, pick(self.faults.rng, longest))

    def _longer(self) -> float:
        return self.faults.rng.uniform(LEASE_S + 0.5, pick(self.faults.rng, LONG_S))

    def power_off(self, node: SimNode, back_in_s: float) -> None:
        """The machine is off, and everything on it is gone."""
        self.note("power off:", node.id, f"for {back_in_s:.1f} s")
        self._off(node)
        self._silence(node)
        self.timeline.later(self.between(NOTICE_S), partial(self._notice, node, node.boot))
        self.timeline.later(back_in_s, partial(self._start, node))

    def cut(self, node: SimNode, seconds: float) -> None:
        """Nobody reaches the machine; what runs there continues until its lease is over."""
        self.note("cut off:", node.id, f"for {seconds:.1f} s")
        node.cut = True
        self._silence(node)
        self._may_be_noticed(node, seconds)
        patience = self.lease_s()
        if seconds > patience:
            self.timeline.later(patience, partial(self._end_leases, node))
        self.timeline.later(seconds, partial(self._reconnect, node, seconds))

    def freeze(self, node: SimNode, seconds: float) -> None:
        """The machine stands still."""
        self.note("frozen:", node.id, f"for {seconds:.1f} s")
        node.frozen = True
        self._silence(node)
        self._may_be_noticed(node, seconds)
        self.timeline.later(seconds, partial(self._thaw, node, seconds))

    def transfer_delay_s(self) -> float:
        """How long the next piece of a transfer takes."""
        if self.timeline.now < self._slow_until:
            return 2.0
        if self.faults.strikes("slow_transfers", 0.05):
            self._slow_until = self.timeline.now + self.between((0.0, 20.0))
        return 0.005

    # --- the steps of it

    def _silence(self, node: SimNode) -> None:
        for watcher in list(self.watchers):
            watcher.node_silent(node)

    def _off(self, node: SimNode) -> None:
        node.powered = False
        node.stalled.clear()
        self._end_processes(node, "its machine is off")
        self._wipe(node)

    def _end_processes(self, node: SimNode, how: str) -> None:
        _end_all(list(node.processes), how)

    def _wipe(self, node: SimNode) -> None:
        """What only its disk had is lost."""
        made = {checkpoint.stage for checkpoint in self._store.checkpoints.values()} if node.disk else ()
        for place, stage in node.disk.items():
            if place not in self._store.stages and place[1] not in made:
                stage.intact = False
                self._store.lost_stages.add(place[1])
        node.disk.clear()

    def _may_be_noticed(self, node: SimNode, seconds: float) -> None:
        if seconds > LEASE_S:
            self.timeline.later(self.between((LEASE_S, max(NOTICE_S))), partial(self._notice, node, node.boot))

    def _notice(self, node: SimNode, boot: int) -> None:
        if node.boot == boot and node.listed and not node.is_reachable:
            node.listed = False
            self.note(node.id, "is not listed any more")
            self._tell_changed()

    def _start(self, node: SimNode) -> None:
        """The machine starts with an empty disk; the cluster takes it for another one."""
        former = node.id
        node.boot += 1
        node.powered, node.cut, node.frozen, node.listed = True, False, False, False
        self.note(node.id, "starts")
        for watcher in list(self.watchers):
            watcher.node_back(node, former)
        self._tell_changed()
        self.timeline.later(self.between(JOIN_S), partial(self._list, node, node.boot))

    def _list(self, node: SimNode, boot: int) -> None:
        if node.boot == boot and node.powered:
            node.listed = True
            self._tell_changed()

    def _end_leases(self, node: SimNode) -> None:
        if node.cut:
            self._end_processes(node, "its lease is over")
            if self.faults.rng.random() < 0.5:
                self._wipe(node)  # its porter has removed the scratch directory

    def _reconnect(self, node: SimNode, seconds: float) -> None:
        self.note(node.id, "is back")
        node.cut = False
        self._come_back(node, seconds)

    def _thaw(self, node: SimNode, seconds: float) -> None:
        self.note(node.id, "is thawed")
        node.frozen = False
        stalled, node.stalled = node.stalled, []
        self._come_back(node, seconds)
        for action in stalled:
            action()

    def _come_back(self, node: SimNode, seconds: float) -> None:
        if seconds >= LEASE_S:
            # Processes notice that their lease was over, but not before they have done what they were at.
            left = list(node.processes)
            self.timeline.later(self.between((0.0, 0.1)), lambda: _end_all(left, "its lease is over"))
        former = node.id
        if not node.listed:  # the cluster had given it up, and takes it back as another one
            node.boot += 1
            self.timeline.later(self.between(JOIN_S), partial(self._list, node, node.boot))
        for watcher in list(self.watchers):
            watcher.node_back(node, former)

    def _tell_changed(self) -> None:
        for watcher in list(self.watchers):
            watcher.nodes_changed()


def _end_all(processes: list[ClusterProcess], how: str) -> None:
    for process in processes:
        process.end_with_node(how)


class NodeDisk:
    """Where attempts on a machine stage checkpoints (``fake_trials.Stages``)."""

    def __init__(self, node: SimNode, store: CheckpointStore) -> None:
        self._node = node
        self._store = store

    def stage(self, home: str, run: Run, weights: Weights) -> str:
        name = self._store.stage(home, run, weights)
        self._node.disk[home, name] = self._store.stages.pop((home, name))
        return name

    def spoil_stage(self, place: tuple[str, str]) -> None:
        self._node.disk[place].intact = False
        self._store.lost_stages.add(place[1])

    def load(self, path: str) -> Weights | None:
        """The start checkpoint was pushed here before the attempt began."""
        return self._store.load(path)
