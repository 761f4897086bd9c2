"""The nanny: a process between the driver and its workers that starts, buries and, in the end, kills them all.

It adopts every orphan below it, so nothing a trial starts can outlive it unseen; and it ends when the driver does,
however that happens (I7). One thread: the kernel ties "die with your parent" to the thread that forked.
Owns: the worker processes. Must never: run user code other than ``preload`` imports, or block on its driver.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from holdfast.engines import boot, kernel, process_tree
from holdfast.engines.exits import OomWitness, cause_of_failed_start
from holdfast.engines.link import SocketLink
from holdfast.engines.nanny_messages import (
    KillWorker,
    NannyPlan,
    Notice,
    Ready,
    Seat,
    StartWorker,
    TerminateWorker,
    WorkerEnded,
    decode_order,
)
from holdfast.engines.worker import forget_exit_functions, load_runner, serve
from holdfast.trainable.worker_messages import frame

_decode_nanny_plan = msgspec.json.Decoder(NannyPlan).decode

IMPORTED_LATE = ("cloudpickle", "holdfast.space.objects")
"""What the runner imports only when it needs it: forked workers shall find it there."""

TICK_S = 5.0
TICK_WITHOUT_PIDFD_S = 0.5
BURIAL_S = 2.0
"""How long to wait for killed processes of a worker to be really gone before its end is told."""

END_S = 30.0
"""How long to continue killing when the driver is gone; only processes stuck in the kernel can take longer."""


class Nanny:
    """Serves one driver until that is gone."""

    def __init__(self, plan: NannyPlan, link: SocketLink, fork: bool) -> None:
        self._plan = plan
        self._link = link
        self._fork = fork
        self._adopts = kernel.adopt_orphans()
        self._selector = selectors.DefaultSelector()
        self._driver_gone = False
        self._pids: dict[int, int] = {}  # worker -> pid
        self._workers: dict[int, int] = {}  # pid -> worker
        self._sentenced: set[int] = set()  # workers that this process has killed
        self._doomed: dict[int, int] = {}  # pid of a killed process that is not yet reaped -> worker
        self._burials: dict[int, tuple[float, WorkerEnded]] = {}  # worker -> deadline, what to tell then
        self._oom = OomWitness()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._driver_fd = kernel.open_pidfd(plan.driver)
        self._listen()

    def _listen(self) -> None:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        watch: Callable[[Any, int, Callable[[int], None]], Any] = self._selector.register
        watch(self._link, selectors.EVENT_READ, self._on_link)
        watch(self._wake_read, selectors.EVENT_READ, self._on_child)
        if self._driver_fd is not None:
            # A fork of the driver may hold our socket open: then only this tells that the driver is gone.
            watch(self._driver_fd, selectors.EVENT_READ, self._on_driver_gone)

    def run(self) -> None:
        """Return when the driver is gone and so is every process below this one."""
        try:
            while not self._driver_gone and os.getppid() == self._plan.driver:
                for key, mask in self._selector.select(self._timeout()):
                    key.data(mask)
                self._reap()
                self._bury()
                self._oom.look()
        finally:
            self._end_everything()

    def tell(self, message: WorkerEnded | Notice | Ready) -> None:
        self._link.send(frame(message))
        self._watch_link()

    def _timeout(self) -> float:
        tick = TICK_S if self._driver_fd is not None else TICK_WITHOUT_PIDFD_S
        if not self._burials:
            return tick
        return max(0.0, min(tick, min(when for when, _ in self._burials.values()) - time.monotonic()))

    def _watch_link(self) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._link.waiting else 0)
        if self._selector.get_key(self._link).events != events:
            self._selector.modify(self._link, events, self._on_link)

    def _on_driver_gone(self, mask: int) -> None:
        self._driver_gone = True

    def _on_child(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass

    def _on_link(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._link.flush()
            self._watch_link()
        if not mask & selectors.EVENT_READ:
            return
        payloads = self._link.receive_with_fds()
        if payloads is None:
            self._driver_gone = True
            return
        for payload in payloads:
            order = decode_order(payload)
            if isinstance(order, StartWorker):
                self._start(order, self._link.take_fd())
            elif isinstance(order, TerminateWorker):
                self._terminate(order)
            else:
                self._kill(order)

    def _start(self, order: StartWorker, fd: int) -> None:
        seat = Seat(
            worker=order.worker,
            nanny=os.getpid(),
            run=self._plan.run,
            runner=self._plan.runner,
            log=order.log,
            fd=fd,
            argv=self._plan.argv,
        )
        try:
            if fd < 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = self._fork_worker(seat) if self._fork else _spawn_worker(seat)
        except OSError as error:
            note = f"a worker process could not be started: {error}"
            self.tell(WorkerEnded(order.worker, 0, False, 0, note, cause_of_failed_start(error)))
            return
        finally:
            if fd >= 0:
                os.close(fd)
        self._pids[order.worker] = pid
        self._workers[pid] = order.worker

    def _fork_worker(self, seat: Seat) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                self._leave_to_child()
            finally:
                serve(seat)
        return pid

    def _leave_to_child(self) -> None:
        """In a fresh fork: give up what is the nanny's. Its link above all, or the driver would not see it end."""
        signal.set_wakeup_fd(-1)
        forget_exit_functions()
        self._selector.close()
        self._link.close()
        for fd in (self._wake_read, self._wake_write, self._driver_fd):
            if fd is not None:
                os.close(fd)

    def _terminate(self, order: TerminateWorker) -> None:
        pid = self._pids.get(order.worker)
        if pid is not None and not process_tree.signal_group(pid, signal.SIGTERM):
            # The worker has not come to its setsid() yet: there is no group, but there is a process.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _kill(self, order: KillWorker) -> None:
        pid = self._pids.get(order.worker)
        if pid is None:
            return
        self._sentenced.add(order.worker)
        killed = process_tree.kill_trees([pid])
        process_tree.signal_group(pid, signal.SIGKILL)
        self._await(killed - {pid}, order.worker)

    def _await(self, pids: set[int], worker: int) -> None:
        if self._adopts:  # otherwise somebody else reaps them, unseen
            self._doomed.update(dict.fromkeys(pids, worker))

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._doomed.pop(pid, None)
            worker = self._workers.pop(pid, None)
            if worker is not None:
                del self._pids[worker]
                killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
                oom = killed and worker not in self._sentenced and self._oom.explains()
                self._sentenced.discard(worker)
                self._worker_ended(WorkerEnded(worker, status, oom, usage.ru_maxrss), pid)

    def _worker_ended(self, ended: WorkerEnded, pid: int) -> None:
        """Its children have been handed to this process by now; daemons of living workers are left alone."""
        if not self._adopts:
            process_tree.signal_group(pid, signal.SIGKILL)
        orphans = process_tree.orphans_of(os.getpid(), self._plan.run, ended.worker, pid)
        self._await(process_tree.kill_trees(orphans), ended.worker)
        self._burials[ended.worker] = (time.monotonic() + BURIAL_S, ended)

    def _bury(self) -> None:
        """Tell the ends of workers of which nothing is left: only then is their memory, and their GPU, free."""
        if not self._burials:
            return
        busy, now = set(self._doomed.values()), time.monotonic()
        for worker, (deadline, ended) in list(self._burials.items()):
            if worker not in busy or now >= deadline:
                del self._burials[worker]
                self.tell(ended)
                for pid in [pid for pid, owner in self._doomed.items() if owner == worker]:
                    del self._doomed[pid]

    def _end_everything(self) -> None:
        self._selector.close()
        with selectors.DefaultSelector() as children:
            children.register(self._wake_read, selectors.EVENT_READ)
            deadline = time.monotonic() + END_S
            for pid in self._workers:
                process_tree.signal_group(pid, signal.SIGKILL)
            while time.monotonic() < deadline:
                process_tree.kill_trees(process_tree.children(os.getpid()))
                if not _has_children():
                    return
                children.select(0.01)
                self._on_child(0)


