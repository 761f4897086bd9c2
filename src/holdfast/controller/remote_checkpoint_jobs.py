"""Checkpoint jobs of an experiment in a remote store: a slow or unreachable store must not block trials.

A remote commit takes as long as an upload does. During that time the mirror has the files, so that a newer checkpoint
can supersede a queued one, if retention would drop that one anyway; a trial then need not wait for the store. The newer
one is committed in the mirror and read back first: a damaged checkpoint must not replace a good one. And the mirror
need not keep what the store has and no process is about to read.

Owns which commits are skipped, and which local copies are removed. Like the edge that it extends, it decides nothing
durable: what it skips becomes an observation, and only the event that follows is fact.
"""

from __future__ import annotations

import heapq
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from holdfast.checkpoints import jobs, names
from holdfast.checkpoints.remote_job_threads import RemoteJobThreads
from holdfast.controller.checkpoint_jobs import DELETE_TRIES, MAX_RETRY_S, CheckpointJobEdge
from holdfast.controller.clock import Clock
from holdfast.controller.remote_commit import CommitState, CommitStep, RemoteCommit
from holdfast.controller.report_facts import report_facts
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.policies import NO_LIMIT
from holdfast.core.retention import Retention
from holdfast.core.state import CheckpointRecord, DriverMemory, State, Stored, Trial

SCAN_EVERY = 16
"""Of a trial with more commits than this under way, local copies are looked for after so many of them."""

Key = tuple[int, int]

_FREEING = (
    ev.CheckpointCommitted,
    ev.TrialPaused,
    ev.TrialTerminated,
    ev.TrialErrored,
    ev.AttemptFailed,
    ev.AttemptInterrupted,
)
"""After these, fewer local copies may be needed."""

_IN_MIRROR = (jobs.PrepareJob, jobs.DiscardJob, jobs.PruneJob)


def most_uncommitted(rule: Retention) -> int:
    """How many commits of a trial may be under way before its next report waits for one of them to end.

    Room for those that retention keeps and for an upload that hangs: more of them are obsolete, and given up as soon as
    newer ones were read back, so that the trial does not wait for the store. By a score, the best are kept and the
    newest as well. Without retention nothing is obsolete, and only bytes are counted (``core.backlog``).
    """
    if rule.num_to_keep is None:
        return NO_LIMIT
    newest = rule.score_attribute is not None
    return rule.num_to_keep + newest + 1


