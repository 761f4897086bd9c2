"""Keep a remote copy of an experiment's local root up to date, through the user's syncer.

A round takes a consistent copy of the journal, uploads everything else, and then that copy of the journal, twice (see
``linked_tree.py``). So the remote copy can be restored whenever copying stops: its journal never refers to a checkpoint
that has not been uploaded, and one of its two copies is whole. A syncer has no create-only write, so it cannot fence a
second driver.

Owns when rounds run, what their failure means, and the download (`SyncedCopy.fetch`). Must never interpret the journal,
and must never delete from the remote copy what still exists locally.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.core.backoff import Backoff
from holdfast.errors import (
    DamageError,
    ExperimentNotFoundError,
    InvalidInputError,
    NotShippedError,
    StorageError,
    SyncError,
    SyncTimeoutError,
)
from holdfast.space.naming import is_inside
from holdfast.storage.address import join_address
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.locks import lock
from holdfast.sync.linked_tree import (
    JOURNAL,
    JOURNALS,
    SAFE,
    BadSeal,
    LinkedTree,
    MomentCopy,
    MomentSeal,
    check_seal,
    number_after,
    read_seal,
    unseal,
    write_seal,
)
from holdfast.sync.syncer import LOOK_S, BackgroundSyncer, DetachedSyncer, Syncer

MIN_PAUSE_S = 1.0
"""Between two rounds that nobody asked for, whatever ``period_s`` says."""

ROUND_RETRY = Backoff(first_s=5.0, longest_s=300.0)
FLUSH_RETRY = Backoff(first_s=1.0, longest_s=math.inf)  # the deadline of a flush ends it
TRIES_OF_WHAT_NEVER_WORKED = 3
DELETE_TRIES = 5

_EXCLUDED = [f"{name}/*" for name in JOURNALS]
_log = logging.getLogger("holdfast.sync")


class SyncedCopy:
    """Brings ``remote_dir`` up to date every ``period_s``, on `request`, and at the end.

    Call `start` for a thread that does so, or `step` by hand.

    Args:
        local_root: The experiment's root on this machine. Work files go beside it, to ``.sync-<name>``.
        remote_dir: The address of the experiment's directory at the other end, as the syncer understands it.
        syncer: What copies.
        period_s: Seconds from one round to the next.
        timeout_s: Seconds that one copy may take.
        on_trouble: Called with a text after each round that failed, and with None when one succeeds again. From the
            thread that runs the round.
        position: What the journal has reached, for example its last record's number; asked before each round.
        on_arrived: Called with that position once everything up to it is at the other end.

    Attributes:
        arrived: The position up to which everything is at the other end; 0 before the first round has succeeded.
        carried: The number of the last round that has succeeded; 0 before the first.
        trouble: Why the last round failed; None if it did not.
        failing_since: When the first of the rounds in a row ended that have failed, by the monotonic clock.
        on_trouble, position, on_arrived: As given; may be set before the first round.
    """

    def __init__(
        self,
        local_root: str | os.PathLike[str],
        remote_dir: str,
        syncer: Syncer,
        *,
        period_s: float = 300.0,
        timeout_s: float = 1800.0,
        on_trouble: Callable[[str | None], object] = bool,
        position: Callable[[], int] = int,
        on_arrived: Callable[[int], object] = bool,
    ) -> None:
        self.arrived = 0
        self.carried = 0
        self._begun = 0
        self.trouble: str | None = None
        self.failing_since = 0.0
        self._root = os.path.abspath(os.fspath(local_root))
        self._remote = remote_dir
        self._syncer = syncer if isinstance(syncer, BackgroundSyncer) else DetachedSyncer(syncer)
        self._period = max(period_s, MIN_PAUSE_S)
        self._timeout = timeout_s
        self.on_trouble = on_trouble
        self.position = position
        self.on_arrived = on_arrived
        self._work = os.path.join(os.path.dirname(self._root), f".sync-{os.path.basename(self._root)}")
        self._tree = os.path.join(self._work, "tree")
        self._next = os.path.join(self._work, "next")
        self._freeze = MomentCopy(os.path.join(self._root, JOURNAL), self._next)
        self._links = LinkedTree(self._root, self._tree)
        self._moments = {name: MomentCopy(self._next, os.path.join(self._tree, name)) for name in JOURNALS}
        self._number = 0
        self._proven = False
        self._failures = 0
        self._due_at = -math.inf
        self._not_before = -math.inf
        self._requested = False
        self._stop: Callable[[], bool] = bool
        self._deletions: deque[tuple[str, int]] = deque()
        self._round_lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run rounds in a thread until `close`."""
        self._thread = threading.Thread(target=self._loop, name="holdfast-synced-copy", daemon=True)
        self._thread.start()

    def request(self) -> int:
        """Ask for a round soon: what is there now will be at the other end after it. Returns at once.

        Returns:
            The number of that round; it has succeeded when ``carried`` is as great.
        """
        number = self._begun + 1  # one that is under way may have passed by already what is there now
        self._requested = True
        self._wake.set()
        return number

    def delete(self, relative: str) -> None:
        """Delete a directory at the other end, after the next round that succeeds.

        Call it when the local one is gone, and the record that made it obsolete has arrived.

        Raises:
            InvalidInputError: It is not a directory below the root, or is still there locally.
        """
        if not is_inside(relative) or relative.startswith(JOURNALS):
            raise InvalidInputError(f"{relative!r} cannot be deleted: expected a path like 'trial/checkpoint_000001'.")
        if os.path.lexists(os.path.join(self._root, relative)):
            raise InvalidInputError(
                f"{relative!r} is still in {self._root}, so its copy at {self._remote} is not obsolete. "
                "Delete the local one first."
            )
        self._deletions.append((relative, 0))

    def step(self, now: float) -> bool:
        """Run a round if one is due at the monotonic time ``now``, and return when it has ended.

        Returns:
            Whether a round was run. Its failure is not raised: see ``trouble``.
        """
        wanted = self._requested or now >= self._due_at
        if not wanted or now < self._not_before or self._closing.is_set():
            return False
        with self._round_lock:
            if self._closing.is_set():  # while this waited for another round to end
                return False
            self._try_round(now, math.inf)
        return True

    def flush(self, timeout: float, mark: str = "", stop: Callable[[], bool] = bool) -> None:
        """Bring everything to the other end, and prove that it can be fetched from there.

        Failures are retried until the time is up, or three times if no round has ever worked.

        Args:
            timeout: Seconds.
            mark: An empty file that the journal at the other end gets besides, to say that nothing follows: if this
                succeeds, there are no more rounds.
            stop: Whether to give up before the time is up; asked all the time, by whichever thread copies.

        Durability: when this returns, what was in the root when it was called survives the loss of this machine.

        Raises:
            NotShippedError: It did not succeed. Everything is still in the root.
        """
        deadline = time.monotonic() + timeout
        self._stop = stop
        if not self._wait(lambda seconds: self._round_lock.acquire(timeout=seconds), deadline):
            raise self._not_shipped(SyncTimeoutError(f"a copy still runs after {timeout:g} s"))
        try:
            for tries in itertools.count(1):
                error = self._try_round(time.monotonic(), deadline, prove=True, mark=mark)
                if error is None:
                    return
                hopeless = not self._proven and tries == TRIES_OF_WHAT_NEVER_WORKED
                retry_at = time.monotonic() + FLUSH_RETRY.delay_s(tries)
                if hopeless or retry_at >= deadline or self._wait(self._closing.wait, retry_at) or stop():
                    raise self._not_shipped(error) from error
        finally:
            self._round_lock.release()

    def fetch(self) -> str | None:
        """Make the local root of what is at the other end.

        It is put together beside the root and renamed: a fetch that was cut off leaves no root behind, and the next
        one continues it. A root that is there already is kept under another name.

        Returns:
            Where the root that was there is now; None if there was none.

        Raises:
            ExperimentNotFoundError: There is no experiment, or none whose first round was finished.
            DamageError: Neither copy of the journal is whole.
            SyncError: The syncer failed.
        """
        with self._round_lock, self._fetching() as folder:
            journal, seal = self._fetch_best_journal(folder)
            whole = os.path.join(folder, "root")
            os.makedirs(whole, exist_ok=True)
            self._run(math.inf, self._syncer.sync_down, self._remote, whole, _EXCLUDED)
            for name in JOURNALS:  # from a syncer that leaves nothing out; they may be of another moment
                shutil.rmtree(os.path.join(whole, name), ignore_errors=True)
            if seal is not None:
                # What a tool that deletes at the other end must find here, or it would delete the journal there.
                for name in JOURNALS:
                    MomentCopy(journal, os.path.join(self._tree, name)).update()
            # A file's time may say when its writer was last heard of; that of the download would be a lie.
            unseal(journal, None if seal is None else min(seal.number, time.time_ns()))
            os.rename(journal, os.path.join(whole, JOURNAL))
            os.sync()
            crashpoint("fetch.before_rename")
            aside = self._set_root_aside()
            os.rename(whole, self._root)
        return aside

    @contextlib.contextmanager
    def fetched_journal(self, timeout: float = math.inf) -> Iterator[Path]:
        """A verified copy of the ``.holdfast`` at the other end, for a while, to compare it with the local one.

        Raises:
            As `fetch`. SyncTimeoutError: It took longer than ``timeout`` seconds.
        """
        with self._round_lock, self._fetching() as folder:
            yield Path(self._fetch_best_journal(folder, time.monotonic() + timeout)[0])

    def close(self) -> None:
        """Stop: a copy that runs is given up. Call `flush` before, if what is missing matters."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._syncer.close()
        with self._round_lock:
            self._links.clear()
            shutil.rmtree(self._next, ignore_errors=True)

    def _loop(self) -> None:
        while not self._closing.is_set():
            now = time.monotonic()
            due_at = max(-math.inf if self._requested else self._due_at, self._not_before)
            self._wake.wait(min(max(due_at - now, 0), self._period))
            self._wake.clear()
            self.step(time.monotonic())

    def _try_round(self, now: float, deadline: float, *, prove: bool = False, mark: str = "") -> Exception | None:
        """Run a round, and say when the next one is due."""
        try:
            self._round(deadline, prove=prove, mark=mark)
        except Exception as error:
            self._failures += 1
            self.failing_since = self.failing_since if self.trouble else time.monotonic()
            retry_s = min(ROUND_RETRY.delay_s(self._failures), self._period)
            self._due_at = self._not_before = now + retry_s
            self.trouble = f"{self._remote} could not be brought up to date: {_text(error)}"
            _log.warning("%s. Everything is safe in %s; next try in %.0f s.", self.trouble, self._root, retry_s)
            self.on_trouble(self.trouble)
            return error
        self._failures = 0
        self._due_at, self._not_before = now + self._period, -math.inf
        if mark:
            self._closing.set()
        if self.trouble is not None:
            self.trouble = None
            self.on_trouble(None)
        self.on_arrived(self.arrived)
        return None

    def _round(self, deadline: float, *, prove: bool, mark: str) -> None:
        # In this order: what is asked for or written from here on is the next round's.
        self._requested = False
        self._begun += 1
        number, position = self._begun, self.position()
        self._freeze.update()
        if mark:
            with open(os.path.join(self._next, mark), "ab"):
                pass
        self._number = number_after(self._number or self._last_number())
        seal = write_seal(self._next, self._number)
        self._links.refresh()
        self._run(deadline, self._syncer.sync_up, self._tree, self._remote, _EXCLUDED)
        for name in JOURNALS:
            self._moments[name].update()
            self._run(deadline, self._syncer.sync_up, os.path.join(self._tree, name), join_address(self._remote, name))
        if prove or not self._proven:
            self._prove(seal, deadline)
        self.arrived, self.carried = position, number
        self._delete_obsolete(deadline)

    def _last_number(self) -> int:
        """The number of the last seal that a driver on this machine has sent."""
        last = 0
        for name in JOURNALS:
            with contextlib.suppress(BadSeal):
                seal = read_seal(os.path.join(self._tree, name))
                last = max(last, seal.number if seal is not None else 0)
        return last

    def _prove(self, seal: MomentSeal, deadline: float) -> None:
        """Fetch the journal that was just sent.

        A command that copies to the wrong directory, or skips directories with exit code 0 (rsync without -r), or a
        function that ignores its command's exit code, would otherwise be found out when a restore fails.
        """
        proof = os.path.join(self._work, "proof")
        shutil.rmtree(proof, ignore_errors=True)
        self._run(deadline, self._syncer.sync_down, join_address(self._remote, JOURNAL), proof)
        try:
            found = check_seal(proof)
            reason = "there is nothing" if found is None else "there is an older copy"
        except BadSeal as error:
            found, reason = None, str(error)
        shutil.rmtree(proof, ignore_errors=True)
        if found == seal:
            self._proven = True
            return
        raise SyncError(
            f"the syncer reports success, but the journal it has sent to {self._remote} does not come back: {reason}. "
            "It must copy the content of the source directory, with all that is below, into the target directory, and "
            "back in the same way; for example 'rsync -a {source} {target}' or 'cp -r {source}. {target}'"
        )

    def _run(self, deadline: float, start: Callable[..., bool], *arguments: Any) -> None:
        """Copy or delete, and return when that is done."""
        left = min(self._timeout, self._syncer.sync_timeout, deadline - time.monotonic())
        if left <= 0 or self._is_unwanted():
            raise SyncTimeoutError("no time was left to copy anything")
        ends_at = time.monotonic() + left
        if not start(*arguments):
            raise SyncError("the syncer is busy with something else: every experiment needs a syncer of its own")
        if not self._syncer.finish_or_give_up(left, self._is_unwanted):
            late = time.monotonic() >= ends_at
            reason = f"took longer than {left:g} s" if late else "was under way when the driver was told to end"
            raise SyncTimeoutError(f"a copy {reason} and was given up")

    def _is_unwanted(self) -> bool:
        return self._closing.is_set() or self._stop()

    def _wait(self, done: Callable[[float], bool], deadline: float) -> bool:
        """Whether ``done(seconds)``, which blocks no longer than that, says yes before it is time to give up."""
        while not done(min(max(deadline - time.monotonic(), 0), LOOK_S)):
            if time.monotonic() >= deadline or self._is_unwanted():
                return False
        return True

    def _delete_obsolete(self, deadline: float) -> None:
        for _ in range(len(self._deletions)):
            relative, tries = self._deletions.popleft()
            if os.path.lexists(os.path.join(self._root, relative)):
                continue  # it has come back: a trial that was started again
            try:
                self._run(deadline, self._syncer.delete, join_address(self._remote, relative))
            except Exception as error:
                if tries + 1 < DELETE_TRIES:
                    self._deletions.append((relative, tries + 1))
                else:
                    _log.warning("%s is obsolete and stays at %s: %s", relative, self._remote, error)

    def _not_shipped(self, error: Exception) -> NotShippedError:
        return NotShippedError(
            f"The experiment has ended, but some of it is on this machine only: {self._remote} could not be brought up "
            f"to date: {_text(error)}. Everything is safe in {self._root}. When the problem is fixed, restore the "
            f'experiment on this machine, which uploads what is missing: Tuner.restore("{self._root}").fit(). Or copy '
            "that directory yourself."
        )

    @contextlib.contextmanager
    def _fetching(self) -> Iterator[str]:
        """A directory for what arrives. It is kept if something goes wrong, for the next fetch to continue with."""
        folder = os.path.join(self._work, "fetch")
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            if not lock(descriptor):
                raise StorageError(
                    f"Another process is fetching {self._remote} to {self._root}. Wait for it to end, then try again."
                )
            yield folder
            shutil.rmtree(folder)
        finally:
            os.close(descriptor)

    def _fetch_best_journal(self, folder: str, deadline: float = math.inf) -> tuple[str, MomentSeal | None]:
        """Return where the newest whole copy of the journal is now, and its seal if it has one."""
        sealed: list[tuple[int, str, MomentSeal]] = []
        unsealed: list[str] = []
        failures: dict[str, Exception] = {}
        for name in JOURNALS:
            path = os.path.join(folder, name)
            shutil.rmtree(path, ignore_errors=True)
            try:
                self._run(deadline, self._syncer.sync_down, join_address(self._remote, name), path)
                seal = check_seal(path)
            except (BadSeal, OSError, SyncError) as error:
                failures[name] = error
                continue
            if seal is not None and seal.files:
                sealed.append((seal.number, path, seal))
            elif os.path.isdir(path) and os.listdir(path):
                unsealed.append(path)
        if sealed:
            _, path, seal = max(sealed, key=lambda found: found[:2])
            return path, seal
        if unsealed == [os.path.join(folder, JOURNAL)] and not isinstance(failures.get(SAFE), BadSeal):
            return unsealed[0], None  # somebody has copied a root here by hand, which is as good
        raise self._nothing_whole(failures)

    def _nothing_whole(self, failures: dict[str, Exception]) -> Exception:
        story = "; ".join(f"{name}: {error}" for name, error in failures.items())
        if any(isinstance(error, BadSeal) for error in failures.values()):
            return DamageError(
                f"Neither copy of the journal at {self._remote} is whole ({story}). Nothing was overwritten, here or "
                "there. If the machine that ran the experiment still exists, restore it there."
            )
        if len(failures) == len(JOURNALS):
            return SyncError(f"The experiment at {self._remote} could not be fetched. {story}")
        return ExperimentNotFoundError(
            f"There is no experiment at {self._remote}, or its first copy was never finished. "
            "Check the address; on the machine that ran it, restore the experiment there."
        )

    def _set_root_aside(self) -> str | None:
        if not os.path.lexists(self._root):
            return None
        if os.path.isdir(self._root) and not os.listdir(self._root):
            os.rmdir(self._root)
            return None
        aside = f"{self._root}.aside-{os.urandom(4).hex()}"
        os.rename(self._root, aside)
        return aside


def _text(error: Exception) -> str:
    return str(error).rstrip(". ") or repr(error)
