"""The running trial's side of the conversation with the driver.

Owns the session: the one object in a worker process through which an attempt reports, stages checkpoints and hears
decisions. Must never touch a checkpoint that is not a stage of its own attempt, decide anything about the trial, or
return from ``report()`` before the driver has accepted the report, or will find it in the attempt's spool (I1).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.checkpoints import dict_place
from holdfast.core.observations import Hint, Report, Saved, SealedStage, Waiting, WorkerMessage
from holdfast.errors import InternalError, InvalidTypeError, UsageError
from holdfast.messages.shortened import shortened
from holdfast.messages.warn import set_listener
from holdfast.storage.address import join_address
from holdfast.trainable.failures import is_full, message_of
from holdfast.trainable.metrics import plain_metrics
from holdfast.trainable.spool_writer import MAX_SPOOL_BYTES, MAX_SPOOL_INTERVAL_S, Spool, SpoolOwner
from holdfast.trainable.worker_messages import (
    Channel,
    Decision,
    Encoded,
    Quit,
    Run,
    SaveRequest,
    Setup,
    ToWorker,
    encoded,
)

if TYPE_CHECKING:
    from holdfast.checkpoints.checkpoint import Checkpoint
    from holdfast.checkpoints.stage import Stage

RETRY_S = 1.0  # between two tries to stage a checkpoint while the disk is full
_LOOK_S = 0.1  # how often such a wait looks whether the driver is still there

T = TypeVar("T")

_log = logging.getLogger("holdfast.trainable")

_current: Session | None = None


class TrialStopped(BaseException):
    """Unwinds the trainable after the driver has decided that this attempt ends; ``finally`` blocks run.

    Not an ``Exception``, so that a training loop which survives errors does not survive this.
    """


class DriverGone(TrialStopped):
    """Unwinds the trainable because nobody is left to report to."""


class Session:
    """One attempt of one trial, from the worker's side.

    Attributes:
        stopped: "" while the attempt may continue, then why not: "stop", "pause", "quit" or "gone".
        save_soon: The driver will end soon; a checkpoint now is worth more than one later.
    """

    def __init__(self, setup: Setup, run: Run, channel: Channel) -> None:
        self.pid = os.getpid()
        self.setup = setup
        self.run = run
        self.trial_dir = os.path.join(setup.root, run.trial_dir)
        self._hinted: set[str] = set()
        self._hints: list[Hint] = []  # sent with the next message
        self.config: Any = None  # the user's, once its objects are loaded
        self.stopped = ""
        self.save_soon = False
        self._channel = channel
        self._ordinal = 0
        self._asked = 0  # the last report that gets an answer
        self._answered = 0
        self._ahead = 0  # how many may be without one
        self._names: Mapping[str, Any] = {}  # metrics of the last report that was judged
        self._spool: Spool | None = Spool(setup.root, SpoolOwner(setup.epoch, run.n, run.attempt))
        self._reported_at = time.monotonic()
        self._warned: set[str] = set()
        self._lock = threading.RLock()
        self._busy = False
        self._thread = threading.get_ident()
        # Threads that an earlier trial of this process left behind must not report into this one.
        self._strangers = frozenset(threading.enumerate()) - {threading.current_thread()}
        self.unsent: tuple[Encoded, ...] = ()  # a final report, sent together with how the attempt ended
        self._made_stage: Stage | None = None
        self._handed_out: list[str] = []
        self._offered: str | None = None  # from a finished ``checkpoint_dir()``; belongs to the next report

    @property
    def trial_place(self) -> str:
        """Where the trial's directory is in the experiment's storage: a path, or an address."""
        address = self.setup.address
        return join_address(address, self.run.trial_dir) if address else self.trial_dir

    # --- reporting ----------------------------------------------------------------------------------------------------

    def report(self, metrics: Any, checkpoint: Checkpoint | None) -> None:
        """See ``api.report``."""
        self.check_caller("report")
        plain = plain_metrics(metrics, self._warned)
        if "done" in plain:
            plain["done"] = bool(plain["done"])
        now = time.monotonic()
        with self._turn():
            sealed = None
            if checkpoint is not None or self._offered is not None:
                sealed = self._seal_for_report(checkpoint)
            passed, self._reported_at = now - self._reported_at, now
            dt = plain.get("time_this_iter_s")
            if type(dt) is not float and type(dt) is not int:
                dt = passed
            if self._ahead and passed < MAX_SPOOL_INTERVAL_S and sealed is None and self._run_ahead(plain, dt):
                return
            decision = self.exchange(plain, dt, sealed)
            self._names = plain
            self._begin_spool_anew()
        if decision.go != "go":
            raise self.unwinding()

    def _run_ahead(self, metrics: dict[str, Any], dt: float) -> bool:
        """Report without waiting for the answer, if it can only be "continue"; False if nothing was done."""
        spool = self._spool
        if spool is None or metrics.keys() != self._names.keys() or metrics.get("done") is True:
            return False
        run, ordinal = self.run, self._ordinal + 1
        report = encoded(Report(run.n, run.attempt, self.setup.worker, ordinal, dt, metrics))
        try:  # not before: a report that is too large must show before it counts
            self._ordinal = ordinal
            if not spool.add(ordinal, report.payload):
                self._ordinal = ordinal - 1
                self._stay()
                return False
            self.send(report)
            self._asked = ordinal
            if ordinal - self._answered >= self._ahead:
                self._catch_up(ordinal - self._ahead // 2)
            if spool.size >= MAX_SPOOL_BYTES:
                self._catch_up(ordinal)
                self._begin_spool_anew()
        except BaseException:
            self._stay()
            raise
        return True

    def _begin_spool_anew(self) -> None:
        """Forget what is in the spool if all of it is answered: numbers in one follow one another."""
        spool = self._spool
        if spool is not None and spool.size and self._answered >= self._asked and not spool.clear():
            self._stay()

    def _catch_up(self, ordinal: int) -> None:
        while self._answered < ordinal:
            self._receive()
            if self.stopped:
                raise self.unwinding()

    def _stay(self) -> None:
        """Run ahead no more in this attempt; what the spool has stays.

        The disk does not take it, or an exception from outside (a signal handler's, say) came into the middle of a
        report: then nobody knows whether that was sent, and a spool could not be continued without a gap.
        """
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.leave()

    def _settle(self) -> None:
        """The attempt has ended: wait until the driver has what was reported ahead, so that the spool can go."""
        spool = self._spool
        if spool is None or not self._lock.acquire(blocking=False):
            return  # a thread of the trial is still at it; such a process is not used again
        try:
            while spool.size and self._answered < self._asked and self.stopped not in ("quit", "gone"):
                self._receive()
            if not spool.size or self._answered >= self._asked:
                spool.remove()
        except BaseException:
            _log.debug("reports that were sent ahead stay in the spool", exc_info=True)
        finally:
            self._stay()
            self._lock.release()

    def finish(self, metrics: Any) -> None:
        """Report what the trainable returned. Whatever the driver decides about it, the attempt is over."""
        plain = plain_metrics(metrics, self._warned)
        with self._turn():
            sealed = self._seal_for_report(None) if self._offered is not None else None
            self._ordinal += 1
            run, dt = self.run, time.monotonic() - self._reported_at
            report = Report(run.n, run.attempt, self.setup.worker, self._ordinal, dt, plain, sealed, True)
            self.unsent = (encoded(report),)  # now: a result that is too large is the trainable's error

    def exchange(self, metrics: dict[str, Any], dt: float, sealed: SealedStage | None) -> Decision:
        """Send a report and wait for what the driver decides."""
        run, ordinal = self.run, self._ordinal + 1
        report = encoded(Report(run.n, run.attempt, self.setup.worker, ordinal, dt, metrics, sealed))
        try:  # not before: a report that is too large must show before it counts, and the user may try again
            self._ordinal = ordinal
            self.send(report)
            self._asked = ordinal
            while True:
                message = self._receive()
                if type(message) is Decision and (message.ordinal == ordinal or message.go != "go"):
                    return message
        except BaseException:
            self._stay()
            raise

    def _receive(self) -> ToWorker:
        """Wait for the next message and take it in."""
        try:
            message = self._channel.receive()
        except (EOFError, OSError):
            raise self._lost() from None
        self._hear(message)
        return message

    def saved(self, sealed: SealedStage | None) -> None:
        """Send a checkpoint that belongs to the last report."""
        self.send(Saved(self.run.n, self.run.attempt, self.setup.worker, sealed, self._ordinal))

    def send(self, message: WorkerMessage | Encoded) -> None:
        """Send, or unwind if the driver is gone."""
        try:
            if self._hints:
                self._channel.send(*self.take_hints(), message)
            else:
                self._channel.send(message)
        except (EOFError, OSError):
            raise self._lost() from None

    def is_news(self, what: str) -> bool:
        """Whether this is asked for the first time: what comes with each report is worth a hint only once."""
        if what in self._hinted:
            return False
        self._hinted.add(what)
        return True

    def hint(self, text: str, file: str, line: int) -> None:
        """Let the driver show what the user should know of the trial's code, once, with the user's line."""
        if os.getpid() == self.pid and self.is_news(text):
            self._hints.append(Hint(self.run.n, self.run.attempt, self.setup.worker, f"{file}:{line}: {text}"))

    def take_hints(self) -> list[Hint]:
        """Those that were not sent yet; they are now."""
        hints, self._hints = self._hints, []
        return hints

    def listen(self) -> None:
        """Take in what has already arrived, without waiting; does nothing while another thread reports."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._busy:
                self._hear_pending()
        finally:
            self._lock.release()

    def check_caller(self, name: str) -> None:
        """Refuse calls from processes and threads that are not part of this trial."""
        if os.getpid() != self.pid:
            raise UsageError(
                f"{name}() was called in process {os.getpid()}, which trial {self.run.trial_id} forked. Only the "
                f"trial's own process {self.pid} can talk to the driver: send the values to it, for example through "
                "a multiprocessing.Queue, and report them there."
            )
        if threading.get_ident() != self._thread and threading.current_thread() in self._strangers:
            raise UsageError(
                f"{name}() was called by the thread {threading.current_thread().name!r}, which an earlier trial of "
                f"this process has left behind, while trial {self.run.trial_id} runs. Join your threads before the "
                "trainable returns."
            )

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One report at a time, and none after the end."""
        with self._lock:
            if self.stopped:
                raise self.unwinding()
            if self._busy:
                raise UsageError(
                    "report() was called while report() was still running in the same thread, as a signal handler can "
                    "do. Set a flag in the handler and report from the training loop."
                )
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    def _hear(self, message: ToWorker) -> None:
        if isinstance(message, Decision):
            self._answered, self._ahead = message.ordinal, message.ahead
            if message.go != "go":
                self.stopped = message.go
        elif isinstance(message, SaveRequest):
            self.save_soon = True
        elif isinstance(message, Quit):
            self.stopped = "quit"
            raise self.unwinding()
        else:
            raise InternalError(f"trial {self.run.trial_id} is running and was sent a {type(message).__name__}")

    def _hear_pending(self) -> None:
        try:
            messages = self._channel.pending()
        except (EOFError, OSError):
            raise self._lost() from None
        for message in messages:
            self._hear(message)

    def _lost(self) -> TrialStopped:
        self.stopped = "gone"
        return self.unwinding()

    def unwinding(self) -> TrialStopped:
        """What to raise once the attempt has been stopped."""
        if self.stopped == "gone":
            return DriverGone(f"the driver of trial {self.run.trial_id} is gone")
        return TrialStopped(f"the driver has ended this attempt of trial {self.run.trial_id} ({self.stopped})")

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def new_directory(self) -> str:
        """A stage of this attempt; removed when the attempt ends, unless it was sealed."""
        path = str(self.with_space(self._stage().new_directory))
        self._handed_out.append(path)
        return path

    def seal(self, path: str, hashes: Mapping[str, str] | None = None) -> SealedStage:
        """Close a directory to further writes; raises ``StorageFullError`` if there is no space."""
        sealed = self._stage().seal(path, hashes)
        if path in self._handed_out:
            self._handed_out.remove(path)
        return self._saved(sealed)

    def _saved(self, sealed: SealedStage) -> SealedStage:
        self.save_soon = False
        return sealed

    def with_space(self, action: Callable[[], T]) -> T:
        """``action()``, again and again until the disk is not full: that is no reason to end a training (W22)."""
        waiting = False
        try:
            while True:
                try:
                    return action()
                except Exception as error:
                    if isinstance(error, UsageError) or not is_full(error, self.setup.root):
                        raise
                    text = f"waiting for space to save a checkpoint{self._place()}: {message_of(error)}"
                if not waiting:
                    self._send_waiting(text)
                    waiting = True
                self._pause()
        finally:
            if waiting and not self.stopped:
                self._send_waiting("")

    def _place(self) -> str:
        """Where this machine keeps checkpoints, if it is one of a cluster: nobody else sees which disk is full."""
        scratch = self.setup.scratch
        if not scratch:
            return ""
        inside = self.setup.root.startswith(f"{scratch}/")  # else this machine sees the experiment's own directory
        return f" in {scratch if inside else self.setup.root} on {os.uname().nodename}"

    def offer(self, path: str) -> None:
        """Attach what ``checkpoint_dir()`` was filled with to the next report."""
        if self._offered is not None and self._offered != path:
            self.discard(self._offered)
        self._offered = path

    def discard(self, path: str) -> None:
        """Remove a stage that will not be reported."""
        from holdfast.checkpoints.tree import remove_quietly

        if path in self._handed_out:
            self._handed_out.remove(path)
            remove_quietly([path])

    def close(self) -> None:
        """End of the attempt: leave no stage and no spool behind."""
        self._settle()
        for path in list(self._handed_out):
            self.discard(path)

    def _stage(self) -> Stage:
        if self._made_stage is None:
            from holdfast.checkpoints.stage import Stage

            self._made_stage = Stage(Path(self.trial_dir), self.run.trial_id, self.run.attempt)
        return self._made_stage

    def _seal_for_report(self, checkpoint: Checkpoint | None) -> SealedStage | None:
        offered, self._offered = self._offered, None
        if checkpoint is None:
            assert offered is not None
            return self.with_space(lambda: self.seal(offered))
        _check_type(checkpoint)
        if checkpoint.is_unwritten:
            if offered is not None:
                self.discard(offered)
            return self.with_space(lambda: self._seal_dict(checkpoint))
        with _files_of(checkpoint) as path:
            if offered is not None and not _same(offered, path):
                self.discard(offered)
            if checkpoint.is_dict:  # its object may be used again, and has these files until it goes
                return self.with_space(lambda: self._saved(self._stage().seal_copy(path)))
            return self.with_space(lambda: self.seal(path))

    def _seal_dict(self, checkpoint: Checkpoint) -> SealedStage:
        """Write a dict straight into a stage; the checkpoint object stays as it is and may be reported again."""
        directory = self.new_directory()
        try:
            return self.seal(directory, checkpoint.write_dict(directory))
        except BaseException:
            self.discard(directory)
            raise

    def _send_waiting(self, text: str) -> None:
        self.send(Waiting(self.run.n, self.run.attempt, self.setup.worker, text))

    def _pause(self) -> None:
        """Wait before the next try, in short pieces so that a dead driver is noticed."""
        end = time.monotonic() + RETRY_S
        while (left := end - time.monotonic()) > 0:
            self._hear_pending()
            if self.stopped:
                raise self.unwinding()
            time.sleep(min(_LOOK_S, left))


def _check_type(checkpoint: Any) -> None:
    from holdfast.checkpoints.checkpoint import Checkpoint

    if not isinstance(checkpoint, Checkpoint):
        raise InvalidTypeError(
            f"report(checkpoint=...) needs a Checkpoint, got {type(checkpoint).__name__}: {shortened(checkpoint)}. "
            "Write Checkpoint.from_directory(path)."
        )


@contextlib.contextmanager
def _files_of(checkpoint: Checkpoint) -> Iterator[str]:
    """A local directory with the checkpoint's files."""
    from holdfast.checkpoints.names import index_of

    local = checkpoint.is_local
    if local and (index_of(os.path.basename(checkpoint.path)) is None or not os.path.isdir(checkpoint.path)):
        yield checkpoint.path  # sealing says best what is wrong with a local directory
        return
    with checkpoint.as_directory() as path:  # one that was saved before: damage must not be saved again as new
        yield path


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def current() -> Session | None:
    """The session of the attempt that runs in this process."""
    return _current


def set_current(session: Session | None) -> None:
    """Make this the session behind the functions that a trial calls."""
    global _current
    _current = session
    dict_place.set_trial(session)
    set_listener(None if session is None else session.hint)


def start_of(session: Session) -> str | None:
    """Absolute path of the checkpoint that an attempt starts from."""
    checkpoint = session.run.checkpoint
    if checkpoint is None:
        return None
    path = os.path.join(session.setup.root, checkpoint)
    if session.run.checkpoint_mark:
        from holdfast.checkpoints.verified import trust

        trust(path, session.run.checkpoint_mark)  # the driver has read it through just now
    return path
