"""A simulated driver of an experiment in a store: the real backend, shipper, checkpoint jobs and mirror restore.

What the local simulator fakes on top of a disk in memory is done here in a real directory for each machine, because the
store floor reads, links and renames files. Time and network are the story's.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from holdfast.checkpoints.commit import sweep
from holdfast.checkpoints.job_threads import JobThreads
from holdfast.checkpoints.stage import Stage
from holdfast.config import SyncConfig
from holdfast.controller.backends import JobContext
from holdfast.controller.loop import Controller, JobEdge, JournalWriter
from holdfast.controller.opening import Opened
from holdfast.controller.remote_backend import Background, RemoteBackend
from holdfast.controller.replay import open_with_memory
from holdfast.core import observations as ob
from holdfast.core.state import State
from holdfast.journal.claims import Claim
from holdfast.journal.epoch import release
from holdfast.journal.snapshot import SnapshotStore
from holdfast.shipping.shipper import Shipper, ShipStart
from holdfast.storage.address import parse
from holdfast.storage.layout import Root
from holdfast.storage.remote_root import Remote
from holdfast.storage.store import Store
from holdfast.testing.virtual_clock import FakeClock, Timeline
from holdfast.trainable.worker_messages import Run
from simulator.bucket import NetworkFaults, Server, StoreClient
from simulator.chaos import Chaos, Moment
from simulator.checkpoint_store import STEP_S
from simulator.disk import Killed
from simulator.engine import FakeEngine
from simulator.fake_driver import SimDriver
from simulator.fake_world import SimJournal, StoreHost, World
from simulator.ledger import Weights
from simulator.process import DriverProcess, Machine
from simulator.scenario import Scenario, pick
from simulator.strands import Strand, current_strand

URL = "s3://bucket/experiment"
UID = "ab5e1" + "0" * 27
GIVE_UP_S = 60.0
MERGING = (4, 4)
WEIGHTS = "weights.json"
SLEEPY = 0.2  # of the drivers are suspended at some time

RARE_ACTIONS = (
    *("create", "send", "list", "get", "delete", "fetch", "stat", "put"),
    *("O3.before", "O3.after", "D2.remote", "fetch.before_rename", "ship.before_put", "ship.after_put"),
    *(
        "ship.before_note",
        "merge.before_put",
        "merge.before_delete",
        "restore_mirror.file",
        "restore_mirror.before_move",
    ),
    *("L2.after", "L5.after", "launch", "journal sync"),
)


class MirrorStages:
    """Stages and checkpoints in the mirrors (``checkpoint_store.CheckpointStore``), in real directories."""

    def __init__(self) -> None:
        self.made: dict[str, Weights] = {}  # every stage that there ever was
        self.lost_stages: set[str] = set()  # damaged before they were committed
        self.rotten: set[str] = set()

    def stage(self, home: str, run: Run, weights: Weights) -> str:
        """What a worker does before it reports a checkpoint; returns the sealed name."""
        stage = Stage(Path(home), run.trial_id, run.attempt)
        folder = stage.new_directory()
        data = json.dumps(weights).encode()
        (folder / WEIGHTS).write_bytes(data)
        sealed = stage.seal(folder, {WEIGHTS: xxhash.xxh3_128_hexdigest(data)})
        self.made[sealed.name] = weights
        return sealed.name

    def spoil_stage(self, place: tuple[str, str]) -> None:
        """Damage a stage before it is committed."""
        path = Path(*place) / WEIGHTS
        data = path.read_bytes()
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        self.lost_stages.add(place[1])

    def load(self, path: str) -> Weights | None:
        """What a trainable reads from a checkpoint; None if it is not whole."""
        try:
            return Weights(*json.loads(Path(path, WEIGHTS).read_bytes()))
        except (OSError, ValueError):
            return None

    def sweep(self, home: str, keep: set[str], up_to: int) -> bool:
        return bool(sweep(Path(home), keep, up_to=up_to).spared)


class RemoteProcess(DriverProcess):
    """A driver process on one of several machines."""

    def __init__(self, story: Machine, number: int, place: str, world: RemoteWorld) -> None:
        super().__init__(story, number)
        self.place = place  # the machine that it runs on
        self._world = world
        rng = world.faults.rng
        if self._kill_at is not None and rng.random() < 0.6:
            self._kill_at = Moment(rng.integers(0, 4), pick(rng, RARE_ACTIONS))
        if self._suspend_at is None and rng.random() < SLEEPY:
            self._suspend_at = Moment(rng.integers(0, 150))

    def step(self, action: str) -> None:
        # A killed process is told so again and again; the kind of an action is its first word.
        super().step(action if " answered" in action else action.split(" ")[0])

    def in_background(self, action: str, work: Callable[[], None]) -> None:
        with self._world.on(self):
            super().in_background(action, work)

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Killed it may be meanwhile, but not suspended: it holds a lock for which others of its machine would wait."""
        before, self._in_background = self._in_background, True
        try:
            yield
        finally:
            self._in_background = before


