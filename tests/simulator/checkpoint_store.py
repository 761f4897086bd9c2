"""Checkpoint directories in memory, and workers that commit, verify and delete them step by step.

Keeps what a power cut would leave, and every bit of rot, for itself: the checkers ask here what is really there. The
steps are those of ``checkpoints.commit`` and ``checkpoints.delete``; between two of them the driver can die.

Owns directories. Must never know what the journal says about them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from holdfast.checkpoints import jobs
from holdfast.core import observations as ob
from holdfast.testing.virtual_clock import Timeline
from holdfast.trainable.worker_messages import Run
from simulator.ledger import Weights

STEP_S = 0.01


@dataclass
class StageDir:
    """A sealed stage: written, not fsynced."""

    weights: Weights
    attempt: int
    intact: bool = True
    durable: bool = False


@dataclass
class CheckpointDir:
    """A directory ``checkpoint_*``."""

    weights: Weights
    stage: str
    attempt: int
    intact: bool = True
    named: bool = False  # its name is durable
    manifest: bool = True  # False: it is being deleted and no reader sees it
    stubborn: bool = False  # cannot be deleted

    @property
    def digest(self) -> str:
        return f"{self.weights.n}.{self.weights.step}.{self.weights.link}"


class StoreTrouble(Exception):
    """The storage does not do it now; trying again may work."""


class Damaged(Exception):
    """It will never work."""


class CheckpointStore:
    """The directories of all trials, by trial directory and name."""

    def __init__(self) -> None:
        self.stages: dict[tuple[str, str], StageDir] = {}
        self.checkpoints: dict[str, CheckpointDir] = {}
        self.rotten: set[str] = set()  # paths that ever rotted
        self.lost_stages: set[str] = set()  # stages that were damaged or lost before they were committed
        self._ghosts: dict[str, CheckpointDir] = {}  # deleted, which a power cut may undo
        self.made: dict[str, Weights] = {}  # every stage that there ever was
        self._count = 0

    def stage(self, home: str, run: Run, weights: Weights) -> str:
        """What a worker does before it reports a checkpoint; returns the sealed name."""
        self._count += 1
        name = f".sealed-{run.attempt}-{self._count:08x}"
        self.stages[home, name] = StageDir(weights, run.attempt)
        self.made[name] = weights
        return name

    def load(self, path: str) -> Weights | None:
        """What a trainable reads from a checkpoint; None if it is not whole."""
        found = self.checkpoints.get(path)
        return found.weights if found is not None and found.manifest and found.intact else None

    def sweep(self, home: str, keep: set[str], up_to: int) -> bool:
        """As ``checkpoints.commit.sweep``: stages of attempts up to this one, which nobody has to commit.

        Returns:
            Whether stages of later attempts were spared.
        """
        found = [place for place in self.stages if place[0] == home and place[1] not in keep]
        spared = [place for place in found if self.stages[place].attempt > up_to]
        for place in found:
            if place not in spared:
                del self.stages[place]
        return bool(spared)

    def rot(self, path: str) -> None:
        """Flip a bit of a checkpoint."""
        self.checkpoints[path].intact = False
        self.rotten.add(path)

    def spoil_stage(self, place: tuple[str, str]) -> None:
        """Damage a stage before it is committed."""
        self.stages[place].intact = False
        self.lost_stages.add(place[1])

    def power_cut(self, keep: Callable[[int], int]) -> None:
        """Lose what is not durable; ``keep`` as in ``MemoryDisk.power_cut``."""
        for path, ghost in self._ghosts.items():
            if keep(1):
                self.checkpoints[path] = ghost
        self._ghosts.clear()
        for path, found in list(self.checkpoints.items()):
            if not found.named and not keep(1):
                home = path.rpartition("/")[0]
                self.stages[home, found.stage] = StageDir(found.weights, found.attempt, found.intact, durable=True)
                del self.checkpoints[path]
            found.named = True
        for place, stage in list(self.stages.items()):
            if not stage.durable and not keep(1):
                self.lost_stages.add(place[1])
                if keep(1):
                    stage.intact = False
                else:
                    del self.stages[place]
            stage.durable = True

    def steps(self, job: jobs.Job) -> Generator[str, None, jobs.Outcome]:
        """Do a job; between two steps others act, and whoever does it may die."""
        if isinstance(job, jobs.CommitJob):
            return self._commit(job)
        if isinstance(job, jobs.VerifyJob):
            return self._verify(job)
        return self._delete(job)

    def _commit(self, job: jobs.CommitJob) -> Generator[str, None, jobs.Outcome]:
        path = f"{job.trial_dir}/checkpoint_{job.index:06d}"
        place = (job.trial_dir, job.sealed_name)
        if not self._is_made_of(path, job.sealed_name):
            yield "L2"
            if not self._is_made_of(path, job.sealed_name):
                self._sealed(place).durable = True
            yield "L5"
            # A driver that was taken over may be at the same commit, and be faster.
            if not self._is_made_of(path, job.sealed_name):
                stage = self._sealed(place)
                del self.stages[place]
                aside = self.checkpoints.pop(path, None)
                if aside is not None:
                    self.checkpoints[f"{path}.orphan"] = aside
                self.checkpoints[path] = CheckpointDir(stage.weights, job.sealed_name, stage.attempt, stage.intact)
        found = self.checkpoints[path]
        yield "L6"
        found.named = True
        return ob.CommitEnded(job.n, job.index, found.digest, 10)

    def _is_made_of(self, path: str, sealed: str) -> bool:
        found = self.checkpoints.get(path)
        return found is not None and found.stage == sealed and found.manifest

    def _sealed(self, place: tuple[str, str]) -> StageDir:
        stage = self.stages.get(place)
        if stage is None:
            raise Damaged("the staged files are missing and no checkpoint was made from them")
        if not stage.intact:
            raise Damaged("it is not what was sealed")
        return stage

    def _verify(self, job: jobs.VerifyJob) -> Generator[str, None, jobs.Outcome]:
        yield "verify"
        found = self.checkpoints.get(job.directory)
        if found is None or not found.manifest:
            raise Damaged("it has no manifest")
        if not found.intact:
            raise Damaged("a file does not match its checksum")
        if found.digest != job.digest:
            raise Damaged(f"its manifest is not the one in the journal: {found.digest} is not {job.digest}")
        return ob.VerifyEnded(job.n, job.index, ok=True)

    def _delete(self, job: jobs.DeleteJob) -> Generator[str, None, jobs.Outcome]:
        path = job.directory
        yield "D1"
        found = self.checkpoints.get(path)
        if found is not None:
            if found.stubborn:
                raise StoreTrouble("permission denied")
            found.manifest = False
            yield "D2"
            if self.checkpoints.pop(path, None) is not None:
                self._ghosts[path] = found
        yield "D4"
        self._ghosts.pop(path, None)
        return ob.DeleteEnded(job.n, job.index, ok=True)


class JobHost(Protocol):
    """The driver process in which the workers' threads run."""

    def in_background(self, action: str, work: Callable[[], None]) -> None:
        """Let a thread do its next piece of work, now or when the process is awake; never if it is dead."""

    def store_fault(self) -> str:
        """Why the storage fails now, or ""."""

    def store_delay_s(self) -> float:
        """How long the next step takes."""

    def job_ended(self, job: jobs.Job, outcome: jobs.Outcome) -> None:
        """Something is ready to be drained."""

    def deleting(self, job: jobs.DeleteJob) -> None:
        """A checkpoint is about to cease to exist."""