class RemoteCheckpointJobEdge(CheckpointJobEdge):
    """As ``CheckpointJobEdge``, for an experiment whose checkpoints are in a store and, some of them, in a mirror."""

    def __init__(
        self,
        workers: RemoteJobThreads,
        state: State,
        memory: DriverMemory,
        clock: Clock,
        *,
        trial_dir: Callable[[int], Path],
        trouble: Callable[[str], None],
        rule: Retention,
        keeps_copies: bool = False,
    ) -> None:
        """Begin with nothing to do. The arguments are those of ``CheckpointJobEdge``, and three more.

        Args:
            workers: The threads.
            state: What commands refer to.
            memory: What the driver knows for now: checkpoints that trials are about to start from.
            clock: For retries.
            trial_dir: Where a trial's checkpoints are.
            trouble: Told what is being tried again.
            rule: For retention.
            keeps_copies: Whether the mirror keeps what the store has, until retention drops it there as well.
        """
        super().__init__(workers, state, clock, trial_dir=trial_dir, trouble=trouble)
        self._memory = memory
        self._keeps_copies = keeps_copies
        self._threads = workers
        self._rule = rule
        # What a driver before this one has staged or dropped may be in the store, wholly or in part.
        self._commits = {key: RemoteCommit(may_be_stored=True) for key in state.staged}
        dropped = CommitState.SUPERSEDED
        self._commits.update((key, RemoteCommit(may_be_stored=True, state=dropped)) for key in state.dropping)
        # Of a trial, the checkpoints whose records are in the store, in order. The first one is at work: one that is
        # tried again must not be overtaken, nor must all of them be tried again and again in an outage.
        self._turns: dict[int, deque[int]] = {}
        self._stirred: set[int] = set()  # trials of which a job has ended
        self._leftover = {*memory.changed, *(trial.n for trial in state.unfinished())}  # may have copies from before
        self._prune_at: list[tuple[float, int]] = []

    # --- commands

    def prepare(self, command: cmd.Commit | cmd.Delete) -> None:
        """Begin what needs this machine alone: the record that led to the command is durable here."""
        n, index = command.n, command.index
        if isinstance(command, cmd.Commit):
            self._commits.setdefault((n, index), RemoteCommit())
            self._make_room(n)
            return
        record = self._state.trials[n].find(index)
        if record is not None and not record.digest:
            trial_dir = self._trial_dir(n)
            directory, stage = str(trial_dir / names.checkpoint_name(index)), str(trial_dir / record.sealed)
            self._begin(jobs.DiscardJob(n, index, directory, stage))

    def submit(self, command: cmd.Commit | cmd.Verify | cmd.Delete) -> None:
        """Take a command whose record is in the store."""
        if not isinstance(command, cmd.Commit):
            super().submit(command)
        elif (command.n, command.index) in self._state.staged:  # else a newer one has taken its place while it waited
            self._queue(command.n, command.index)

    def _queue(self, n: int, index: int) -> None:
        commit = self._commits.setdefault((n, index), RemoteCommit())
        if commit.is_queued:
            return
        commit.is_queued = True
        turns = self._turns.setdefault(n, deque())
        turns.append(index)
        if turns[0] == index:
            self._give_turn(n, index)

    def _give_turn(self, n: int, index: int) -> None:
        if self._commits[n, index].take(CommitStep.TURN) == CommitState.UPLOADING:
            self._upload(n, index)

    def _upload(self, n: int, index: int) -> None:
        self._commits[n, index].may_be_stored = True
        super().submit(cmd.Commit(n, index))

    def _begin(self, job: jobs.MirrorJob) -> None:
        if (type(job), job.n, job.index) not in self._jobs:
            self._jobs[type(job), job.n, job.index] = job
            self._threads.submit(job)

    # --- a newer one takes the place of an older one

    def _make_room(self, n: int) -> None:
        """If commits that wait would be obsolete once newer ones are whole, find out whether these are."""
        trial = self._state.trials[n]
        if self._rule.num_to_keep is None and not trial.floor:
            return
        staged = [record for record in _staged(trial) if (n, record.index) in self._commits]
        if len(staged) < 2:
            return
        hoped = {record.index for record in staged if self._commits[n, record.index].is_whole is not False}
        useless = {
            record.index
            for record in staged
            if self._is_obsolete(trial, record, hoped) and self._can_end(n, record.index)
        }
        if useless:
            for record in staged:
                if record.index in hoped - useless:
                    self._read_back(trial, record)

    def _read_back(self, trial: Trial, record: CheckpointRecord) -> None:
        """Find out whether a checkpoint is whole in the mirror, unless that is known or its upload has begun."""
        n, index = trial.n, record.index
        commit = self._commits[n, index]
        if commit.is_whole is not None or commit.state in (CommitState.READING, CommitState.HELD):
            return
        if self._take_back(jobs.CommitJob, n, index):
            commit.take(CommitStep.READ_BACK)
            trial_dir = str(self._trial_dir(n))
            facts = report_facts(record)
            self._begin(jobs.PrepareJob(n, index, trial_dir, record.sealed, trial.id, record.attempt, facts))

    def _is_obsolete(self, trial: Trial, record: CheckpointRecord, known: set[int]) -> bool:
        """Whether retention would drop it if those that are ``known`` to be whole were committed."""
        if record.index < trial.floor:
            return True
        if self._rule.num_to_keep is None:
            return False
        goodness = self._rule.goodness
        mine = (goodness(record), record.index)
        others = [
            other
            for other in trial.checkpoints
            if other.index >= trial.floor and (other.stored == Stored.COMMITTED or other.index in known)
        ]
        better = sum((goodness(other), other.index) > mine for other in others)
        return better >= self._rule.num_to_keep and any(other.index > record.index for other in others)

    def _can_end(self, n: int, index: int) -> bool:
        """Whether neither its preparation nor its commit has begun, as far as one can tell without taking them back."""
        found = [self._jobs.get((kind, n, index)) for kind in (jobs.PrepareJob, jobs.CommitJob)]
        begun = (job for job in found if job is not None and not self._is_later(job) and not self._threads.waits(job))
        return (n, index) not in self._state.holds and not any(begun)

    def _is_later(self, job: Any) -> bool:
        return any(later[2] is job for later in self._later)

    def _take_back(self, kind: type, n: int, index: int) -> bool:
        """Let there be no such job: it was never submitted, or waits for its turn or to be tried again."""
        job = self._jobs.get((kind, n, index))
        if job is None:
            return True
        if self._is_later(job):
            self._later = [later for later in self._later if later[2] is not job]
            heapq.heapify(self._later)
        elif not self._threads.withdraw(job):
            return False
        self._settled(kind, n, index)
        return True

    def _supersede(self, n: int, ended: set[Key]) -> list[ob.Observation]:
        """Give up commits that wait and are obsolete beside those that are known to be whole."""
        trial = self._state.trials[n]
        found: list[ob.Observation] = []
        known = {record.index for record in _staged(trial) if self._is_whole(n, record.index)}
        for record in _staged(trial):
            key = (n, record.index)
            if key in ended or key in self._state.holds or not self._is_obsolete(trial, record, known):
                continue
            # Of the two only one is ever submitted.
            if self._take_back(jobs.PrepareJob, *key) and self._take_back(jobs.CommitJob, *key):
                commit = self._commits.setdefault(key, RemoteCommit())
                commit.take(CommitStep.GIVE_UP)
                self._leave_queue(*key, commit)
                found.append(ob.CommitEnded(*key, superseded=True))
        return found

    def _is_whole(self, n: int, index: int) -> bool:
        commit = self._commits.get((n, index))
        return commit is not None and commit.is_whole is True and commit.state != CommitState.SUPERSEDED

    def _leave_queue(self, n: int, index: int, commit: RemoteCommit) -> None:
        if commit.is_queued:
            commit.is_queued = False
            self._turns[n].remove(index)  # it is the first one, or close to it

    # --- outcomes

    def drain(self) -> list[ob.Observation]:
        """How jobs ended; also starts what is due."""
        self._start_due()
        self._prune_due()
        found: list[ob.Observation] = []
        prepared: list[jobs.MirrorDone] = []
        for outcome in self._threads.drain():
            self._stirred.add(outcome.n)
            if not isinstance(outcome, jobs.MirrorDone):
                observation = self._translate(outcome)
                if observation is not None:
                    found.append(observation)
                continue
            self._settled(outcome.kind, outcome.n, outcome.index)
            if outcome.kind is jobs.PrepareJob:
                prepared.append(outcome)
            elif outcome.kind is jobs.DiscardJob:
                found += self._discarded(outcome.n, outcome.index)
        ended = {(each.n, each.index) for each in found if isinstance(each, ob.CommitEnded)}
        for outcome in prepared:
            found += self._prepared(outcome.n, outcome.index, outcome.whole, ended)
        for n in {n for n, _ in ended}:
            self._commit_next(n)
        return found

    def _commit_next(self, n: int) -> None:
        """Begin the next commit of a trial, if none is under way."""
        turns = self._turns.get(n)
        if not turns:
            self._turns.pop(n, None)
        elif self._commits[n, turns[0]].state not in (CommitState.UPLOADING, CommitState.HELD):
            self._give_turn(n, turns[0])

    def _translate(self, outcome: jobs.Outcome) -> ob.Observation | None:
        observation = super()._translate(outcome)
        key = (outcome.n, outcome.index)
        if isinstance(observation, ob.CommitEnded):
            commit = self._commits.pop(key)
            commit.take(CommitStep.DAMAGED if observation.damaged else CommitStep.UPLOADED)
            self._leave_queue(*key, commit)
        if isinstance(observation, ob.DeleteEnded):
            self._commits.pop(key, None)
        return observation

    def _prepared(self, n: int, index: int, whole: bool, ended: set[Key]) -> list[ob.Observation]:
        commit = self._commits[n, index]
        commit.is_whole = whole
        found: list[ob.Observation] = []
        if whole:
            found = self._supersede(n, ended)
            ended.update((each.n, each.index) for each in found if isinstance(each, ob.CommitEnded))
        if commit.state != CommitState.SUPERSEDED and commit.take(CommitStep.READ) == CommitState.UPLOADING:
            self._upload(n, index)
        return found

    def _discarded(self, n: int, index: int) -> list[ob.Observation]:
        """The local files are gone. Nothing of it was ever sent, unless this driver or one before it has begun to."""
        commit = self._commits.get((n, index))
        if commit is not None and commit.may_be_stored:
            return []
        self._commits.pop((n, index), None)
        return [ob.DeleteEnded(n, index, ok=True)]

    def _failed(self, outcome: jobs.JobFailed) -> ob.Observation | None:
        kind, n, index = outcome.kind, outcome.n, outcome.index
        if kind not in _IN_MIRROR:
            return super()._failed(outcome)
        tries = self._tries.get((kind, n, index), 0)
        if kind is jobs.PrepareJob and not outcome.damaged and self._commits[n, index].state == CommitState.READING:
            self._again(kind, n, index, f"a checkpoint cannot be saved on this machine: {outcome.message}")
        elif kind is jobs.PrepareJob:  # the commit says what is wrong with a stage
            self._settled(kind, n, index)
            self._prepared(n, index, False, set())
        elif kind is jobs.DiscardJob and not outcome.damaged and tries < DELETE_TRIES:
            self._again(kind, n, index, f"a checkpoint that was replaced cannot be removed: {outcome.message}")
        else:  # the deletion in the store removes what is here as well
            self._settled(kind, n, index)
            if kind is jobs.PruneJob and not outcome.damaged:
                heapq.heappush(self._prune_at, (self._clock.now() + MAX_RETRY_S, n))
        return None

    # --- local copies

    def note(self, events: Iterable[ev.AnyEvent]) -> None:
        """See what has become fact: a checkpoint is in the store, or an attempt has ended that could have read one."""
        stirred, self._stirred = self._stirred, set()
        for n in stirred:
            self._make_room(n)  # what was under way before may wait now
        numbers, self._leftover = self._leftover, set()
        numbers.update(event.n for event in events if isinstance(event, _FREEING) and not self._is_busy(event))
        for n in numbers:
            self._prune(n)
            trial = self._state.trials[n]
            for point in {trial.source, trial.origin}:
                if point is not None and point[0] != n:
                    self._prune(point[0])

    def _is_busy(self, event: ev.AnyEvent) -> bool:
        """Whether more commits of the same trial follow soon: its directory is not listed for each of many."""
        if not isinstance(event, ev.CheckpointCommitted) or event.index % SCAN_EVERY == 0:
            return False
        return self._state.trials[event.n].uncommitted > SCAN_EVERY

    def _prune_due(self) -> None:
        while self._prune_at and self._prune_at[0][0] <= self._clock.now():
            self._prune(heapq.heappop(self._prune_at)[1])

    def _prune(self, n: int) -> None:
        """Remove the local copies of a trial that nobody will start from soon; the store has them."""
        if self._keeps_copies:
            return
        trial = self._state.trials[n]
        latest = None if trial.final else trial.latest()
        trial_dir = self._trial_dir(n)
        for index in _local_indexes(trial_dir):
            record = trial.find(index)
            if record is None or record.stored != Stored.COMMITTED or record is latest or self._is_read(n, index):
                continue
            self._begin(jobs.PruneJob(n, index, str(trial_dir / names.checkpoint_name(index))))

    def _is_read(self, n: int, index: int) -> bool:
        """Whether an attempt has started from it, or is about to."""
        state, memory, key = self._state, self._memory, (n, index)
        soon: tuple[Any, ...] = (state.holds, memory.awaited, memory.verified)
        return any(key in keys for keys in soon) or any(state.trials[m].source == key for m in state.running)


def _staged(trial: Trial) -> list[CheckpointRecord]:
    return [record for record in trial.checkpoints if record.stored == Stored.STAGED]


def _local_indexes(trial_dir: Path) -> list[int]:
    try:
        found = os.listdir(trial_dir)
    except OSError:
        return []
    return sorted(index for name in found if (index := names.index_of(name)) is not None)
