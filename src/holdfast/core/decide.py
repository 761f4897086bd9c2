"""Decisions: an observation comes in, events and commands go out. Pure: no clock, no disk, no randomness.

Each handler applies its events at once (through ``Turn.add``), so that the next observation of the same batch meets
the new state. The caller journals ``Turn.events`` and only then carries out ``Turn.commands``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core import backlog
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.answers import answer, answer_crowded, answer_owed, interrupt
from holdfast.core.changed_settings import STOPPED
from holdfast.core.ending import RETURNED, drop_obsolete, terminate, terminate_waiting
from holdfast.core.metric_advice import metric_missing
from holdfast.core.plan import schedule
from holdfast.core.policies import Verdict
from holdfast.core.requests import apply_requests
from holdfast.core.resuming import resume_trials
from holdfast.core.retention import lookup
from holdfast.core.state import Status, Stored, Trial, units
from holdfast.core.trial_delays import has_waited_in_vain, hold_back, wait_for_space
from holdfast.core.turn import Turn
from holdfast.core.user_asked import end_stopped, user_asked
from holdfast.core.user_facts import STOPPED_BY_USER

LOADS_BEFORE_FALL_BACK = 2
SUPERSEDED = "newer ones were stored before it"


def decide(turn: Turn, observation: ob.Observation) -> None:
    """Turn one observation into facts and what follows from them."""
    _HANDLERS[type(observation)](turn, observation)


def _current(turn: Turn, o: Any) -> Trial | None:
    """The trial, if this attempt is its running one; a stale attempt is told to end (fencing)."""
    trial = turn.state.trial(o.n)
    if trial is not None and trial.status == Status.RUNNING and trial.attempt == o.attempt:
        return trial
    return None


# --- what a worker says


def _report(turn: Turn, o: ob.Report) -> None:
    trial = _current(turn, o)
    if trial is None:
        turn.commands.append(cmd.Halt(o.n, o.attempt))
        return
    if o.ordinal <= trial.ordinal:
        _repeat_answer(turn, trial, o)
        return
    verdict, why = _judge(turn, trial, o)
    saved = o.sealed is not None or trial.checkpointed  # now, or when it was asked to after its last report
    if o.final:
        turn.memory.returning.add(o.n)
    turn.add(ev.Reported(turn.at, o.n, o.attempt, o.worker, o.dt, o.metrics, verdict, why))
    apply_requests(turn)
    if o.sealed is not None:
        _stage(turn, trial, o.sealed)
    if o.final:
        return
    leaves = trial.verdict or turn.memory.draining
    if not leaves and backlog.must_wait(turn, trial, saved=saved):
        turn.memory.owed[o.n] = o.ordinal  # answered when storage has caught up
    else:
        answer(turn, trial, o.ordinal, _ahead(turn, o.metrics))


def _ahead(turn: Turn, metrics: Mapping[str, Any]) -> int:
    """How many reports with these metrics may follow before they are judged: as many as would surely be let pass."""
    rules = turn.policies.rules
    if not rules.ahead or turn.memory.draining or turn.state.stopping:
        return 0
    return rules.ahead if all(name in metrics for name, _ in rules.required_metrics) else 0


def _repeat_answer(turn: Turn, trial: Trial, o: ob.Report) -> None:
    """The same report again: it counts once, but whoever sent it waits for an answer."""
    if o.ordinal == trial.ordinal and o.n not in turn.memory.owed:
        answer(turn, trial, o.ordinal)


def _judge(turn: Turn, trial: Trial, o: ob.Report) -> tuple[str, str]:
    if not o.passed:
        _require_metrics(turn, trial, o.metrics)
    if o.metrics.get("done") is True:
        return Verdict.STOP, "done"
    policies, state = turn.policies, turn.state
    made: list[dict[str, Any]] = []

    def result() -> dict[str, Any]:
        if not made:
            made.append(policies.result(state, trial, o.metrics, o.dt, turn.at, o.worker))
        return made[0]

    if state.stopping:
        return Verdict.STOP, RETURNED if o.final else state.stopping
    if trial.user_stop:
        return Verdict.STOP, STOPPED_BY_USER
    why = policies.stop.why_stop(trial, result)
    if why:
        return Verdict.STOP, why
    if trial.rows < trial.judged:
        return Verdict.CONTINUE, ""  # a step that an attempt before this one has reported, and was told to continue
    return policies.scheduler.judge(state, turn.memory, trial, result)


def _require_metrics(turn: Turn, trial: Trial, metrics: Mapping[str, Any]) -> None:
    rules = turn.policies.rules
    for name, who in rules.required_metrics:
        if metrics and lookup(metrics, name) is None and name not in metrics:
            raise metric_missing(rules, trial.id, name, who, metrics)


def _stage(turn: Turn, trial: Trial, sealed: ob.SealedStage) -> None:
    index = trial.next_index
    turn.add(ev.CheckpointStaged(turn.at, trial.n, trial.attempt, index, sealed.name, sealed.bytes, sealed.files))
    turn.commands.append(cmd.Commit(trial.n, index))
    turn.memory.full_disk.pop(trial.n, None)  # there was space for it


def _saved(turn: Turn, o: ob.Saved) -> None:
    trial = _current(turn, o)
    if trial is None:
        turn.commands.append(cmd.Halt(o.n, o.attempt))
        return
    if o.sealed is not None and _is_news(trial, o, o.sealed):
        _stage(turn, trial, o.sealed)
    if turn.memory.draining:
        turn.commands.append(cmd.Halt(o.n, o.attempt))


def _is_news(trial: Trial, o: ob.Saved, sealed: ob.SealedStage) -> bool:
    """A copy that comes late must not become a second checkpoint, let alone one of a later row."""
    return o.ordinal in (0, trial.ordinal) and all(record.sealed != sealed.name for record in trial.checkpoints)


def _returned(turn: Turn, o: ob.Returned) -> None:
    trial = _current(turn, o)
    if trial is not None:
        why = trial.why if trial.verdict == Verdict.STOP else RETURNED
        terminate(turn, trial, why, _unreported_worker(trial, o))


def _stopped(turn: Turn, o: ob.Stopped) -> None:
    trial = _current(turn, o)
    if trial is not None:
        _unwound(turn, trial, ev.Cause.DRIVER_STOPPED, "", _unreported_worker(trial, o))


def _unreported_worker(trial: Trial, o: ob.FromWorker | ob.Died) -> int:
    """The worker that the end of an attempt must name: without a report of it, nothing else does."""
    return o.worker if not trial.ordinal else 0


def _unwound(turn: Turn, trial: Trial, cause: str, detail: str, worker: int = 0) -> None:
    """The attempt is over without having failed: carry out the verdict it was given, or put it back in the queue."""
    if trial.verdict == Verdict.STOP:
        terminate(turn, trial, trial.why, worker)
    elif turn.state.stopping:
        terminate(turn, trial, turn.state.stopping, worker)
    elif trial.verdict == Verdict.PAUSE:
        turn.add(ev.TrialPaused(turn.at, trial.n, trial.attempt, trial.why))
    else:
        turn.add(ev.AttemptInterrupted(turn.at, trial.n, trial.attempt, cause, detail, worker))
        drop_obsolete(turn, trial)
        hold_back(turn, trial)


def _raised(turn: Turn, o: ob.Raised) -> None:
    trial = _current(turn, o)
    if trial is None:
        return
    o, worker = msgspec.structs.replace(o, error=_without_root(turn, o.error)), _unreported_worker(trial, o)
    if trial.verdict or turn.memory.draining:
        # It was on its way out: what it raises while unwinding changes nothing about the decision.
        turn.add(ev.Noted(turn.at, trial.n, f"while it was being stopped: {o.error.type}: {o.error.message}"))
        _unwound(turn, trial, ev.Cause.DRIVER_STOPPED, "", worker)
    elif o.storage and not (o.doubtful and has_waited_in_vain(turn, trial)):
        _unwound(turn, trial, ev.Cause.STORAGE, f"{o.error.type}: {o.error.message}", worker)
        wait_for_space(turn, trial)
    elif o.restoring:
        _load_failed(turn, trial, o)
    else:
        # While a stop rule ends the experiment nothing is tried again, but a failure stays a failure.
        _fail(turn, trial, ev.Cause.EXCEPTION, o.error, not o.final and not turn.state.stopping, worker)


def _without_root(turn: Turn, error: ev.ErrorFacts) -> ev.ErrorFacts:
    """What failed, without the place where the experiment happens to be now: the journal outlives it (I11)."""
    tell = turn.policies.rules.relative
    return msgspec.structs.replace(error, message=tell(error.message), traceback=tell(error.traceback))


def _load_failed(turn: Turn, trial: Trial, o: ob.Raised) -> None:
    """The trainable could not load a checkpoint that matches its manifest: after two tries use the one before it."""
    failures, source, stopping = trial.load_failures + 1, trial.source, bool(turn.state.stopping)
    if failures <= turn.policies.rules.free_load_failures and not stopping:
        turn.add(ev.AttemptInterrupted(turn.at, trial.n, trial.attempt, ev.Cause.LOADING, o.error.message))
        return
    _fail(turn, trial, ev.Cause.LOADING, o.error, retry=not stopping)
    if source is None or source[0] != trial.n or failures < LOADS_BEFORE_FALL_BACK:
        return
    if any(record.index != source[1] and record.index >= trial.floor for record in trial.committed()):
        reason = f"the trainable failed to load it {failures} times: {o.error.type}: {o.error.message}"
        turn.add(ev.CheckpointRejected(turn.at, trial.n, source[1], reason))


def _fail(turn: Turn, trial: Trial, cause: str, error: ev.ErrorFacts, retry: bool = True, worker: int = 0) -> None:
    limit = turn.policies.rules.max_failures
    n, attempt = trial.n, trial.attempt
    if retry and (limit < 0 or trial.failures < limit):
        turn.add(ev.AttemptFailed(turn.at, n, attempt, cause, error, worker))
    else:
        turn.add(ev.TrialErrored(turn.at, n, attempt, cause, error, worker))
        _fail_fast(turn, trial)
    drop_obsolete(turn, trial)


def _fail_fast(turn: Turn, trial: Trial) -> None:
    if turn.policies.rules.fail_fast and not turn.memory.draining:
        interrupt(turn, f"fail_fast: trial {trial.id} failed")


def _waiting(turn: Turn, o: ob.Waiting) -> None:
    if _current(turn, o) is None:
        return
    trouble = turn.memory.storage_trouble
    if o.text:
        trouble[o.n] = o.text
        turn.add(ev.Noted(turn.at, o.n, turn.policies.rules.relative(o.text)))
    else:
        trouble.pop(o.n, None)


# --- what the engine says


def _joined(turn: Turn, o: ob.Joined) -> None:
    turn.add(ev.WorkerJoined(turn.at, o.worker, o.host, o.ip, o.pid))


def _died(turn: Turn, o: ob.Died) -> None:
    turn.memory.untidy.add(o.n)
    trial = _current(turn, o)
    if trial is None:
        return
    turn.memory.storage_trouble.pop(o.n, None)
    worker = _unreported_worker(trial, o)
    tell = turn.policies.rules.relative
    detail = tell(o.detail)
    counted = o.cause in ev.Cause.COUNTED or (o.cause == ev.Cause.PREEMPTED and turn.policies.rules.count_preemption)
    if trial.verdict or turn.memory.draining or turn.state.stopping:
        _unwound(turn, trial, ev.Cause.DRIVER_STOPPED, detail, worker)
    elif counted:
        _fail(turn, trial, o.cause, ev.ErrorFacts(message=detail, output=tell(o.output)), worker=worker)
    else:
        _unwound(turn, trial, o.cause, detail, worker)


def _capacity(turn: Turn, o: ob.Capacity) -> None:
    turn.memory.capacity = units(o.resources)
    turn.memory.machines = [units(size) for size in o.machines]


def _stalled(turn: Turn, o: ob.StalledAttempt) -> None:
    trial = _current(turn, o)
    if trial is not None and not trial.verdict and not turn.state.stopping:
        message = f"no report for {o.silent_s:.0f} s (FailureConfig.stall_timeout_s)"
        _fail(turn, trial, ev.Cause.STALLED, ev.ErrorFacts(message=message))
        turn.commands.append(cmd.Halt(o.n, o.attempt))


# --- what checkpoint jobs say


def _commit_ended(turn: Turn, o: ob.CommitEnded) -> None:
    if (o.n, o.index) not in turn.state.staged:
        return
    trial = turn.state.trials[o.n]
    if o.damaged:
        turn.add(ev.CheckpointRejected(turn.at, o.n, o.index, turn.policies.rules.relative(o.message)))
    elif o.superseded:
        turn.add(ev.CheckpointsDropped(turn.at, o.n, (o.index,), SUPERSEDED))
        turn.commands.append(cmd.Delete(o.n, o.index))
    else:
        turn.add(ev.CheckpointCommitted(turn.at, o.n, o.index, o.digest, o.bytes))
        drop_obsolete(turn, trial)
        for n in turn.policies.rules.retention.crowded_out(turn.state):
            drop_obsolete(turn, turn.state.trials[n])
    answer_owed(turn, trial)
    answer_crowded(turn)
    _unpark(turn, trial)


def _free_space(turn: Turn, o: ob.FreeSpace) -> None:
    turn.memory.backlog_share = backlog.share_of(o.bytes, turn.state.staged_bytes)
    answer_crowded(turn)


def _unpark(turn: Turn, trial: Trial) -> None:
    if not trial.staging:
        turn.memory.parked.discard(trial.n)


def _verify_ended(turn: Turn, o: ob.VerifyEnded) -> None:
    state, memory = turn.state, turn.memory
    if o.ok:
        memory.verified.add((o.n, o.index))
    elif o.damaged:
        record = state.trials[o.n].find(o.index)
        if record is not None and record.stored == Stored.COMMITTED:
            turn.add(ev.CheckpointRejected(turn.at, o.n, o.index, turn.policies.rules.relative(o.message)))
    # Any trial may start from it, not only the one that saved it.
    for n in memory.awaited.pop((o.n, o.index), ()):
        _unpark(turn, state.trials[n])


def _delete_ended(turn: Turn, o: ob.DeleteEnded) -> None:
    if (o.n, o.index) not in turn.state.dropping:
        return
    if o.ok:
        turn.add(ev.CheckpointsDeleted(turn.at, o.n, (o.index,)))
    else:
        # The intent stays a fact: the next driver that opens the experiment tries again.
        turn.memory.undeleted.add((o.n, o.index))
        why = turn.policies.rules.relative(o.message)
        turn.add(ev.Noted(turn.at, o.n, f"checkpoint_{o.index:06d} could not be deleted: {why}"))


# --- what the searcher and the user say


def _proposed(turn: Turn, o: ob.Proposed) -> None:
    turn.memory.asked = max(0, turn.memory.asked - 1)
    turn.memory.search_waits = False
    if turn.state.stopping:
        return  # the experiment was stopped while the searcher was thinking; if it resumes, the searcher is asked again
    turn.add(
        ev.TrialCreated(
            turn.at,
            len(turn.state.trials),
            o.id,
            o.config,
            o.tag,
            o.params,
            o.mark,
            o.request,
            o.name,
            o.dirname,
            o.asked_after,
        )
    )


def _not_yet(turn: Turn, o: ob.NotYet) -> None:
    # It was told more meanwhile? Then it will answer to that as well.
    turn.memory.search_waits = o.told == turn.memory.told


def _exhausted(turn: Turn, o: ob.Exhausted) -> None:
    turn.memory.asked = 0
    if not turn.state.search_ended:
        turn.add(ev.SearchEnded(turn.at, o.reason))


def _stop_all(turn: Turn, o: ob.StopAll) -> None:
    """A stop rule ends the experiment: waiting trials end now, running ones after their current iteration."""
    state = turn.state
    if not state.stopping:
        turn.add(ev.SearchEnded(turn.at, f"{STOPPED}{o.reason}"))
    terminate_waiting(turn, o.reason)
    for n in state.running:
        trial = state.trials[n]
        turn.commands.append(cmd.Halt(n, trial.attempt, turn.policies.rules.unwind_grace_s))


def _callback_raised(turn: Turn, o: ob.CallbackRaised) -> None:
    trial = turn.state.trials[o.n]
    if trial.status == Status.TERMINATED:
        turn.add(ev.TrialErrored(turn.at, o.n, trial.attempt, ev.Cause.CALLBACK, _without_root(turn, o.error)))
        _fail_fast(turn, trial)


def _hint(turn: Turn, o: ob.Hint) -> None:
    """Whoever sees observations shows it; it is no fact about the trial."""


def _grace_over(turn: Turn, _: ob.GraceOver) -> None:
    turn.memory.grace_over = True
    for n in turn.state.running:
        turn.commands.append(cmd.Halt(n, turn.state.trials[n].attempt))


def _resumed(turn: Turn, o: ob.Resumed) -> None:
    """A driver opened an experiment that ran before: settle what the old one left, then do as the user chose."""
    state = turn.state
    apply_requests(turn)  # before anything is dropped that a request refers to
    for n in list(state.running):
        _unwound(turn, state.trials[n], ev.Cause.DRIVER_LOST, o.lost)
    end_stopped(turn)
    resume_trials(turn, o)


_HANDLERS: dict[type, Callable[[Turn, Any], None]] = {
    ob.Report: _report,
    ob.Saved: _saved,
    ob.Returned: _returned,
    ob.Stopped: _stopped,
    ob.Raised: _raised,
    ob.Waiting: _waiting,
    ob.Hint: _hint,
    ob.Joined: _joined,
    ob.Died: _died,
    ob.Capacity: _capacity,
    ob.FreeSpace: _free_space,
    ob.StorageLag: lambda turn, o: turn.add(ev.StorageLagged(turn.at, o.since, turn.policies.rules.relative(o.detail))),
    ob.StorageLagOver: lambda turn, o: turn.add(ev.StorageCaughtUp(turn.at, o.since)),
    ob.CommitEnded: _commit_ended,
    ob.VerifyEnded: _verify_ended,
    ob.DeleteEnded: _delete_ended,
    ob.Proposed: _proposed,
    ob.NotYet: _not_yet,
    ob.Exhausted: _exhausted,
    ob.StalledAttempt: _stalled,
    ob.CallbackRaised: _callback_raised,
    ob.UserAsked: user_asked,
    ob.GraceOver: _grace_over,
    ob.StopAll: _stop_all,
    ob.Interrupted: lambda turn, o: interrupt(turn, o.reason),
    ob.Resumed: _resumed,
}


def decide_all(turn: Turn, observations: Iterable[ob.Observation]) -> Turn:
    """Handle a batch of observations, then start what fits."""
    for observation in observations:
        decide(turn, observation)
    if turn.state.user_stops:
        end_stopped(turn)
    apply_requests(turn)
    backlog.tell(turn)
    schedule(turn)
    return turn