class StoreWorkers:
    """The background threads of one driver (``controller.checkpoint_jobs.Workers``): jobs of one trial in order."""

    def __init__(self, store: CheckpointStore, timeline: Timeline, host: JobHost) -> None:
        self._store = store
        self._timeline = timeline
        self._host = host
        self._waiting: dict[int, deque[jobs.Job]] = {}
        self._outcomes: list[jobs.Outcome] = []

    def submit(self, job: jobs.Job) -> None:
        queue = self._waiting.setdefault(job.n, deque())
        queue.append(job)
        if len(queue) == 1:
            self._begin(job)

    def withdraw(self, job: jobs.Job) -> bool:
        return False  # every job begins when it is submitted

    def drain(self) -> list[jobs.Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _begin(self, job: jobs.Job) -> None:
        self._plan(job, self._store.steps(job), "begin")

    def _plan(self, job: jobs.Job, steps: Iterator[str], action: str) -> None:
        work = partial(self._step, job, steps, action)
        self._timeline.later(
            self._host.store_delay_s(), lambda: self._host.in_background(f"{_name(job)} {action}", work)
        )

    def _step(self, job: jobs.Job, steps: Iterator[str], action: str) -> None:
        fault = self._host.store_fault()
        try:
            if fault:
                raise StoreTrouble(fault)
            if action == "D1":
                assert isinstance(job, jobs.DeleteJob)
                self._host.deleting(job)
            following = next(steps)
        except StopIteration as end:
            self._ended(job, end.value)
        except Damaged as error:
            self._ended(job, _failed(job, True, str(error)))
        except StoreTrouble as error:
            self._ended(job, _failed(job, False, str(error)))
        else:
            self._plan(job, steps, following)

    def _ended(self, job: jobs.Job, outcome: jobs.Outcome) -> None:
        self._outcomes.append(outcome)
        queue = self._waiting[job.n]
        queue.popleft()
        if queue:
            self._begin(queue[0])
        self._host.job_ended(job, outcome)


def _name(job: jobs.Job) -> str:
    return f"{type(job).__name__.lower()} {job.n}/{job.index}"


def _failed(job: jobs.Job, damaged: bool, message: str) -> jobs.Outcome:
    if damaged and isinstance(job, jobs.CommitJob):
        return ob.CommitEnded(job.n, job.index, damaged=True, message=message)
    if damaged and isinstance(job, jobs.VerifyJob):
        return ob.VerifyEnded(job.n, job.index, ok=False, damaged=True, message=message)
    return jobs.JobFailed(job.n, job.index, type(job), False, message)
