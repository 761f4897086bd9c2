"""Compares states with each other and with what the audit of the journal found.

Owns I5 (folding the journal gives the live state, with and without a snapshot), I9 (nothing is claimed that a power cut
would take back) and what must hold when a story is over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.controller.opening import open_state
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State
from holdfast.journal.snapshot import Snapshot, SnapshotStore
from simulator.audit import Audit
from simulator.disk import DiskView, MemoryDisk
from simulator.ledger import Violation
from simulator.shadow_state import Account, is_obsolete

_encode = msgspec.msgpack.Encoder().encode


class _NoSnapshots(SnapshotStore):
    def load(self) -> Snapshot | None:
        return None


def durable_fields(state: State) -> dict[str, Any]:
    """Everything of a state that must be the same for everybody who folds the same journal."""
    return {
        "trials": [_encode(trial) for trial in state.trials],
        "by_id": state.by_id,
        "counts": state.counts,
        "pending": list(state.pending),
        "paused": list(state.paused),
        "running": set(state.running),
        "staged": set(state.staged),
        "staged_bytes": state.staged_bytes,
        "full": (state.full_since, state.full_limit),
        "dropping": set(state.dropping),
        "holds": state.holds,
        "overall": state.overall,
        "workers": state.workers,
        "unseen": state.unseen,
        "seen_by": state.seen_by,
        "search_ended": state.search_ended,
        "stopping": state.stopping,
        "reopened": state.reopened,
        "mark": state.mark,
        "asks": state.asks,
        "total_failures": state.total_failures,
        "reports": state.reports,
        "any_checkpoint": state.any_checkpoint,
        "epoch": (state.epoch, state.epoch_at, state.last_at, state.lived_s),
        "stopped": state.stopped,
        "requests": list(state.requests),
        "user_stops": set(state.user_stops),
        "said": (state.tags, state.notes),
        "used": {name: amount for name, amount in state.used.items() if amount},
    }


def refold(root: str, disk: MemoryDisk, retention: Retention) -> State:
    """The state that the journal alone adds up to."""
    view = DiskView(disk)
    return open_state(Path(root), retention, store=_NoSnapshots(root, disk=view), disk=view).state


def reopen(root: str, disk: MemoryDisk, retention: Retention) -> State:
    """The state that a new driver would begin with: from the newest good snapshot."""
    view = DiskView(disk)
    return open_state(Path(root), retention, store=SnapshotStore(root, disk=view), disk=view).state


def _check_uniform(state: State) -> None:
    """All trials ask for the same, if the state says so; whether it notices when they do again does not matter."""
    if state.uniform and any(trial.request != state.trials[0].request for trial in state.trials):
        raise Violation("I5", "trials ask for different resources, and the state does not know")


def same_state(one: State, other: State, what: str) -> None:
    """Both must agree in every durable field."""
    left, right = durable_fields(one), durable_fields(other)
    _check_uniform(one)
    _check_uniform(other)
    for name, value in left.items():
        if value != right[name]:
            if name == "trials":
                pairs = zip(one.trials, other.trials, strict=False)
                differing = [(a, b) for a, b in pairs if _encode(a) != _encode(b)]
                raise Violation("I5", f"{what}: trials differ: {differing}")
            raise Violation("I5", f"{what}: {name} is {value}, and {right[name]} in the other")


def durable_copy(disk: MemoryDisk) -> MemoryDisk:
    """The disk as a power cut would leave it at worst."""
    copy = MemoryDisk()
    for path, data in disk.durable().items():
        copy.put(path, data)
    return copy


def check_claims(root: str, disk: MemoryDisk, retention: Retention, state: State, memory: DriverMemory) -> None:
    """A driver has shut down gracefully: all of its state must survive a power cut right now (I9)."""
    # A driver that was told to end may leave a stage behind once its grace is over, and never otherwise.
    if state.running or (state.staged and not (memory.draining and memory.grace_over)):
        raise Violation("I9", f"a driver has left with {state.staged} uncommitted and {state.running} running")
    try:
        same_state(state, refold(root, durable_copy(disk), retention), "what the driver claims, and what is durable")
    except Violation as error:
        raise Violation("I9", str(error)) from None


def check_over(audit: Audit, state: State, memory: DriverMemory, checkpoints: Mapping[str, Any], root: str) -> None:
    """What must hold when a story is over and nothing goes wrong any more."""
    if len(audit.trials) != len(state.trials):
        raise Violation("I5", f"{len(state.trials)} trials, {len(audit.trials)} in the journal")
    if state.pending or state.paused or state.running or not state.search_ended:
        raise Violation("liveness", f"the story is over with {state.counts} and the search {state.search_ended!r}")
    failures = audit.counts.get("AttemptFailed", 0) + audit.counts.get("TrialErrored", 0)
    if (state.reports, state.total_failures) != (audit.counts.get("Reported", 0), failures):
        raise Violation(
            "I5", f"{state.reports} reports and {state.total_failures} failures, by the journal {audit.counts}"
        )
    for account, trial in zip(audit.trials, state.trials, strict=True):
        found = (trial.status, trial.rows, trial.iteration, trial.judged)
        if found != (account.status, len(account.rows), account.training.iteration, account.judged):
            raise Violation("I6", f"trial {trial.n}: {trial.status}, {trial.rows} rows, by the journal {account}")
        if _encode(trial.metrics) != _encode(account.shown):
            raise Violation("I6", f"trial {trial.n} shows {trial.metrics}, by the journal {account.shown}")
        if trial.failures != account.failures:
            raise Violation("I8", f"trial {trial.n} has {trial.failures} failures, by the journal {account.failures}")
        if abs(trial.time_total - account.time_total) > 1e-6:
            raise Violation("I6", f"trial {trial.n} took {trial.time_total} s, by its rows {account.time_total} s")
    _check_said(audit, state)
    _check_directories(audit, memory.undeleted, checkpoints, root)


def _check_said(audit: Audit, state: State) -> None:
    """Notes and tags are those that users asked for, each once."""
    for n, subject in [(-1, state), *enumerate(state.trials)]:
        found = ([note.text for note in subject.notes], list(subject.tags))  # type: ignore[attr-defined]
        wanted = (audit.notes.get(n, []), audit.tags.get(n, []))
        if found != wanted:
            raise Violation("requests", f"trial {n} has {found}, by the journal {wanted}")


def _check_directories(
    audit: Audit, undeleted: Collection[tuple[int, int]], checkpoints: Mapping[str, Any], root: str
) -> None:
    """Every checkpoint that the journal knows is there, and none that it has deleted."""
    needed = {other.depends for other in audit.trials}
    for account in audit.trials:
        for kept in account.kept.values():
            path = f"{root}/t{account.n}/checkpoint_{kept.index:06d}"
            found = checkpoints.get(path)
            if kept.stored == "committed" and (found is None or not found.manifest or found.digest != kept.digest):
                raise Violation("I3", f"{path} should exist and is {found}")
            obsolete = kept.index < account.floor and (account.n, kept.index) not in needed
            if kept.stored == "committed" and obsolete:
                raise Violation("I3", f"{path} belongs to a life that the user ended, and was not dropped")
            if kept.stored == "dropped" and found is not None and (account.n, kept.index) not in undeleted:
                raise Violation("I3", f"{path} was dropped and is still there")
        _check_number(account, audit)
    overall = audit.scenario.retention.num_to_keep_overall
    ended = sum(
        (account.n, kept.index) not in needed
        for account in audit.trials
        if account.status == "TERMINATED"
        for kept in account.usable()
    )
    if overall is not None and ended > overall:
        raise Violation("I3", f"trials that have ended keep {ended} checkpoints, the limit is {overall}")


def _check_number(account: Account, audit: Audit) -> None:
    """Retention keeps no more than it was asked to, the latest, and what others continue from."""
    rule = audit.scenario.retention
    for kept in account.usable():
        if is_obsolete(rule, audit.trials, account, kept):
            raise Violation("I3", f"checkpoint {kept.index} of trial {account.n} is still there, and nothing needs it")
