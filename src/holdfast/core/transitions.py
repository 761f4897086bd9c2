"""The one place where facts change the state: a table of legal transitions, and the fold.

The state is a function of the journal alone: nothing else changes it. What a driver knows for the moment only is in
`DriverMemory`, beside the state, and `apply` does not see it.

``TRANSITIONS[(status, event type)] -> status``. A missing key is illegal and raises with the trial's facts. The diagram
in the docs is generated from this table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, TypeGuard

from holdfast.core import events as ev
from holdfast.core.changed_settings import STOPPED, settings_changed
from holdfast.core.retention import Retention
from holdfast.core.state import CheckpointRecord, State, Status, Stored, Trial, new_trial, units
from holdfast.core.user_facts import stop_is_done, user_requested
from holdfast.core.workers import forget_workers, move_to_worker, name_worker, worker_joined
from holdfast.errors import IllegalTransitionError

P, R, Z, T, E = Status.PENDING, Status.RUNNING, Status.PAUSED, Status.TERMINATED, Status.ERROR

TRANSITIONS: dict[tuple[str, type[ev.Event]], str] = {
    (P, ev.TrialStarted): R,
    (P, ev.TrialTerminated): T,
    (P, ev.TrialErrored): E,
    (P, ev.TrialRequeued): P,
    (R, ev.Reported): R,
    (R, ev.TrialPaused): Z,
    (R, ev.TrialTerminated): T,
    (R, ev.AttemptFailed): P,
    (R, ev.AttemptInterrupted): P,
    (R, ev.TrialErrored): E,
    (Z, ev.TrialResumed): P,
    (P, ev.TrialReconfigured): P,
    (R, ev.TrialReconfigured): R,
    (Z, ev.TrialReconfigured): Z,
    (P, ev.TrialResized): P,
    (Z, ev.TrialResized): Z,
    (Z, ev.TrialTerminated): T,
    (Z, ev.TrialErrored): E,
    (Z, ev.TrialRequeued): P,
    (T, ev.TrialErrored): E,
    (E, ev.TrialRequeued): P,
    (T, ev.TrialRequeued): P,
}


def next_status(trial: Trial, event: Any) -> str:
    """The status that ``event`` leads to, or an error that tells the trial's story so far."""
    try:
        return TRANSITIONS[trial.status, type(event)]
    except KeyError:
        raise IllegalTransitionError(
            f"trial {trial.id} is {trial.status} (attempt {trial.attempt}, {trial.rows} rows, "
            f"{trial.total_failures} failures) and cannot take {event!r}"
        ) from None


def apply(state: State, event: ev.AnyEvent, retention: Retention) -> None:
    """Fold one event into the state. The same events give the same state (I5).

    Raises:
        IllegalTransitionError: It cannot follow what has happened. The state may be half changed: it is of no use.
    """
    try:
        _APPLY[type(event)](state, event, retention)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise _unfit(event, f"{type(error).__name__}: {error}") from error
    state.last_at = event.at


def check_known(state: State, event: ev.AnyEvent) -> None:
    """Refuse an event about a trial that does not exist. Readers ask before anything looks at that trial.

    Raises:
        IllegalTransitionError: There is no such trial.
    """
    if type(event) in _OF_A_TRIAL and event.n >= len(state.trials):  # type: ignore[union-attr]
        raise _unfit(event, f"there are {len(state.trials)} trials")


def _unfit(event: ev.AnyEvent, why: str) -> IllegalTransitionError:
    return IllegalTransitionError(f"{type(event).__name__} does not fit the history before it: {why}")


def _move(state: State, trial: Trial, event: Any) -> None:
    old, new = trial.status, next_status(trial, event)
    state.came_from = old
    if old == new:
        return
    _leave(state, trial, old)
    trial.status = new
    state.counts[old] -= 1
    state.counts[new] += 1
    if new == P:
        state.pending.append(trial.n)
    elif new == R:
        state.running[trial.n] = None
        _count_resources(state, trial, 1)
    elif new == Z:
        state.paused[trial.n] = None


