"""The backend of an experiment in a remote store, for one driver, from the claim to the last part.

Composes the shipper and the uploads of checkpoints and result files; decides only when to stop waiting for a store.
Every step may fail without losing anything: the local mirror has all data.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from holdfast.checkpoints.job_threads import MAX_JOBS_AT_ONCE, JobThreads
from holdfast.checkpoints.jobs import bringing
from holdfast.checkpoints.remote_job_threads import AnyJob, AnyOutcome, RemoteJobThreads
from holdfast.checkpoints.remote_jobs import RemoteJobPerformer
from holdfast.checkpoints.stage_sending import SendsStages
from holdfast.config import SyncConfig
from holdfast.controller.backends import CheckpointJobs, JobContext
from holdfast.controller.evidence import Known, is_only_in_store, records_lost, unknown_checkpoints, unknown_in_store
from holdfast.controller.file_sync import FileSync, LogUploads
from holdfast.controller.remote_checkpoint_jobs import RemoteCheckpointJobEdge, most_uncommitted
from holdfast.controller.remote_experiment import mirrored_in
from holdfast.controller.shipped_journal import (
    ObjectsFirst,
    Setbacks,
    ShippedJournal,
    in_words,
    naming_the_address,
    patience_s,
    taken_over,
    why_give_up,
)
from holdfast.core.retention import Retention
from holdfast.core.state import State
from holdfast.errors import (
    DamageError,
    ExperimentExistsError,
    ExperimentNotFoundError,
    NotShippedError,
    ObjectMissingError,
    StorageError,
    StoreUnreachableError,
)
from holdfast.journal.claims import Claim
from holdfast.journal.epoch import claim_epoch, withdraw
from holdfast.journal.log import Durability, Journal
from holdfast.shipping import parts
from holdfast.shipping.claiming import claim_remote
from holdfast.shipping.restore_mirror import RestoredMirror, restore_mirror
from holdfast.shipping.shipper import Shipper, ShippingTrouble, ShipStart
from holdfast.storage.layout import SPEC, Root
from holdfast.storage.locks import lock
from holdfast.storage.store import Store

LAST_WORDS_S = 10.0  # for the part that lets go, when the run ends with an exception
HURRIED_WORDS_S = 0.5  # the same, if somebody has no time for that
LOOK_S = 0.25
LOCK_S = 120.0  # a claim takes a few requests; one that hangs must not keep others out for ever

SENDERS_AT_ONCE = 32
"""So many machines may upload at a time; this one only waits for them."""


class Background:
    """How a backend works in the background of the loop: in threads, by the machine's clock.

    The one place that starts them, so that a simulator can take the same steps one by one, in its own time.
    """

    def now(self) -> float:
        """Seconds that never run backwards."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait."""
        time.sleep(seconds)

    def journal(self, root: Path, claim: Claim) -> Journal:
        """The mirror's journal, which syncs itself."""
        return Journal.create_or_append(root, claim)

    def shipper(self, store: Store, journal: Journal, start: ShipStart) -> Shipper:
        """What brings the journal to the store."""
        return Shipper(store, journal, start)

    def job_threads(
        self, wake: Callable[[], None], perform: Callable[[AnyJob], AnyOutcome]
    ) -> JobThreads[AnyJob, AnyOutcome]:
        """Threads for checkpoint jobs of one queue."""
        return JobThreads(wake, perform)


