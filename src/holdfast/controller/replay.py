"""Replaying what a policy was told, so that it remembers after a restart what it knew before (I5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.controller.opening import Opened, open_state
from holdfast.controller.spec import Root
from holdfast.controller.stop_rule import UserStopRule
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State, Trial
from holdfast.journal.snapshot import SnapshotStore
from holdfast.storage.local import REAL_DISK, Disk


def open_with_memory(
    root: Root,
    retention: Retention,
    store: SnapshotStore,
    stop: UserStopRule,
    result_of: Callable[[State, Trial, Mapping[str, Any], float, float, int], dict[str, Any]],
    disk: Disk = REAL_DISK,
) -> Opened:
    """Fold the journal and bring the stop rule's memory to where it was.

    From the snapshot if it holds the rule's memory; otherwise the rule is told every result of the experiment again, in
    the order in which it first heard them.
    """

    def judge(state: State, e: ev.AnyEvent) -> None:
        # As in ``core.decide``: before the report counts, and not if it was done or everything was being stopped.
        if isinstance(e, ev.Reported) and e.why != "done" and not state.stopping:
            trial = state.trials[e.n]
            stop.why_stop(trial, lambda: result_of(state, trial, e.metrics, e.dt, e.at, e.worker))

    def rewind(state: State, e: ev.AnyEvent) -> None:
        if isinstance(e, ev.TrialStarted):
            stop.rewind(state.trials[e.n])

    if not stop.has_memory:
        return open_state(root.path, retention, store=store, disk=disk)
    return open_state(
        root.path,
        retention,
        store=store,
        before=judge,
        watch=rewind,
        accept=lambda policies: "stop" in policies,
        prepare=lambda policies: stop.set_state(policies["stop"]),
        disk=disk,
    )
