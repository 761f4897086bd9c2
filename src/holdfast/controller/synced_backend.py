"""The backend of an experiment that the user's syncer copies: a local root, and a remote copy of it.

What is fsynced locally counts as synced, because a syncer copies in rounds that may be minutes apart, and trials must
neither wait for them nor be unable to restart. Deletions, local and remote, wait for a round that has uploaded whatever
made a checkpoint obsolete: the checkpoint that replaces it was uploaded by the same round. And if the user wants
reports to wait for commits, those wait for a round too. A syncer has no create-only write, so it cannot exclude a
second driver on another machine; on one machine the local root does.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from holdfast.checkpoints.jobs import (
    CheckpointJobThreads,
    DeleteJob,
    Job,
    Outcome,
    bringing,
    perform,
)
from holdfast.config import SyncConfig
from holdfast.config.environment import local_root
from holdfast.config.secrets import refuse_secrets
from holdfast.controller.backends import (
    CheckpointJobs,
    JobContext,
    LocalBackend,
    compare_here,
    local_checkpoint_jobs,
)
from holdfast.controller.checkpoint_jobs import CheckpointJobEdge, Workers
from holdfast.controller.evidence import Known, unknown_checkpoints
from holdfast.controller.loop import JournalWriter
from holdfast.controller.opening import open_state
from holdfast.controller.spec import read_spec
from holdfast.core import observations as ob
from holdfast.core.state import State
from holdfast.errors import (
    DamageError,
    ExperimentExistsError,
    ExperimentNotFoundError,
    InvalidInputError,
    SyncError,
)
from holdfast.journal.claims import Claim
from holdfast.journal.epoch import holder, released_mark
from holdfast.journal.log import Durability, Journal
from holdfast.storage.address import join_address, split_address
from holdfast.storage.layout import Root
from holdfast.sync.synced_copy import SyncedCopy
from holdfast.sync.syncer_setting import resolve_syncer

IMPATIENT_S = 10.0
"""For the last copy, when the driver was told to end and its grace is over."""

CHECK_S = 60.0
"""How long the start of a run may wait to learn what is at the other end."""


class SyncedJournal(Journal):
    """The journal for the loop: deletions wait until a round has carried the records that led to them.

    Attributes:
        synced_copy: What copies it.
        may_ask: Whether deletions may ask for a round, or have to wait for one that is made anyway.
    """

    synced_copy: SyncedCopy
    may_ask: Callable[[], bool]
    _asked_for = 0

    @property
    def durable_seq(self) -> int:
        return min(self.synced_seq, self.synced_copy.arrived)

    def request_durable(self, seq: int) -> None:
        # Once for each: a round takes long, and one that begins now carries all that is synced by now.
        if seq > self._asked_for and self.may_ask():
            self._asked_for = seq
            self.synced_copy.request()


class SyncedCheckpointJobEdge(CheckpointJobEdge):
    """As ``CheckpointJobEdge``, but a commit has ended only when a round has carried the checkpoint."""

    def __init__(self, workers: Workers, context: JobContext, synced_copy: SyncedCopy) -> None:
        super().__init__(workers, context.state, context.clock, trial_dir=context.trial_dir, trouble=context.trouble)
        self._copy = synced_copy
        self._under_way: deque[tuple[int, ob.CommitEnded]] = deque()

    def drain(self) -> list[ob.Observation]:
        found: list[ob.Observation] = []
        for observation in super().drain():
            if isinstance(observation, ob.CommitEnded) and not observation.damaged:
                self._under_way.append((self._copy.request(), observation))
            else:
                found.append(observation)
        while self._under_way and self._under_way[0][0] <= self._copy.carried:
            found.append(self._under_way.popleft()[1])
        return found


class SyncedBackend(LocalBackend):
    """A directory that a syncer copies elsewhere, every ``sync_period`` and after checkpoints.

    Args:
        root: The experiment on this machine.
        durability: When a reply may leave the process; the local disk counts.
        config: The syncer, the address, and how often.
        wait_for_commit: Whether a checkpoint counts only when it has been copied, if checkpoints are copied at all
            before their period.
    """

    accepts_unsynced = False

    def __init__(
        self, root: Root, durability: Durability, config: SyncConfig, *, wait_for_commit: bool = False
    ) -> None:
        super().__init__(root, durability)
        self._waits = wait_for_commit and config.sync_on_checkpoint
        self._config = config
        self._claim: Claim | None = None
        self._trouble: Callable[[str], None] = lambda text: None
        self._state = State()
        self._copy = synced_copy_of(root, config)
        self._copy.on_trouble = self._tell

    def _tell(self, text: str | None) -> None:
        self._trouble("" if text is None else f"the copy at {self._config.upload_dir} is not up to date: {text}")

    def claim(self, *, takeover: bool) -> Claim:
        """Become the one writer on this machine.

        Raises:
            ExperimentLockedError: A live driver holds the experiment.
            ExperimentExistsError: At the other end is another experiment, or a newer state of this one.
        """
        self._check_other_end(takeover)
        self._claim = super().claim(takeover=takeover)
        return self._claim

    def _check_other_end(self, takeover: bool) -> None:
        """Refuse to write over what does not belong to this root; nothing else would.

        Whether a syncer fails because nothing is there, or because it does not work, cannot be told. Either way there
        is nothing to compare with, and if it does not work, nothing will be written over.
        """
        assert self._config.upload_dir is not None
        address = join_address(self._config.upload_dir, self._root.name)
        try:
            is_same, is_newer = _other_end(self._copy, self._root, CHECK_S)
        except (ExperimentNotFoundError, SyncError, DamageError):
            return
        if not is_same:
            raise _other_experiment(address, f"{self._root.path} is another experiment than that at {address}.")
        if is_newer and not takeover:
            raise _other_experiment(
                address, f"{address} was resumed on another machine, with a newer state than this one."
            )

    def compare(self, state: State, uid: str) -> None:
        # Not with result files: those of a copy that came from the other end are ahead of its journal.
        compare_here(self._journal, self._root, state, uid)

    def open(self, claim: Claim) -> Journal:
        self._journal = SyncedJournal.create_or_append(self._root.path, claim, durability=self._durability)
        return self._journal

    def follow(self, journal: Journal, wake: Callable[[], None], state: State) -> JournalWriter:
        assert isinstance(journal, SyncedJournal)
        self._state = state
        self._copy.position = lambda: journal.synced_seq
        self._copy.on_arrived = lambda _: wake()
        journal.synced_copy = self._copy
        journal.may_ask = lambda: self._config.sync_on_checkpoint or not state.running
        return super().follow(journal, wake, state)

    def start(self, trouble: Callable[[str], None], changed: Callable[[], Iterable[str]]) -> None:
        self._trouble = trouble
        self._copy.start()

    def checkpoint_jobs(self, wake: Callable[[], None], context: JobContext) -> CheckpointJobs:
        if not self._waits:
            return local_checkpoint_jobs(wake, context, self._perform)
        workers = CheckpointJobThreads(wake, bringing(context.stages, self._perform))
        return CheckpointJobs(SyncedCheckpointJobEdge(workers, context, self._copy), partial(workers.close, False))

    def _perform(self, job: Job) -> Outcome:
        outcome = perform(job)
        if isinstance(outcome, ob.CommitEnded) and not outcome.damaged and self._config.sync_on_checkpoint:
            self._copy.request()
        if isinstance(job, DeleteJob) and isinstance(outcome, ob.DeleteEnded) and not os.path.lexists(job.directory):
            self._copy.delete(os.path.relpath(job.directory, self._root.path).replace(os.sep, "/"))
        return outcome

    def why_give_up(self) -> str:
        text = self._copy.trouble
        if text is None or not (self._waits or self._is_idle()):
            return ""  # trials do not need the copy
        lasted = time.monotonic() - self._copy.failing_since
        return f"nothing could be copied for {lasted:.0f} s: {text}" if lasted >= self._config.sync_timeout else ""

    def _is_idle(self) -> bool:
        """Whether only deletions are left to do, which wait for a round."""
        state = self._state
        waiting = state.pending or state.paused or state.running
        return bool(state.search_ended) and not waiting

    def finish(self, state: State, impatient: Callable[[], str], draining: str = "") -> None:
        super().finish(state, impatient, draining)
        assert self._claim is not None
        hurried = bool(impatient())
        timeout = IMPATIENT_S if hurried else self._config.sync_timeout
        # This driver lets go after its last round; whoever restores the copy must not think that it is still at work.
        mark = released_mark(self._claim)
        self._copy.flush(timeout, mark, stop=lambda: not hurried and bool(impatient()))

    def close(self) -> None:
        self._copy.close()


def synced_copy_of(root: Root, config: SyncConfig) -> SyncedCopy:
    """What keeps the copy of an experiment equal to its root."""
    assert config.upload_dir is not None
    period_s, timeout_s = config.sync_period, config.sync_timeout
    syncer = resolve_syncer(config.syncer, sync_period=period_s, sync_timeout=timeout_s)
    assert syncer is not None
    address = join_address(config.upload_dir, root.name)
    return SyncedCopy(root.path, address, syncer, period_s=period_s, timeout_s=timeout_s)


def fetch_copy(address: str, config: SyncConfig, base: str | None = None) -> tuple[Root, SyncConfig]:
    """Bring the experiment that a syncer has copied to ``address`` here, unless what is here already is newer.

    Args:
        address: Where the copy is, as the syncer understands it: the experiment's own directory.
        config: With the syncer; its ``upload_dir`` need not be given.
        base: The directory for the local root, if not the usual one.

    Returns:
        The local root, and the settings with which it continues being copied to where it came from.

    Raises:
        InvalidInputError: ``config`` has no syncer of the user's.
        ExperimentExistsError: Another experiment of this name is running on this machine.
        StorageError, DamageError: The syncer failed, or what it brought is not whole.
    """
    refuse_secrets("path", address)
    synced_copy, root, config = _copy_at(address, config, base)
    try:
        wanted = not root.has_spec()
        if not wanted:
            owner = holder(root.path)
            is_held = owner is not None and owner.alive
            is_same, is_newer = _other_end(synced_copy, root)
            if is_held and not is_same:
                raise _other_experiment(address, f"Another one of this name is running in {root.path}.")
            wanted = not is_held and (is_newer or not is_same)
        if wanted:
            synced_copy.fetch()
            _set_aside_unknown(root)
    finally:
        synced_copy.close()
    return root, config


def _set_aside_unknown(root: Root) -> None:
    """Rename checkpoints that a round had brought to the other end when it was cut short, before their journal.

    Of any other experiment they would prove that its journal has lost records.
    """
    with contextlib.suppress(DamageError):  # whoever opens it says what is wrong
        spec = read_spec(root)
        state = open_state(root.path, spec.retention).state
        for found in unknown_checkpoints(root.path, Known(state, spec.uid, finished=True)):
            os.rename(root.path / found.place, f"{root.path / found.place}.ahead-{os.urandom(4).hex()}")


def copy_exists(address: str, config: SyncConfig) -> bool:
    """Is there an experiment at ``address`` that the syncer can bring? A syncer that fails counts as no."""
    synced_copy, _, _ = _copy_at(address, config, None)
    try:
        with synced_copy.fetched_journal():
            return True
    except (ExperimentNotFoundError, SyncError):
        return False
    finally:
        synced_copy.close()


def _copy_at(address: str, config: SyncConfig, base: str | None) -> tuple[SyncedCopy, Root, SyncConfig]:
    if not config.has_own_syncer:
        raise InvalidInputError(
            f"{address!r} with sync_config=... needs the syncer that made the copy: "
            "SyncConfig(syncer=...) with a command, a function or a Syncer."
        )
    upload_dir, name = split_address(address)
    config = copy.copy(config)
    config._set("upload_dir", upload_dir)
    root = Root(Path(base or local_root()) / name)
    return synced_copy_of(root, config), root, config


def _other_end(synced_copy: SyncedCopy, root: Root, timeout: float = math.inf) -> tuple[bool, bool]:
    """Whether the other end has this very experiment, and whether a later driver's state of it."""
    with synced_copy.fetched_journal(timeout) as private:
        try:
            is_same = (private / root.spec_file.name).read_bytes() == root.spec_file.read_bytes()
        except FileNotFoundError:
            is_same = False
        return is_same, _last_epoch(private) > _last_epoch(root.private)


def _last_epoch(private: Path) -> int:
    return max((int(path.name) for path in (private / "epochs").glob("*") if path.name.isdigit()), default=0)


def _other_experiment(address: str, which: str) -> ExperimentExistsError:
    return ExperimentExistsError(
        f"{which} Its syncer must not write over the experiment that is at {address}. Choose another "
        f"RunConfig(name=...), or continue the one that is there: "
        f'Tuner.restore("{address}", sync_config=SyncConfig(syncer=...)). Nothing was changed.'
    )
