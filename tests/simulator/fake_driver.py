"""A simulated driver: the real core, loop, journal, replay and checkpoint jobs, in the steps of every driver's life.

Owns the parts that a story fakes; the order of the steps is that of ``controller.lifecycle``. Must never decide
anything, or know what goes wrong.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.controller.checkpoint_jobs import CheckpointJobEdge
from holdfast.controller.lifecycle import LEAVING, OPENING, STARTING, DriverLife
from holdfast.controller.loop import Controller, Edges, JobEdge, JournalWriter
from holdfast.controller.opening import Opened
from holdfast.controller.proposing import Describer, VariantProposer
from holdfast.controller.replay import Memory, StopRuleMemory, open_with_memory, stored_memories
from holdfast.controller.request_edge import RequestEdge
from holdfast.controller.searching import LearningProposer
from holdfast.controller.snapshots import Snapshotter
from holdfast.controller.stop_rule import UserStopRule
from holdfast.controller.watches import Watches
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.policies import Policies, Rules, Scheduler, ignore
from holdfast.core.state import DriverMemory, State
from holdfast.engines.base import MakesAttemptsWait
from holdfast.errors import StorageError
from holdfast.journal.claims import Claim
from holdfast.journal.epoch import claim_epoch
from holdfast.journal.snapshot import SnapshotStore
from holdfast.schedulers.fifo import FirstInFirstOut
from holdfast.search.replayable import ReplayableSearcher
from holdfast.stopper import DictStopper, NoopStopper, Stopper
from holdfast.storage.layout import Root
from holdfast.testing.virtual_clock import FakeClock
from holdfast.trainable.worker_messages import Run, Setup
from holdfast.views.results import ResultBuilder
from simulator.checkpoint_store import StoreWorkers
from simulator.disk import DiskView, Killed
from simulator.engine import FakeEngine
from simulator.fake_policies import GoodRowsStopper, PausingScheduler, StoredGoodRowsStopper
from simulator.fake_search import PREFIX
from simulator.fake_world import (
    ROOT,
    MemorySpools,
    SearchThread,
    SimJournal,
    SlowProposer,
    StoreHost,
    WorkersHost,
    World,
)
from simulator.process import DriverProcess
from simulator.scenario import Scenario
from simulator.schedulers_under_test import make_adapter
from simulator.users import DiskRequests

UNWIND_GRACE_S = 20.0
LEAVE_SYNCS = 20
OPENING_STEP_S = 0.01  # of every second driver: others act between its steps; for the next one, nothing has moved
PATIENCE_S = 1.0  # the loop looks at its clock several times a second


class SimHooks:
    """Rewinds the stop rule as the real hooks do, and now and then a callback asks for a checkpoint, or fails."""

    answers_wait = True

    def __init__(self, state: State, stop: UserStopRule, process: DriverProcess, world: World) -> None:
        self._state = state
        self._stop = stop
        self._process = process
        self._chaos = world.chaos
        self._ledger = world.ledger
        self._save_chance = world.scenario.save_chance
        self._complaints: list[ob.Observation] = []

    def before_turn(self) -> None:
        pass

    def see(self, observations: Iterable[ob.Observation]) -> None:
        pass

    def watch(self, event: ev.AnyEvent) -> None:
        self._process.machine.note(self._process, "*", event)
        if isinstance(event, ev.TrialStarted):
            self._stop.rewind(self._state.trials[event.n])

    def after_turn(self, events: list[ev.AnyEvent]) -> None:
        for event in events:
            if isinstance(event, ev.TrialTerminated) and self._chaos.strikes("failed_callbacks", 0.2):
                self._ledger.failed_callbacks.add((self._state.epoch, event.n))
                self._complaints.append(ob.CallbackRaised(event.n, ev.ErrorFacts("KeyError", "in a callback")))

    def take_complaints(self) -> list[ob.Observation]:
        complaints, self._complaints = self._complaints, []
        return complaints

    def wants_save(self, n: int) -> bool:
        return bool(self._save_chance) and self._chaos.rng.random() < self._save_chance

    def trouble(self, text: str) -> None:
        pass

    def large(self, event: ev.Reported, size: int) -> None:
        pass


def make_stopper(scenario: Scenario) -> Stopper:
    """The story's stop rule, as a user would write it."""
    if scenario.stop_at:
        return DictStopper({"training_iteration": scenario.stop_at})
    if scenario.stop_after_good:
        kind = StoredGoodRowsStopper if scenario.stop_rule_remembers else GoodRowsStopper
        return kind(scenario.stop_after_good, scenario.stop_all_after)
    return NoopStopper()


