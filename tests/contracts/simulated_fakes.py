"""The fakes of the simulator, put together as the contract suites want them, while nothing goes wrong."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.controller.loop import JournalWriter
from holdfast.journal import claim_epoch, read_journal
from holdfast.space.rng import Rng
from holdfast.storage.store import Store
from holdfast.testing.virtual_clock import Timeline
from simulator.bucket import NetworkFaults, Server, StoreClient
from simulator.chaos import Chaos
from simulator.checkpoint_store import CheckpointStore
from simulator.cluster_engine import FakeClusterEngine
from simulator.disk import DiskView, MemoryDisk
from simulator.engine import FakeEngine, FakeProcess, Program
from simulator.fake_trials import scripted
from simulator.fake_world import SimJournal
from simulator.machines import Machines, NodeFaults


def simulated_store() -> Store:
    """A bucket as a process of a story sees it, while nothing goes wrong."""
    timeline = Timeline()
    faults = NetworkFaults(Rng([1]), lambda: timeline.now)
    faults.heal()
    process: Any = SimpleNamespace(step=lambda action: None, dead=False)
    return StoreClient(Server(timeline), faults, process, timeline)


class QuietHost:
    """The surroundings of the simulator's engine, while nothing goes wrong."""

    def program(self, process: FakeProcess) -> Program:
        return scripted(process)

    def uplink(self, message: Any) -> tuple[float, list[float]]:
        return 0.0, []

    def reply_is_lost(self) -> bool:
        return False

    def lost_at_death(self, in_flight: int) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return lambda *facts: None


def simulated_engine(kind: type[FakeEngine] = FakeEngine) -> FakeEngine:
    """An engine in virtual time, whose workers run ``holdfast.testing.scripted``."""
    return kind(Timeline(), QuietHost(), cpus=4)


def simulated_cluster_engine() -> FakeEngine:
    """The same on simulated machines, one of which may be used by all trials of a check."""
    timeline = Timeline()
    quiet = Chaos(Rng([1]), {each.name: 0 for each in fields(NodeFaults)}, lambda: timeline.now)
    machines = Machines((4.0, 1.0), timeline, quiet, CheckpointStore(), lambda *facts: None)
    host: Any = QuietHost()
    return FakeClusterEngine(machines, host)


def history(root: Path | str, **where: Any) -> list[bytes]:
    """All records, whose numbers have no gap."""
    found = list(read_journal(root, **where))
    assert [seq for seq, _ in found] == list(range(1, len(found) + 1))
    return [payload for _, payload in found]


class SimulatedPlace:
    """The simulator's: the real journal on a disk in memory, whose sync thread is an event of the story."""

    ROOT = "/experiment"

    def __init__(self, durability: Any = "group", kind: type[SimJournal] = SimJournal) -> None:
        self.timeline = Timeline()
        self.disk = MemoryDisk(lambda: self.timeline.now)
        self.durability = durability
        self._kind = kind

    def open(self) -> JournalWriter:
        disk = DiskView(self.disk)
        claim = claim_epoch(self.ROOT, takeover=True, disk=disk)
        journal = self._kind.create_or_append(self.ROOT, claim, durability=self.durability, disk=disk, threaded=False)
        process: Any = SimpleNamespace(in_background=lambda action, work: work())
        journal.live_in(process, self.timeline)
        return journal

    def leave(self, journal: JournalWriter) -> None:
        journal.close()

    def wait(self) -> None:
        self.timeline.pass_time(0.1, lambda: False)

    def records(self) -> list[bytes]:
        return history(self.ROOT, disk=DiskView(self.disk))

    def survivors(self) -> list[bytes]:
        """What the earliest moment of a power cut would leave."""
        left = MemoryDisk(lambda: self.timeline.now)
        for path, content in self.disk.durable().items():
            left.put(path, content)
        return history(self.ROOT, disk=DiskView(left))

    def close(self) -> None:
        pass
