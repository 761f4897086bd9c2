"""What surrounds a simulated driver: its workers' network, its store's threads, its journal's sync thread.

Each tells the ledger what really happened, and complains at once about what must never happen, whatever the journal
says later: two live attempts of one trial (I7), a start from a checkpoint that nobody verified (I2), a deletion without
a durable intent (I3), a report that nobody answers (I1).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import msgspec

from holdfast.checkpoints import jobs
from holdfast.controller.loop import JournalWriter
from holdfast.controller.proposing import VariantProposer
from holdfast.controller.searching import LearningProposer
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.state import State
from holdfast.journal.log import GROUP_COMMIT_S, Journal
from holdfast.space.variants import VariantPlan
from holdfast.testing.virtual_clock import Timeline
from holdfast.trainable.spool_writer import SpoolOwner
from holdfast.trainable.worker_messages import Decision
from simulator.chaos import Chaos
from simulator.checkpoint_store import STEP_S, CheckpointStore
from simulator.disk import MemoryDisk
from simulator.engine import FakeEngine, FakeProcess, Program
from simulator.fake_trials import Stages, Trainer
from simulator.journal_bytes import read_history
from simulator.ledger import Ledger, Violation
from simulator.process import DriverProcess
from simulator.scenario import Scenario

ROOT = "/experiment"


class World:
    """What all drivers of a story share."""

    def __init__(self, scenario: Scenario, chaos: Chaos, timeline: Timeline) -> None:
        self.scenario = scenario
        self.chaos = chaos
        self.timeline = timeline
        self.disk = MemoryDisk(lambda: timeline.now)
        self.store = CheckpointStore()
        self.ledger = Ledger()
        self.spools: dict[SpoolOwner, list[ob.Report]] = {}
        self.engines: list[FakeEngine] = []

    def end_all_but(self, engine: FakeEngine) -> None:
        """A driver that opens ends what others on this machine have left running.

        One that slept between its look at the fence and this does so to its successor, whose nanny notices.
        """
        place = self.engines.index(engine)
        for former in self.engines[:place]:
            former.close()
        for successor in self.engines[place + 1 :]:
            successor.lose_processes()

    def lose_spools(self) -> None:
        """A power cut: nobody syncs them."""
        for reports in self.spools.values():
            del reports[self.chaos.survives(len(reports)) :]


class MemorySpools:
    """The spools of a story (``controller.lifecycle.Spools``)."""

    def __init__(self, world: World, process: DriverProcess) -> None:
        self._spools = world.spools
        self._process = process

    def owners(self) -> list[SpoolOwner]:
        return sorted(self._spools)

    def read(self, owner: SpoolOwner, after: int) -> list[ob.Report]:
        self._process.step("read spool")
        found: list[ob.Report] = []
        for report in self._spools[owner]:
            if report.ordinal == after + len(found) + 1:
                found.append(msgspec.structs.replace(report, passed=True))
        return found

    def forget(self, owners: Iterable[SpoolOwner]) -> None:
        for owner in sorted(owners):
            self._process.step("forget spool")
            self._spools.pop(owner, None)


class SimJournal(Journal):
    """The real journal, whose sync thread is an event of the story."""

    _process: DriverProcess
    _timeline: Timeline
    _engine: FakeEngine | None = None
    _planned = False

    def live_in(self, process: DriverProcess, timeline: Timeline) -> None:
        """Say whose thread syncs, and when."""
        self._process = process
        self._timeline = timeline

    def wakes(self, engine: FakeEngine) -> None:
        """Wake this engine after each sync."""
        self._engine = engine

    def append(self, payloads: Sequence[bytes]) -> int:
        seq = super().append(payloads)
        self._plan(GROUP_COMMIT_S)
        return seq

    def request_sync(self) -> None:
        super().request_sync()
        self._plan(STEP_S)

    def _plan(self, delay_s: float) -> None:
        if not self._planned:
            self._planned = True
            self._timeline.later(delay_s, lambda: self._process.in_background("journal sync", self._sync_soon))

    def _sync_soon(self) -> None:
        self._planned = False
        if self._closed:
            return
        if not self.sync():
            self._plan(GROUP_COMMIT_S)
        if self._engine is not None:
            self._engine.wake()


class SlowProposer:
    """The real proposer behind a searcher that takes its time (``controller.loop.Proposer``)."""

    def __init__(self, proposer: VariantProposer, process: DriverProcess, timeline: Timeline, delay_s: float) -> None:
        self._proposer = proposer
        self._process = process
        self._timeline = timeline
        self._delay_s = delay_s

    def ask(self, count: int) -> None:
        self._process.step("propose")
        if self._delay_s:
            self._timeline.later(
                self._delay_s, lambda: self._process.in_background("search", lambda: self._proposer.ask(count))
            )
        else:
            self._proposer.ask(count)

    def drain(self) -> list[ob.Observation]:
        return self._proposer.drain()

    def replan(self, plan: VariantPlan) -> None:
        """Users want more samples."""
        self._proposer.replan(lambda: plan)


class SearchThread:
    """The edge of a searcher that learns, whose thread is a part of the story (``controller.loop.Proposer``)."""

    def __init__(self, proposer: LearningProposer, process: DriverProcess, timeline: Timeline, delay_s: float) -> None:
        self._proposer = proposer
        self._process = process
        self._timeline = timeline
        self._delay_s = delay_s
        self._planned = False
        self.drain = proposer.drain

    def ask(self, count: int) -> None:
        self._process.step("propose")
        self._proposer.ask(count)

    def tell(self, state: State, event: ev.AnyEvent) -> bool:
        news = self._proposer.tell(state, event)
        self.go_on()
        return news

    def go_on(self) -> None:
        """The thread wakes when there is something to do."""
        if not self._planned and self._proposer.is_behind:
            self._planned = True
            self._timeline.later(self._delay_s, lambda: self._process.in_background("search", self._pass_on))

    def _pass_on(self) -> None:
        self._planned = False
        self._proposer.pass_on()
        self.go_on()


class StoreHost:
    """The driver's side of ``StoreWorkers``."""

    def __init__(self, world: World, process: DriverProcess) -> None:
        self._world = world
        self._process = process
        self.in_background = process.in_background
        self.verified: dict[tuple[int, int], int] = {}
        self.engine: FakeEngine | None = None

    def store_fault(self) -> str:
        return self._world.chaos.store_fault()

    def store_delay_s(self) -> float:
        return self._world.chaos.store_delay_s(STEP_S)

    def job_ended(self, job: jobs.Job, outcome: jobs.Outcome) -> None:
        self._process.machine.note(self._process, outcome)
        world = self._world
        key = (job.n, job.index)
        if isinstance(outcome, ob.VerifyEnded) and outcome.ok:
            self.verified[key] = self.verified.get(key, 0) + 1
        if isinstance(outcome, ob.CommitEnded) and not outcome.damaged and isinstance(job, jobs.CommitJob):
            path = f"{job.trial_dir}/checkpoint_{job.index:06d}"
            rots_in_s = world.chaos.rots_in_s()
            if rots_in_s is not None:
                world.timeline.later(rots_in_s, lambda: self._rot(path))
            if world.chaos.strikes("stubborn_checkpoints", 0.1) and path in world.store.checkpoints:
                world.store.checkpoints[path].stubborn = True
        if self.engine is not None:
            self.engine.wake()

    def _rot(self, path: str) -> None:
        if path in self._world.store.checkpoints:
            self._process.machine.note(self._process, path, "rots")
            self._world.store.rot(path)

    def deleting(self, job: jobs.DeleteJob) -> None:
        """The intent must be durable: after a power cut nobody may find a checkpoint gone that the journal needs."""
        if job.directory not in self._world.store.checkpoints:
            return
        for entry in read_history(self._world.disk.durable()):
            event = entry.event
            if isinstance(event, ev.CheckpointsDropped) and event.n == job.n and job.index in event.indexes:
                return
        raise Violation("I3", f"checkpoint {job.index} of trial {job.n} is deleted without a durable intent")


