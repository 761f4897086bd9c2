"""Which workers are remembered: those from which some trial has its last row, and the newest.

Owns the part of the fold that counts them. Only ``transitions`` calls this.
"""

from __future__ import annotations

from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State, Trial, WorkerFacts


def forget_workers(state: State) -> None:
    """The workers of the driver before are gone: those of which no trial tells are forgotten, but never the newest.

    Numbers of workers continue from there, because one that was used twice would give old results a new origin.
    """
    newest = max(state.workers, default=0)
    for worker in state.unseen.keys() - {newest}:
        del state.workers[worker], state.unseen[worker]


def worker_joined(state: State, event: ev.WorkerJoined, _: Retention) -> None:
    """A worker process is ready."""
    state.workers[event.worker] = state.unseen[event.worker] = WorkerFacts(event.host, event.ip, event.pid)


def name_worker(state: State, trial: Trial, worker: int) -> None:
    """An attempt has ended of which no row tells where it ran.

    A process that died before it joined is nobody: its number is given to another one after a restart.
    """
    if worker in state.workers and trial.metrics is None and trial.worker != worker:
        move_to_worker(state, trial, worker)


def move_to_worker(state: State, trial: Trial, worker: int) -> None:
    """The trial's last row comes from another worker than the one before it."""
    left = state.workers.get(trial.worker)
    if left is not None:
        state.seen_by[trial.worker] -= 1
        if not state.seen_by[trial.worker]:
            del state.seen_by[trial.worker]
            state.unseen[trial.worker] = left
    trial.worker, trial.where = worker, state.workers.get(worker)
    if trial.where is not None:
        state.seen_by[worker] = state.seen_by.get(worker, 0) + 1
        state.unseen.pop(worker, None)