def _leave(state: State, trial: Trial, old: str) -> None:
    if old == P:
        if state.pending and state.pending[0] == trial.n:
            state.pending.popleft()
        else:
            state.pending.remove(trial.n)
    elif old == R:
        del state.running[trial.n]
        _count_resources(state, trial, -1)
    elif old == Z:
        del state.paused[trial.n]


def _count_resources(state: State, trial: Trial, sign: int) -> None:
    used = state.used
    for name, amount in units(trial.request).items():
        used[name] = used.get(name, 0) + sign * amount


def _epoch_started(state: State, event: ev.EpochStarted, _: Retention) -> None:
    # Time in which no driver was alive is not lived time, so the old epoch ends with its last event.
    if state.epoch:
        state.lived_s += max(0.0, state.last_at - state.epoch_at)
    state.epoch, state.epoch_at, state.stopped = event.epoch, event.at, ""
    state.needs_change = ""
    state.full_since = 0.0  # that driver's trials wait no more
    state.objects = event.objects or state.objects
    forget_workers(state)


def _trial_created(state: State, event: ev.TrialCreated, _: Retention) -> None:
    trial = new_trial(event)
    if event.n != len(state.trials) or event.id in state.by_id:
        raise IllegalTransitionError(f"trial {event.id} was created as number {event.n}, expected {len(state.trials)}")
    if state.trials and state.uniform and trial.request != state.trials[0].request:
        state.uniform = False
    state.trials.append(trial)
    state.by_id[trial.id] = trial.n
    state.counts[P] += 1
    state.pending.append(trial.n)
    if event.mark is not None:
        state.mark = event.mark
        state.asks += not event.mark  # an imported trial: no searcher owes it


def _trial_started(state: State, event: ev.TrialStarted, _: Retention) -> None:
    trial = state.trials[event.n]
    _move(state, trial, event)
    trial.attempt = event.attempt
    trial.attempt_at = event.at
    trial.started_at = trial.started_at or event.at
    trial.ordinal = 0
    trial.source = event.source
    _rewind(state, trial, event)


def _rewind(state: State, trial: Trial, event: ev.TrialStarted) -> None:
    """Put the counters where the checkpoint left them: later rows are superseded (I6)."""
    record = None
    if event.source is not None:
        record = state.trials[event.source[0]].find(event.source[1])
    trial.rows = event.rows
    if record is None:
        trial.iteration, trial.time_total, trial.timesteps_total, trial.episodes_total = 0, 0.0, 0, 0
        trial.metrics = None
        trial.checkpointed = False
    else:
        trial.iteration, trial.time_total = record.iteration, record.time_total
        trial.timesteps_total, trial.episodes_total = record.timesteps_total, record.episodes_total
        trial.metrics = record.metrics
        trial.checkpointed = True
    trial.base_row, trial.base_iteration = trial.rows, trial.iteration
    trial.base_time, trial.base_timesteps = trial.time_total, trial.timesteps_total


def _hold_origin(state: State, trial: Trial, *, needed: bool = True) -> None:
    """Hold the checkpoint of another trial for as long as this one would continue from it."""
    origin, needed = trial.origin, needed and trial.status != T and trial.own_latest() is None
    if origin is None or needed == trial.origin_held:
        return
    trial.origin_held = needed
    state.holds[origin] = state.holds.get(origin, 0) + (1 if needed else -1)
    if not state.holds[origin]:
        del state.holds[origin]


def _take_origin(state: State, trial: Trial, origin: tuple[int, int] | None) -> None:
    if trial.origin_held:
        _hold_origin(state, trial, needed=False)
    trial.origin = origin


