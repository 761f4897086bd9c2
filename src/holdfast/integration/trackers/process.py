"""A process beside the driver that follows the journal and logs it to one tracker.

Owns that process: how it is started, restarted and ended, and what both sides say. A library that hangs, leaks or
crashes does so there; the driver writes nothing to it but "finish". The process ends as soon as its driver does,
because its standard input closes then; whatever it had not logged is logged by the next one, from the journal.
Must never be waited for without a limit.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import IO, Any

import cloudpickle

from holdfast.controller.spec import Spec, read_spec
from holdfast.core.backoff import Backoff
from holdfast.errors import FencedError, OwnershipError
from holdfast.integration.trackers.exporter import Behind, Exporter, in_words, sole_exporter
from holdfast.integration.trackers.projection import Projection
from holdfast.integration.trackers.runs import TrackerTarget
from holdfast.storage.layout import Root
from holdfast.views.trials import ExperimentInfo

logger = logging.getLogger("holdfast")

LOOK_S = 1.0
"""How often the journal is looked at."""

RETRY = Backoff(first_s=4.0, longest_s=60.0)
"""Until the tracker is tried again that did not take everything."""

FINISHING_RETRY_S = 2.0
"""The same once the driver has ended its work and waits: it gives up after a time of the user's choice."""

RESTART_S = 2.0
"""Until the process is started again, times how often it was started."""

MAX_STARTS = 5
"""How often the process is started before it is given up: what kills it each time will not change."""

NICENESS = 5
"""Training comes first where there are too few cores."""

STALL_S = 600.0
"""The process speaks at least once a minute, unless its library hangs: then it is ended and started again."""

SILENT_S = 1.5
"""If the exporter says nothing for so long when the driver ends, what is missing is counted beside it."""

LOCK_S = 30.0
ENDING_S = 2.0

_CODE = "import sys; sys.path[:] = sys.argv[1:]; from holdfast.integration.trackers.process import main; main()"


@dataclass
class TrackerJob:
    """What the process has to do."""

    target: TrackerTarget
    info: ExperimentInfo


@dataclass
class TrackerProgress:
    """What the process has said last."""

    runs: int = 0
    rows: int = 0
    trouble: str = ""
    done: bool = False
    looked: bool = False
    """Whether the journal was looked at: before that, nobody knows what is missing."""


# --- the driver's side


