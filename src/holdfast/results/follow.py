"""Following an experiment: open it once, then take in what is new, at the price of just that.

It does not matter whether the driver is alive, dead or another one by now, and where the experiment is: on this
machine, imported from another tool, or in a store. Owns a reader's state, and all that is kept up to date with it. Must
never write to the experiment. Not safe for several threads at once: whoever has some uses a lock.

    follower = Follower.open(path, progress=lambda read, total: ...)   # bytes; of a store, told by another thread
    follower.history                     # the experiment; another object after a change with ``reread``
    follower.record                      # number of the newest record that was taken in
    change = follower.advance()          # Changes(record, trials, rows, sentences, reread, state)
    follower.facts()                     # as ``holdfast status --json``, without the trials; cost: flat
    follower.trial(n)                    # as ``holdfast show PATH TRIAL --json``
    follower.failures()                  # kinds of failures and the trials that ended with each
    follower.rows(n), follower.story(n)  # surviving rows, and sentences; the first call reads the journal once
    follower.columns.pack(names)         # see ``columns``
    while (loading := follower.load()):  # one slice of the full pass; loading.read of loading.total records
        ...
    follower.curves, follower.chronicle  # whoever has not loaded waits for it; then kept up to date by ``advance``
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.controller.opening import Progress
from holdfast.core import events as ev
from holdfast.core.transitions import apply, check_known
from holdfast.display.tracker import ProgressTracker
from holdfast.display.words import failure_what
from holdfast.errors import FencedError, JournalDamagedError, StoreUnreachableError
from holdfast.journal.epoch import Holder, holder
from holdfast.journal.identity import uid_of
from holdfast.journal.liveness import is_same_place
from holdfast.journal.reader import START
from holdfast.journal.records import read_events
from holdfast.results.chronicle import Chronicle
from holdfast.results.columns import Columns
from holdfast.results.curves import Curves
from holdfast.results.full_pass import SLICE, FullPass, Loading
from holdfast.results.history import History, has_local_driver, heard_of, open_history, open_mirror, open_place
from holdfast.results.report_data import experiment_facts, objective_of, phase_of, trial_details
from holdfast.results.store_look import StoreHangs, StoreLook
from holdfast.results.story import ExperimentTeller, StoryLine, experiment_story, trial_story
from holdfast.storage.address import is_remote
from holdfast.storage.layout import Root
from holdfast.storage.remote_root import Remote, remote_of
from holdfast.storage.store import Store

if TYPE_CHECKING:
    from holdfast.shipping.restore_mirror import RestoredMirror

PATIENCE_S = 5.0  # with a store whose experiment is driven from this machine, which knows more anyway
MAX_LOAD_TRIES = 3
MAX_FAILED_TRIALS = 100
"""How many trials are named of each kind of failure."""


class Changes(NamedTuple):
    """What one ``advance`` has found.

    Attributes:
        record: Number of the newest record now.
        trials: Numbers of the trials that are not what they were, in order.
        rows: How many reports were taken in.
        sentences: What is worth telling, in order.
        reread: The history was read again from its start, because a driver that took over cut the place away or
            because another experiment is there now: everything that was known is void, and ``trials`` is empty.
        state: How the experiment stands now, as ``phase_of`` says.
    """

    record: int
    trials: tuple[int, ...] = ()
    rows: int = 0
    sentences: tuple[StoryLine, ...] = ()
    reread: bool = False
    state: str = ""


class Follower:
    """Keeps a history up to date.

    Args:
        path: Where the experiment is, a path or a URI.
        history: The experiment as it was opened.
        tolerant: Of a journal that is found to be damaged, continue with what is left, and ``history.damage``.
        patience_s: How long ``advance`` waits for a store: then it tells nothing new, and ``unreachable`` why. None
            waits until the store answers or fails.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        history: History,
        *,
        tolerant: bool = False,
        patience_s: float | None = None,
    ) -> None:
        self._path = os.fspath(path)
        self._patience_s = patience_s
        self._tolerant = tolerant
        self._remote: Remote | None = None
        self._begin(history)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        tolerant: bool = False,
        patience_s: float | None = None,
        progress: Progress | None = None,
    ) -> Follower:
        """Open the experiment at ``path`` to follow it; raises as ``open_history`` does."""
        history = open_nearest(path, tolerant=tolerant, progress=progress)
        return cls(path, history, tolerant=tolerant, patience_s=patience_s)

    def _begin(self, history: History) -> None:
        self.history = history
        self._look_at_store: StoreLook[tuple[Root | None, RestoredMirror | None]] = StoreLook(self._patience_s)
        self._tracker = ProgressTracker()
        self._teller = ExperimentTeller(history)
        self._half_taken = self._is_cut = False
        self._pass: FullPass | None = None
        self.columns = Columns(history, lambda: self.curves)
        self._damaged_at = self._signature() if history.damage is not None else None
        self._found_at: tuple[str, Any] | None = None

    @property
    def record(self) -> int:
        """Number of the newest record that was taken in; 0 before the first."""
        return (self.history.position or START).next_seq - 1

    @property
    def damage(self) -> JournalDamagedError | None:
        """What is wrong with the journal: found when it was opened, or by a pass over records before a snapshot.

        The latter is forgotten when its file is another one.
        """
        if self._found_at is not None and self._stamp(self._found_at[0]) != self._found_at[1]:
            self._found_at = self.history.early_damage = None
        return self.history.known_damage

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """Remember damage that is found inside, which stands where ``advance`` does not look again."""
        try:
            yield
        except JournalDamagedError as error:
            self.history.early_damage, self._found_at = error, (error.file, self._stamp(error.file))
            raise

    def _stamp(self, file: str) -> Any:
        try:
            found = os.stat(self.history.root / file)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    # --- following

    def advance(self) -> Changes:
        """Take in what happened since the last time.

        Raises:
            JournalDamagedError: The journal is damaged behind what was read; not if ``tolerant``.
        """
        if self.history.damage is not None and self._signature() == self._damaged_at:
            return self._change()  # there is nothing to read before somebody has repaired it
        if self._half_taken or self._is_cut:
            return self._reopen()
        try:
            owner = self._look()
            return self._reopen() if self.history.damage is not None else self._take_in(owner)
        except FencedError:
            return self._reopen()
        except JournalDamagedError:
            if not self._tolerant:
                raise
            return self._reopen()

    def _look(self) -> Holder | None:
        """Bring the files on this machine up to date, if the experiment is in a store; who holds it.

        Raises:
            FencedError: Another experiment is there now.
        """
        history = self.history
        if history.restored is None:
            return holder(history.root)
        owner = holder(history.root)
        if owner is not None and owner.alive and _writes_into(history.root, owner):
            history.unasked = ""  # the mirror knows more than its store
            return owner
        known = history.restored
        try:
            root, restored = self._look_at_store.ask(lambda: self._ask_store(known))
        except StoreHangs:
            return history.owner
        except StoreUnreachableError as error:
            history.unasked = str(error)
            return heard_of(owner, history.restored)
        if root is None:
            history.restored, history.unasked = restored, ""
            return heard_of(holder(history.root), restored)
        if uid_of(root.path) != history.spec.uid:
            raise FencedError(f"{history.shown} is another experiment than the one that was followed.")
        history.restored, history.unasked = restored, ""
        if root.path != history.root:
            history.moved(root.path)
        return heard_of(holder(root.path), restored)

    def _ask_store(self, known: RestoredMirror) -> tuple[Root | None, RestoredMirror | None]:
        """What the store has by now, fetched; and the root it is in, if that may be another one."""
        from holdfast.shipping.extend_view import extend_view

        restored = extend_view(self._store(), known)
        return open_place(self._path, self.history.info.filesystem) if restored is None else (None, restored)

    @property
    def unreachable(self) -> str:
        """That the store does not answer, and from when what is known is, in one sentence; "" if it does."""
        owner = self.history.owner
        if self.history.restored is None or (owner and owner.alive and _writes_into(self.history.root, owner)):
            return ""  # nobody asks it
        return self._look_at_store.trouble(self.history.shown)

    def _store(self) -> Store:
        """The store of the experiment; the connection stays."""
        if self._remote is None:
            self._remote = remote_of(self._path, self.history.info.filesystem)
        assert self._remote is not None
        return self._remote.store

    def _take_in(self, owner: Holder | None) -> Changes:
        history = self.history
        state, settings = history.state, history.state.settings
        changed: set[int] = set()
        sentences: list[StoryLine] = []
        events = read_events(history.root, after=history.position)
        reports, before = state.reports, history.lost
        feeds = self._pass if self._pass is not None and self._pass.is_at(history.position) else None
        self._half_taken = True  # should reading fail in the middle, what was applied cannot be applied again
        with events.folding():
            for event in events:
                changed |= history.unsettle()  # its records follow what the journal says
                self._take(event, changed, sentences, feeds)
        if owner is None or state.epoch > owner.claim.epoch:
            owner = heard_of(holder(history.root), history.restored)  # a driver has come since we looked
        history.owner = owner
        if owner is not None and owner.alive:
            changed |= history.unsettle()
        else:
            changed |= history.settle() - before
        if state.settings is not settings:
            history.take_settings()
            self.columns.forget_best()
        if events.contents.position != history.position:
            history.advanced(events.contents.position, changed)
        trials = tuple(sorted(changed))
        self.columns.update(trials)
        self._half_taken = False
        return self._change(trials, state.reports - reports, tuple(sentences))

    def _take(self, event: ev.AnyEvent, changed: set[int], sentences: list[StoryLine], feeds: FullPass | None) -> None:
        state = self.history.state
        check_known(state, event)
        apply(state, event, self.history.retention)
        self._tracker.feed(event)
        if feeds is not None:
            feeds.feed(event)
        n: int | None = getattr(event, "n", None)
        if n is not None and n >= 0:
            changed.add(n)
        line = self._teller.sentence(event)
        if line is not None:
            sentences.append(line)

    def _change(
        self, trials: tuple[int, ...] = (), rows: int = 0, sentences: tuple[StoryLine, ...] = (), reread: bool = False
    ) -> Changes:
        return Changes(self.record, trials, rows, sentences, reread, phase_of(self.history))

    def _reopen(self) -> Changes:
        self._begin(open_nearest(self._path, tolerant=self._tolerant))
        return self._change(reread=True)

    def _signature(self) -> tuple[Any, ...]:
        """What changes if somebody repairs or continues a damaged journal."""
        journal = Path(self.history.root, ".holdfast", "journal")
        try:
            with os.scandir(journal) as entries:
                return tuple(sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime) for entry in entries))
        except OSError:
            return ()

    # --- the full pass

    def load(self, records: int = SLICE) -> Loading | None:
        """Read one slice of what the state does not hold: curves and the chronicle. None once all of it is there.

        Raises:
            JournalDamagedError: The journal was changed while it was read.
        """
        damage = self.damage
        if damage is not None and damage is not self.history.damage:
            raise damage.with_traceback(None)
        try:
            if self._pass is None:
                self._pass = FullPass(self.history.root)
            with self._remembering():
                return self._pass.load(self.history.position, records)
        except FencedError:
            self._pass, self._is_cut = None, True  # the next ``advance`` reads again
            return Loading(0, self.record)
        except BaseException:
            self._pass = None  # half of a slice may count
            raise

    @property
    def loading(self) -> Loading | None:
        """How far that got; None if it is complete."""
        if self._pass is None:
            return Loading(0, self.record)
        return self._pass.progress(self.history.position)

    @property
    def curves(self) -> Curves:
        """What all trials reported; reads what is missing."""
        return self._loaded().curves

    @property
    def chronicle(self) -> Chronicle:
        """Who ran what, and what went wrong; reads what is missing."""
        return self._loaded().chronicle

    def _loaded(self) -> FullPass:
        for _ in range(MAX_LOAD_TRIES):
            while self.load() is not None and self._pass is not None:
                pass
            if self._pass is not None:
                return self._pass
            self._begin(open_nearest(self._path, tolerant=self._tolerant))
            self._is_cut = True  # whoever advances next is told
        raise FencedError(f"The journal of {self.history.shown} is cut again and again while it is read. Try again.")

    # --- facts

    def facts(self, now: float | None = None) -> dict[str, Any]:
        """The experiment as ``holdfast status --json`` has it, without its trials. The first call looks at all trials.

        The cost of later ones does not depend on their number.
        """
        _ = self.damage  # is forgotten if somebody has repaired it
        return experiment_facts(self.history, now, self._tracker)

    def trial(self, n: int) -> dict[str, Any]:
        """One trial as ``holdfast show PATH TRIAL --json`` has it, without its story."""
        return trial_details(self.history, self.history.state.trials[n])

    def failures(self) -> list[dict[str, Any]]:
        """Kinds of failures that ended trials, the most frequent first: how many, and the ids of the first ones."""
        state, tracker = self.history.state, self._tracker
        tracker.catch_up(state, objective_of(self.history))
        named: dict[int, list[str]] = {}
        for n, group in tracker.errored():
            ids = named.setdefault(id(group), [])
            if len(ids) < MAX_FAILED_TRIALS:
                ids.append(state.trials[n].id)
        return [
            {
                "title": failure_what(group),
                "cause": group.cause,
                "type": group.type,
                "message": group.message,
                "location": group.location,
                "count": group.errored,
                "trials": named.get(id(group), []),
            }
            for group in tracker.failures()
            if group.errored
        ]

    def rows(self, n: int) -> list[dict[str, Any]]:
        """The surviving rows of a trial."""
        with self._remembering():
            return self.history.rows(n)

    def story(self, n: int | None = None) -> list[StoryLine]:
        """What happened to a trial, or to the experiment: in order, from the beginning."""
        history = self.history
        with self._remembering():
            return experiment_story(history) if n is None else trial_story(history, history.state.trials[n])


