"""The checkpoint keeper's edge for an experiment in a store: what a slow or silent network must not hold up.

A commit there takes as long as an upload does. Meanwhile the mirror has the files, so that a newer checkpoint can take
the place of one that waits, if retention would drop that one anyway; a trial then need not wait for the store. The
newer one is committed in the mirror and read back first: a damaged one must not cost the one before it. And the mirror
need not keep what the store has and nobody is about to read.

Owns which commits are given up, and which local copies go. Like the edge that it extends, it decides nothing durable:
what it gives up becomes an observation, and only the event that follows is fact.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from holdfast.checkpoints import keeper as jobs
from holdfast.checkpoints import names
from holdfast.checkpoints.lanes import LaneKeeper
from holdfast.controller.clock import Clock
from holdfast.controller.keeping import DELETE_TRIES, MAX_RETRY_S, KeeperEdge
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.retention import Retention
from holdfast.core.state import CheckpointRecord, State, Stored, Trial

MIN_UNCOMMITTED = 2
MAX_UNCOMMITTED = 16

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


def most_uncommitted(rule: Retention) -> int:
    """How many commits of a trial may be under way before its next report waits for one of them to end.

    Room for those that retention keeps and for an upload that hangs: more of them are obsolete, and given up as soon as
    newer ones were read back, so that the trial does not wait for the store. By a score, the best are kept and the
    newest as well. Without retention nothing is obsolete, and it must wait.
    """
    if rule.num_to_keep is None:
        return MIN_UNCOMMITTED
    newest = rule.score_attribute is not None
    return min(rule.num_to_keep + newest + 1, MAX_UNCOMMITTED)


class FarKeeperEdge(KeeperEdge):
    """As ``KeeperEdge``, for an experiment whose checkpoints are in a store and, some of them, in a mirror."""

    def __init__(
        self,
        workers: LaneKeeper,
        state: State,
        clock: Clock,
        *,
        trial_dir: Callable[[int], Path],
        trouble: Callable[[str], None],
        rule: Retention,
    ) -> None:
        """Begin with nothing to do; the arguments are those of ``KeeperEdge``, and the user's rule for retention."""
        super().__init__(workers, state, clock, trial_dir=trial_dir, trouble=trouble)
        self._lanes = workers
        self._rule = rule
        self._newest: dict[int, int] = {}  # of a trial, up to which checkpoint its stages may be worked on
        self._whole: dict[int, set[int]] = {}  # of a trial, staged checkpoints that were read back in the mirror
        self._unfit: set[Key] = set()  # staged checkpoints that are damaged, or not on this machine
        self._opened: set[Key] = set()  # commits that only wait for their preparation
        self._uploaded: set[Key] = {*state.staged, *state.dropping}  # what may be in the store, from whichever driver
        self._stirred: set[int] = set()  # trials of which a job has ended
        self._leftover = {*state.touched, *(trial.n for trial in state.unfinished())}  # may have copies from before
        self._prune_at: list[tuple[float, int]] = []

    # --- commands

    def prepare(self, command: cmd.Commit | cmd.Delete) -> None:
        """Begin what needs this machine alone: the record that led to the command is durable here."""
        n, index = command.n, command.index
        if isinstance(command, cmd.Commit):
            self._newest[n] = index
            self._make_room(n)
            return
        record = self._state.trials[n].find(index)
        if record is not None and not record.digest:
            home = self._trial_dir(n)
            directory, stage = str(home / names.checkpoint_name(index)), str(home / record.sealed)
            self._begin(jobs.Discard(n, index, directory, stage))

    def submit(self, command: cmd.Commit | cmd.Verify | cmd.Delete) -> None:
        """Take a command whose record is in the store."""
        key = (command.n, command.index)
        if isinstance(command, cmd.Commit):
            if key not in self._state.staged:
                return  # a newer one has taken its place while it waited
            if (jobs.Prepare, *key) in self._jobs:
                self._opened.add(key)
                return
            self._uploaded.add(key)
        super().submit(command)

    def _begin(self, job: jobs.MirrorJob) -> None:
        if (type(job), job.n, job.index) not in self._jobs:
            self._jobs[type(job), job.n, job.index] = job
            self._lanes.submit(job)

    # --- a newer one takes the place of an older one

    def _make_room(self, n: int) -> None:
        """If commits that wait would be obsolete once newer ones are whole, find out whether these are."""
        if n not in self._newest:
            return
        trial = self._state.trials[n]
        staged = [record for record in _staged(trial) if record.index <= self._newest[n]]
        if len(staged) < 2:
            return
        hoped = {record.index for record in staged if (n, record.index) not in self._unfit}
        useless = {
            record.index
            for record in staged
            if self._is_obsolete(trial, record, hoped) and self._can_end(n, record.index)
        }
        if not useless:
            return
        unknown, home = hoped - useless - self._whole.get(n, set()), str(self._trial_dir(n))
        for record in staged:
            if record.index not in unknown or (jobs.Prepare, n, record.index) in self._jobs:
                continue
            submitted = (jobs.Commit, n, record.index) in self._jobs
            if self._take_back(jobs.Commit, n, record.index):
                if submitted:
                    self._opened.add((n, record.index))
                self._begin(jobs.Prepare(n, record.index, home, record.sealed, trial.id, record.attempt))

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
        found = [self._jobs.get((kind, n, index)) for kind in (jobs.Prepare, jobs.Commit)]
        begun = (job for job in found if job is not None and not self._is_later(job) and not self._lanes.waits(job))
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
        elif not self._lanes.withdraw(job):
            return False
        self._settled(kind, n, index)
        return True

    def _supersede(self, n: int, ended: set[Key]) -> list[ob.Observation]:
        """Give up commits that wait and are obsolete beside those that are known to be whole."""
        trial, known = self._state.trials[n], self._whole.get(n, set())
        found: list[ob.Observation] = []
        for record in _staged(trial):
            key = (n, record.index)
            if key in ended or key in self._state.holds or not self._is_obsolete(trial, record, known):
                continue
            # Of the two only one is ever submitted: a commit waits for its preparation.
            if self._take_back(jobs.Prepare, *key) and self._take_back(jobs.Commit, *key):
                self._forget(*key)
                found.append(ob.CommitEnded(*key, superseded=True))
        return found

    def _forget(self, n: int, index: int) -> None:
        self._opened.discard((n, index))
        self._unfit.discard((n, index))
        whole = self._whole.get(n)
        if whole is not None:
            whole.discard(index)
            if not whole:
                del self._whole[n]

    # --- outcomes

    def drain(self) -> list[ob.Observation]:
        """How jobs ended; also starts what is due."""
        self._start_due()
        self._prune_due()
        found: list[ob.Observation] = []
        prepared: list[jobs.PrepareDone] = []
        for outcome in self._lanes.drain():
            self._stirred.add(outcome.n)
            match outcome:
                case jobs.PrepareDone():
                    prepared.append(outcome)
                case jobs.DiscardDone():
                    found += self._discarded(outcome.n, outcome.index)
                case jobs.PruneDone():
                    self._settled(jobs.Prune, outcome.n, outcome.index)
                case jobs.MirrorFailed():
                    self._failed(outcome)
                case _:
                    observation = self._translate(outcome)
                    if observation is not None:
                        found.append(observation)
        ended = {(each.n, each.index) for each in found if isinstance(each, ob.CommitEnded)}
        for outcome in prepared:
            found += self._prepared(outcome, ended)
        return found

    def _translate(self, outcome: jobs.Outcome) -> ob.Observation | None:
        observation = super()._translate(outcome)
        if isinstance(observation, ob.CommitEnded):
            self._forget(outcome.n, outcome.index)
        if isinstance(observation, ob.CommitEnded | ob.DeleteEnded):
            self._uploaded.discard((outcome.n, outcome.index))
        return observation

    def _prepared(self, outcome: jobs.PrepareDone, ended: set[Key]) -> list[ob.Observation]:
        n, index = outcome.n, outcome.index
        self._settled(jobs.Prepare, n, index)
        found: list[ob.Observation] = []
        if outcome.whole:
            self._whole.setdefault(n, set()).add(index)
            found = self._supersede(n, ended)
            ended.update((each.n, each.index) for each in found if isinstance(each, ob.CommitEnded))
        else:
            self._unfit.add((n, index))
        self._open_prepared(n, index)
        return found

    def _open_prepared(self, n: int, index: int) -> None:
        if (n, index) in self._opened:
            self._opened.discard((n, index))
            self.submit(cmd.Commit(n, index))

    def _discarded(self, n: int, index: int) -> list[ob.Observation]:
        """The local files are gone. Nothing of it was ever sent, unless this driver or one before it has begun to."""
        self._settled(jobs.Discard, n, index)
        return [] if (n, index) in self._uploaded else [ob.DeleteEnded(n, index, ok=True)]

    def _failed(self, outcome: jobs.MirrorFailed) -> None:
        kind, n, index = outcome.kind, outcome.n, outcome.index
        tries = self._tries.get((kind, n, index), 0)
        if kind is jobs.Prepare and not outcome.damaged and (n, index) not in self._opened:
            self._again(kind, n, index, f"a checkpoint cannot be saved on this machine: {outcome.message}")
        elif kind is jobs.Discard and not outcome.damaged and tries < DELETE_TRIES:
            self._again(kind, n, index, f"a checkpoint that was replaced cannot be removed: {outcome.message}")
        else:
            # The commit says what is wrong with a stage, and the deletion in the store removes what is here as well.
            self._settled(kind, n, index)
            if kind is jobs.Prepare:
                self._unfit.add((n, index))
                self._open_prepared(n, index)
            if kind is jobs.Prune and not outcome.damaged:
                heapq.heappush(self._prune_at, (self._clock.now() + MAX_RETRY_S, n))

    # --- local copies

    def note(self, events: Iterable[ev.AnyEvent]) -> None:
        """See what has become fact: a checkpoint is in the store, or an attempt has ended that could have read one."""
        stirred, self._stirred = self._stirred, set()
        for n in stirred:
            self._make_room(n)  # what was under way before may wait now
        numbers, self._leftover = self._leftover, set()
        numbers.update(event.n for event in events if isinstance(event, _FREEING))
        for n in numbers:
            self._prune(n)
            trial = self._state.trials[n]
            for point in {trial.source, trial.origin}:
                if point is not None and point[0] != n:
                    self._prune(point[0])

    def _prune_due(self) -> None:
        while self._prune_at and self._prune_at[0][0] <= self._clock.now():
            self._prune(heapq.heappop(self._prune_at)[1])

    def _prune(self, n: int) -> None:
        """Remove the local copies of a trial that nobody will start from soon; the store has them."""
        trial = self._state.trials[n]
        latest = None if trial.final else trial.latest()
        home = self._trial_dir(n)
        for index in _local_indexes(home):
            record = trial.find(index)
            if record is None or record.stored != Stored.COMMITTED or record is latest or self._is_read(n, index):
                continue
            self._begin(jobs.Prune(n, index, str(home / names.checkpoint_name(index))))

    def _is_read(self, n: int, index: int) -> bool:
        """Whether an attempt has started from it, or is about to."""
        state, key = self._state, (n, index)
        soon: tuple[Any, ...] = (state.holds, state.session.awaited, state.session.verified)
        return any(key in keys for keys in soon) or any(state.trials[m].source == key for m in state.running)


def _staged(trial: Trial) -> list[CheckpointRecord]:
    return [record for record in trial.checkpoints if record.stored == Stored.STAGED]


def _local_indexes(home: Path) -> list[int]:
    try:
        found = os.listdir(home)
    except OSError:
        return []
    return sorted(index for name in found if (index := names.index_of(name)) is not None)
