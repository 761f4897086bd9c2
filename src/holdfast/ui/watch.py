"""Experiments that somebody looks at: each is followed by a thread of its own, which alone touches its state.

Questions reach that thread through a queue and are answered in between. Owns opening, following and forgetting
experiments, and the memory of recent changes from which event streams continue. Must never wait for a browser: what a
stream has not fetched is merged, so that a slow one costs no memory.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from holdfast.cli.listing import UNREADABLE
from holdfast.controller.opening import Progress
from holdfast.errors import ExperimentNotFoundError, NewerFormatError, TuneError
from holdfast.ui.source import Source, SourceChange

POLL_S = 0.25
"""How often a followed experiment is looked at; of one in a store, which has to be listed, REMOTE_POLL_S."""
REMOTE_POLL_S = 3.0
TROUBLE_POLL_S = 5.0
NOT_FOUND = "not found"
IDLE_S = 300.0
"""After so long without a question or a stream an experiment is forgotten."""
MAX_QUESTIONS = 200
MAX_REMEMBERED = 512
MAX_TRIALS = 200
MAX_SENTENCES = 50

T = TypeVar("T")
_log = logging.getLogger("holdfast.ui")


class Busy(Exception):
    """More questions wait than there may."""


class OpeningProgress(NamedTuple):
    """How far the journal was read, in bytes."""

    read: int
    total: int


class News(NamedTuple):
    """What a stream is told; ``more`` says that there is more than the ids that are named."""

    record: int
    trials: list[str]
    more: bool
    sentences: list[dict[str, Any]]


class _Remembered(NamedTuple):
    number: int
    record: int
    trials: list[str]
    more: bool
    sentences: list[dict[str, Any]]


class _Question(NamedTuple):
    work: Callable[[Source], Any]
    answer: Future[Any]
    full: bool


class ChangeLog:
    """The latest changes, for streams that continue. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[_Remembered] = deque(maxlen=MAX_REMEMBERED)
        self._count = 0
        self._first_record = 0  # changes up to this one were never kept
        self.record = 0

    def start(self, record: int) -> None:
        """The experiment was read up to ``record``."""
        self._first_record = self.record = record

    def add(self, record: int, trials: list[str], sentences: list[dict[str, Any]], *, whole: bool = False) -> None:
        """Something has changed."""
        with self._lock:
            self._count += 1
            more = whole or len(trials) > MAX_TRIALS
            kept = _Remembered(self._count, record, trials[:MAX_TRIALS], more, sentences[-MAX_SENTENCES:])
            if len(self._kept) == MAX_REMEMBERED:
                self._first_record = self._kept[0].record
            self._kept.append(kept)
            self.record = record

    def cursor(self, after: int | None) -> int:
        """Where a stream continues whose last event was ``after``; -1 if that is not remembered any more."""
        with self._lock:
            if after is None or after == self.record:
                return self._count
            if after < self._first_record or after > self.record:
                return -1
            behind = (kept.number - 1 for kept in self._kept if kept.record > after)
            return next(behind, self._count)

    def since(self, cursor: int) -> tuple[int, News | None]:
        """What is new behind a cursor, merged, and the next cursor."""
        with self._lock:
            if cursor >= self._count:
                return self._count, None
            new = [kept for kept in self._kept if kept.number > cursor]
            lost = cursor < 0 or len(new) < self._count - cursor
            trials = list(dict.fromkeys(trial for kept in new for trial in kept.trials))
            sentences = [sentence for kept in new for sentence in kept.sentences]
            more = lost or len(trials) > MAX_TRIALS or any(kept.more for kept in new)
            return self._count, News(self.record, trials[:MAX_TRIALS], more, sentences[-MAX_SENTENCES:])


