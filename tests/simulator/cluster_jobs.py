"""Checkpoint jobs of a simulated cluster: a sealed stage is brought from its machine before it is committed.

Whether a stage is brought, and what a failure means, is decided by the real ``checkpoints.jobs.bringing``; the pieces
of a transfer are steps of the story, between which the machine may be lost, the transfer cut, or the driver killed.

Owns transfers, and complains at once about a commit without its bytes, or a stage that is given up although it could
have been brought (I2). Must never decide when something goes wrong.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from holdfast.checkpoints import jobs
from holdfast.core import observations as ob
from holdfast.engines.cluster.carrier import lost_stage
from holdfast.errors import CheckpointDamagedError, StorageError
from simulator.checkpoint_store import CheckpointStore, StageDir, StoreWorkers
from simulator.cluster_engine import FakeClusterEngine
from simulator.cluster_nodes import Link
from simulator.fake_world import StoreHost, World
from simulator.ledger import Violation
from simulator.process import DriverProcess

PIECES = 3
STALLED_S = 1.0


class _Asked:
    """Hears whether a stage has to be brought (``checkpoints.jobs.StageSource``), and says what came of it."""

    def __init__(self, engine: FakeClusterEngine, error: Exception | None = None) -> None:
        self._engine = engine
        self._error = error
        self.wanted = False

    def bring(self, trial_dir: str, sealed: str, attempt: int) -> None:
        self.wanted = True
        if self._error is not None:
            raise self._error

    def drop(self, trial_dir: str, sealed: str) -> None:
        self._engine.drop(trial_dir, sealed)


class Bringing:
    """The transfers of one driver."""

    def __init__(self, engine: FakeClusterEngine, store: CheckpointStore, process: DriverProcess) -> None:
        self.engine = engine
        self._store = store
        self._process = process
        self._count = 0

    def steps(self, job: jobs.CommitJob) -> Generator[str, None, None]:
        """Bring a stage, piece by piece, beside its target; it gets its name when it is whole.

        Raises:
            CheckpointDamagedError: Its machine was lost.
            StorageError: Not now.
        """
        home, sealed = job.trial_dir, job.sealed_name
        link = self.engine.link_of(home.rpartition("/")[2], sealed)
        if link is None or (home, sealed) in self._store.stages:
            return
        self._count += 1
        fresh = (home, f".stage-{job.attempt}-{self._process.number}-{self._count}")
        self._store.stages[fresh] = StageDir(self._store.made[sealed], job.attempt, intact=False)
        try:
            yield from self._pieces(link, (home, sealed))
            self._rename(link, fresh, (home, sealed))
        except BaseException:
            if not self._process.dead:  # a killed process tidies up nothing
                self._store.stages.pop(fresh, None)
            raise
        self.engine.drop(home.rpartition("/")[2], sealed)

    def _pieces(self, link: Link, place: tuple[str, str]) -> Generator[str, None, None]:
        machines = self.engine.machines
        for _ in range(PIECES):
            self._check(link, place)
            machines.trouble(link.node)
            yield "bring"
            while link.silent_since is not None:
                yield "bring stalled"
            self._check(link, place)
            if machines.faults.strikes("cut_transfers", 0.15):
                machines.note(link.id, "a transfer is cut")
                raise StorageError("the transfer was cut")

    def _check(self, link: Link, place: tuple[str, str]) -> None:
        if link.lost or place not in link.node.disk:
            raise lost_stage(place[1], link.node.name)

    def _rename(self, link: Link, fresh: tuple[str, str], place: tuple[str, str]) -> None:
        brought = self._store.stages.pop(fresh, None)
        if brought is None:
            raise StorageError("somebody has removed what was brought so far")
        brought.intact = link.node.disk[place].intact
        self._store.stages[place] = brought


class ClusterStoreWorkers(StoreWorkers):
    """The background threads of one driver, which bring stages before they commit them."""

    def __init__(self, store: CheckpointStore, bringing: Bringing, host: ClusterStoreHost) -> None:
        super().__init__(store, bringing.engine.machines.timeline, host)
        self._bringing = bringing

    def _begin(self, job: jobs.Job) -> None:
        self._plan(job, self._steps(job), "begin")

    def _steps(self, job: jobs.Job) -> Generator[str, None, jobs.Outcome]:
        engine, error = self._bringing.engine, None
        asked = _Asked(engine)
        jobs.bringing(asked, lambda job: None)(job)
        if asked.wanted:
            assert isinstance(job, jobs.CommitJob)
            try:
                yield from self._bringing.steps(job)
            except (CheckpointDamagedError, StorageError) as failure:
                error = failure
        outcome: jobs.Outcome | None = jobs.bringing(_Asked(engine, error), lambda job: None)(job)
        if outcome is None:
            outcome = yield from self._store.steps(job)
        return outcome

    def _plan(self, job: jobs.Job, steps: Any, action: str) -> None:
        if not action.startswith("bring"):
            super()._plan(job, steps, action)
            return
        delay_s = STALLED_S if action == "bring stalled" else self._bringing.engine.machines.transfer_delay_s()
        work = partial(self._step, job, steps, action)
        self._timeline.later(delay_s, lambda: self._host.in_background(f"commit {job.n}/{job.index} bring", work))


class ClusterStoreHost(StoreHost):
    """The driver's side of ``ClusterStoreWorkers``.

    Args:
        excused: Stages that could not be brought; the audit asks.
    """

    def __init__(self, world: World, process: DriverProcess, excused: set[str]) -> None:
        super().__init__(world, process)
        self._excused = excused

    def job_ended(self, job: jobs.Job, outcome: jobs.Outcome) -> None:
        if isinstance(job, jobs.CommitJob) and isinstance(outcome, ob.CommitEnded):
            if outcome.damaged:
                self._check_given_up(job)
            else:
                self._check_whole(job)
        super().job_ended(job, outcome)

    def _check_whole(self, job: jobs.CommitJob) -> None:
        path = f"{job.trial_dir}/checkpoint_{job.index:06d}"
        found, saved = self._world.store.checkpoints.get(path), self._world.store.made[job.sealed_name]
        if path in self._world.store.rotten:
            return  # a driver before this one had committed it
        if found is None or not found.intact or found.weights != saved:
            raise Violation("I2", f"{path} counts as committed, and is {found} instead of {saved}")

    def _check_given_up(self, job: jobs.CommitJob) -> None:
        """Only what is damaged, or was on a machine that this driver cannot reach any more, may be given up."""
        store, sealed = self._world.store, job.sealed_name
        if sealed in store.lost_stages:
            return
        engine = self.engine
        assert isinstance(engine, FakeClusterEngine)
        link = engine.link_of(job.trial_dir.rpartition("/")[2], sealed)
        is_there = link is not None and not link.lost and (job.trial_dir, sealed) in link.node.disk
        if is_there or (job.trial_dir, sealed) in store.stages:
            raise Violation("I2", f"checkpoint {job.index} of trial {job.n} is given up although its files are whole")
        self._excused.add(sealed)