class RemoteWorld(World):
    """One store, several machines."""

    def __init__(self, scenario: Scenario, chaos: Chaos, timeline: Timeline, folder: Path, rng: Any) -> None:
        super().__init__(scenario, chaos, timeline)
        self.store: Any = MirrorStages()
        self.folder = folder
        self.server = Server(timeline)
        self.faults = NetworkFaults(rng, lambda: timeline.now)
        self.strands: list[Strand] = []
        self.running: RemoteProcess | None = None
        spec = {"uid": UID, "format": 1, "name": "experiment", "trainable": "train", "is_class": scenario.is_class}
        more = {"created_at": 1.0, "seed": scenario.seed, "num_samples": scenario.samples}
        self.server.objects.put(".holdfast/spec.json", json.dumps({**spec, **more}).encode())

    def root(self, machine: str) -> str:
        """The mirror of the experiment on a machine."""
        return str(self.folder / machine / "experiment")

    def strand(self, process: DriverProcess, action: str, work: Callable[[], None]) -> None:
        """Let a thread of a process begin something."""
        strand = Strand(process, self.timeline, action, work)
        self.strands.append(strand)
        strand.begin()

    @contextlib.contextmanager
    def on(self, process: RemoteProcess) -> Iterator[None]:
        """Say whose code runs now: crash points and claims ask."""
        before, self.running = self.running, process
        try:
            yield
        finally:
            self.running = before

    def crashpoint(self, name: str) -> None:
        """A named place in the code of whoever runs now."""
        if self.running is None:
            return
        strand = current_strand()
        try:
            with self.running.undisturbed():
                self.running.step(name)
        except Killed:
            if strand is not None:
                strand.park()
            raise


class Lane(JobThreads[Any, Any]):
    """The threads of one lane of checkpoint jobs, as strands."""

    def __init__(self, wake: Callable[[], None], perform: Callable[[Any], Any], background: SimBackground) -> None:
        super().__init__(wake, perform)
        self._background = background

    def submit(self, job: Any) -> None:
        self._pending += 1
        if job.n in self._waiting:
            self._waiting[job.n].append(job)
            return
        self._waiting[job.n] = deque()
        self._ready.append(job)
        self._background.soon("job", self._begin)

    def _begin(self) -> None:
        if self._ready:
            job = self._ready.popleft()
            self._background.strand(f"job {type(job).__name__}", partial(self._do, job))

    def _do(self, job: Any) -> None:
        outcome = self._perform(job)
        self._background.heard(job, outcome)
        self._pending -= 1
        self._outcomes.append(outcome)
        self._release(job.n)
        if self._ready:
            self._background.soon("job", self._begin)
        self._wake()

    def close(self, wait: bool = True, running_s: float = 0.0) -> None:
        self._ready.clear()
        self._waiting.clear()


class SimShipper(Shipper):
    """The real shipper, whose thread is a strand at a time."""

    background: SimBackground
    _planned = False
    _at_work = False

    def start(self) -> None:
        self._plan(0.0)

    def look(self) -> None:
        super().look()
        self._plan(STEP_S)

    def _plan(self, seconds: float) -> None:
        if not self._planned and not self._at_work and not self._stopping:
            self._planned = True
            self.background.soon("ship", self._begin, max(seconds, STEP_S))

    def _begin(self) -> None:
        self._planned = False
        now = self._clock.now()
        if now < self._retry_at or (self._outgoing is None and not self._is_due(self._journal.synced_seq, now)):
            self._plan(min(self.step(), 5.0))  # which asks the store nothing
            return
        self._at_work = True
        self.background.strand("ship", self._one_step)

    def _one_step(self) -> None:
        try:
            pause = self.step()
        finally:
            self._at_work = False
        self._plan(min(pause, 5.0))

    def wait_shipped(self, seq: int, timeout: float | None = None) -> bool:
        self.request(seq)
        self.background.pass_time(
            60.0 if timeout is None else timeout,
            lambda: self._shipped_seq >= seq or self.fenced or self._stopping,
        )
        return self._shipped_seq >= seq

    def close(self, *, release: bool = True, deadline_s: float = 30.0) -> bool:
        self._stopping = True
        self.background.pass_time(deadline_s, lambda: not self._at_work)
        return not self._at_work and super().close(release=release, deadline_s=deadline_s)