class TrackerProcess:
    """The process, as the driver sees it.

    Args:
        target: The tracker.
        info: The experiment.
        warn: Told once when the tracker cannot be reached; from any thread.
    """

    def __init__(self, target: TrackerTarget, info: ExperimentInfo, warn: Callable[[str], None]) -> None:
        # Objects and file systems of the user are of no use there, and may not pickle.
        url = info.url if info.filesystem is None else ""
        self._job = TrackerJob(target, replace(info, objects=None, load_rows=None, stop=None, filesystem=None, url=url))
        self._warn = warn
        self._warned = False
        self._lock = threading.Condition()
        self._finishing = False
        self._asked_at = 0.0
        self._ended = False
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.progress = TrackerProgress()
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{target.label}", daemon=True)
        self._thread.start()

    def ask_to_finish(self) -> None:
        """The journal is complete: let everything be logged."""
        with self._lock:
            self._finishing = True
            self._asked_at = time.monotonic()
            self._say_finish()

    def wait(self, timeout_s: float, is_hurried: Callable[[], bool], hurried_s: float) -> bool:
        """Wait until everything is logged, and end. Returns False if the time since it was asked was not enough."""
        with self._lock:
            while not self._ended and not self.progress.done:
                limit = min(timeout_s, hurried_s) if is_hurried() else timeout_s
                left = self._asked_at + limit - time.monotonic()
                if left <= 0:
                    break
                self._lock.wait(min(left, 0.1))
        done = self.progress.done
        self.kill()
        return done

    def kill(self) -> None:
        """End the process now; may be called twice."""
        with self._lock:
            self._ended = True
            process = self._process
            self._lock.notify_all()
        if process is not None:
            if self.progress.done:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(ENDING_S)
            with contextlib.suppress(OSError):
                process.kill()
        self._thread.join(ENDING_S)

    def _say_finish(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(b"finish\n")
                self._process.stdin.flush()

    def _run(self) -> None:
        while not self._ended and self._starts < MAX_STARTS:
            self._starts += 1
            try:
                code = self._one_process()
            except Exception as error:
                code = -1
                self._take({"trouble": f"{type(error).__name__}: {error}"})
            if self.progress.done or self._ended:
                break
            if not self.progress.trouble or code != 1:
                self._take({"trouble": f"its process ended with code {code}"})
            with self._lock:
                self._lock.wait_for(lambda: self._ended, 0.2 if self._finishing else RESTART_S * self._starts)
        with self._lock:
            self._ended = True
            self._lock.notify_all()

    def _one_process(self) -> int:
        payload = cloudpickle.dumps(self._job)
        ours, theirs = os.pipe()
        with open(ours, "rb", 0) as messages:
            try:
                process = self._execute(theirs)
            finally:
                os.close(theirs)
            with self._lock:
                self._process = process
                stdin = process.stdin
                assert stdin is not None
                with contextlib.suppress(OSError):
                    stdin.write(b"%d\n" % len(payload) + payload)
                    stdin.flush()
                if self._finishing:
                    self._say_finish()
                if self._ended:
                    process.kill()
            self._listen(messages, process)
            if self.progress.done:  # it has nothing to do any more but to end
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(ENDING_S)
                process.kill()
            code = process.wait()
            with contextlib.suppress(OSError):
                stdin.close()
            return code

    def _listen(self, messages: IO[bytes], process: subprocess.Popen[bytes]) -> None:
        """Take what the process says until it ends; end it if it says nothing for too long."""
        rest, heard = b"", time.monotonic()
        while True:
            if not _has_news(messages.fileno()):
                if time.monotonic() - heard > STALL_S:
                    self._take({"trouble": f"no answer for {STALL_S:g} s"})
                    process.kill()
                continue
            data = os.read(messages.fileno(), 1 << 16)
            if not data:
                return
            heard = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _execute(self, fd: int) -> subprocess.Popen[bytes]:
        flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
        paths = [path or os.getcwd() for path in sys.path]
        logs = Root(self._job.info.root).logs
        logs.mkdir(parents=True, exist_ok=True)
        with open(logs / f"tracker-{self._job.target.label}.out", "ab") as log:
            return subprocess.Popen(
                [sys.executable, *flags, "-P", "-c", _CODE, *paths],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(fd,),
                start_new_session=True,  # Ctrl+C is for the driver
                env=os.environ | {"HOLDFAST_TRACKER_FD": str(fd)},
            )

    def _take(self, message: dict[str, Any]) -> None:
        with self._lock:
            self.progress = replace(self.progress, **message)
            trouble, label = self.progress.trouble, self._job.target.label
            if message.get("looked") and not trouble:
                self._starts = 1  # it works; what ended it before is over
            first = bool(trouble) and not self._warned
            self._warned = self._warned or first
            self._lock.notify_all()
        if first:
            self._warn(
                f"{label}: results cannot be logged at the moment ({trouble[:300]}). Training is not affected: "
                "they are in the journal, and logging is retried"
            )


# --- the process itself


class _Driver:
    """The driver, as the process sees it."""

    def __init__(self, stdin: IO[bytes]) -> None:
        self._stdin = stdin
        self.finish = threading.Event()
        fd = int(os.environ.pop("HOLDFAST_TRACKER_FD"))
        os.set_inheritable(fd, False)  # a library's own process must not keep it open
        self._messages = os.fdopen(fd, "w", encoding="utf-8")
        self._parent = os.getppid()
        self._lock = threading.Lock()
        self.spoke_at = time.monotonic()

    def job(self) -> TrackerJob:
        size = int(self._stdin.readline())
        job: TrackerJob = cloudpickle.loads(self._stdin.read(size))
        threading.Thread(target=self._listen, daemon=True).start()
        return job

    def say(self, **message: Any) -> None:
        with self._lock:
            print(json.dumps(message), file=self._messages, flush=True)
            self.spoke_at = time.monotonic()

    def _listen(self) -> None:
        while os.getppid() == self._parent:  # a fork of the driver may keep the other end open after its death
            if not _has_news(self._stdin.fileno()):
                continue
            if self._stdin.readline() != b"finish\n":
                break
            self.finish.set()
        # The driver is gone, or wants no more: whatever a library is doing, this ends now. The journal has the rest.
        os._exit(3)


def main() -> None:
    """Follow the journal until the driver says that it is complete."""
    # Not sys.stdin: at its end the interpreter would wait for the thread that reads from it.
    driver = _Driver(os.fdopen(os.dup(0), "rb", 0))
    os.nice(NICENESS)
    job = driver.job()
    try:
        _work(job, driver)
        driver.say(done=True)
    except Exception as error:
        logger.exception("the tracker's process ends")
        driver.say(trouble=in_words(error))
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of a library may still want something; everything was logged


def _work(job: TrackerJob, driver: _Driver) -> None:
    spec = read_spec(Root(job.info.root))
    last = _LastCount(driver, job.info, spec)
    with _wait_for_lock(spec.uid, job.target):
        tracker = job.target.make()
        while True:
            try:
                last.logged = projection = Projection(job.info, spec)
                exporter = Exporter(tracker, projection)
                exporter.on_batch = _Speaker(exporter, driver)
                exporter.on_failure = lambda exporter=exporter: driver.say(trouble=exporter.trouble)  # type: ignore[misc]
                _follow(exporter, driver)
                return
            except FencedError:
                continue  # the driver wrote its last records again: all is read anew, and nothing is logged twice


@contextlib.contextmanager
def _wait_for_lock(uid: str, target: TrackerTarget) -> Any:
    """The process of a driver that was killed just now may still be ending."""
    deadline = time.monotonic() + LOCK_S
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(sole_exporter(uid, target))
                break
            except OwnershipError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield


class _LastCount:
    """Counts what is missing when the driver ends, while a library is still busy with a tracker that does not answer.

    Attributes:
        logged: What the exporter works with.
    """

    def __init__(self, driver: _Driver, info: ExperimentInfo, spec: Spec) -> None:
        self.logged: Projection | None = None
        self._driver, self._info, self._spec = driver, info, spec
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self._driver.finish.wait()
        while time.monotonic() - self._driver.spoke_at < SILENT_S:
            time.sleep(SILENT_S / 10)
        with contextlib.suppress(FencedError):  # else the driver says that it does not know the number
            found = Projection(self._info, self._spec)
            found.advance()
            known = {} if self.logged is None else dict(self.logged.runs)
            pending = [found.pending(n) - (known[n].shown if n in known else 0) for n in found.runs]
            self._driver.say(runs=sum(count > 0 for count in pending), rows=sum(pending))


class _Speaker:
    """Says how far the exporter is while it works, at most once a second: counting takes a look at every run."""

    def __init__(self, exporter: Exporter, driver: _Driver) -> None:
        self._exporter = exporter
        self._driver = driver
        self._spoke = 0.0

    def __call__(self) -> None:
        if time.monotonic() - self._spoke >= LOOK_S:
            behind = self._exporter.behind()
            self._driver.say(runs=behind.runs, rows=behind.rows, looked=True)
            self._spoke = time.monotonic()


def _follow(exporter: Exporter, driver: _Driver) -> None:
    epoch = failures = 0
    while True:
        finishing = driver.finish.is_set()  # before the journal is read: it was complete by then
        whole = exporter.advance(closing=finishing)
        epoch = epoch or exporter.epoch
        if exporter.epoch > epoch:
            raise OwnershipError("another driver has taken the experiment over, and logs it")
        behind: Behind = exporter.behind()
        driver.say(runs=behind.runs, rows=behind.rows, trouble=exporter.trouble, looked=True)
        if finishing and whole:
            return
        failures = 0 if whole else failures + 1
        if finishing:
            time.sleep(FINISHING_RETRY_S)
        else:
            driver.finish.wait(RETRY.delay_s(failures) if failures else LOOK_S)


def _has_news(fd: int) -> bool:
    """Wait a moment for something to read. Not with ``select``, which knows no descriptor above 1,023."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(LOOK_S * 1000))
