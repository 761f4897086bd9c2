"""Backends: where an experiment is stored, as its driver sees it. A directory, a remote store, or a copy by a syncer.

Owns the `ExperimentBackend` protocol and the plain directory. Backends differ in what "durable" means, in how
checkpoints are committed, and in when to stop waiting for storage; everything else is the same local root.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from holdfast.checkpoints.jobs import CheckpointJobThreads, Job, KnownStages, Outcome, bringing, perform
from holdfast.controller.checkpoint_jobs import CheckpointJobEdge
from holdfast.controller.clock import Clock
from holdfast.controller.evidence import Known, records_lost, unknown_checkpoints
from holdfast.controller.loop import JournalWriter
from holdfast.controller.lost_reports import lost_reports, reports_lost
from holdfast.controller.newest_checkpoint_jobs import NewestCheckpointJobEdge
from holdfast.core.policies import Rules
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State
from holdfast.errors import StorageError
from holdfast.journal.claims import Claim
from holdfast.journal.epoch import claim_epoch
from holdfast.journal.log import Durability, Journal
from holdfast.storage.layout import Root

logger = logging.getLogger("holdfast")


LAST_SYNC_S = 60.0


class JobContext(NamedTuple):
    """What checkpoint jobs need to know.

    Attributes:
        state: What its commands refer to.
        memory: What the driver knows for now.
        clock: For retries.
        trial_dir: Where a trial's checkpoints are.
        trouble: Told what is being tried again; "" when nothing is any more.
        rule: The user's, for retention.
        stages: Where stages are that are not on this machine; None if all of them are.
        bring_period_s: Only the newest checkpoint of a running trial is brought from there, once in so many seconds;
            None brings each.
    """

    state: State
    memory: DriverMemory
    clock: Clock
    trial_dir: Callable[[int], Path]
    trouble: Callable[[str], None]
    rule: Retention
    stages: KnownStages | None = None
    bring_period_s: float | None = None


class CheckpointJobs(NamedTuple):
    """Checkpoint jobs at work.

    Attributes:
        edge: For the loop.
        close: Ends the threads; waits so many seconds for jobs that have begun, and drops the others.
    """

    edge: CheckpointJobEdge
    close: Callable[[float], None]


def local_checkpoint_jobs(
    wake: Callable[[], None], context: JobContext, perform: Callable[[Job], Outcome] = perform
) -> CheckpointJobs:
    """Jobs for checkpoints in a directory."""
    threads = CheckpointJobThreads(wake, bringing(context.stages, perform))
    state, clock = context.state, context.clock
    if context.stages is not None and context.bring_period_s is not None:
        edge: CheckpointJobEdge = NewestCheckpointJobEdge(
            threads,
            state,
            context.memory,
            clock,
            trial_dir=context.trial_dir,
            trouble=context.trouble,
            is_elsewhere=context.stages.is_elsewhere,
            period_s=context.bring_period_s,
        )
    else:
        edge = CheckpointJobEdge(threads, state, clock, trial_dir=context.trial_dir, trouble=context.trouble)
    return CheckpointJobs(edge, partial(threads.close, False))


class ExperimentBackend(Protocol):
    """One driver's dealings with the place of its experiment, in the order of these methods."""

    @property
    def accepts_unsynced(self) -> bool:
        """Whether what survives the death of every process is enough to continue."""

    def claim(self, *, takeover: bool) -> Claim:
        """Become the one writer. Raises `ExperimentLockedError`, or `StorageError`."""

    def open(self, claim: Claim) -> Journal:
        """Open the local journal for writing."""

    def compare(self, state: State, uid: str) -> None:
        """Raise `JournalDamagedError` if checkpoints lie there of which the folded journal knows nothing."""

    def follow(self, journal: Journal, wake: Callable[[], None], state: State) -> JournalWriter:
        """The journal for the loop, which asks it what is durable. ``wake`` is called when more is."""

    def start(self, trouble: Callable[[str], None], changed: Callable[[], Iterable[str]]) -> None:
        """Work in the background from now on.

        Args:
            trouble: Told, from any thread, what stands in the way; "" when nothing does any more.
            changed: Takes away the paths of result files that were written.
        """

    def checkpoint_jobs(self, wake: Callable[[], None], context: JobContext) -> CheckpointJobs:
        """Begin to commit, verify and delete checkpoints, in threads of its own."""

    def most_uncommitted(self, rule: Retention) -> int:
        """How many commits of a trial may be under way before its next report waits for one of them."""

    def why_give_up(self) -> str:
        """Why there is no use in waiting for storage any longer; "" if there is."""

    def missing(self, state: State) -> str:
        """What the loss of this machine would cost if the driver left now, and what to type; "" if nothing."""

    def finish(self, state: State, impatient: Callable[[], str], draining: str = "") -> None:
        """Wait until everything written so far is durable (I9).

        Args:
            state: What there is.
            impatient: Why the driver should leave even so; "" while it may wait.
            draining: Why the driver ends before the experiment; "" if it does not.

        Raises:
            StorageError: It is not, and there is no use in waiting; the message says what is safe.
        """

    def close(self) -> None:
        """Stop, after the journal was closed. Never raises, and may be called at any time."""