def _reported(state: State, event: ev.Reported, _: Retention) -> None:
    trial = state.trials[event.n]
    _move(state, trial, event)
    metrics = event.metrics
    trial.rows += 1
    trial.ordinal += 1
    trial.again = trial.rows <= trial.judged
    if not trial.again:
        trial.judged = trial.rows
    iteration = metrics.get("training_iteration")
    trial.iteration = iteration if isinstance(iteration, int) else trial.iteration + 1
    trial.time_total += event.dt
    if "timesteps_this_iter" in metrics or "timesteps_total" in metrics:
        trial.timesteps_total = running_total(metrics, "timesteps", trial.timesteps_total)
    if "episodes_this_iter" in metrics or "episodes_total" in metrics:
        trial.episodes_total = running_total(metrics, "episodes", trial.episodes_total)
    trial.metrics = metrics
    trial.dt = event.dt
    trial.last_at = event.at
    if trial.worker != event.worker:
        move_to_worker(state, trial, event.worker)
    trial.checkpointed = False
    trial.cuts = 0
    trial.load_failures = 0
    trial.verdict, trial.why = event.verdict, event.why
    state.reports += 1


def running_total(metrics: Mapping[str, Any], what: str, total: int) -> int:
    """The sum of ``<what>_this_iter`` over all reports, unless the report gives ``<what>_total`` itself."""
    given, step = metrics.get(f"{what}_total"), metrics.get(f"{what}_this_iter")
    if _is_number(given):
        return int(given)
    return total + int(step) if _is_number(step) else total


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int) or (isinstance(value, float) and isfinite(value))


def _checkpoint_staged(state: State, event: ev.CheckpointStaged, _: Retention) -> None:
    trial = state.trials[event.n]
    record = CheckpointRecord(
        index=event.index,
        attempt=event.attempt,
        sealed=event.sealed,
        row=trial.rows,
        iteration=trial.iteration,
        time_total=trial.time_total,
        timesteps_total=trial.timesteps_total,
        episodes_total=trial.episodes_total,
        metrics=trial.metrics or {},
        at=event.at,
        bytes=event.bytes,
    )
    trial.checkpoints.append(record)
    trial.uncommitted += 1
    state.staged_bytes += event.bytes
    trial.next_index = event.index + 1
    trial.checkpointed = True
    state.staged[event.n, event.index] = None
    state.any_checkpoint = True


def _staged_no_more(state: State, trial: Trial, index: int) -> None:
    """The commit of a checkpoint has ended, if it was under way: its bytes wait no more."""
    record = trial.find(index)
    if record is not None and state.staged.pop((trial.n, index), True) is None:
        trial.uncommitted -= 1
        state.staged_bytes -= record.bytes


def _checkpoint_committed(state: State, event: ev.CheckpointCommitted, retention: Retention) -> None:
    trial = state.trials[event.n]
    record = trial.find(event.index)
    if record is None or record.stored != Stored.STAGED:
        raise IllegalTransitionError(f"checkpoint {event.index} of trial {trial.id} was committed unstaged")
    _staged_no_more(state, trial, event.index)
    record.stored, record.digest, record.bytes = Stored.COMMITTED, event.digest, event.bytes
    _hold_origin(state, trial)
    retention.register(state, trial, record)


def _checkpoint_rejected(state: State, event: ev.CheckpointRejected, retention: Retention) -> None:
    trial = state.trials[event.n]
    record = trial.find(event.index)
    _staged_no_more(state, trial, event.index)
    if record is not None:
        retention.forget(state, event.n, record)
        record.stored, record.reason = Stored.BAD, event.reason
    _hold_origin(state, trial)
    trial.load_failures = 0


def _checkpoints_dropped(state: State, event: ev.CheckpointsDropped, retention: Retention) -> None:
    trial = state.trials[event.n]
    for index in event.indexes:
        record = trial.find(index)
        if record is None or record.stored not in (Stored.COMMITTED, Stored.STAGED):
            raise IllegalTransitionError(f"checkpoint {index} of trial {trial.id} was dropped, and is not there")
        _staged_no_more(state, trial, index)  # if a newer one took its place before it was committed
        record.stored = Stored.DROPPED
        retention.forget(state, event.n, record)
        state.dropping[event.n, index] = None


