"""The worker process: its hygiene, its end of the wire, and the call of the runner that does the work.

Owns: what a process must be before user code runs in it (session, parent, signals, output, limits), the check of
what an attempt leaves behind, and the exit.
Must never: know what a trainable is (the runner does), or decide anything about a trial.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import os
import pkgutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import msgspec

from holdfast.core.observations import Raised, Returned, Stopped, WorkerMessage
from holdfast.engines import kernel, process_tree
from holdfast.engines.attempt_log import AttemptLog
from holdfast.engines.gpu import VISIBLE_VARIABLE
from holdfast.engines.nanny_messages import WORKER_VARIABLE, Hello, Seat, Unclean
from holdfast.engines.spin_wait import SpinWait
from holdfast.storage.framing import READ_BYTES
from holdfast.trainable.worker_messages import (
    FRAMING,
    Encoded,
    Quit,
    Run,
    Setup,
    ToWorker,
    decode_to_worker,
    frame,
)

_decode_seat = msgspec.json.Decoder(Seat).decode

DEFAULT_RUNNER = "holdfast.trainable.runner:run_attempts"

Runner = Callable[[Setup, Any], None]

_ATTEMPT_ENDS = (Returned, Stopped, Raised)
_HARMLESS_THREADS = frozenset({"TMonitor"})  # tqdm keeps one asleep for ever; it belongs to no trial
_OWN_THREADS = "holdfast"
_CRASHED = 70  # EX_SOFTWARE: our runner raised; the traceback is in the log


class Log(Protocol):
    """Where a worker prints."""

    limit: int | None

    def begin(self, trial_id: str, attempt: int) -> None: ...

    def end(self) -> None: ...


class SocketChannel:
    """The worker's end of the wire (``messages.Channel``).

    It sees every attempt begin and end, so it also sets what must be right before user code runs, and looks for
    what is left when it has run.
    """

    def __init__(self, sock: socket.socket, worker: int, log: Log) -> None:
        self._socket = sock
        self._worker = worker
        self._log = log
        self._pid = os.getpid()
        self._frames = FRAMING.decoder()
        self._arrived: list[ToWorker] = []
        self._wait = SpinWait()
        self._memory_limit = 0
        self._old_limit: int | None = None
        self._threads: set[threading.Thread] = set()

    def begin(self) -> Setup | None:
        """Wait for the setup and the first attempt, so that its GPUs are chosen before anything is imported."""
        setup = self._next()
        assert isinstance(setup, Setup), f"a worker is told its setup first, not {setup!r}"
        self._memory_limit = setup.memory_limit_bytes
        self._log.limit = setup.max_output_bytes or None
        first = self._next()
        if isinstance(first, Quit):
            return None
        if isinstance(first, Run):
            _choose_gpus(first)
        self._arrived.insert(0, first)
        return setup

    def send(self, *messages: WorkerMessage | Encoded) -> None:
        self._refuse_forks()
        words: list[Any] = [*messages]
        if isinstance(messages[-1], _ATTEMPT_ENDS):
            words[:0] = self._attempt_ends()
        try:
            self._socket.sendall(b"".join([frame(word) for word in words]))
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError("the driver is gone") from None

    def receive(self) -> ToWorker:
        self._refuse_forks()
        message = self._next()
        if isinstance(message, Run):
            self._attempt_begins(message)
        return message

    def pending(self) -> list[ToWorker]:
        try:
            while self._read(socket.MSG_DONTWAIT):
                pass
            if not self._arrived:
                raise EOFError("the driver is gone")
        except BlockingIOError:
            pass
        messages, self._arrived = self._arrived, []
        return messages

    def _refuse_forks(self) -> None:
        """A fork that user code made and that fell out of it again must not speak for the trial."""
        if os.getpid() != self._pid:
            _flush_output()
            os._exit(1)

    def _next(self) -> ToWorker:
        while not self._arrived:
            if not self._wait(self._look, self._read):
                raise EOFError("the driver is gone")
        return self._arrived.pop(0)

    def _look(self) -> bool:
        """Whether something has arrived; ``_read`` tells an end."""
        try:
            return self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def _read(self, flags: int = 0) -> bool:
        try:
            data = self._socket.recv(READ_BYTES, flags)
        except ConnectionResetError:
            return False
        self._arrived.extend(decode_to_worker(payload) for payload in self._frames.feed(data))
        return bool(data)

    def _attempt_begins(self, run: Run) -> None:
        _choose_gpus(run)
        self._log.begin(run.trial_id, run.attempt)
        if self._memory_limit:
            self._old_limit = kernel.limit_data(self._memory_limit)
        self._threads = set(threading.enumerate())

    def _attempt_ends(self) -> list[Unclean]:
        if self._old_limit is not None:
            kernel.limit_data(self._old_limit)
            self._old_limit = None
        self._log.end()
        left = self._left_behind()
        return [Unclean(self._worker, left)] if left else []

    def _left_behind(self) -> str:
        threads = [
            thread.name
            for thread in threading.enumerate()
            if thread not in self._threads
            and thread is not threading.current_thread()
            and not thread.name.startswith(_OWN_THREADS)
            and type(thread).__name__ not in _HARMLESS_THREADS
        ]
        processes = [f"{p.name} ({p.pid})" for p in process_tree.own_children()]
        parts = [f"threads: {', '.join(threads)}"] if threads else []
        return "; ".join(parts + ([f"processes: {', '.join(processes)}"] if processes else []))


def _choose_gpus(run: Run) -> None:
    os.environ[VISIBLE_VARIABLE] = ",".join(run.gpus)


def serve(seat: Seat) -> NoReturn:
    """Be the worker of this seat. Never returns: a fork of the nanny must not fall back into the nanny's loop."""
    code = _CRASHED
    try:
        log = _become_worker(seat)
        with socket.socket(fileno=seat.fd) as sock:
            sock.set_inheritable(False)
            channel = SocketChannel(sock, seat.worker, log)
            sock.sendall(frame(Hello(seat.worker, os.getpid())))
            setup = channel.begin()
            if setup is not None:
                load_runner(seat.runner)(setup, channel)
            code = 0
            _run_exit_functions()
    except EOFError:
        code = 0  # The driver is gone, and with it everybody who could be told.
    except (BrokenPipeError, ConnectionResetError):
        code = 0
    except SystemExit as exit_request:
        code = exit_request.code if isinstance(exit_request.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        _flush_output()
        os._exit(code & 0xFF)


def load_runner(name: str) -> Runner:
    """The function that "module:function" names."""
    return pkgutil.resolve_name(name)  # type: ignore[no-any-return]


def _become_worker(seat: Seat) -> AttemptLog:
    if not kernel.die_with_parent(seat.nanny):
        raise EOFError("the nanny is gone")
    with contextlib.suppress(PermissionError):  # leads a session already
        os.setsid()
    kernel.offer_to_oom_killer()
    kernel.set_name(process_tree.worker_name(seat.worker))
    os.environ[WORKER_VARIABLE] = process_tree.worker_mark(seat.run, seat.worker)
    _reset_signals()
    log = _redirect_output(seat.log)
    faulthandler.enable()  # to descriptor 2, wherever that leads when the process crashes
    _reseed()
    gc.enable()
    return log


def _reset_signals() -> None:
    # Python itself ignores PIPE and XFSZ, to make exceptions of them.
    for signum in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        with contextlib.suppress(OSError, ValueError, TypeError):
            if signal.getsignal(signum) not in (signal.SIG_DFL, None):
                signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the driver's to interpret
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _redirect_output(path: str) -> AttemptLog:
    log = AttemptLog(path)
    # Until the file can be opened, which each attempt tries again, the supervisor's log takes what is printed.
    with contextlib.suppress(OSError):
        log.open()
    for stream in (sys.stdout, sys.stderr):
        # A character the locale cannot write must not fail a trial.
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    return log


def _flush_output() -> None:
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()


def _reseed() -> None:
    """Python reseeds its own generator after a fork; what a preload brought along must not repeat itself either."""
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None:
        numpy_random.seed()
    if torch is not None:
        torch.seed()


def _run_exit_functions() -> None:
    """What user code registered with ``atexit``: os._exit alone would leave its files and uploads unfinished."""
    atexit._run_exitfuncs()


def forget_exit_functions() -> None:
    """Called in a fresh fork: the nanny's own exit functions are not the worker's to run."""
    atexit._clear()


def main(text: str) -> NoReturn:
    """Entry of a worker that was executed instead of forked; ``text`` is its seat."""
    seat = _decode_seat(text)
    sys.argv[:] = seat.argv
    serve(seat)