class WorkersHost:
    """The driver's side of ``FakeEngine``, and the network between."""

    def __init__(
        self, world: World, process: DriverProcess, epoch: int, store_host: StoreHost, root: str = ROOT
    ) -> None:
        self.journal: JournalWriter | None = None
        self._world = world
        self._process = process
        self._epoch = epoch
        self._root = root
        self._store_host = store_host
        self.step = process.step
        self.no_more_launches = False
        self._unanswered: dict[tuple[int, int], int] = {}
        self.engine: FakeEngine | None = None

    @property
    def _promised(self) -> JournalWriter:
        """The journal, by which a reply is a promise."""
        assert self.journal is not None
        return self.journal

    def program(self, process: FakeProcess) -> Program:
        world = self._world
        trainer = Trainer(
            process,
            world.scenario.training(process.run.n),
            self._epoch,
            root=self._root,
            store=self.stages_of(process),
            ledger=world.ledger,
            mishaps=world.chaos,
        )
        return trainer.program()

    def stages_of(self, process: FakeProcess) -> Stages:
        """Where the attempt stages checkpoints, and loads them from."""
        return self._world.store

    def uplink(self, message: ob.WorkerMessage) -> tuple[float, list[float]]:
        self._process.machine.note(self._process, "<-", message)
        extra, copies = self._world.chaos.uplink()
        # Nobody asks for a notice, so no transport repeats one.
        return extra, [] if isinstance(message, ob.Waiting) else copies

    def reply_is_lost(self) -> bool:
        return self._world.chaos.reply_is_lost()

    def lost_at_death(self, in_flight: int) -> int:
        return self._world.chaos.lost_at_death(in_flight)

    def polled(self, observations: Sequence[ob.Observation]) -> None:
        for observation in observations:
            if isinstance(observation, ob.Report) and not observation.final:
                self._unanswered[observation.n, observation.attempt] = observation.ordinal

    def check_answers(self, held_back: Collection[int]) -> None:
        """After a turn, nobody who reported waits for an answer that nobody has sent.

        Args:
            held_back: Trials that save faster than storage commits; they are answered when it has caught up.
        """
        assert self.engine is not None
        for key, ordinal in self._unanswered.items():
            if key[0] in held_back:
                continue
            process = self.engine.processes.get(key)
            if process is None or not process.alive or process.halting or process.asking is None:
                continue
            if process.asking.ordinal == ordinal:
                raise Violation("I1", f"report {ordinal} of attempt {key} was taken and not answered")
        self._unanswered.clear()

    def check_halted(self) -> None:
        """When the grace of a driver that ends is over, every trial has been told to."""
        assert self.engine is not None
        for process in self.engine.processes.values():
            if process.alive and not process.halting:
                raise Violation("I7", f"attempt {process.key} runs on although its driver ends and its grace is over")

    def launched(self, process: FakeProcess) -> None:
        assert self.engine is not None
        n, attempt = process.key
        self._process.machine.note(self._process, "launch", process.key, "from", process.run.checkpoint)
        if self.no_more_launches:
            raise Violation("I7", f"attempt {attempt} of trial {n} is started although the driver was told to end")
        for before in range(attempt):
            other = self.engine.processes.get((n, before))
            if other is not None and other.alive and not other.halting:
                raise Violation("I7", f"attempts {before} and {attempt} of trial {n} run at the same time")
        checkpoint = process.run.checkpoint
        if checkpoint is not None:
            self._check_source(checkpoint)

    def _check_source(self, checkpoint: str) -> None:
        trial, _, index = checkpoint[1:].partition("/checkpoint_")
        key = (int(trial), int(index))
        if not self._store_host.verified.get(key):
            raise Violation("I2", f"an attempt starts from {checkpoint}, which nobody has verified for it")
        self._store_host.verified[key] = 0

    def answered(self, process: FakeProcess, decision: Decision) -> None:
        assert self.engine is not None
        self._process.machine.note(self._process, "->", process.key, decision)
        n, attempt = process.key
        if self._unanswered.get(process.key) == decision.ordinal:
            del self._unanswered[process.key]
        if decision.go == "go" and attempt < self.engine.newest(n):
            raise Violation("I7", f"attempt {attempt} of trial {n} is answered while a newer one was launched")
        for report in process.kept:
            if report.ordinal <= decision.ordinal:
                sent = self._world.ledger.reports[report.metrics["link"]]
                sent.accepted_seq = min(sent.accepted_seq, self._promised.written_seq)
        if process.asking is not None and decision.ordinal == process.asking.ordinal:
            sent = self._world.ledger.reports[process.asking.metrics["link"]]
            if not sent.acked:
                sent.accepted_seq = self._promised.written_seq

    def heard(self, process: FakeProcess, decision: Decision) -> None:
        assert process.asking is None
        life = self._world.ledger.lives[self._epoch, *process.key]
        sent = self._world.ledger.reports[life.reports[-1]]
        sent.acked = True
        sync = self._world.scenario.durability == "sync"
        if sync and not self._process.dead and sent.accepted_seq > self._promised.synced_seq:
            raise Violation("I1", f"report {life.reports[-1]} was acknowledged before it was durable")

    def keeps(self, process: FakeProcess, report: ob.Report) -> None:
        """When ``report()`` returns, the report survives the death of every process, and no power cut."""
        self._world.spools.setdefault(SpoolOwner(self._epoch, *process.key), []).append(report)
        sent = self._world.ledger.reports[report.metrics["link"]]
        sent.acked = sent.ahead = True
        sent.accepted_seq = math.inf

    def arrived_ahead(self, process: FakeProcess) -> None:
        self._world.spools.pop(SpoolOwner(self._epoch, *process.key), None)

    def ended(self, process: FakeProcess, how: str) -> None:
        self._process.machine.note(self._process, process.key, "has ended:", how)
        life = self._world.ledger.lives[self._epoch, *process.key]
        life.end = life.end or how