def _checkpoints_deleted(state: State, event: ev.CheckpointsDeleted, _: Retention) -> None:
    trial = state.trials[event.n]
    gone = set(event.indexes)
    for index in gone:
        state.dropping.pop((event.n, index), None)
    trial.checkpoints = [record for record in trial.checkpoints if record.index not in gone]


def _trial_paused(state: State, event: ev.TrialPaused, _: Retention) -> None:
    trial = state.trials[event.n]
    _move(state, trial, event)
    trial.verdict = trial.why = ""


def _trial_resumed(state: State, event: ev.TrialResumed, _: Retention) -> None:
    _move(state, state.trials[event.n], event)


def _trial_reconfigured(state: State, event: ev.TrialReconfigured, _: Retention) -> None:
    trial = state.trials[event.n]
    _move(state, trial, event)
    donor = -1 if event.donor is None else event.donor[0]
    if max(donor, event.parent) >= len(state.trials):
        raise _unfit(event, f"it names trial {max(donor, event.parent)}, and there are {len(state.trials)}")
    if event.donor is not None:
        _take_origin(state, trial, event.donor)
        trial.origin_row, trial.origin_attempt = trial.rows, trial.attempt
        trial.judged = trial.rows  # whatever comes after these is a step of the copy, and nobody has seen it
        _hold_origin(state, trial)
    trial.config = event.config
    trial.params = event.params or trial.params
    trial.shown_tag = event.tag or trial.shown_tag


def _trial_resized(state: State, event: ev.TrialResized, _: Retention) -> None:
    trial = state.trials[event.n]
    _move(state, trial, event)
    trial.request = event.request
    state.uniform = False


def _attempt_failed(state: State, event: ev.AttemptFailed, _: Retention) -> None:
    trial = state.trials[event.n]
    _move(state, trial, event)
    trial.failures += 1
    trial.load_failures += event.cause == ev.Cause.LOADING
    _remember_failure(state, trial, event)


def _remember_failure(state: State, trial: Trial, event: ev.AttemptFailed | ev.TrialErrored) -> None:
    name_worker(state, trial, event.worker)
    trial.total_failures += 1
    state.total_failures += 1
    trial.cause, trial.error = event.cause, event.error


def _attempt_interrupted(state: State, event: ev.AttemptInterrupted, _: Retention) -> None:
    trial = state.trials[event.n]
    _move(state, trial, event)
    name_worker(state, trial, event.worker)
    trial.verdict = trial.why = ""
    trial.load_failures += event.cause == ev.Cause.LOADING
    trial.cuts += 1


def _trial_errored(state: State, event: ev.TrialErrored, _: Retention) -> None:
    trial = state.trials[event.n]
    _move(state, trial, event)
    if event.cause in ev.Cause.COUNTED:
        trial.failures += 1
    _hold_origin(state, trial)
    _remember_failure(state, trial, event)
    trial.ended_at, trial.verdict, trial.why = event.at, "", ""
    stop_is_done(state, trial)


def _trial_terminated(state: State, event: ev.TrialTerminated, _: Retention) -> None:
    trial = state.trials[event.n]
    _move(state, trial, event)
    name_worker(state, trial, event.worker)
    _hold_origin(state, trial)
    trial.reason, trial.ended_at = event.reason, event.at
    trial.verdict = trial.why = ""
    stop_is_done(state, trial)


def _trial_requeued(state: State, event: ev.TrialRequeued, retention: Retention) -> None:
    trial = state.trials[event.n]
    _move(state, trial, event)
    if trial.cause == ev.Cause.DAMAGED and event.mode == "resume":
        _believe_again(state, trial, retention)
    _hold_origin(state, trial)
    trial.failures = trial.cuts = trial.load_failures = 0
    trial.error, trial.cause, trial.reason = None, "", ""
    if event.mode == "restart":
        # Earlier attempts stay in the journal. Their checkpoints are dropped by events of their own.
        _take_origin(state, trial, None)
        trial.source = trial.metrics = None
        trial.rows = trial.iteration = trial.judged = 0
        trial.floor = trial.next_index
        for record in trial.committed():
            retention.forget(state, trial.n, record)


