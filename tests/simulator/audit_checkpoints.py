"""The part of the audit that is about checkpoints: what is in them, and when they may be gone (I2, I3).

And what the journal may cost, most of which they cause (I10).
"""

from __future__ import annotations

from typing import Any

from holdfast.core import events as ev
from simulator.checkpoint_store import CheckpointStore
from simulator.ledger import Ledger, Violation
from simulator.scenario import Scenario
from simulator.shadow_state import Account, Kept, why_needed

PER_SLOT = 6
"""Checkpoints that trials in one slot may add to a backlog that is full."""


class CheckpointAudit:
    """Follows the checkpoints of all trials.

    Args:
        scenario: What was asked for.
        ledger: What the workers know.
        store: What the store knows.
    """

    def __init__(self, scenario: Scenario, ledger: Ledger, store: CheckpointStore) -> None:
        self.scenario = scenario
        self.ledger = ledger
        self.store = store
        self.trials: list[Account] = []
        self.stages: set[str] = set()
        self.backlog_is_full = self.storage_lags = False
        self.counts: dict[str, int] = {}

    def _cost_is_flat(self) -> None:
        """A record is about a report, a checkpoint, an attempt, a trial, a worker or a driver: a few for each."""
        count = self.counts.get
        causes = (
            2 * count("Reported", 0)
            + 7 * count("CheckpointStaged", 0)  # with it the backlog may become full, and ease
            + 5 * count("TrialStarted", 0)
            + 5 * count("TrialCreated", 0)
            + count("WorkerJoined", 0)
            + 6 * count("EpochStarted", 0)
            + 2 * count("StorageLagged", 0)
            + 4 * (count("UserRequested", 0) + count("SettingsChanged", 0))
        )
        total = sum(self.counts.values())
        # Resuming ended trials costs one record a trial and driver.
        causes += count("EpochStarted", 0) * len(self.trials)
        if total > causes + 4:
            raise Violation("I10", f"{total} records for {self.counts}")

    def staged(self, event: ev.CheckpointStaged) -> None:
        trial = self._current(event)
        weights = self.store.made.get(event.sealed)
        last = trial.rows[-1] if trial.rows else None
        if weights is None or last is None or weights.link != last.link:
            raise Violation("I6", f"{event} holds {weights}, the last row is {last}")
        if event.index != trial.next_index or any(k.sealed == event.sealed for k in trial.kept.values()):
            raise Violation("I2", f"{event} of trial {trial.n} comes twice, or is not number {trial.next_index}")
        trial.next_index += 1
        self.stages.add(event.sealed)
        trial.kept[event.index] = Kept(
            event.index, event.sealed, len(trial.rows), last.metrics, trial.time_total, trial.attempt, trial.training
        )
        self._check_bound(event)

    def _waiting(self) -> list[int]:
        """The trial of each checkpoint that is not committed yet."""
        return [trial.n for trial in self.trials for kept in trial.kept.values() if kept.stored == "staged"]

    def _check_bound(self, event: ev.CheckpointStaged) -> None:
        """The backlog has a limit, over which the trial in each slot may have some.

        One that it may always have, the one that it waits with, and one each that it does not wait with, because it was
        asked for or is the last; and so may the trial that was in the slot before.
        """
        limit = self.scenario.max_backlog_bytes
        if limit is None:
            return
        waiting = self._waiting()
        if event.bytes * len(waiting) > limit + event.bytes * PER_SLOT * int(self.scenario.cpus):
            raise Violation("backlog", f"{event} is number {len(waiting)} in the backlog, the limit is {limit} bytes")

    def backlog_filled(self, event: ev.BacklogFilled) -> None:
        """More waits than may, and somebody waits because of it who had saved one before."""
        waiting, limit = self._waiting(), self.scenario.max_backlog_bytes
        crowded = any(waiting.count(n) > 1 for n in waiting if self.trials[n].status == "RUNNING")
        if limit is None or event.limit != limit or event.bytes <= limit or self.backlog_is_full or not crowded:
            raise Violation("backlog", f"{event} with {len(waiting)} that wait, and a limit of {limit}")
        self._check_told(event)
        self.backlog_is_full = True

    def backlog_eased(self, event: ev.BacklogEased) -> None:
        limit = self.scenario.max_backlog_bytes
        if limit is None or event.bytes > limit or not self.backlog_is_full:
            raise Violation("backlog", f"{event}, and the limit is {limit}")
        self._check_told(event)
        self.backlog_is_full = False

    def storage_lagged(self, event: ev.StorageLagged) -> None:
        """Told once, and only of records that had waited for some seconds."""
        if self.storage_lags or not event.since + 5.0 <= event.at:
            raise Violation("lag", f"{event}, and it lags: {self.storage_lags}")
        self.storage_lags = True

    def storage_caught_up(self, event: ev.StorageCaughtUp) -> None:
        if not self.storage_lags:
            raise Violation("lag", f"{event}, and nothing has lagged")
        self.storage_lags = False

    def _check_told(self, event: ev.BacklogFilled | ev.BacklogEased) -> None:
        if event.checkpoints != len(self._waiting()):
            raise Violation("backlog", f"{event}, and {len(self._waiting())} wait")

    def committed(self, event: ev.CheckpointCommitted) -> None:
        kept = self._kept(event.n, event.index, "staged")
        weights = self.store.made[kept.sealed]
        if event.digest != f"{weights.n}.{weights.step}.{weights.link}" or kept.sealed in self.store.lost_stages:
            raise Violation("I2", f"{event} was committed from {weights}")
        kept.stored, kept.digest = "committed", event.digest

    def rejected(self, event: ev.CheckpointRejected) -> None:
        kept = self.trials[event.n].kept.get(event.index)
        if kept is None or kept.stored not in ("staged", "committed"):
            raise Violation("I2", f"{event} is about {kept}")
        path_end = f"/t{event.n}/checkpoint_{event.index:06d}"
        rotten = any(path.endswith(path_end) for path in self.store.rotten)
        unloadable = self.ledger.blamed.get((event.n, event.index), 0) >= 2
        if kept.stored == "staged" and kept.sealed not in self.store.lost_stages:
            raise Violation("I2", f"{event}: the staged files were good")
        if kept.stored == "committed" and not rotten and not unloadable:
            raise Violation("I2", f"{event}: the checkpoint is good")
        kept.stored = "bad"

    def drop(self, event: ev.CheckpointsDropped) -> None:
        trial = self.trials[event.n]
        for index in event.indexes:
            kept = self._kept(event.n, index, "committed")
            why = why_needed(self.scenario.retention, self.trials, trial, kept)
            if why:
                raise Violation("I3", f"checkpoint {index} of trial {trial.n} is dropped although it is {why}")
        for index in event.indexes:
            trial.kept[index].stored = "dropped"

    def deleted(self, event: ev.CheckpointsDeleted) -> None:
        for index in event.indexes:
            self._kept(event.n, index, "dropped")

    # --- helpers

    def _kept(self, n: int, index: int, stored: str) -> Kept:
        kept = self.trials[n].kept.get(index)
        if kept is None or kept.stored != stored:
            raise Violation("I2", f"checkpoint {index} of trial {n} should be {stored} and is {kept}")
        return kept

    def _in(self, event: Any, status: str) -> Account:
        n: int = event.n
        trial = self.trials[n]
        if trial.status != status:
            raise Violation("I7", f"{event} of a trial that is {trial.status}")
        return trial

    def _current(self, event: Any) -> Account:
        trial = self._in(event, "RUNNING")
        if event.attempt != trial.attempt:
            raise Violation("I7", f"{event} of a trial that is in attempt {trial.attempt}")
        return trial


STORAGE_CHECKS: dict[type, str] = {
    ev.BacklogFilled: "backlog_filled",
    ev.BacklogEased: "backlog_eased",
    ev.StorageLagged: "storage_lagged",
    ev.StorageCaughtUp: "storage_caught_up",
}
