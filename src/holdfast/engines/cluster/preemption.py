"""Attempts on nodes that the cluster takes away, of which it has given notice: they save, end, and continue elsewhere.

Owns: how long they may take. Must never: end an attempt on any other node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from holdfast.core.events import Cause
from holdfast.core.observations import Died, Raised, Report, Saved, Stopped
from holdfast.engines.cluster.cluster_pool import ClusterPool
from holdfast.engines.cluster.placement import Node
from holdfast.engines.cluster.remote_worker import RemoteWorker
from holdfast.engines.nanny_messages import WorkerWord
from holdfast.engines.worker_handle import AttemptEnd, WorkerHandle

LONGEST_SAVE_S = 30.0


class Preemption:
    """Which workers have to leave, and why."""

    def __init__(self) -> None:
        self._why: dict[int, str] = {}

    def begin(
        self,
        pool: ClusterPool,
        node: Node,
        idle: list[WorkerHandle],
        workers: Iterable[WorkerHandle],
        save_soon: Callable[[int, int], None],
    ) -> str:
        """Have the workers of a node save and leave. Returns what the user should know.

        Args:
            pool: Of the workers.
            node: That will be taken away.
            idle: Workers without an attempt; those of the node are taken out.
            workers: Those that have one.
            save_soon: Asks an attempt to save.
        """
        text = f"{node.facts.host} is taken away by the cluster"
        patience_s = patience_with(node.facts.leaves_at, time.time())
        for worker in _on(node, idle):
            idle.remove(worker)
            pool.retire(worker)
        for worker in _on(node, workers):
            if worker.key is not None:
                self._why[worker.number] = text
                if worker.sent:
                    save_soon(*worker.key)
                pool.arm(worker, patience_s, pool.terminate)
        return f"{text}: its trials save if they can, and continue elsewhere"

    def heard(self, pool: ClusterPool | None, worker: RemoteWorker, message: WorkerWord) -> None:
        """A worker has said something; one that has saved need not be waited for."""
        if worker.number in self._why and isinstance(message, Report | Saved) and message.sealed is not None:
            if pool is not None and worker.held is None:
                pool.terminate(worker)

    def end_of(
        self, worker: RemoteWorker, key: tuple[int, int] | None, end: AttemptEnd | None, cause: str, detail: str
    ) -> AttemptEnd | Died | None:
        """How the attempt of a worker that is gone has ended; None if it had none.

        What it raises while it unwinds is no failure: the trial may have a handler of SIGTERM that raises.
        """
        why = self._why.pop(worker.number, "")
        unwound = bool(why) and (isinstance(end, Stopped) or (isinstance(end, Raised) and worker.halted))
        if key is None or (end is not None and not unwound):
            return end
        return Died(*key, Cause.PREEMPTED if why else cause, why or detail, worker.output(), worker.number)


def _on(node: Node, workers: Iterable[WorkerHandle]) -> list[RemoteWorker]:
    return [worker for worker in workers if isinstance(worker, RemoteWorker) and worker.node == node.facts.id]


def patience_with(leaves_at: float | None, now: float) -> float:
    """How long attempts may take to save: what they save has to leave the node as well."""
    return min(LONGEST_SAVE_S, max(0.0, (leaves_at - now) / 2.0)) if leaves_at else LONGEST_SAVE_S
