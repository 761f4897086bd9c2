"""What the command line says about an experiment, as plain data: the keys of every ``--json`` output.

An experiment is ``running`` only while its driver is alive. Without a live driver it is ``finished`` if every trial has
ended and no more were to come, ``interrupted`` if not, and ``new`` if nobody ever ran it. A trial that was running when
its driver died is shown with the status that a restore will give it (mostly PENDING) and ``"interrupted": true``;
``on_resume`` says where it will continue. Nothing is called running that is not.

Must never print or write.
"""

from __future__ import annotations

import shlex
import time
from typing import Any

from holdfast.callbacks.progress_facts import DisplayOptions, ExperimentFacts, FailureGroup, ProgressView
from holdfast.callbacks.progress_tracker import ProgressTracker, metric_value
from holdfast.callbacks.progress_words import restore_call
from holdfast.callbacks.trial_view import trial_dirname
from holdfast.cli.shipped import is_driven_here, oldest_unshipped, unshipped
from holdfast.core import events as ev
from holdfast.core.events import ErrorFacts
from holdfast.core.state import CheckpointRecord, Status, Stored, Trial
from holdfast.journal.synced import oldest_volatile
from holdfast.results.best import best_of
from holdfast.results.history import History


class Phase:
    """How an experiment stands."""

    NEW = "new"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"


def phase_of(history: History) -> str:
    """How the experiment stands, by whether its driver is alive and whether anything is left to do."""
    if history.owner is None:
        return Phase.NEW
    if history.owner.alive:
        return Phase.RUNNING
    state = history.state
    unfinished = len(state.trials) - state.counts[Status.TERMINATED] - state.counts[Status.ERROR]
    if unfinished or not (state.search_ended or state.stopped == "finished"):
        return Phase.INTERRUPTED
    return Phase.FINISHED


def why_of(history: History) -> str:
    """Why the experiment is not running any more, in a few words; "" if there is nothing to say."""
    phase, state, owner = phase_of(history), history.state, history.owner
    if phase == Phase.INTERRUPTED:
        assert owner is not None
        return state.stopped or f"its driver, pid {owner.claim.pid} on {owner.claim.host}, is gone without a word"
    return state.stopping if phase == Phase.FINISHED else ""


def durable_lag(history: History, now: float) -> float | None:
    """How long the oldest record that a power cut could take has been waiting; 0 if nothing waits.

    Of an experiment in a store: that the loss of its machine could take. None if its driver is on another one: what has
    not arrived is known only there.
    """
    if phase_of(history) != Phase.RUNNING:
        return 0.0
    if history.hydrated is None:
        payload = oldest_volatile(history.root)
    elif is_driven_here(history):
        payload = oldest_unshipped(history)
    else:
        return None
    return 0.0 if payload is None else max(0.0, now - ev.decode(payload).at)


def resume_command(history: History) -> str | None:
    """What to type in a shell to go on, or None if there is nothing to go on with."""
    phase = phase_of(history)
    if phase == Phase.RUNNING:
        return None
    command = f"holdfast resume {shlex.quote(history.shown)}"
    if phase != Phase.FINISHED:
        return command
    return f"{command} --resume-errored" if history.state.counts[Status.ERROR] else None


def resume_call(history: History) -> str | None:
    """What to write in Python to go on, or None if there is nothing to go on with."""
    phase, errors = phase_of(history), history.state.counts[Status.ERROR]
    if phase == Phase.RUNNING or (phase == Phase.FINISHED and not errors):
        return None
    more = {"resume_errored": True} if phase == Phase.FINISHED else {}
    return f"{restore_call(history.shown, **more)}.fit()"


def display_facts(history: History) -> ExperimentFacts:
    """The experiment as progress displays know it."""
    info = history.info
    return ExperimentFacts(
        name=info.name,
        root=history.shown,
        metric=info.metric,
        mode=info.mode,
        total=info.total_samples,
        started_at=history.state.epoch_at,
        trainable=info.trainable_name,
        info=info,
    )


def overview(history: History, now: float, *, rows: int = 10) -> ProgressView:
    """What a display would show now."""
    at = now if phase_of(history) == Phase.RUNNING else history.state.last_at
    options = DisplayOptions(max_progress_rows=rows)
    return ProgressTracker().view(history.state, display_facts(history), options, at, durable_lag(history, now) or 0.0)


