"""Attempts that wait for a worker, and workers that were asked for.

Owns: which attempt gets which worker, where the next one is started, how many are kept ready, and which idle ones leave
so that another kind fits. Must never: speak to a worker; the engine does.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from holdfast.core.events import Cause
from holdfast.engines.cluster.actor_worker import WorkerPlan
from holdfast.engines.cluster.cluster_pool import MAX_STARTS, ClusterPool
from holdfast.engines.cluster.placement import choose_node, in_the_way, request_of, why_never
from holdfast.engines.cluster.remote_worker import RemoteWorker, Request
from holdfast.engines.worker_handle import WorkerHandle
from holdfast.trainable.worker_messages import Run

SPARE_PAUSE_S = 10.0
"""After a spare worker did not start, none is asked for this long."""

_log = logging.getLogger(__name__)


class QueueListener(Protocol):
    """Who is told what becomes of attempts that get no worker."""

    def refuse(self, run: Run, cause: str, detail: str) -> None:
        """The attempt will not run, which is not its fault: why."""

    def fail(self, run: Run, kind: str, detail: str) -> None:
        """The trial can never run: the cluster refuses what it asks for with this kind of error."""

    def warn(self, run: Run, text: str) -> None:
        """Something that the user should know."""


class AttemptQueue:
    """Gives attempts to workers.

    Args:
        idle: Workers without an attempt, the one that was used last at the end; shared with the engine.
        give: Have a worker run an attempt.
        told: Who hears of attempts that get no worker.
        spares: How many idle workers are kept ready, of the size that was asked for last.

    Attributes:
        pool: Where workers are started; None before the engine is open, and after.
        plan: What new workers are told.
    """

    def __init__(
        self,
        idle: list[WorkerHandle],
        give: Callable[[RemoteWorker, Run], None],
        told: QueueListener,
        spares: int = 0,
    ) -> None:
        self.pool: ClusterPool | None = None
        self.plan: WorkerPlan | None = None
        self._idle = idle
        self._give = give
        self._told = told
        self._spares = spares
        self._waiting: deque[tuple[Run, int]] = deque()  # for room on a node; with the number of starts that failed
        self._coming: dict[int, tuple[Run, int]] = {}  # by the number of the worker that was asked for
        self._coming_spares: set[int] = set()
        self._last: Request | None = None
        self._judged: set[Request] = set()  # kinds that were compared with what machines have
        self._no_spare_until = 0.0

    def add(self, run: Run) -> None:
        """An attempt is to run."""
        self._last = request_of(run)
        self._tell_of_shortage(run, self._last)
        self._waiting.append((run, 0))
        self.launch()

    def _tell_of_shortage(self, run: Run, request: Request) -> None:
        """Say so if no machine has what is asked for, once for each kind of request: one that has may still join."""
        nodes = self.pool.nodes.values() if self.pool is not None else ()
        if not nodes or request in self._judged:
            return
        self._judged.add(request)
        why = why_never(request.total(), [dict(bundle) for bundle in request.bundles], nodes, request.strategy)
        if why:
            self._told.warn(run, f"Trial {run.trial_id} waits and cannot start. {why} Ctrl+C ends the run")

    def launch(self) -> None:
        """Something has become free, or came."""
        for _ in range(len(self._waiting)):
            run, tries = self._waiting.popleft()
            if not self._place(run, tries):
                self._waiting.append((run, tries))
        self._keep_spares()

    def give_up(self, n: int, attempt: int) -> None:
        """End an attempt that has no worker yet, if there is such a one."""
        for entry in self._waiting:
            if (entry[0].n, entry[0].attempt) == (n, attempt):
                self._waiting.remove(entry)
                self._told.refuse(entry[0], Cause.SIGNAL, "ended at the driver's request before it had a worker")
                return
        for number, (run, _) in self._coming.items():
            if (run.n, run.attempt) == (n, attempt):
                del self._coming[number]
                if self.pool is not None:
                    self.pool.forget_start(number)
                self._told.refuse(run, Cause.SIGNAL, "ended at the driver's request before its worker had started")
                return

    def arrived(self, worker: RemoteWorker) -> None:
        """A worker that was asked for is here."""
        if worker.number in self._coming_spares:
            self._coming_spares.remove(worker.number)
            self._idle.append(worker)
        else:
            self._give(worker, self._coming.pop(worker.number)[0])
        self.launch()  # where it went is known now

    def not_started(self, number: int, detail: str, refused: bool = False) -> None:
        """A worker that was asked for will not come: never the trial's failure, unless the request is refused."""
        if number in self._coming_spares:
            self._coming_spares.remove(number)
            self._no_spare_until = time.monotonic() + SPARE_PAUSE_S
            self.launch()  # what it was to occupy is free
            return
        entry = self._coming.pop(number, None)
        if entry is None:
            return
        run, tries = entry
        if refused:
            kind, _, text = detail.partition(": ")
            self._told.fail(run, kind, f"Ray refuses to start a worker for this trial's resources: {text}")
            self.launch()
        elif tries + 1 >= MAX_STARTS:
            reason = next((line.strip() for line in detail.splitlines() if line.strip()), "nobody knows why")
            self._told.warn(
                run,
                f"no worker can be started: {MAX_STARTS} tries in a row have failed, the last with: {reason}. Trials "
                "are tried again, which does not count as their failure; Ctrl+C ends the run",
            )
            self._told.refuse(run, Cause.ENGINE_LOST, f"no worker could be started: {detail}")
        else:
            _log.info("a worker for trial %s is started again: %s", run.trial_id, detail)
            self._waiting.append((run, tries + 1))
            self.launch()

    def close(self, pool: ClusterPool) -> None:
        """Turn away whoever dials in from now on."""
        self.pool = None
        for number in [*self._coming, *self._coming_spares]:
            pool.forget_start(number)
        self._coming.clear()
        self._coming_spares.clear()

    # --- workers

    def _place(self, run: Run, tries: int) -> bool:
        pool = self.pool
        if pool is None or not pool.is_joined:
            return False
        request = request_of(run)
        worker = self._idle_for(pool, request)
        if worker is not None:
            self._idle.remove(worker)
            self._give(worker, run)
            return True
        self._make_room(pool, request)
        number = self._start(pool, request, tries)
        if number is None:
            return False
        self._coming[number] = (run, tries)
        return True

    def _start(self, pool: ClusterPool, request: Request, tries: int) -> int | None:
        """Ask for a worker; None if there is no room for one now."""
        assert self.plan is not None
        node = choose_node(request, pool.nodes.values(), pool.taken())
        return None if node is None else pool.start_worker(request, node, self.plan, tries)

    def _idle_for(self, pool: ClusterPool, request: Request) -> RemoteWorker | None:
        for worker in reversed(self._idle):
            assert isinstance(worker, RemoteWorker)
            if worker.request == request and pool.nodes[worker.node].usable and not worker.hung_up():
                return worker
        return None

    def _make_room(self, pool: ClusterPool, request: Request) -> None:
        """End idle workers that occupy what a request of another kind needs."""
        idle = [worker for worker in self._idle if isinstance(worker, RemoteWorker)]
        for worker in in_the_way(request, pool.nodes.values(), pool.taken(leaving=False), idle):
            self._idle.remove(worker)
            pool.retire(worker)

    def _keep_spares(self) -> None:
        """Start workers ahead of time, where nobody else needs the room."""
        pool, request = self.pool, self._last
        if not self._spares or pool is None or not pool.is_joined or self._waiting:
            return
        if request is None or request.bundles or time.monotonic() < self._no_spare_until:
            return
        ready = sum(isinstance(worker, RemoteWorker) and worker.request == request for worker in self._idle)
        while ready + len(self._coming_spares) < self._spares:
            number = self._start(pool, request, 0)
            if number is None:
                return
            self._coming_spares.add(number)