def _has_children() -> bool:
    """Reap all that have ended; True if some have not."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def _spawn_worker(seat: Seat) -> int:
    # posix_spawn and not fork + exec: it runs no Python in between, so threads that a preload left cannot hurt.
    os.set_inheritable(seat.fd, True)
    arguments = boot.command("worker", msgspec.json.encode(seat).decode(), sys.path)
    return os.posix_spawn(sys.executable, arguments, os.environ)


def preload(modules: tuple[str, ...]) -> list[str]:
    """Import what workers will need; returns what went wrong, in words."""
    trouble = []
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            traceback.print_exc()
            trouble.append(
                f"LocalEngine(preload=[{name!r}]) could not be imported ({type(error).__name__}: {error}); "
                "trials import it themselves."
            )
    return trouble


def survives_fork() -> bool:
    """Whether no thread would be missing in a fork.

    Thread pools that know about fork (OpenBLAS) stop their threads before one and start them again when needed.
    So a fork that does nothing tells them apart from threads that would simply be gone in the worker.
    """
    if kernel.thread_count() == 1:
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return kernel.thread_count() == 1


def main(text: str) -> NoReturn:
    """Entry of the nanny process; ``text`` is its plan."""
    plan = _decode_nanny_plan(text)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A signal to everybody (Ctrl+C, scancel) must not take the one who cleans up: the driver's end is the sign.
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    gc.disable()
    sys.argv[:] = plan.argv
    link = SocketLink(socket.socket(fileno=plan.fd))
    link.socket.set_inheritable(False)
    kernel.exit_without_parent(plan.driver)  # imports can take long, and nobody reads the link meanwhile
    trouble = preload(plan.preload)
    fork = plan.fork
    if fork:
        with contextlib.suppress(Exception):  # the worker fails with the same error, and has a log for it
            load_runner(plan.runner)
            for name in IMPORTED_LATE:
                importlib.import_module(name)
        if not survives_fork():
            fork = False
            trouble.append(
                f"LocalEngine(preload={list(plan.preload)}) leaves threads running, which a fork would lose: "
                'workers are started with start="spawn" instead, which is slower. Leave the module out of preload.'
            )
    kernel.stay_without_parent()
    nanny = Nanny(plan, link, fork)
    nanny.tell(Ready())
    for problem in trouble:
        nanny.tell(Notice(problem))
    gc.collect()
    gc.freeze()
    try:
        nanny.run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