def experiment_facts(history: History, now: float | None = None) -> dict[str, Any]:
    """The object that ``status --json`` prints, without its trials."""
    now = time.time() if now is None else now
    state, phase = history.state, phase_of(history)
    return {
        "name": history.info.name,
        "path": history.shown,
        "state": phase,
        "why": why_of(history),
        "holder": holder_facts(history) if phase == Phase.RUNNING else None,
        "counts": dict(state.counts),
        "total": len(state.trials) if state.search_ended else history.info.total_samples,
        "metric": history.info.metric,
        "mode": history.info.mode,
        "best": best_facts(history),
        "failures": _failures(history),
        "reports": state.reports,
        "lived_s": round(state.lived(now if phase == Phase.RUNNING else state.last_at), 3),
        "started_at": history.spec.created_at,
        "last_event_at": state.last_at or None,
        "durable_lag_s": durable_lag(history, now),
        "unshipped": unshipped(history),
        "resume": resume_command(history),
        "restore": resume_call(history),
    }


def best_facts(history: History) -> dict[str, Any] | None:
    """The trial whose last report is the best; None without a metric, or before any finite value of it."""
    metric, mode = history.info.metric, history.info.mode
    if metric is None or mode is None:
        return None
    values = ((metric_value(trial, metric), trial) for trial in history.state.trials)
    best = best_of(values, mode)
    if best is None:
        return None
    return {"trial": history.name(best), "metric": metric, "value": metric_value(best, metric)}


def _failures(history: History) -> list[dict[str, Any]]:
    tracker = ProgressTracker()
    tracker.catch_up(history.state, None)
    return [failure_facts(history, group) for group in tracker.failures()]


def holder_facts(history: History) -> dict[str, Any]:
    """Who writes the experiment."""
    owner = history.owner
    assert owner is not None
    claim = owner.claim
    return {
        "host": claim.host,
        "pid": claim.pid,
        "epoch": claim.epoch,
        "since": claim.claimed_at,
        "age_s": round(owner.age_s, 1),
    }


def failure_facts(history: History, group: FailureGroup) -> dict[str, Any]:
    """One kind of failure."""
    return {
        "cause": group.cause,
        "type": group.type,
        "message": group.message,
        "location": group.location,
        "trials": group.errored,
        "first": history.state.trials[group.trial].id,
    }


def trial_facts(history: History, trial: Trial) -> dict[str, Any]:
    """One trial."""
    last = None
    if trial.metrics is not None:
        last = history.last(trial)
        del last["config"]
    # Spelling the directory's name takes as long as the rest: only where a path is shown.
    folder = trial_dirname(history.info, trial) if trial.checkpoints else ""
    error = None if trial.error is None else error_facts(trial.cause, trial.error)
    return {
        "trial_id": trial.id,
        "name": history.name(trial),
        "status": trial.status,
        "interrupted": trial.n in history.lost,
        "iteration": trial.iteration,
        "config": trial.config,
        "last_result": last,
        "checkpoints": [checkpoint_facts(folder, record) for record in trial.checkpoints],
        "attempts": trial.attempt,
        "failures": trial.total_failures,
        "error": error if trial.status == Status.ERROR else None,
        "last_failure": error,
        "reason": trial.reason,
        "on_resume": on_resume(trial),
        "started_at": trial.started_at or None,
        "ended_at": trial.ended_at or None,
    }


def checkpoint_facts(folder: str, record: CheckpointRecord) -> dict[str, Any]:
    """One checkpoint; its path is relative to the experiment's root."""
    known = {
        "index": record.index,
        "path": f"{folder}/checkpoint_{record.index:06d}",
        "iteration": record.iteration,
        "bytes": record.bytes,
        "state": record.stored,
    }
    return {**known, "reason": record.reason} if record.reason else known


def error_facts(cause: str, error: ErrorFacts) -> dict[str, str]:
    """Why an attempt failed."""
    return {"cause": cause, "type": error.type, "message": error.message, "location": error.location}


def on_resume(trial: Trial) -> str | None:
    """What the next driver does with the trial; None if it has ended."""
    if trial.final:
        return None
    usable = [record for record in trial.checkpoints if record.index >= trial.floor and record.stored != Stored.DROPPED]
    for record in reversed(usable):
        if record.stored != Stored.BAD:
            first = ", once it is committed" if record.stored == Stored.STAGED else ""
            return f"continues from checkpoint_{record.index:06d} (iteration {record.iteration}){first}"
    return "ends in ERROR: all its checkpoints are damaged" if usable else "starts from the beginning"
