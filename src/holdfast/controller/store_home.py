"""An experiment's home in a store: one driver's dealings with it, from the claim to the last part.

Composes the shipper, the upload of checkpoints and that of result files; decides only when to stop waiting for a store.
Everything here may fail without losing anything: the mirror has it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from holdfast.checkpoints.depot import Depot
from holdfast.checkpoints.keeper import Job, Outcome
from holdfast.config import SyncConfig
from holdfast.controller.file_sync import FileSync
from holdfast.controller.homes import Durability
from holdfast.controller.remote import SPEC
from holdfast.controller.shipping import (
    ObjectsFirst,
    Setbacks,
    ShippedJournal,
    patience_s,
    taken_over,
    told_of,
    why_give_up,
)
from holdfast.controller.spec import Root
from holdfast.core.state import State
from holdfast.errors import (
    ExperimentExistsError,
    ExperimentLockedError,
    ExperimentNotFoundError,
    NotShippedError,
    ObjectMissingError,
    StorageError,
)
from holdfast.journal.epoch import Claim, claim_epoch, withdraw
from holdfast.journal.hydrate import claim_remote, hydrate
from holdfast.journal.log import Journal
from holdfast.journal.shipper import Shipper, ShipStart, Trouble

LAST_WORDS_S = 10.0  # for the part that lets go, when the run ends with an exception
LOOK_S = 0.25
LOCK_S = 120.0  # a claim takes a few requests; one that hangs must not keep others out for ever


class StoreHome:
    """A store: what has been shipped there is durable.

    Args:
        root: The mirror, with its store.
        durability: With "sync", each reply waits for the store.
        config: How long to wait, how often result files are uploaded, and what else is.
    """

    is_far = True

    def __init__(self, root: Root, durability: Durability, config: SyncConfig) -> None:
        assert root.remote is not None
        self.message = ""
        """What a person should know about the mirror; "" if nothing."""

        self._root = root
        self._remote = root.remote
        self._durability = durability
        self._config = config
        self._store = root.remote.store
        self._objects = ObjectsFirst(self._store, root.path)
        self._depot = Depot(self._store, root.path)
        self._setbacks = Setbacks()
        self._depot.on_end = self._setbacks.note
        self._wake: Callable[[], None] = lambda: None
        self._journal: Journal | None = None
        self._start: ShipStart | None = None
        self._shipper: Shipper | None = None
        self._files: FileSync | None = None
        self._gave_up = ""

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
            if self._root.exists() and not self._is_ours():  # before hydrating makes it the other one's mirror
                raise _taken_place(self._remote.url)
            hydrated = hydrate(self._store, self._root.path)
            self.message = hydrated.message
            if not self._is_ours():
                raise _taken_place(self._remote.url)
            self._objects.note_there()
            claim = self._claim_here(takeover)
            try:
                self._start = claim_remote(self._store, hydrated, claim, takeover=takeover)
                if not hydrated.shipped.number and not self._is_ours():
                    self._remote.replace_unstarted(self._root)  # by somebody who was slower than our claim
                with contextlib.suppress(StorageError):  # they only cost money, and not everybody may list them
                    self._store.abort_stale("")
            except BaseException:
                withdraw(self._root.path, claim)
                raise
        return claim

    def _claim_here(self, takeover: bool) -> Claim:
        try:
            return claim_epoch(self._root.path, takeover=takeover)
        except ExperimentLockedError as error:
            raise told_of(self._remote.url, self._root.path, error) from None

    def _is_ours(self) -> bool:
        """Whether the experiment that the store has is the mirror's."""
        try:
            there = self._store.get(SPEC)
        except ObjectMissingError:
            raise ExperimentNotFoundError(
                f"There is no experiment at {self._remote.url} any more; its files were removed. Make it again, or "
                f"choose another RunConfig(name=...). What this machine has of it is in {self._root.path}."
            ) from None
        return there == self._root.spec_file.read_bytes()

    def open(self, claim: Claim) -> Journal:
        # "sync" means the store: waiting for the local disk besides would only cost time.
        self._journal = Journal.create_or_append(self._root.path, claim)
        return self._journal

    def follow(self, journal: Journal, wake: Callable[[], None], state: State) -> ShippedJournal:
        """Get ready to ship what the journal makes durable here; ``start`` begins."""
        assert self._start is not None
        self._wake = wake
        journal.on_synced = lambda _: wake()
        shipper = self._shipper = Shipper(self._objects, journal, self._start)
        shipper.on_shipped = lambda _: wake()
        shipper.on_fenced = lambda _: wake()
        place = (str(self._root.path), self._remote.url)
        shipped = ShippedJournal(journal, shipper, place, sync=self._durability == "sync")
        shipped.hopeless = self._hopeless
        return shipped

    def _hopeless(self) -> NotShippedError | None:
        assert self._journal is not None
        why = why_give_up(self.shipper, time.monotonic(), self._config.sync_timeout)
        missing = self._journal.written_seq - self.shipper.shipped_seq
        return self.not_shipped(f"{missing} records of the journal", why) if why else None

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
        )
        self._files.start()
        changed()  # from here on they are counted

    def _tell(self, trouble: Callable[[str], None], found: Trouble | None) -> None:
        # What matters first: the rest may be cut off on a narrow screen.
        text = f"{self._remote.url} is {found.kind}, everything waits on the local disk: {found.error}" if found else ""
        trouble(text)
        self._wake()

    def perform(self, job: Job) -> Outcome:
        """Do a job of the checkpoint keeper, here and in the store."""
        return self._depot.perform(job)

    def why_give_up(self) -> str:
        """Why waiting for the store makes no sense any more; "" if it does."""
        timeout_s = self._config.sync_timeout
        why = why_give_up(self.shipper, time.monotonic(), timeout_s) or self._setbacks.why_give_up(timeout_s)
        self._gave_up = self._gave_up or why
        return why

    def finish(self, state: State, impatient: Callable[[], str]) -> None:
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
            why = why_give_up(self.shipper, time.monotonic(), self._config.sync_timeout) or impatient()
            if why:
                raise self.not_shipped(f"{seq - self.shipper.shipped_seq} records of the journal", why)
        if self._files is not None:
            self._finish_files(self._files, impatient)
        if state.staged:
            why = state.session.draining or "their upload has not ended"
            raise self.not_shipped(f"{len(state.staged)} checkpoints", why)
        if self._gave_up:
            raise StorageError(
                f"{self._gave_up}. Trials that had not ended were stopped; everything that they reported is in "
                f'{self._remote.url}. When the store works again, go on: Tuner.restore("{self._remote.url}")'
            )

    def _finish_files(self, files: FileSync, impatient: Callable[[], str]) -> None:
        began = time.monotonic()
        while True:
            try:
                files.flush(LOOK_S)
                return
            except StorageError as error:
                why = why_give_up(self.shipper, time.monotonic(), self._config.sync_timeout) or impatient()
                if not why and time.monotonic() - began > patience_s(error, self._config.sync_timeout):
                    why = str(error)
                if why:
                    raise self.not_shipped("the newest result files", why) from error
            time.sleep(LOOK_S)

    def not_shipped(self, what: str, why: str) -> NotShippedError:
        """The error for a run that must end before everything is in the store (I9)."""
        return NotShippedError(
            f"{what} of {self._remote.url} are not in the store: {why}. Nothing is lost: it is all on this machine, "
            f"in {self._root.path}. When the store works again, send it: holdfast ship '{self._remote.url}'"
        )

    def close(self) -> None:
        """Ship what the closed journal has left, let go of the experiment, and stop."""
        if self._files is not None:
            self._files.close()
        if self._shipper is not None:
            with contextlib.suppress(StorageError):
                self._shipper.close(deadline_s=LAST_WORDS_S)


def _taken_place(url: str) -> ExperimentExistsError:
    return ExperimentExistsError(
        f"Another Tuner was made for {url} after this one, so the experiment there is not this Tuner's any more. Run "
        "that one, or make this one again with another RunConfig(name=...). Nothing was changed."
    )


@contextlib.contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Keep other processes of this machine from claiming the same mirror meanwhile."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(ImportError, OSError):  # a file system that knows no locks
            _lock(fd)
        yield
    finally:
        os.close(fd)


def _lock(fd: int) -> None:
    import fcntl

    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                return
        time.sleep(0.01)