def _believe_again(state: State, trial: Trial, retention: Retention) -> None:
    """The user says that damaged checkpoints were repaired: they are verified anew before they are used."""
    for record in trial.checkpoints:
        if record.stored == Stored.BAD and record.digest and record.index >= trial.floor:
            record.stored, record.reason = Stored.COMMITTED, ""
            retention.register(state, trial, record)


def _budget_renewed(state: State, _event: ev.BudgetRenewed, _: Retention) -> None:
    state.reopened = ""
    for trial in state.unfinished():
        trial.failures = 0
    # An experiment is opened again: trials that were at work most recently continue first.
    state.pending = deque(sorted(state.pending, key=lambda n: (-state.trials[n].last_at, n)))


def _search_asked(state: State, event: ev.SearchAsked, _: Retention) -> None:
    state.asks += event.count


def _backlog_told(state: State, event: ev.BacklogFilled | ev.BacklogEased, _: Retention) -> None:
    state.full_since, state.full_limit = (event.at, event.limit) if isinstance(event, ev.BacklogFilled) else (0.0, 0)


def _only_told(state: State, event: ev.AnyEvent, _: Retention) -> None:
    check_known(state, event)


def _search_ended(state: State, event: ev.SearchEnded, _: Retention) -> None:
    state.search_ended = event.reason
    if event.reason.startswith(STOPPED):
        state.stopping = event.reason.removeprefix(STOPPED)


def _search_reopened(state: State, _event: ev.SearchReopened, _: Retention) -> None:
    state.search_ended = state.stopping = ""


def _driver_stopped(state: State, event: ev.DriverStopped, _: Retention) -> None:
    state.stopped, state.needs_change = event.reason, event.change


_APPLY: dict[type, Callable[[State, Any, Retention], None]] = {
    ev.EpochStarted: _epoch_started,
    ev.WorkerJoined: worker_joined,
    ev.TrialCreated: _trial_created,
    ev.TrialStarted: _trial_started,
    ev.Reported: _reported,
    ev.CheckpointStaged: _checkpoint_staged,
    ev.CheckpointCommitted: _checkpoint_committed,
    ev.CheckpointRejected: _checkpoint_rejected,
    ev.CheckpointsDropped: _checkpoints_dropped,
    ev.CheckpointsDeleted: _checkpoints_deleted,
    ev.TrialPaused: _trial_paused,
    ev.TrialResumed: _trial_resumed,
    ev.TrialReconfigured: _trial_reconfigured,
    ev.TrialResized: _trial_resized,
    ev.AttemptFailed: _attempt_failed,
    ev.AttemptInterrupted: _attempt_interrupted,
    ev.TrialErrored: _trial_errored,
    ev.TrialTerminated: _trial_terminated,
    ev.TrialRequeued: _trial_requeued,
    ev.BudgetRenewed: _budget_renewed,
    ev.SearchAsked: _search_asked,
    ev.StoodStill: _only_told,
    ev.BacklogFilled: _backlog_told,
    ev.BacklogEased: _backlog_told,
    ev.StorageLagged: _only_told,
    ev.StorageCaughtUp: _only_told,
    ev.SearchEnded: _search_ended,
    ev.SearchReopened: _search_reopened,
    ev.SettingsChanged: settings_changed,
    ev.Noted: _only_told,
    ev.UserRequested: user_requested,
    ev.DriverStopped: _driver_stopped,
}

_OF_A_TRIAL = frozenset(kind for kind in _APPLY if "n" in getattr(kind, "__struct_fields__", ())) - {ev.TrialCreated}
CHANGES_ITS_TRIAL = (_OF_A_TRIAL | {ev.TrialCreated}) - {ev.Noted}
"""Events after which the record of trial ``n`` is another one, if ``n`` is the number of a trial.

``BudgetRenewed`` changes unfinished trials too, but a snapshot has all of these.
"""
