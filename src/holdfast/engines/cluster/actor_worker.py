"""What runs in an actor of the cluster: the worker of this machine, on a connection that it dials itself.

User code runs in the actor's main thread, so that it can use the cluster itself. A thread that sleeps in the kernel
waits for the end of the connection: when the driver is gone, or the lease is over, everything here ends.

Owns: what a process must be before user code runs in it, and putting it back. Must never: know how it was placed here.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator

import msgspec

from holdfast.engines import kernel, process_tree
from holdfast.engines.cluster import marks
from holdfast.engines.cluster.handshake import dial, greeting_of
from holdfast.engines.cluster.node_messages import LOGS, WORKER_LOG
from holdfast.engines.gpu import VISIBLE_VARIABLE
from holdfast.engines.worker import SocketChannel, load_runner
from holdfast.storage import trial_logs
from holdfast.trainable.worker_messages import Setup

UNWIND_S = 1.0
"""How long a trial may take to notice that its driver is gone, before it is killed."""

MARKS = ".marks"
LEASE_OVER = 214
"""Exit code of a worker that has ended because its connection had."""

CLOSED = 213
"""Exit code of a worker whose trial has closed the connection: that is the trial's failure."""


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker must know before it can be spoken to; travels through the cluster."""

    addresses: list[tuple[str, int]]  # of the driver
    secret: str
    worker: int
    run: str
    runner: str


decode_plan = msgspec.msgpack.Decoder(WorkerPlan).decode


class StreamedLog:
    """Where a worker prints: one file, which the node's porter reads as it grows and sends to the driver.

    Attributes:
        limit: Unused here; the driver bounds what it keeps.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self._path = ""
        self._saved: list[int] = []

    def open(self, path: str) -> None:
        """Let this process print to the file."""
        self._path = path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _flush()
        self._saved = [os.dup(1), os.dup(2)]
        self._redirect()

    def _redirect(self) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)

    def begin(self, trial_id: str, attempt: int) -> None:
        """Say whose output follows."""
        with contextlib.suppress(OSError):
            self._redirect()  # the attempt before may have closed or redirected them
            os.write(1, trial_logs.make_head(trial_id, attempt, trial_logs.now()))

    def end(self) -> None:
        """The attempt has ended; the porter sends what it printed."""
        _flush()

    def close(self) -> None:
        """Print again to where the process had printed before."""
        _flush()
        for number, saved in zip((1, 2), self._saved, strict=False):
            with contextlib.suppress(OSError):
                os.dup2(saved, number)
                os.close(saved)
        self._saved = []


def serve(plan: WorkerPlan, node: str, ip: str) -> None:
    """Dial the driver, and run what it sends until it says ``Quit`` or is gone."""
    gpus = tuple(filter(None, os.environ.get(VISIBLE_VARIABLE, "").split(",")))
    sock = dial(plan.addresses, plan.secret, greeting_of("worker", plan.worker, node, ip, gpus=gpus))
    _end_with(sock)
    with contextlib.suppress(Exception):
        load_runner(plan.runner)  # so that a spare worker has imported it when its attempt comes
    log = StreamedLog()
    with sock, _as_before(), _sigterm_ends():
        channel = SocketChannel(sock, plan.worker, log)
        try:
            setup = channel.begin()
        except (EOFError, OSError):
            return
        if setup is not None:
            _work(plan, marks.run_on(plan.run, node), setup, channel, log)


def _work(plan: WorkerPlan, run: str, setup: Setup, channel: SocketChannel, log: StreamedLog) -> None:
    folder = os.path.join(setup.scratch or setup.root, MARKS)
    marks.mark_this_process(folder, run, plan.worker)
    kernel.adopt_orphans()
    kernel.offer_to_oom_killer()
    log.open(os.path.join(setup.scratch or setup.root, LOGS, WORKER_LOG.format(plan.worker)))
    faulthandler.enable(2)
    try:
        load_runner(plan.runner)(setup, channel)
    except (EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.EBADF:
            os._exit(CLOSED)
    except BaseException:
        traceback.print_exc()
        _flush()
        raise
    finally:
        log.close()
        marks.unmark_this_process(folder, run, plan.worker)


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """Put back what the process was before: the cluster may use it again."""
    environment, path = dict(os.environ), list(sys.path)
    try:
        here = os.getcwd()
    except OSError:
        here = "/"
    streams = sys.stdout, sys.stderr
    for stream in streams:
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)
        with contextlib.suppress(OSError):
            os.chdir(here)


@contextlib.contextmanager
def _sigterm_ends() -> Iterator[None]:
    """Have SIGTERM end this process, as it ends a worker on one machine.

    Ray's handler raises ``SystemExit`` wherever the trial is, which would be reported as the trial's own exception.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may change it
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        # None: not set from Python, so Python cannot put it back.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _end_with(sock: socket.socket) -> None:
    """End this process and everything below it soon after the connection has ended."""
    mine = sock.dup()

    def wait() -> None:
        poller = select.poll()
        poller.register(mine, getattr(select, "POLLRDHUP", 0) | select.POLLERR | select.POLLHUP)
        while not (events := poller.poll()):
            pass
        if events[0][1] & select.POLLNVAL:
            _end_tree(CLOSED)
        mine.close()
        if sock.fileno() == -1:
            return  # this end has closed it: the worker has finished
        time.sleep(UNWIND_S)
        if sock.fileno() == -1:
            return
        _end_tree(LEASE_OVER)

    threading.Thread(target=wait, daemon=True, name="holdfast-lease").start()


def _end_tree(code: int) -> None:
    process_tree.kill_trees(process_tree.children(os.getpid()))
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
