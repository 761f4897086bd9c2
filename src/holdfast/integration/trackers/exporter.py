"""Brings a tracker up to date with the journal, once or again and again.

Owns the order: older generations are retired, then a run is opened, its rows are logged, and it is closed. Whatever the
tracker refuses is tried again, run by run; nothing of it is kept in memory but what the projection holds. Must never
depend on what it remembers of the tracker: what is there already is asked for, so that an export can be repeated.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.core.state import Status, Trial
from holdfast.errors import OwnershipError
from holdfast.integration.trackers.projection import Projection, TrialRun
from holdfast.integration.trackers.runs import (
    FAILED,
    FINISHED,
    UNFINISHED,
    Logged,
    Row,
    RunFacts,
    Tracker,
    TrackerTarget,
    plain_config,
    run_id,
    step_of,
)
from holdfast.views.trials import checkpoint_at, place_of, trial_dirname, trial_name

logger = logging.getLogger("holdfast")

BATCH_ROWS = 1_000
MAX_OPEN_RUNS = 64
"""Runs that are open at the same time; the one that was longest without a row is closed, and opened again later."""

MAX_FAILURES = 3
"""Runs that fail one after the other before the others are left for the next round: the tracker seems to be down."""


class Behind(NamedTuple):
    """What a tracker lacks."""

    runs: int = 0
    rows: int = 0


class Exporter:
    """Shows one experiment in one tracker.

    Args:
        tracker: Where.
        projection: What.

    Attributes:
        logged: Rows that were added.
        found: Rows that were there.
        trouble: Why something could not be logged in the last round; "" if everything was.
        on_batch: Called whenever some rows were logged.
        on_failure: Called whenever a run could not be logged: the others may take long to fail.
    """

    def __init__(self, tracker: Tracker, projection: Projection) -> None:
        self._tracker = tracker
        self._projection = projection
        self._open: dict[int, tuple[RunFacts, Logged]] = {}  # the one used last stands last
        self.logged = self.found = 0
        self.trouble = ""
        self.on_batch: Callable[[], None] = lambda: None
        self.on_failure: Callable[[], None] = lambda: None

    def advance(self, *, closing: bool = False) -> bool:
        """Take in what is new in the journal and log it.

        Args:
            closing: It is the last time: also unfinished runs are closed.

        Returns:
            Whether everything that may be logged is. ``trouble`` says why it is not.
        """
        projection = self._projection
        projection.advance()
        waiting, projection.dirty = sorted(projection.dirty), set()
        if closing:
            waiting = sorted({*waiting, *self._open, *projection.runs})
        failures, self.trouble = 0, ""
        for at, n in enumerate(waiting):
            try:
                self._bring_up(n, closing)
                failures = 0
            except Exception as error:  # whatever a library does, the next run is tried, and this one again
                projection.dirty.add(n)
                self._open.pop(n, None)
                self.trouble = self.trouble or in_words(error)
                logger.debug("a run could not be logged", exc_info=True)
                failures += 1
                self.on_failure()
                if failures >= MAX_FAILURES:
                    projection.dirty.update(waiting[at:])
                    break
        if closing and not self.trouble:
            self._finish()
        return not self.trouble

    @property
    def epoch(self) -> int:
        """The newest driver in the journal."""
        return self._projection.state.epoch

    def behind(self) -> Behind:
        """What may be logged and is not."""
        pending = [self._projection.pending(n) for n in self._projection.runs]
        unclosed = sum(
            run.closed is None and self._projection.state.trials[n].final for n, run in self._projection.runs.items()
        )
        return Behind(max(sum(count > 0 for count in pending), unclosed), sum(pending))

    def _finish(self) -> None:
        try:
            self._tracker.finish()
        except Exception as error:
            self.trouble = in_words(error)

    # --- one run

    def _bring_up(self, n: int, closing: bool) -> None:
        projection = self._projection
        run, trial = projection.runs[n], projection.state.trials[n]
        while run.retired < run.generation:
            if n in self._open:
                self._close(n, run)  # of the generation before
            self._tracker.retire(self._facts(trial, run.retired))
            run.retired += 1
        status = _status(trial)
        is_over = closing or status != UNFINISHED
        if not self._has_work(n, run, status, closing) or not (self._tracker.live or is_over):
            return
        if n not in self._open and is_over:
            facts = self._facts(trial, run.generation)
            if self._tracker.is_complete(facts, run.safe):
                self.found += run.safe - run.shown
                projection.mark_shown(n, run.safe, run.step)
                run.closed = status
                return
        self._log(n, run, trial)
        if is_over:
            self._close(n, run)

    def _has_work(self, n: int, run: TrialRun, status: str, closing: bool) -> bool:
        if self._projection.pending(n) or (status != UNFINISHED and run.closed != status):
            return True
        return closing and n in self._open

    def _log(self, n: int, run: TrialRun, trial: Trial) -> None:
        facts, logged = self._opened(n, run, trial)
        while self._projection.pending(n):
            rows = self._numbered(run, self._projection.take(n, BATCH_ROWS))
            missing = [row for row in rows if row.number >= logged.rows and row.step > logged.step]
            self.found += len(rows) - len(missing)
            if missing:
                self._tracker.log(facts, missing)
                self.logged += len(missing)
            self._projection.mark_shown(n, rows[-1].number + 1, rows[-1].step)
            self.on_batch()

    def _numbered(self, run: TrialRun, results: list[dict[str, object]]) -> list[Row]:
        rows, step = [], run.step
        for number, result in enumerate(results, start=run.shown):
            step = step_of(result, step, timesteps=self._tracker.counts_timesteps)
            rows.append(Row(number, step, result))
        return rows

    def _opened(self, n: int, run: TrialRun, trial: Trial) -> tuple[RunFacts, Logged]:
        known = self._open.pop(n, None)
        if known is None:
            if len(self._open) >= MAX_OPEN_RUNS:
                oldest = next(iter(self._open))
                self._close(oldest, self._projection.runs[oldest])
            facts = self._facts(trial, run.generation)
            known = facts, self._tracker.open(facts)
        self._open[n] = known
        return known

    def _close(self, n: int, run: TrialRun) -> None:
        trial = self._projection.state.trials[n]
        facts, _ = self._open[n]
        superseded = run.retired < run.generation
        facts.status = UNFINISHED if superseded else _status(trial)
        facts.error = "" if trial.error is None else trial.error.message
        facts.config = plain_config(trial.config)  # a scheduler may have changed it
        if facts.status == FINISHED:
            facts.checkpoint = self._checkpoint(trial)
        self._tracker.close(facts, run.shown)
        del self._open[n]
        if not superseded:
            run.closed = facts.status

    def _facts(self, trial: Trial, generation: int) -> RunFacts:
        info, spec = self._projection.info, self._projection.spec
        dirname = trial_dirname(info, trial)
        return RunFacts(
            id=run_id(spec.uid, trial.id, generation),
            trial_id=trial.id,
            name=trial_name(info, trial),
            experiment=info.name,
            experiment_uid=spec.uid,
            tag=trial.shown_tag or trial.tag,
            config=plain_config(trial.config),
            created_at=trial.created_at,
            directory=os.path.join(info.root, dirname),
            place=place_of(info, dirname),
            root=str(info.root),
            status=_status(trial),
        )

    def _checkpoint(self, trial: Trial) -> object:
        latest, info = trial.latest(), self._projection.info
        if latest is None:
            return None
        return checkpoint_at(info, trial_dirname(info, trial), latest.index, latest.digest)


def in_words(error: BaseException) -> str:
    """A failure of a library in one line: what follows is advice for programmers, or the statement that failed."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


def _status(trial: Trial) -> str:
    if trial.status == Status.TERMINATED:
        return FINISHED
    return FAILED if trial.status == Status.ERROR else UNFINISHED


@contextlib.contextmanager
def sole_exporter(uid: str, target: TrackerTarget) -> Iterator[None]:
    """Be the only one on this machine who logs an experiment to a tracker.

    Raises:
        OwnershipError: Somebody else does.
    """
    key = f"{uid}/{os.getuid()}/{target.label}/{sorted(target.arguments.items())!r}"
    name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    path = os.path.join(tempfile.gettempdir(), f"holdfast-tracker-{name}.lock")
    fd = _locked(path)
    if fd is None:
        raise OwnershipError(
            f"Another process on this machine is logging this experiment to {target.label}: a driver with the "
            "tracker's callback, or another export. Wait until it has ended."
        )
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # while it is locked, so that nobody removes the file of the next one
        os.close(fd)


def _locked(path: str) -> int | None:
    """Create and lock a file; None if somebody else has it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(path), os.fstat(fd)):
                return fd
        except FileNotFoundError:
            pass  # whoever had it has just removed it
        except OSError:
            os.close(fd)
            return None
        os.close(fd)
