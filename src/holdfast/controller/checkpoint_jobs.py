"""Checkpoint jobs, as the loop sees them: commands in, jobs for background threads, observations out.

Jobs that failed because of storage (full, slow, denied) are retried here without limit; only success or permanent
failure becomes an observation. So a storage error is never mistaken for damage (I2).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.checkpoints import jobs
from holdfast.checkpoints.names import checkpoint_name
from holdfast.controller.clock import Clock
from holdfast.controller.report_facts import report_facts
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.backoff import Backoff
from holdfast.core.state import State

MAX_RETRY_S = 15.0
RETRY = Backoff(first_s=0.5, longest_s=MAX_RETRY_S)
DELETE_TRIES = 5
"""Then the intent stays in the journal and the next driver tries again. What cannot be deleted costs space alone, and a
run waits for its deletions: without a limit it would not return. Commits and verifications have no limit. Giving up a
commit would lose training that a report has promised to keep; giving up a verification would send a trial back to an
older checkpoint, although the newer one is good."""


class Workers(Protocol):
    """``checkpoints.jobs.CheckpointJobThreads`` or another that does jobs; which ones is between it and its edge."""

    def submit(self, job: Any) -> None: ...

    def drain(self) -> Sequence[Any]: ...


_ENDS: dict[type, type] = {
    ob.CommitEnded: jobs.CommitJob,
    ob.VerifyEnded: jobs.VerifyJob,
    ob.DeleteEnded: jobs.DeleteJob,
}
_FAILURES: dict[type, str] = {
    jobs.CommitJob: "a checkpoint cannot be committed",
    jobs.VerifyJob: "a checkpoint cannot be read",
    jobs.DeleteJob: "an old checkpoint cannot be deleted",
}


class CheckpointJobEdge:
    """Knows where checkpoints live; remembers what must be tried again and when."""

    def __init__(
        self,
        workers: Workers,
        state: State,
        clock: Clock,
        *,
        trial_dir: Callable[[int], Path],
        trouble: Callable[[str], None],
    ) -> None:
        """Begin with nothing to do.

        Args:
            workers: Who does the jobs.
            state: What the commands refer to.
            clock: For retries.
            trial_dir: Where a trial's checkpoints are.
            trouble: Told what is being tried again; "" when nothing is any more.
        """
        self._workers = workers
        self._state = state
        self._clock = clock
        self._trial_dir = trial_dir
        self._trouble = trouble
        self._jobs: dict[tuple[type, int, int], Any] = {}
        self._tries: dict[tuple[type, int, int], int] = {}
        self._later: list[tuple[float, int, Any]] = []
        self._order = 0
        # Staged under another driver, perhaps before a loss of power: a file may have its size and no content, so these
        # are read again before they are committed.
        self._inherited = frozenset(state.staged)

    def prepare(self, command: cmd.Commit | cmd.Delete) -> None:
        """Begin what needs this machine alone. Where an experiment lives here, that is everything, and is submitted."""

    def submit(self, command: cmd.Commit | cmd.Verify | cmd.Delete) -> None:
        """Take a command; one that is being carried out already is not done twice, for it ends once."""
        job = self._job(command)
        if job is not None and (type(job), job.n, job.index) not in self._jobs:
            self._jobs[type(job), job.n, job.index] = job
            self._workers.submit(job)

    def note(self, events: Iterable[ev.AnyEvent]) -> None:
        """See what has become fact."""

    def _job(self, command: cmd.Commit | cmd.Verify | cmd.Delete) -> jobs.Job | None:
        trial = self._state.trials[command.n]
        record = trial.find(command.index)
        if record is None:
            return None
        trial_dir = self._trial_dir(command.n)
        target = str(trial_dir / checkpoint_name(command.index))
        match command:
            case cmd.Commit():
                inherited = (command.n, command.index) in self._inherited
                facts = report_facts(record)
                return jobs.CommitJob(
                    command.n, command.index, str(trial_dir), record.sealed, trial.id, record.attempt, facts, inherited
                )
            case cmd.Verify():
                return jobs.VerifyJob(command.n, command.index, target, record.digest)
            case cmd.Delete():
                stage = "" if record.digest else str(trial_dir / record.sealed)
                return jobs.DeleteJob(command.n, command.index, target, stage)

    def drain(self) -> list[ob.Observation]:
        """How jobs ended; also starts the retries that are due."""
        if self._later:
            self._start_due()
        observations = (self._translate(outcome) for outcome in self._workers.drain())
        return [observation for observation in observations if observation is not None]

    def _translate(self, outcome: jobs.Outcome) -> ob.Observation | None:
        if isinstance(outcome, jobs.JobFailed):
            return self._failed(outcome)
        self._settled(_ENDS[type(outcome)], outcome.n, outcome.index)
        return outcome

    def _failed(self, outcome: jobs.JobFailed) -> ob.Observation | None:
        """Let a job be tried again; only a deletion is left to the next driver at last."""
        kind, n, index = outcome.kind, outcome.n, outcome.index
        if kind is jobs.DeleteJob and self._tries.get((kind, n, index), 0) >= DELETE_TRIES:
            self._settled(kind, n, index)
            return ob.DeleteEnded(n, index, ok=False, message=outcome.message)
        self._again(kind, n, index, f"{_FAILURES[kind]}: {outcome.message}")
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
        delay = RETRY.delay_s(tries + 1)
        self._order += 1
        heapq.heappush(self._later, (self._clock.now() + delay, self._order, self._jobs[key]))

    def _start_due(self) -> None:
        now = self._clock.now()
        while self._later and self._later[0][0] <= now:
            self._workers.submit(heapq.heappop(self._later)[2])