class LocalBackend:
    """A directory: what is fsynced is durable."""

    def __init__(self, root: Root, durability: Durability) -> None:
        self._root = root
        self._durability = durability
        self._journal: Journal | None = None

    @property
    def accepts_unsynced(self) -> bool:
        return self._durability == "group"

    def compare(self, state: State, uid: str) -> None:
        compare_here(self._journal, self._root, state, uid)
        compare_reports(self._journal, self._root, state, uid)

    def claim(self, *, takeover: bool) -> Claim:
        return claim_epoch(self._root.path, takeover=takeover)

    def open(self, claim: Claim) -> Journal:
        self._journal = Journal.create_or_append(self._root.path, claim, durability=self._durability)
        return self._journal

    def follow(self, journal: Journal, wake: Callable[[], None], state: State) -> JournalWriter:
        journal.on_synced = lambda _: wake()
        return journal

    def start(self, trouble: Callable[[str], None], changed: Callable[[], Iterable[str]]) -> None:
        pass

    def checkpoint_jobs(self, wake: Callable[[], None], context: JobContext) -> CheckpointJobs:
        return local_checkpoint_jobs(wake, context)

    def most_uncommitted(self, rule: Retention) -> int:
        return Rules().max_uncommitted

    def why_give_up(self) -> str:
        return ""

    def missing(self, state: State) -> str:
        return ""

    def finish(self, state: State, impatient: Callable[[], str], draining: str = "") -> None:
        wait_for_disk(self._journal, self._root)

    def close(self) -> None:
        pass


def compare_here(journal: Journal | None, root: Root, state: State, uid: str) -> None:
    """Raise `JournalDamagedError` if unfinished or unknown trials have checkpoints that are not in ``state``."""
    found = unknown_checkpoints(root.path, Known(state, uid, finished=False))
    if found:
        assert journal is not None
        journal.flush()  # raises if a newer driver has taken over meanwhile: these are its checkpoints
        raise records_lost(root.shown, found, state)


def compare_reports(journal: Journal | None, root: Root, state: State, uid: str) -> None:
    """Raise `JournalDamagedError` if nobody vouches for the history, and result files have more reports than it has."""
    assert journal is not None
    # A driver that was refused, because of this comparison, has vouched for what it had found, and has no record.
    is_vouched = journal.vouched_by and journal.vouched_by == state.epoch
    found = [] if is_vouched else lost_reports(root.path, state, uid)
    if found:
        journal.flush()  # raises if a newer driver has taken over meanwhile: these are its reports
        raise reports_lost(root.shown, found)


def wait_for_disk(journal: Journal | None, root: Root) -> None:
    """Wait until everything that was written is fsynced; raise `StorageError` if the disk does not do it."""
    assert journal is not None
    if not journal.wait_synced(journal.written_seq, LAST_SYNC_S):
        raise StorageError(
            f"The last {journal.written_seq - journal.synced_seq} records of the journal could not be made durable "
            f"within {LAST_SYNC_S:.0f} s; they survive a crash of any process but not a power cut. Check the disk "
            f"of {root.path}."
        )


def close_journal(journal: Journal) -> Callable[..., bool]:
    """For an ``ExitStack``: close it, and let no failure of that hide what had happened before."""

    def close(kind: Any, error: Any, trace: Any) -> bool:
        try:
            journal.close(release=False)
        except Exception as failure:
            if kind is None:
                raise
            logger.error("while leaving: %s", failure)
        return False

    return close