class RemoteBackend:
    """A store: what has been shipped there is durable.

    Args:
        root: The mirror, with its store.
        durability: With "sync", each reply waits for the store.
        config: How long to wait, how often result files are uploaded, and what else is.
        background: Threads and clock.
    """

    accepts_unsynced = False

    def __init__(
        self, root: Root, durability: Durability, config: SyncConfig, background: Background | None = None
    ) -> None:
        assert root.remote is not None
        self.message = ""
        """What a person should know about the mirror; "" if nothing."""

        self._root = root
        self._remote = root.remote
        self._durability = durability
        self._config = config
        self._store = root.remote.store
        self._objects = ObjectsFirst(self._store, root)
        self._performer = RemoteJobPerformer(self._store, root.path)
        self._background = background or Background()
        self._setbacks = Setbacks(self._background.now)
        self._performer.on_end = self._setbacks.note
        self._wake: Callable[[], None] = lambda: None
        self._journal: Journal | None = None
        self._start: ShipStart | None = None
        self._shipper: Shipper | None = None
        self._files: FileSync | None = None
        self._logs = LogUploads(root.path, 0)  # those of another epoch once that is known
        self._gave_up = ""
        self._restored: RestoredMirror | None = None
        self._last_words_s = LAST_WORDS_S

    @property
    def shipper(self) -> Shipper:
        """What ships the journal; there is one after ``follow``."""
        assert self._shipper is not None
        return self._shipper

    def claim(self, *, takeover: bool) -> Claim:
        """Bring the mirror up to date and become the one writer, here and in the store.

        Raises:
            ExperimentLockedError: A live driver holds the experiment, on whichever machine.
            StorageError: The store refuses or does not answer.
        """
        # Whoever claims here and not in the store would fence the one of this machine that did both.
        with one_at_a_time(self._root.path.parent):
            if self._root.has_spec() and not self._is_ours():  # before it is made the other one's mirror
                raise _taken_place(self._remote.url)
            restored = restore_mirror(self._store, self._root.path)
            self.message = restored.message
            self._restored = restored
            # Again: the experiment may have been removed and made anew while its journal was brought. The new one
            # must not be continued with that journal.
            if not self._is_ours():
                raise _taken_place(self._remote.url)
            self._objects.note_sent()
            claim = self._claim_mirror(takeover)
            try:
                self._start = claim_remote(self._store, restored, claim, takeover=takeover)
                if not restored.shipped.number and not self._is_ours():
                    self._remote.replace_unstarted(self._root)  # by somebody who was slower than our claim
                with contextlib.suppress(StorageError):  # they only cost money, and not everybody may list them
                    self._store.abort_stale("")
            except BaseException:
                # Else the mirror would say that a live driver has it for as long as this process lives.
                withdraw(self._root.path, claim)
                raise
        return claim

    def _claim_mirror(self, takeover: bool) -> Claim:
        with naming_the_address(self._remote.url):
            return claim_epoch(self._root.path, takeover=takeover)

    def _is_ours(self) -> bool:
        """Whether the experiment that the store has is the mirror's."""
        try:
            stored = self._store.get(SPEC)
        except ObjectMissingError:
            if self._remote.exists():
                raise DamageError(
                    f"The file {SPEC} of {self._remote.url} is missing in the store. The journal still exists, "
                    f"and nothing was changed. This machine has a copy of the file: upload {self._root.spec_file} to "
                    f"{self._remote.url}/{SPEC}, then try again."
                ) from None
            raise ExperimentNotFoundError(
                f"There is no experiment at {self._remote.url} any more; its files were removed. Make it again, or "
                f"choose another RunConfig(name=...). What this machine has of it is in {self._root.path}."
            ) from None
        return stored == self._root.spec_file.read_bytes()

    def open(self, claim: Claim) -> Journal:
        # "sync" means the store: waiting for the local disk besides would only cost time.
        with naming_the_address(self._remote.url):
            self._journal = self._background.journal(self._root.path, claim)
            self._logs = LogUploads(self._root.path, claim.epoch)
        return self._journal

    def compare(self, state: State, uid: str) -> None:
        found = unknown_checkpoints(self._root.path, Known(state, uid, finished=False))
        assert self._restored is not None
        if not found and is_only_in_store(self._root, self._restored, state):
            found = unknown_in_store(self._store, Known(state, uid, finished=False))
        if found:
            self._check_overtaken()
            raise records_lost(self._remote.url, found, state, in_store=True)

    def _check_overtaken(self) -> None:
        """Raise `FencedError` if a newer driver, here or elsewhere, has taken over since this one's claim."""
        assert self._journal is not None
        assert self._start is not None
        with naming_the_address(self._remote.url):
            self._journal.flush()
        if self._store.stat(parts.part_key(self._start.shipped.number + 1)) is not None:
            raise taken_over(self._remote.url)

    def follow(self, journal: Journal, wake: Callable[[], None], state: State) -> ShippedJournal:
        """Get ready to ship what the journal makes durable here; ``start`` begins."""
        assert self._start is not None
        self._wake = wake
        self._objects.find_unsent()
        shipper = self._shipper = self._background.shipper(self._objects, journal, self._start)
        journal.on_synced = partial(self._synced, shipper)
        shipper.on_shipped = lambda _: wake()
        shipper.on_fenced = lambda _: wake()
        shipped = ShippedJournal(journal, shipper, self._remote.url, sync=self._durability == "sync")
        shipped.hopeless = partial(self._hopeless, state)
        shipped.unshipped = lambda: self.not_shipped(self._missing(state), "this driver is shutting down")
        return shipped

    def _synced(self, shipper: Shipper, _seq: int) -> None:
        shipper.look()  # with durability="sync" trials wait for it
        self._wake()

    def _hopeless(self, state: State) -> NotShippedError | None:
        why = self._why_not_ship()
        return self.not_shipped(self._missing(state), why) if why else None

    def _why_not_ship(self) -> str:
        """Why the journal will not arrive in the store however long one waits; "" if it may."""
        return why_give_up(self.shipper, self._background.now(), self._config.sync_timeout)

    def start(self, trouble: Callable[[str], None], changed: Callable[[], Iterable[str]]) -> None:
        """Ship from now on.

        Args:
            trouble: Told why nothing arrives in the store, from another thread; "" when it does again.
            changed: Takes away the paths of result files that were written.
        """
        config = self._config
        self.shipper.on_trouble = partial(self._tell, trouble)
        self.shipper.start()
        self._files = FileSync(
            self._store,
            self._root.path,
            changed,
            period_s=config.sync_period or 1.0,
            artifacts=config.sync_artifacts,
            is_void=self.shipper.is_overtaken,
            also=self._send_objects,
            logs=self._logs.changed,
        )
        self._files.start()
        changed()  # from here on they are counted

    def _send_objects(self) -> None:
        sent = self._objects.send_new(unless=self.shipper.next_key)
        if not sent and not self.shipper.is_overtaken():  # the next part was our own, made just now
            sent = self._objects.send_new(unless=self.shipper.next_key)
            if not sent:
                raise StoreUnreachableError("stored values wait for the journal")

    def _tell(self, trouble: Callable[[str], None], found: ShippingTrouble | None) -> None:
        # What matters first: the rest may be cut off on a narrow screen.
        trouble(f"{self._remote.url} {in_words(found)}: {found.error}" if found else "")
        self._wake()

    def checkpoint_jobs(self, wake: Callable[[], None], context: JobContext) -> CheckpointJobs:
        """Begin to keep checkpoints, here and in the store."""
        stages, performer = context.stages, self._performer
        performer.senders = stages if isinstance(stages, SendsStages) else None
        perform = bringing(stages, performer.perform, performer.perform_on_node)
        commits = MAX_JOBS_AT_ONCE if performer.senders is None else SENDERS_AT_ONCE
        workers = RemoteJobThreads(wake, perform, self._background.job_threads, commits)
        edge = RemoteCheckpointJobEdge(
            workers,
            context.state,
            context.memory,
            context.clock,
            trial_dir=context.trial_dir,
            trouble=context.trouble,
            rule=context.rule,
            # In a directory of the user's choice people look for the checkpoints of this machine's trials.
            keeps_copies=bool(mirrored_in(self._root.path)),
        )
        return CheckpointJobs(edge, partial(workers.close, False))

    def most_uncommitted(self, rule: Retention) -> int:
        return most_uncommitted(rule)

    def why_give_up(self) -> str:
        """Why waiting for the store makes no sense any more; "" if it does."""
        why = self._why_not_ship() or self._setbacks.why_give_up(self._config.sync_timeout)
        self._gave_up = self._gave_up or why
        return why

    def missing(self, state: State) -> str:
        """What is not in the store yet, in words; "" if nothing."""
        missing = self._missing(state)
        return str(self.not_shipped(missing, "this driver leaves at once")) if missing else ""

    def finish(self, state: State, impatient: Callable[[], str], draining: str = "") -> None:
        """Wait until the journal, all checkpoints and all result files are in the store.

        Raises:
            NotShippedError: They are not, and there is no use in waiting.
            FencedError: A newer driver has taken over.
        """
        assert self._journal is not None
        seq = self._journal.written_seq
        self._journal.request_sync()
        while not self.shipper.wait_shipped(seq, LOOK_S):
            if self.shipper.fenced:
                raise taken_over(self._remote.url)
            why = why_give_up(self.shipper, self._background.now(), self._config.sync_timeout) or self._hurried(
                impatient
            )
            if why:
                raise self.not_shipped(self._missing(state), why)
        if self._files is not None:
            self._finish_files(self._files, impatient)
        if state.staged:
            why = draining or "their upload has not ended"
            raise self.not_shipped(self._missing(state), why)
        if self._gave_up:
            raise StorageError(
                f"{self._gave_up}. Trials that had not ended were stopped; everything that they reported is in "
                f'{self._remote.url}. When the store works again, resume: Tuner.restore("{self._remote.url}")'
            )

    def _hurried(self, impatient: Callable[[], str]) -> str:
        why = impatient()
        if why:
            self._last_words_s = min(self._last_words_s, HURRIED_WORDS_S)
        return why

    def _finish_files(self, files: FileSync, impatient: Callable[[], str]) -> None:
        began = self._background.now()
        ticket = files.ask()
        while True:
            try:
                if files.wait(ticket, LOOK_S):
                    return
                failure = None
            except StorageError as error:
                failure = error
                ticket = files.ask()
            why = why_give_up(self.shipper, self._background.now(), self._config.sync_timeout) or self._hurried(
                impatient
            )
            if not why and failure and self._background.now() - began > patience_s(failure, self._config.sync_timeout):
                why = str(failure)
            if why:
                raise self.not_shipped("the newest result files", why) from failure
            if failure is not None:
                self._background.sleep(LOOK_S)

    def _missing(self, state: State) -> str:
        """What is on this machine only."""
        assert self._journal is not None
        records = self._journal.written_seq - self.shipper.shipped_seq
        counted = ((records, "records of the journal"), (len(state.staged), "checkpoints"))
        return " and ".join(f"{count:,} {what}" for count, what in counted if count)

    def not_shipped(self, what: str, why: str) -> NotShippedError:
        """The error for a run that must end before everything is in the store (I9)."""
        return NotShippedError(
            f"{what} of {self._remote.url} are not in the store: {why}. Nothing is lost: it is all on this machine, "
            f"in {self._root.path}. When the store works again, upload it: holdfast ship '{self._remote.url}'"
        )

    def close(self) -> None:
        """Ship what the closed journal has left, let go of the experiment, and stop."""
        if self._files is not None:
            self._files.close()
            self._logs.close()
        if self._shipper is not None:
            with contextlib.suppress(StorageError):
                self._shipper.close(deadline_s=self._last_words_s)


def _taken_place(url: str) -> ExperimentExistsError:
    return ExperimentExistsError(
        f"Another Tuner was created for {url} after this one, so this experiment no longer belongs to this Tuner. Run "
        "that one, or create this one again with another RunConfig(name=...). Nothing was changed."
    )


@contextlib.contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Keep other processes of this machine from claiming the same mirror meanwhile."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        lock(fd, limit_s=LOCK_S)
        yield
    finally:
        os.close(fd)