class FollowedExperiment:
    """One experiment and its thread.

    Args:
        path: Where it is.
        open_source: Opens it; runs in the thread.

    Attributes:
        loading: How far it was read; None when it is open.
        failure: Why it could not be opened; None if it could, or nobody knows yet.
        trouble: Why it cannot be followed at the moment, in words; "" if it can.
        trouble_state: The state that this puts the experiment into; "" if what was read still tells how it stands.
        changes: What streams are told.
    """

    def __init__(self, path: str, open_source: Callable[[str, Progress], Source]) -> None:
        self.path = path
        self.loading: OpeningProgress | None = OpeningProgress(0, 0)
        self.failure: Exception | None = None
        self.trouble = self.trouble_state = ""
        self.changes = ChangeLog()
        self.opened = threading.Event()
        self.failed_at = 0.0
        self._open_source = open_source
        self._questions: queue.Queue[_Question | None] = queue.Queue(MAX_QUESTIONS)
        self._patient: list[_Question] = []  # those that wait until all reports are read
        self._listeners: dict[object, Callable[[], None]] = {}
        self._asked_at = time.monotonic()
        self._looked_at = 0.0
        self._damage = ""
        self._is_reachable = True
        self._lock = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="holdfast-follower", daemon=True)
        self._thread.start()

    def ask(self, question: Callable[[Source], T], *, full: bool = False) -> Future[T]:
        """Have a question answered by the thread, from a state that is up to date.

        Args:
            question: Is called with the experiment.
            full: All reports are to be read before. Questions that do not need them are answered meanwhile.

        Raises:
            Busy: Too many wait.
        """
        answer: Future[T] = Future()
        with self._lock:
            self._asked_at = time.monotonic()
            if self._ended:
                answer.set_exception(self.failure or Busy())
                return answer
            try:
                self._questions.put_nowait(_Question(question, answer, full))
            except queue.Full:
                raise Busy from None
        return answer

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have ``wake`` called, in the thread, after each change; returns how to end that."""
        key = object()
        with self._lock:
            self._listeners[key] = wake
            self._asked_at = time.monotonic()
        with contextlib.suppress(queue.Full):
            self._questions.put_nowait(None)  # it may be waiting for longer than a stream wants

        def leave() -> None:
            with self._lock:
                self._listeners.pop(key, None)
                self._asked_at = time.monotonic()

        return leave

    def close(self) -> None:
        """End the thread after what it is doing now."""
        with self._lock:
            self._ended = True
        with contextlib.suppress(queue.Full):
            self._questions.put_nowait(None)

    @property
    def streams(self) -> int:
        """How many listen."""
        return len(self._listeners)

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended: it could not open the experiment, or nobody looked for long."""
        return self._ended

    @property
    def is_gone(self) -> bool:
        """Whether there is no experiment at its place any more."""
        failure = self.failure
        return NOT_FOUND in (self.trouble_state, "" if failure is None else unreadable_state(failure))

    # --- in the thread

    def _run(self) -> None:
        try:
            source = self._open_source(self.path, self._progress)
        except Exception as error:
            self._fail(error)
            return
        # What was read stays, and is no garbage: without this the next question would wait until the collector has
        # walked through millions of objects.
        gc.freeze()
        self.changes.start(source.record)
        self._damage = source.damage
        self._looked_at = time.monotonic()
        self.loading = None
        self.opened.set()
        self._wake()
        try:
            while self._serve(source):
                pass
        except Exception as error:  # a bug, or a journal like no other: the next question opens the experiment again
            _log.exception("following %s failed", self.path)
            self._fail(error)
        gc.unfreeze()  # what this experiment has left is garbage now
        self._refuse_rest(Busy())
        self._wake()  # streams end, and come again

    def _progress(self, read: int, total: int) -> None:
        self.loading = OpeningProgress(read, total)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self.failure, self.failed_at, self._ended = error, time.monotonic(), True
        self.loading = None
        self.opened.set()
        self._refuse_rest(error)
        self._wake()

    def _serve(self, source: Source) -> bool:
        """Wait for a question or for the time to look; False when nobody has looked for long."""
        try:
            asked = self._wait(self._patience(source))
        except queue.Empty:
            asked = None
        if asked is None and not self._listeners and time.monotonic() - self._asked_at > IDLE_S:
            with self._lock:
                self._ended = self._ended or (self._questions.empty() and not self._listeners)
        if self._ended and asked is None:
            return False
        if asked is not None:
            self._patient.append(asked)  # so that it is refused with the others if looking fails
        self._look(source)
        if asked is not None and not asked.full:
            self._patient.pop()
            _answer(source, asked)
        elif asked is None and self._patient:
            self._load(source)
        return True

    def _load(self, source: Source) -> None:
        """Read a slice of the reports; with the last one, answer those who wait for it."""
        try:
            if source.load() is not None:
                return
        except (TuneError, OSError) as error:
            self.trouble = str(error)
            self._looked_at = 0.0
        waiting, self._patient = self._patient, []
        for asked in waiting:
            _answer(source, asked)

    def _wait(self, patience: float) -> _Question | None:
        return self._questions.get(timeout=patience) if patience else self._questions.get_nowait()

    def _period(self, source: Source) -> float:
        if self.trouble:
            return TROUBLE_POLL_S
        return POLL_S if source.is_near else REMOTE_POLL_S

    def _patience(self, source: Source) -> float:
        if self._patient:
            return 0.0
        if not self._listeners:
            return IDLE_S / 4
        return max(0.0, self._looked_at + self._period(source) - time.monotonic())

    def _look(self, source: Source) -> None:
        """Bring the state up to date, unless that was done just now."""
        if time.monotonic() - self._looked_at < self._period(source):
            return
        try:
            change, trouble, state = source.advance(), "", ""
        except (TuneError, OSError) as error:
            change, trouble, state = None, str(error), unreadable_state(error)
        self._looked_at = time.monotonic()
        damage = source.damage  # it may have been found by a question
        is_reachable = not source.unreachable  # how long it has been so is for the page's own clock
        if change is None and (trouble, damage, is_reachable) != (self.trouble, self._damage, self._is_reachable):
            change = SourceChange(source.record)
        self.trouble, self._damage, self._is_reachable = trouble, damage, is_reachable
        self.trouble_state = "" if state == UNREADABLE else state
        if change is not None:
            trials = source.history.state.trials
            ids = [trials[n].id for n in change.trials[: MAX_TRIALS + 1]]
            told = [
                {"time": line.at, "kind": line.kind, "text": line.text} for line in change.sentences[-MAX_SENTENCES:]
            ]
            self.changes.add(change.record, ids, told, whole=change.whole)
            self._wake()

    def _wake(self) -> None:
        for wake in list(self._listeners.values()):
            wake()

    def _refuse_rest(self, error: Exception) -> None:
        waiting, self._patient = self._patient, []
        with contextlib.suppress(queue.Empty):
            while True:
                asked = self._questions.get_nowait()
                if asked is not None:
                    waiting.append(asked)
        for asked in waiting:
            if asked.answer.set_running_or_notify_cancel():
                asked.answer.set_exception(error)


def unreadable_state(error: BaseException) -> str:
    """What is wrong with an experiment that cannot be read, as its state."""
    if isinstance(error, NewerFormatError):
        return "newer format"
    return NOT_FOUND if isinstance(error, ExperimentNotFoundError | FileNotFoundError) else UNREADABLE


def _answer(source: Source, asked: _Question) -> None:
    answer_question(lambda: asked.work(source), asked.answer)


def answer_question(question: Callable[[], T], answer: Future[T]) -> None:
    """Fill a future, unless nobody waits for it any more."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(question())
    except Exception as error:
        answer.set_exception(error)