class SimBackground(Background):
    """Threads and clock of one simulated driver."""

    def __init__(self, world: RemoteWorld, process: RemoteProcess) -> None:
        self.world = world
        self.process = process
        self.host: StoreHost | None = None

    def soon(self, action: str, work: Callable[[], None], seconds: float = STEP_S) -> None:
        """Let a thread do something in a moment."""
        self.world.timeline.later(seconds, lambda: self.process.in_background(action, work))

    def strand(self, action: str, work: Callable[[], None]) -> None:
        self.world.strand(self.process, action, work)

    def pass_time(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Let the driver's main thread wait."""
        self.world.timeline.pass_time(seconds, lambda: enough() or self.process.dead)
        if self.process.dead:
            raise Killed

    def heard(self, job: Any, outcome: Any) -> None:
        """A job has ended; what was verified may be started from."""
        self.process.machine.note(self.process, outcome)
        if isinstance(outcome, ob.VerifyEnded) and outcome.ok and self.host is not None:
            key = (job.n, job.index)
            self.host.verified[key] = self.host.verified.get(key, 0) + 1

    def now(self) -> float:
        return self.world.timeline.now

    def sleep(self, seconds: float) -> None:
        self.pass_time(seconds, lambda: False)

    def journal(self, root: Path, claim: Claim) -> SimJournal:
        journal = SimJournal.create_or_append(root, claim, threaded=False)
        assert isinstance(journal, SimJournal)
        journal.live_in(self.process, self.world.timeline)
        return journal

    def shipper(self, store: Store, journal: Any, start: ShipStart) -> Shipper:
        shipper = SimShipper(store, journal, start, clock=self, merging=MERGING)
        shipper.background = self
        return shipper

    def job_threads(self, wake: Callable[[], None], perform: Callable[[Any], Any]) -> JobThreads[Any, Any]:
        return Lane(wake, perform, self)


class SimBackend(RemoteBackend):
    """The real backend without result files, which no story has."""

    def start(self, trouble: Callable[[str], None], changed: Callable[[], Any]) -> None:
        self.shipper.on_trouble = partial(self._tell, trouble)
        self.shipper.start()


class RemoteDriver(SimDriver):
    """One driver of an experiment in a store.

    Attributes:
        machine: Where it runs.
        backend: Its dealings with the store.
    """

    world: RemoteWorld
    process: RemoteProcess

    def __init__(self, world: RemoteWorld, process: RemoteProcess, resume: tuple[str, str, str]) -> None:
        super().__init__(world, process, resume)
        self.machine = process.place
        self.root = world.root(self.machine)
        os.makedirs(os.path.dirname(self.root), exist_ok=True)
        remote = Remote(parse(URL))
        remote.store = StoreClient(world.server, world.faults, process, world.timeline)
        self._background = SimBackground(world, process)
        durability: Any = world.scenario.durability
        config = SyncConfig(sync_timeout=GIVE_UP_S)
        self.backend = SimBackend(Root(self.root, remote=remote), durability, config, self._background)

    @property
    def shipped_seq(self) -> int:
        """The last record that this driver knows to be in the store."""
        return self.backend.shipper.shipped_seq if self.backend._shipper is not None else 0

    def advance(self) -> None:
        with self.world.on(self.process):
            super().advance()

    def abort(self) -> None:
        with self.world.on(self.process):
            super().abort()

    def claim(self) -> None:
        with self.process.undisturbed():
            self.claimed = self.backend.claim(takeover=True)

    def open_journal(self) -> None:
        assert self.claimed is not None
        self._store = SnapshotStore(self.root, epoch=self.claimed.epoch)
        journal = self.backend.open(self.claimed)
        assert isinstance(journal, SimJournal)
        self.journal = journal

    def _open_state(self, store: SnapshotStore) -> Opened:
        return open_with_memory(Root(self.root), self.world.scenario.retention, store, self._memories)

    def compare_storage(self) -> None:
        self.backend.compare(self.state, UID)

    def _follow(self, journal: SimJournal, state: State, engine: FakeEngine) -> JournalWriter:
        journal.wakes(engine)
        followed = self.backend.follow(journal, engine.wake, state)
        self.backend.start(lambda text: None, lambda: ())
        return followed

    def _job_edge(self, state: State, clock: FakeClock, host: StoreHost) -> JobEdge:
        self._background.host = host
        assert self.engine is not None
        context = JobContext(
            state, self.memory, clock, self._trial_dir, lambda text: None, self.world.scenario.retention
        )
        return self.backend.checkpoint_jobs(self.engine.wake, context).edge

    def _most_uncommitted(self) -> int:
        return self.backend.most_uncommitted(self.world.scenario.retention)

    def _turn(self, controller: Controller) -> None:
        super()._turn(controller)
        if not self.left:
            why = self.backend.why_give_up()
            if why and not controller.memory.draining:
                controller.watches.end(why)
                self.ending = True
                self.world.ledger.told_to_end.add(controller.state.epoch)

    def make_durable(self) -> None:
        watches, clock = self.controller.watches, self.controller.edges.clock
        self.backend.finish(self.state, lambda: watches.why_leave(clock.now()), self.memory.draining)

    def _close(self, journal: SimJournal) -> None:
        try:
            journal.close(release=False)
        finally:
            self.backend.close()
            assert self.claimed is not None
            release(self.root, self.claimed)