def _writes_into(root: Path, owner: Holder) -> bool:
    """Whether a driver works with this very directory: a mirror that was made from a store has its claim as well."""
    return bool(owner.claim.lock) and is_same_place(str(root / ".holdfast" / "epochs"), owner.claim.lock)


def open_nearest(path: str | os.PathLike[str], *, tolerant: bool = False, progress: Progress | None = None) -> History:
    """The experiment as its store knows it; or, if the store does not answer, as this machine does, which is said.

    Raises as ``open_history`` does.
    """
    if not is_remote(path):
        return open_history(path, tolerant=tolerant, progress=progress)
    asked: Future[History] = Future()
    # A daemon: a store that hangs must not keep this process from ending.
    threading.Thread(target=_ask, args=(path, asked, tolerant, progress), daemon=True).start()
    try:
        return asked.result(PATIENCE_S if has_local_driver(path) else None)
    except StoreUnreachableError as error:
        mirror = open_mirror(path, why=str(error))
        if mirror is None:
            raise
        return mirror
    except FutureTimeoutError:
        return open_mirror(path, why=f"no answer for {PATIENCE_S:.0f} s") or asked.result()


def _ask(path: str | os.PathLike[str], asked: Future[History], tolerant: bool, progress: Progress | None) -> None:
    try:
        remote = remote_of(path)
        if remote is not None:
            remote.check_server()
        asked.set_result(open_history(path, tolerant=tolerant, progress=progress))
    except BaseException as error:
        asked.set_exception(error)
