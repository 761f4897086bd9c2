"""What the command line says about an experiment, as plain data: the keys of every ``--json`` output.

An experiment is ``running`` only while its driver is alive. Whether a driver in another container or on another machine
is alive follows from its heartbeat: ``holder.certain`` is false then, and ``holder.dead_in_s`` says how long to wait.
Without a live driver it is ``finished`` if every trial has ended and no more were to come, ``interrupted`` if not, and
``new`` if nobody ever ran it. A trial that was running when its driver died is shown with the status that a restore
will give it (mostly PENDING) and ``"interrupted": true``; ``on_resume`` says where it will continue. Nothing is called
running that is not.

Must never print or write.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.config.registry import name_as_written
from holdfast.controller.remote_experiment import mirrored_in
from holdfast.core.events import ErrorFacts
from holdfast.core.state import CheckpointRecord, Status, Trial, UserNote
from holdfast.display.experiment_facts import DisplayOptions, FailureGroup, ProgressView
from holdfast.display.restore_calls import needs_space, restore_call, retry_call
from holdfast.display.tracker import (
    ProgressTracker,
    backlog_of,
    honest_counts,
    total_trials,
)
from holdfast.display.words import is_fail_fast
from holdfast.errors import JournalDamagedError
from holdfast.journal.durable_mark import oldest_volatile, published
from holdfast.journal.liveness import is_same_place
from holdfast.journal.records import decode_record
from holdfast.results.columns import ended_at
from holdfast.results.history import History
from holdfast.results.html import display_facts
from holdfast.results.resume import on_resume
from holdfast.results.shipped import is_driven_locally, oldest_unshipped, unshipped
from holdfast.space.exact import shown
from holdfast.storage.local import REAL_DISK
from holdfast.views.trials import trial_dirname


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
        if history.damage is not None:
            return "its journal is damaged, so how it ended is not known"
        return state.stopped or f"its driver, {owner.who}, exited without shutting down"
    return state.stopping if phase == Phase.FINISHED else ""


def durable_lag(history: History, now: float) -> float | None:
    """How long the oldest record that a power cut could take has been waiting; 0 if nothing waits.

    Of an experiment in a store: that the loss of its machine could take. None if nobody knows: records are lost, its
    driver was killed before it had synced its last ones, or it is on another machine, where what has not arrived is.
    """
    running = phase_of(history) == Phase.RUNNING
    if not running and (history.restored is None or unshipped(history) is None):
        return 0.0 if _is_synced(history) else None
    if history.restored is None:
        payload = oldest_volatile(history.root)
    elif not running or is_driven_locally(history):
        payload = oldest_unshipped(history)
    else:
        return None
    return 0.0 if payload is None else max(0.0, now - decode_record(history.root, 0, payload).at)


def _is_synced(history: History) -> bool:
    """Whether the last driver, which is gone, is known to have made all its records durable."""
    owner = history.owner
    if history.known_damage is not None:
        return False
    if owner is None or owner.released or history.position is None:
        return True
    if history.restored is not None:  # all that this machine has is in the store; another one may have had more
        return is_same_place(str(history.root / ".holdfast" / "epochs"), owner.claim.lock)
    synced = published(str(history.root), owner.claim.epoch, REAL_DISK)
    return synced is not None and synced.next_seq >= history.position.next_seq


def repair_command(history: History) -> str | None:
    """What to type in a shell before the experiment can be resumed; None if its journal is not known to be damaged."""
    return None if history.known_damage is None else f"holdfast repair {shlex.quote(history.shown)}"


def resume_command(history: History) -> str | None:
    """What to type in a shell to continue, or None if there is nothing to continue with, or something to repair."""
    phase = phase_of(history)
    if phase == Phase.RUNNING or history.known_damage is not None:
        return None
    if history.state.needs_change:  # the command has no way to change that setting
        return None
    command = f"holdfast resume {shlex.quote(history.shown)}"
    if _needs_trainable(history):
        command += f" --trainable MODULE:{name_as_written(history.spec.trainable).replace('...', 'NAME')}"
    if phase != Phase.FINISHED and not is_fail_fast(history.state.stopped):
        return command
    # The command has no way to give the search space.
    can_retry = history.state.counts[Status.ERROR] and not _lacks_objects(history)
    return f"{command} --resume-errored" if can_retry else None


def _lacks_objects(history: History) -> bool:
    """Whether trials failed because objects of the search space are not there any more."""
    return needs_space(trial.error.type for trial in history.state.trials if trial.error is not None)


def _needs_trainable(history: History) -> bool:
    """Whether it was imported and never run here, so that no code is stored with it."""
    return bool(history.spec.origin) and "trainable.pkl" not in history.state.objects


def resume_call(history: History) -> str | None:
    """What to write in Python to continue, or None if there is nothing to continue with, or something to repair."""
    phase, errors = phase_of(history), history.state.counts[Status.ERROR]
    if phase == Phase.RUNNING or history.known_damage is not None or (phase == Phase.FINISHED and not errors):
        return None
    trainable = history.spec.given_as or name_as_written(history.spec.trainable)
    if phase != Phase.FINISHED and not is_fail_fast(history.state.stopped):
        call = restore_call(history.shown, trainable if _needs_trainable(history) else "")
        change = history.state.needs_change
        return f"{call.removesuffix(')')}, {change}).fit()" if change else f"{call}.fit()"
    # Without it the stored code is used, which is what failed.
    return f"{retry_call(history.shown, trainable, needs_space=_lacks_objects(history))}.fit()"


def overview(history: History, now: float, *, rows: int = 10) -> ProgressView:
    """What a display would show now."""
    at = now if phase_of(history) == Phase.RUNNING else history.state.last_at
    options = DisplayOptions(max_progress_rows=rows)
    view = ProgressTracker().view(history.state, display_facts(history), options, at, durable_lag(history, now) or 0.0)
    store = mirrored_store(history.root) if view.backlog is not None else ""
    if view.backlog is not None and store:
        return msgspec.structs.replace(view, backlog=msgspec.structs.replace(view.backlog, place=store))
    return view


def mirrored_store(root: Path) -> str:
    """The store that a directory is the local mirror of, for people; "" if it is no mirror."""
    identity = mirrored_in(root)
    if not identity or "://" in identity:
        return identity
    return f"{identity.partition(':')[2]} in the storage_filesystem"


def experiment_facts(
    history: History, now: float | None = None, tracker: ProgressTracker | None = None
) -> dict[str, Any]:
    """The object that ``status --json`` prints, without its trials.

    Args:
        history: The experiment.
        now: The present.
        tracker: Running totals that were told every event since the history was opened; None looks at all trials.
    """
    now = time.time() if now is None else now
    state, phase = history.state, phase_of(history)
    total = total_trials(state, history.info.total_samples)
    tracker = ProgressTracker() if tracker is None else tracker
    tracker.catch_up(state, objective_of(history))
    counts = honest_counts(state, total, tracker.unstarted)
    return {
        "name": history.info.name,
        "path": history.shown,
        "state": phase,
        "why": why_of(history),
        "journal_damage": damage_facts(history.known_damage),
        "holder": holder_facts(history) if phase == Phase.RUNNING else None,
        "counts": counts,
        "total": total,
        "metric": history.info.metric,
        "mode": history.info.mode,
        "best": best_facts(history, tracker),
        "failures": [failure_facts(history, group) for group in tracker.failures() if group.errored],
        "tags": list(state.tags),
        "notes": note_facts(state.notes),
        "reports": state.reports,
        "lived_s": round(state.lived(now if phase == Phase.RUNNING else state.last_at), 3),
        "started_at": history.spec.created_at,
        "last_event_at": state.last_at or None,
        "durable_lag_s": durable_lag(history, now),
        "backlog": _backlog(history, now),
        "unasked": history.unasked or None,
        "unshipped": unshipped(history),
        "damage": claim_damage(history),
        "repair": repair_command(history),
        "resume": resume_command(history),
        "restore": resume_call(history),
    }


def _backlog(history: History, now: float) -> dict[str, Any]:
    """Checkpoints that are not where the experiment lives yet, and since when trials wait because of them."""
    known = backlog_of(history.state, history.shown, now)
    waits = phase_of(history) == Phase.RUNNING and known is not None and known.limit is not None
    return {
        "checkpoints": 0 if known is None else known.checkpoints,
        "bytes": 0 if known is None else known.bytes,
        "oldest_s": None if known is None else round(known.oldest_s, 3),
        "limit_bytes": known.limit if known is not None and waits else None,
        "waiting_since": history.state.full_since if waits else None,
    }


def damage_facts(damage: JournalDamagedError | None) -> dict[str, Any] | None:
    """What is wrong with the journal; None if nothing is."""
    if damage is None:
        return None
    return {"file": damage.file, "missing": damage.missing, "since": damage.since, "message": str(damage)}


def objective_of(history: History) -> tuple[str, str] | None:
    """The metric of the experiment and its mode; None if it has not both."""
    metric, mode = history.info.metric, history.info.mode
    return None if metric is None or mode is None else (metric, mode)


def best_facts(history: History, tracker: ProgressTracker) -> dict[str, Any] | None:
    """The trial whose last report is the best; None without a metric, or before any finite value of it."""
    best = tracker.best(1)
    if objective_of(history) is None or not best:
        return None
    value, n = best[0]
    return {"trial": history.name(history.state.trials[n]), "metric": history.info.metric, "value": value}


def holder_facts(history: History) -> dict[str, Any]:
    """Who writes the experiment."""
    owner = history.owner
    assert owner is not None
    claim, known = owner.claim, not owner.damage
    return {
        "host": claim.host if known else None,
        "pid": claim.pid if known else None,
        "epoch": claim.epoch,
        "since": claim.claimed_at if known else None,
        "age_s": round(owner.age_s, 1),
        "certain": owner.certain,
        "dead_in_s": None if owner.dead_in_s is None else round(owner.dead_in_s, 1),
    }


def claim_damage(history: History) -> str | None:
    """What is wrong with the file that says who runs, or last ran, the experiment; None if nothing is."""
    owner = history.owner
    if owner is None or not owner.damage:
        return None
    return (
        f"{owner.file} is damaged: {owner.damage}. The last driver of the experiment is unknown; no result is "
        "affected, and the next driver creates a new file"
    )


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
        "config": shown(trial.config),
        "last_result": last,
        "checkpoints": [checkpoint_facts(folder, record) for record in trial.checkpoints],
        "attempts": trial.attempt,
        "failures": trial.total_failures,
        "error": error if trial.status == Status.ERROR else None,
        "last_failure": error,
        "reason": trial.reason,
        "tags": list(trial.tags),
        "notes": note_facts(trial.notes),
        "on_resume": on_resume(history, trial),
        "started_at": trial.started_at or None,
        "ended_at": ended_at(trial),
    }


def note_facts(notes: Iterable[UserNote]) -> list[dict[str, Any]]:
    """What people have noted, oldest first."""
    return [{"at": note.at, "text": note.text, "by": note.by} for note in notes]


def trial_details(history: History, trial: Trial) -> dict[str, Any]:
    """The object that ``show TRIAL --json`` prints, without its story."""
    facts = {**trial_facts(history, trial), "path": history.place(trial)}
    if trial.error is not None:
        facts["last_failure"].update(traceback=trial.error.traceback, output=trial.error.output)
    return facts


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
