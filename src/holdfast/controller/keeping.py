"""The checkpoint keeper's edge: commands in, jobs for background threads, observations out.

What failed because of storage (full, slow, denied) is tried again here, for as long as it takes; only what succeeded or
can never succeed becomes an observation. So store trouble is never mistaken for damage (I2).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Protocol

from holdfast.checkpoints import keeper as jobs
from holdfast.controller.clock import Clock
from holdfast.core import commands as cmd
from holdfast.core import observations as ob
from holdfast.core.retention import Retention
from holdfast.core.state import CheckpointRecord, State, Stored, Trial

FIRST_RETRY_S = 0.5
MAX_RETRY_S = 15.0
DELETE_TRIES = 5  # then the intent stays in the journal and the next driver tries again


class Workers(Protocol):
    """``checkpoints.keeper.CheckpointKeeper`` or its inline twin."""

    def submit(self, job: jobs.Job) -> None: ...

    def withdraw(self, job: jobs.Job) -> bool: ...

    def drain(self) -> list[jobs.Outcome]: ...


class KeeperEdge:
    """Knows where checkpoints live; remembers what must be tried again and when."""

    def __init__(
        self,
        workers: Workers,
        state: State,
        clock: Clock,
        *,
        trial_dir: Callable[[int], Path],
        trouble: Callable[[str], None],
        slow: Retention | None = None,
    ) -> None:
        """Begin with nothing to do.

        Args:
            workers: Who does the jobs.
            state: What the commands refer to.
            clock: For retries.
            trial_dir: Where a trial's checkpoints are.
            trouble: Told what is being tried again; "" when nothing is any more.
            slow: The user's rule, if commits may take so long that a newer checkpoint should replace one that waits.
        """
        self._workers = workers
        self._state = state
        self._clock = clock
        self._trial_dir = trial_dir
        self._trouble = trouble
        self._jobs: dict[tuple[type, int, int], jobs.Job] = {}
        self._tries: dict[tuple[type, int, int], int] = {}
        self._later: list[tuple[float, int, jobs.Job]] = []
        self._order = 0
        self._slow = slow
        self._replaced: list[ob.Observation] = []

    def submit(self, command: cmd.Commit | cmd.Verify | cmd.Delete) -> None:
        """Take a command; one that is being carried out already is not done twice, for it ends once."""
        job = self._job(command)
        if self._slow is not None and isinstance(command, cmd.Commit):
            self._replace_older(command.n, command.index, self._slow)
        if job is not None and (type(job), job.n, job.index) not in self._jobs:
            self._jobs[type(job), job.n, job.index] = job
            self._workers.submit(job)

    def _job(self, command: cmd.Commit | cmd.Verify | cmd.Delete) -> jobs.Job | None:
        trial = self._state.trials[command.n]
        record = trial.find(command.index)
        if record is None:
            return None
        home = self._trial_dir(command.n)
        target = str(home / f"checkpoint_{command.index:06d}")
        match command:
            case cmd.Commit():
                spare = self._spare(trial, home) if self._slow is not None else ()
                return jobs.Commit(command.n, command.index, str(home), record.sealed, trial.id, record.attempt, spare)
            case cmd.Verify():
                return jobs.Verify(command.n, command.index, target, record.digest)
            case cmd.Delete():
                stage = "" if record.digest else str(home / record.sealed)
                return jobs.Delete(command.n, command.index, target, stage)

    def _spare(self, trial: Trial, home: Path) -> tuple[str, ...]:
        """Local copies that nobody will miss: the newest two stay, and what an attempt or another trial reads.

        Looks at the few that have just become old: earlier ones were somebody's spare before.
        """
        committed = (record for record in reversed(trial.checkpoints) if record.stored == Stored.COMMITTED)
        old = islice(committed, 1, 4)
        read = {trial.source[1]} if trial.source is not None and trial.source[0] == trial.n else set()
        return tuple(
            str(home / f"checkpoint_{record.index:06d}")
            for record in old
            if record.index not in read and (trial.n, record.index) not in self._state.holds
        )

    def _replace_older(self, n: int, index: int, rule: Retention) -> None:
        """Give up commits that wait and whose checkpoints would hardly be missed: the newer one is as good (6.2)."""
        trial = self._state.trials[n]
        newer = trial.find(index)
        for kind, owner, older in [key for key in self._jobs if key[0] is jobs.Commit and key[1] == n]:
            record = trial.find(older)
            if newer is None or record is None or older >= index or (n, older) in self._state.holds:
                continue
            better = rule.goodness(record) > rule.goodness(newer)
            needed = rule.num_to_keep is None or better or not self._is_here(n, newer)
            if not needed and self._withdraw(self._jobs[kind, owner, older]):
                self._settled(kind, n, older)
                self._replaced.append(ob.CommitEnded(n, older, superseded=True))

    def _withdraw(self, job: jobs.Job) -> bool:
        """Take a job back that waits for its turn, or to be tried again."""
        waiting = [entry for entry in self._later if entry[2] is not job]
        if len(waiting) == len(self._later):
            return self._workers.withdraw(job)
        heapq.heapify(waiting)
        self._later = waiting
        return True

    def _is_here(self, n: int, record: CheckpointRecord) -> bool:
        """A stage that went with another machine takes nobody's place."""
        home = self._trial_dir(n)
        return (home / record.sealed).is_dir() or (home / f"checkpoint_{record.index:06d}").is_dir()

    def drain(self) -> list[ob.Observation]:
        """How jobs ended; also starts the retries that are due."""
        self._start_due()
        found, self._replaced = self._replaced, []
        for outcome in self._workers.drain():
            observation = self._translate(outcome)
            if observation is not None:
                found.append(observation)
        return found

    def _translate(self, outcome: jobs.Outcome) -> ob.Observation | None:
        n, index = outcome.n, outcome.index
        match outcome:
            case jobs.CommitDone():
                self._settled(jobs.Commit, n, index)
                return ob.CommitEnded(n, index, outcome.digest, outcome.bytes)
            case jobs.CommitFailed():
                if outcome.damaged:
                    self._settled(jobs.Commit, n, index)
                    return ob.CommitEnded(n, index, damaged=True, message=outcome.message)
                self._again(jobs.Commit, n, index, f"a checkpoint cannot be committed: {outcome.message}")
            case jobs.VerifyDone():
                self._settled(jobs.Verify, n, index)
                return ob.VerifyEnded(n, index, ok=True)
            case jobs.VerifyFailed():
                if outcome.damaged:
                    self._settled(jobs.Verify, n, index)
                    return ob.VerifyEnded(n, index, ok=False, damaged=True, message=outcome.message)
                self._again(jobs.Verify, n, index, f"a checkpoint cannot be read: {outcome.message}")
            case jobs.DeleteDone():
                self._settled(jobs.Delete, n, index)
                return ob.DeleteEnded(n, index, ok=True)
            case jobs.DeleteFailed():
                if self._tries.get((jobs.Delete, n, index), 0) >= DELETE_TRIES:
                    self._settled(jobs.Delete, n, index)
                    return ob.DeleteEnded(n, index, ok=False, message=outcome.message)
                self._again(jobs.Delete, n, index, f"an old checkpoint cannot be deleted: {outcome.message}")
        return None

    def _settled(self, kind: type, n: int, index: int) -> None:
        self._jobs.pop((kind, n, index), None)
        if self._tries.pop((kind, n, index), 0) and not self._tries:
            self._trouble("")

    def _again(self, kind: type, n: int, index: int, text: str) -> None:
        key = (kind, n, index)
        tries = self._tries.get(key, 0)
        self._tries[key] = tries + 1
        self._trouble(f"{text}; trying again")
        delay = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(tries, 10))
        self._order += 1
        heapq.heappush(self._later, (self._clock.now() + delay, self._order, self._jobs[key]))

    def _start_due(self) -> None:
        now = self._clock.now() if self._later else 0.0
        while self._later and self._later[0][0] <= now:
            self._workers.submit(heapq.heappop(self._later)[2])
