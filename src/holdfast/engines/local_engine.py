"""The local engine: attempts run in warm worker processes on this machine.

Owns: which attempt is in which worker, which workers are reused, and who has which GPU.
Must never: decide about a trial, or raise because something outside went wrong.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.core.events import Cause
from holdfast.core.observations import Capacity, Died, Joined
from holdfast.engines.capacity import capacity
from holdfast.engines.exits import cause_of_failed_start
from holdfast.engines.gpu import GpuPool, visible_gpus
from holdfast.engines.nanny_messages import Hello
from holdfast.engines.nanny_process import NannyProcess
from holdfast.engines.output_bounds import OutputBounds
from holdfast.engines.worker import DEFAULT_RUNNER
from holdfast.engines.worker_engine import WorkerEngine
from holdfast.engines.worker_handle import AttemptEnd, WorkerHandle
from holdfast.engines.worker_pool import WorkerPool
from holdfast.errors import InternalError, TuneError
from holdfast.storage import trial_logs
from holdfast.trainable.worker_messages import Run, Setup, frame

CLOSE_EXIT_S = 0.5
"""How long idle workers may take to leave when the engine closes without grace."""

_log = logging.getLogger(__name__)


class LocalSettings(Protocol):
    """What the engine reads of ``holdfast.config.LocalEngine``."""

    @property
    def cpus(self) -> float | None: ...
    @property
    def gpus(self) -> float | None: ...
    @property
    def resources(self) -> Mapping[str, float] | None: ...
    @property
    def start(self) -> str: ...
    @property
    def preload(self) -> Sequence[str]: ...
    @property
    def memory_limit_bytes(self) -> int | None: ...
    @property
    def max_trials_per_worker(self) -> int | None: ...


class LocalProcessEngine(WorkerEngine):
    """Runs attempts in processes on this machine (``engines.base.Engine``).

    Args:
        settings: A ``LocalEngine``.
        log_dir: What trials print is kept here (``storage.trial_logs``).
        runner: "module:function" that a worker calls with its setup and channel.
    """

    def __init__(self, settings: LocalSettings, *, log_dir: Path, runner: str = DEFAULT_RUNNER) -> None:
        super().__init__()
        self._settings = settings
        self._log_dir = Path(log_dir)
        self._runner = runner
        self._owner = os.getpid()
        self._pool: WorkerPool | None = None
        self._host, self._ip = "", ""
        self._moved: set[tuple[int, int]] = set()  # attempts that got a second worker
        self._waiting: deque[Run] = deque()  # for GPUs that are not free yet
        self._gpus = GpuPool({})
        self._clearing: dict[int, tuple[str, ...]] = {}  # idle processes that are being killed, and the GPUs they hold
        self._bounds: OutputBounds | None = None

    # --- the protocol

    def open(self, setup: Setup) -> None:
        """Start the nanny; workers are started by the launches that need them, numbered from ``setup.worker``."""
        if self._setup is not None:
            raise InternalError("An engine is opened once.")
        limit_bytes = setup.max_output_bytes or None
        limit = setup.memory_limit_bytes or self._settings.memory_limit_bytes or 0
        self._setup = msgspec.structs.replace(setup, memory_limit_bytes=limit)
        try:
            self._host, self._ip = socket.gethostname(), _address()
            self._log_dir.mkdir(parents=True, exist_ok=True)
            trial_logs.settle_all(str(self._log_dir), limit_bytes)  # of a driver that was killed with its workers
            # The pool must not keep this object alive: whoever drops an engine has it closed.
            self._links = self._pool = WorkerPool(weakref.proxy(self), self._log_dir, setup.worker, limit_bytes)
            self._pool.begin(
                partial(
                    NannyProcess,
                    runner=self._runner,
                    start=self._settings.start,
                    preload=tuple(self._settings.preload),
                    sys_path=setup.sys_path,
                    log_dir=self._log_dir,
                )
            )
        except OSError as error:
            self.close()
            raise TuneError(
                f"The local engine could not start: {error}. It must be able to write to {str(self._log_dir)!r} "
                "and to start processes. Nothing was run."
            ) from error
        if limit_bytes:
            self._bounds = OutputBounds(partial(_files_of, weakref.ref(self)), limit_bytes)
            self._bounds.start()
        gpus = visible_gpus(self._settings.gpus)
        self._gpus = GpuPool(gpus)
        self._ready.append(Capacity(capacity(self._settings.cpus, gpus, self._settings.resources)))

    def launch(self, run: Run) -> None:
        """Give the attempt to a warm worker, or to a new one, which finds it in its socket when it has started."""
        if run.attempt <= self._launched.get(run.n, -1):
            return
        self._launched[run.n] = run.attempt
        amount = run.resources.get("GPU", 0.0)
        never = self._gpus.why_never(amount) if amount else ""
        if never:
            self._refuse(run, Cause.EXIT, never)
        elif amount:
            # The core counts GPUs as a sum: 3 x 0.6 fit in 2.0, yet not on two devices. Then this one has to wait,
            # as it has for the device of an attempt that is still being killed.
            self._waiting.append(run)
            self._launch_waiting()
        else:
            self._place(run, (), 0.0)

    def close(self, grace_s: float = 0.0) -> None:
        """Idle workers leave by themselves, the others get SIGTERM if there is grace; then all is killed."""
        pool, self._pool, self._links = self._pool, None, None
        if pool is None:
            return
        if self._owner != os.getpid():
            # A fork of the driver has a copy of this object. The processes are not its to end.
            pool.abandon()
            return
        try:
            self._dismiss(pool, grace_s)
        finally:
            pool.close()
            if self._bounds is not None:
                self._bounds.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    # --- starting attempts

    def _launch_waiting(self) -> None:
        while self._waiting:
            amount = self._waiting[0].resources["GPU"]
            gpus = self._gpus.take(amount)
            if gpus is None:
                return
            if not self._clear(gpus, amount):
                self._gpus.give_back(gpus, amount)
                return  # tried again when the process is gone
            self._place(self._waiting.popleft(), gpus, amount)

    def _clear(self, gpus: tuple[str, ...], amount: float) -> bool:
        """End idle processes that would share these GPUs with somebody they must not share with; are all gone?

        Reused instances keep memory of their GPU while idle; whoever gets the device must not find it taken.
        """
        chosen = self._idle_on(gpus)
        for worker in [w for w in self._idle if w is not chosen and set(w.gpus) & set(gpus)]:
            if self._pool is not None and (amount >= 1 or worker.gpus != gpus):
                self._idle.remove(worker)
                self._clearing[worker.number] = worker.gpus
                self._pool.kill(worker)
        return not any(set(held) & set(gpus) for held in self._clearing.values())

    def _idle_on(self, gpus: tuple[str, ...]) -> WorkerHandle | None:
        return next((w for w in reversed(self._idle) if w.gpus == gpus and not w.hung_up()), None)

    def _give_up_waiting(self, n: int, attempt: int) -> None:
        for run in self._waiting:
            if (run.n, run.attempt) == (n, attempt):
                self._waiting.remove(run)
                self._refuse(run, Cause.SIGNAL, "ended at the driver's request before it had a GPU")
                return

    def _refuse(self, run: Run, cause: str, detail: str) -> None:
        self._ready.append(Died(run.n, run.attempt, cause, detail))

    def _place(self, run: Run, gpus: tuple[str, ...], amount: float) -> None:
        if self._pool is None or self._setup is None:
            return  # closing
        run = msgspec.structs.replace(run, gpus=gpus)
        try:
            data = frame(run)
            worker = self._idle_on(gpus)
            if worker is not None:
                self._idle.remove(worker)
            else:
                worker = self._pool.new_worker()
                data = frame(msgspec.structs.replace(self._setup, worker=worker.number)) + data
        except (ValueError, TypeError, OverflowError) as error:
            self._gpus.give_back(gpus, amount)
            self._refuse(run, Cause.EXCEPTION, f"the trial's configuration cannot be sent to a worker: {error}")
            return
        except OSError as error:
            self._gpus.give_back(gpus, amount)
            self._refuse(run, cause_of_failed_start(error), f"no worker process could be started: {error}")
            return
        worker.begin(run, self._setup, amount)
        self._attempts[run.n, run.attempt] = worker
        self._pool.send(worker, data)

    # --- what the pool tells

    def _joined(self, hello: Hello) -> None:
        if self._pool is not None:
            self._pool.losses = 0
        self._ready.append(Joined(hello.worker, self._host, self._ip, hello.pid))

    def _must_retire(self, worker: WorkerHandle, message: AttemptEnd) -> bool:
        assert self._setup is not None
        limit = self._settings.max_trials_per_worker or 0
        return (
            super()._must_retire(worker, message)
            or 0 < limit <= worker.trials
            or (bool(worker.gpus) and not self._setup.reuse_instances)
        )

    def gone(self, worker: WorkerHandle, cause: str, detail: str) -> None:
        """Part of ``PoolListener``: the attempt's end, and only then its resources."""
        key, run, amount = worker.key, worker.run, worker.gpu_amount
        self._clearing.pop(worker.number, None)
        if worker in self._idle:
            self._idle.remove(worker)
        self._release(worker)
        if worker.held is not None:
            self._ready.append(worker.held)
        elif run is not None and worker.link.unread and not worker.halted and key not in self._moved:
            # The process ended, perhaps idle for hours, before it had read of this attempt: that is not its fault.
            self._moved.add((run.n, run.attempt))
            if amount:
                self._waiting.appendleft(run)
            else:
                self._place(run, (), 0.0)
        elif key is not None:
            self._ready.append(Died(*key, cause, detail, worker.output(), worker.number))
        self._launch_waiting()

    def _release(self, worker: WorkerHandle) -> None:
        if worker.key is not None:
            del self._attempts[worker.key]
            worker.key = None
            self._bound_output(worker)
        if worker.gpu_amount:
            self._gpus.give_back(worker.gpus, worker.gpu_amount)
            worker.gpu_amount = 0.0

    def _bound_output(self, worker: WorkerHandle) -> None:
        """What was printed since the bounds were last looked at; the worker's own log is cut when it is settled."""
        setup = self._setup
        if setup is not None and setup.log_to_file is not None:
            for path, _ in worker.output_files()[:-1]:
                trial_logs.shorten(path, setup.max_output_bytes or None)

    # --- the end

    def _dismiss(self, pool: WorkerPool, grace_s: float) -> None:
        deadline = time.monotonic() + max(grace_s, CLOSE_EXIT_S)
        leaving = list(self._idle)
        for worker in leaving:
            pool.retire(worker)
        if grace_s > 0:
            for worker in self._attempts.values():
                leaving.append(worker)
                if worker.held is None:
                    pool.terminate(worker, grace_s)
        while time.monotonic() < deadline and any(worker.number in pool.workers for worker in leaving):
            pool.turn(deadline - time.monotonic())


def _files_of(engine: weakref.ref[LocalProcessEngine]) -> list[str]:
    """Files that attempts print to. Holds no engine: whoever drops one has it closed."""
    alive = engine()
    return [] if alive is None else [path for files in alive.output_files().values() for path, _ in files]


def _address() -> str:
    """This machine's address as others see it. Connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