class SimDriver(DriverLife):
    """One driver, advanced a step at a time.

    Attributes:
        process: The process that it runs in.
        left: It has shut down gracefully; ``interrupted`` says why if trials were left unfinished.
        controller: Once it has opened the experiment.
    """

    def __init__(self, world: World, process: DriverProcess, resume: tuple[str, str, str]) -> None:
        self.world = world
        self.process = process
        self.left = False
        self.interrupted = ""
        self.controller: Any = None
        self.journal: Any = None
        self.claimed: Claim | None = None
        self.engine: FakeEngine | None = None
        self._steps = deque((*OPENING, *STARTING))
        self.ending = False
        self._ending_since = math.inf
        self.snapshot_seq = -1
        self.snapshots = 0
        self.root = ROOT
        self._resume = resume
        self.spools = MemorySpools(world, process)
        self._disk = DiskView(world.disk, process)
        self._store: SnapshotStore | None = None
        self._snapshots: Snapshotter | None = None
        self.stop = UserStopRule(make_stopper(world.scenario), world.scenario.time_budget_s)
        self._results = ResultBuilder()
        self._memories: list[Memory] = []
        if self.stop.has_memory:
            self._memories.append(StopRuleMemory(self.stop, self._results))
        self._scheduler: Scheduler = FirstInFirstOut()
        adapter = make_adapter(world.scenario.scheduler, world.scenario.seed, self._results)
        if adapter is not None:
            self._scheduler = adapter
            self._memories.append(adapter)
        elif world.scenario.pause_at:
            self._scheduler = PausingScheduler(world.scenario.pause_at)
        self._search: SearchThread | None = None
        self._variants: SlowProposer | None = None
        self._learner = self._make_learner(world.scenario)

    def _make_learner(self, scenario: Scenario) -> LearningProposer | None:
        fake = scenario.learner(self._results)
        if fake is None:
            return None

        def make_adapter() -> ReplayableSearcher:
            another = scenario.learner(self._results)
            assert another is not None
            return another.adapter

        learner = LearningProposer(make_adapter, fake.script, fake.filler)
        self._memories.append(learner)
        return learner

    def advance(self) -> None:
        """Take the next step of opening, or one turn of the loop."""
        if self._steps:
            self.take([self._steps.popleft()])
            if self.process.number % 2:
                self.world.timeline.pass_time(OPENING_STEP_S, lambda: self.process.dead)
        else:
            self._turn(self.controller)

    @property
    def is_open(self) -> bool:
        """Whether it has begun to run its loop."""
        return not self._steps

    def end(self, reason: str) -> None:
        """Somebody wants this driver to end."""
        if self.is_open and self.engine is not None:
            self.process.machine.note(self.process, reason)
            self.controller.watches.end(reason, self.controller.edges.clock.now())
            self.engine.wake()
            self.ending = True
            self.world.ledger.told_to_end.add(self.controller.state.epoch)

    def abort(self) -> None:
        """Leave because of an error: what was started is ended, and the claim is released."""
        if self.engine is not None:
            self.engine.close()
        try:
            if self.journal is not None:
                self._close(self.journal)
        except (StorageError, Killed, KeyboardInterrupt):
            pass

    # --- opening: what depends on where the experiment lives

    def claim(self) -> None:
        self.claimed = claim_epoch(ROOT, takeover=True, disk=self._disk)

    def open_journal(self) -> None:
        assert self.claimed is not None
        self._store = SnapshotStore(ROOT, epoch=self.claimed.epoch, disk=self._disk)
        durability: Any = self.world.scenario.durability
        journal = SimJournal.create_or_append(
            ROOT, self.claimed, durability=durability, disk=self._disk, threaded=False
        )
        assert isinstance(journal, SimJournal)
        journal.live_in(self.process, self.world.timeline)
        self.journal = journal

    def _open_state(self, store: SnapshotStore) -> Opened:
        return open_with_memory(Root(ROOT), self.world.scenario.retention, store, self._memories, disk=self._disk)

    def compare_storage(self) -> None:
        """A story of one machine loses no part of its journal but by a power cut, after which nothing is missing."""

    def _follow(self, journal: SimJournal, state: State, engine: FakeEngine) -> JournalWriter:
        """The journal as the loop sees it."""
        journal.wakes(engine)
        return journal

    def _job_edge(self, state: State, clock: FakeClock, host: StoreHost) -> JobEdge:
        return CheckpointJobEdge(
            StoreWorkers(self.world.store, self.world.timeline, host),
            state,
            clock,
            trial_dir=self._trial_dir,
            trouble=lambda text: None,
        )

    def _most_uncommitted(self) -> int:
        return Rules().max_uncommitted

    def _trial_dir(self, n: int) -> Path:
        return Path(f"{self.root}/t{n}")

    def _make_hosts(self, epoch: int) -> tuple[StoreHost, WorkersHost]:
        store_host = StoreHost(self.world, self.process)
        return store_host, WorkersHost(self.world, self.process, epoch, store_host, self.root)

    def _make_engine(self, host: WorkersHost) -> FakeEngine:
        return FakeEngine(self.world.timeline, host, self.world.scenario.cpus)

    # --- opening

    def fold_journal(self) -> None:
        assert self._store is not None
        opened = self._open_state(self._store)
        self.state, self.snapshot_seq = opened.state, opened.snapshot_seq
        self.memory = DriverMemory()
        self.memory.changed = opened.changed

    def make_edges(self) -> None:
        world, scenario, state = self.world, self.world.scenario, self.state
        assert self._store is not None
        assert self.claimed is not None
        clock = FakeClock(world.timeline, state.last_at, lambda: self.process.dead)
        store_host, host = self._make_hosts(self.claimed.epoch)
        self.host = host
        engine = self.engine = host.engine = store_host.engine = self._make_engine(host)
        world.engines.append(engine)
        host.journal = followed = self._follow(self.journal, state, engine)
        jobs = self._job_edge(state, clock, store_host)
        edges = Edges(engine, followed, jobs, self._proposer(state, engine), clock, partial(self._run_message, state))
        hooks = SimHooks(state, self.stop, self.process, world)
        self._requests = RequestEdge(
            DiskRequests(world, self.process),
            state,
            followed,
            self.claimed.epoch,
            total_of=lambda samples: scenario.plan(samples).total,
            warn=lambda text: None,
        )
        self._settings = state.settings
        watches = Watches(
            self.stop,
            stall_timeout_s=scenario.stall_timeout_s,
            grace_s=scenario.grace_s,
            requests=self._requests.look,
            is_waiting=engine.is_waiting if isinstance(engine, MakesAttemptsWait) else None,
        )
        self._snapshots = Snapshotter(
            state,
            self._store,
            clock,
            self.journal,
            changed=self.memory.changed,
            policies=partial(stored_memories, self._memories),
        )
        self.controller = Controller(state, self.memory, self._policies(), edges, hooks, watches)

    def first_records(self) -> list[ev.AnyEvent]:
        assert self.claimed is not None
        writer = f"driver-{self.process.number}"  # the claim's own name is random
        return [ev.EpochStarted(self.controller.edges.clock.now(), self.claimed.epoch, writer, "host", 1)]

    def epoch_recorded(self) -> None:
        """No story changes settings."""

    def resumed(self, former: str, spent: str) -> ob.Resumed:
        assert self.claimed is not None
        finished, unfinished, errored = self._resume
        self.world.ledger.resumes[self.claimed.epoch] = ("skip", unfinished, "skip") if spent else self._resume
        return ob.Resumed(finished, unfinished, errored, former, spent)

    def start_hooks(self) -> None:
        """Hooks of stories have nothing to begin with."""

    def open_engine(self) -> None:
        first_worker = max(self.state.workers, default=0) + 1
        self.journal.flush()
        assert self.engine is not None
        self.engine.open(Setup(first_worker, "story", self.root, "", "", self.world.scenario.is_class))
        if self.world.scenario.ahead:  # in other stories, what was left running may continue for a while
            self.world.end_all_but(self.engine)

    def sweep(self, trials: set[int]) -> None:
        state = self.state
        for n in trials:
            self.process.step("sweep")
            trial = state.trials[n]
            keep = {record.sealed for record in trial.checkpoints if (n, record.index) in state.staged}
            self.memory.untidy.discard(n)
            if self.world.store.sweep(f"{self.root}/t{n}", keep, trial.attempt):
                self.memory.untidy.add(n)

    def _policies(self) -> Policies:
        scenario = self.world.scenario
        rules = Rules(
            retention=scenario.retention,
            max_failures=scenario.max_failures,
            fail_fast=scenario.fail_fast,
            is_class=scenario.is_class,
            max_concurrent=scenario.max_concurrent,
            lookahead=scenario.lookahead,
            searcher_learns=self._search is not None,
            free_load_failures=scenario.free_load_failures,
            unwind_grace_s=UNWIND_GRACE_S,
            roots=(self.root,),
            ahead=scenario.ahead,
            max_backlog_bytes=scenario.max_backlog_bytes,
            max_uncommitted=self._most_uncommitted(),
            num_samples=scenario.samples,
        )
        tell = ignore if self._search is None else self._search.tell
        return Policies(rules, self._scheduler, self.stop, self._results, tell)

    def _proposer(self, state: State, engine: FakeEngine) -> SlowProposer | SearchThread:
        world, scenario = self.world, self.world.scenario
        wide = {"CPU": min(2.0, scenario.cpus)}
        describe = Describer(
            state,
            prefix=PREFIX,
            request_of=lambda config: wide if scenario.wide_trials and config["width"] == 32 else None,
            keep_value=lambda proposal: proposal.config,
            names=lambda n, identity, tag, config: ("", ""),
        )
        slow = world.chaos.strikes("slow_searches", 0.5)
        delay_s = world.chaos.rng.uniform(0.1, 5.0) if slow else 0.0
        if self._learner is not None:
            self._learner.start(describe, engine.wake, threaded=False)
            self._search = SearchThread(self._learner, self.process, world.timeline, delay_s)
            return self._search
        proposer = VariantProposer(scenario.plan(state.settings.num_samples), state, describe)
        self._variants = SlowProposer(proposer, self.process, world.timeline, delay_s)
        return self._variants

    # --- running

    def _run_message(self, state: State, n: int) -> Run:
        trial = state.trials[n]
        if n in self.memory.untidy:
            self.sweep({n})
        checkpoint = None
        if trial.source is not None:
            donor, index = trial.source
            checkpoint = f"t{donor}/checkpoint_{index:06d}"
        return Run(
            n=n,
            attempt=trial.attempt,
            trial_id=trial.id,
            trial_name=trial.id,
            trial_dir=f"t{n}",
            tag=trial.tag,
            config=trial.config,
            checkpoint=checkpoint,
            iteration=trial.iteration,
            time_total=trial.time_total,
        )

    def _turn(self, controller: Controller) -> None:
        began = self.world.timeline.now
        if self.ending:
            self.host.no_more_launches = True  # the loop will have heard of it before it decides anything
            self._ending_since = min(self._ending_since, began)
        controller.step()
        if controller.state.settings is not self._settings:
            self._settings = controller.state.settings
            if self._variants is not None:
                self._variants.replan(self.world.scenario.plan(self._settings.num_samples))
        self.host.check_answers(controller.memory.owed)
        if began > self._ending_since + self.world.scenario.grace_s + PATIENCE_S:
            self.host.check_halted()
        if controller.watches.hurry:
            raise KeyboardInterrupt
        if controller.done():
            self._leave()
        elif self.world.chaos.rng.random() < self.world.scenario.snapshot_chance:
            self._take_snapshot()

    def _take_snapshot(self) -> None:
        assert self._snapshots is not None
        self._snapshots.finish()
        self.snapshots += 1
        if self._search is not None:
            self._search.go_on()

    def _leave(self) -> None:
        self.take(LEAVING)
        self._close(self.journal)
        self.interrupted = self.memory.draining
        self.left = True

    def make_durable(self) -> None:
        journal = self.journal
        if not any(journal.wait_synced(journal.written_seq) for _ in range(LEAVE_SYNCS)):
            raise StorageError("the last records of the journal could not be made durable")
        self._requests.close()

    def take_last_snapshot(self) -> None:
        self._take_snapshot()

    def _close(self, journal: SimJournal) -> None:
        journal.close()
