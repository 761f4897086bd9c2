"""Reads a whole history and compares each record with what really happened.

A second, much simpler bookkeeping of trials, rows, checkpoints and budgets, which shares no code with the core: all it
knows are the journal's records, the ledger of the fake workers and the fake store. ``Violation`` names the invariant.

Owns I1, I2, I3 (see ``audit_checkpoints``), I5 (see also ``replay_check``), I6, I8, I10 and I11 as far as the journal
shows them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.core import events as ev
from holdfast.core.events import Cause
from holdfast.core.plan import WAITS_IN_VAIN
from holdfast.search.replayable import FINISHED
from simulator.audit_checkpoints import STORAGE_CHECKS
from simulator.audit_requests import BY_USER, FINAL, RequestAudit
from simulator.checkpoint_store import CheckpointStore
from simulator.fake_policies import PAUSES, is_good
from simulator.journal_bytes import Entry
from simulator.ledger import Ledger, Violation
from simulator.scenario import MORE_SAMPLES, Scenario
from simulator.shadow_state import Account, Kept, Origin, ShadowRow, TrainingProgress, start_of

TOLERANCE_S = 1e-3

OWN_FAULTS = frozenset({"exception", "exit", "signal", "out_of_memory", "stalled", "loading"})
"""What uses up ``max_failures``, said a second time on purpose."""


class Audit(RequestAudit):
    """Goes through a history once.

    Args:
        scenario: What was asked for.
        ledger: What the workers know.
        store: What the store knows.
        root: Where the drivers kept the experiment, which no record may tell (I11).
    """

    def __init__(self, scenario: Scenario, ledger: Ledger, store: CheckpointStore, root: str) -> None:
        super().__init__(scenario, ledger, store)
        self._root = root.encode()
        self.links: set[int] = set()
        self.workers: set[int] = set()  # of the current driver
        self.scheduled: set[int] = set()
        """Records whose verdict or reason only the scheduler can know; see ``replay_check``."""
        self.told: list[tuple[Any, ...]] = []
        """What a searcher must have heard, in order, apart from questions."""
        self._seq = 0
        self._at = 0.0
        self._epoch_at = 0.0
        self._lived_s = 0.0
        self._full_at = math.inf  # when the rows of all trials reached their limit
        self._failed_fast = False
        self._renewed = False
        self._statuses: list[str] = []
        self._requeued: dict[int, str] = {}
        self._complaints: set[tuple[int, int]] = set()  # callbacks that failed, as far as the journal knows
        self._noted: set[int] = set()  # trials that have to begin again, as was said
        self._asks = 0  # configurations that a searcher which learns was asked for
        self._configs = [] if scenario.searcher else scenario.configs(scenario.samples + MORE_SAMPLES)

    def read(self, history: Iterable[Entry]) -> Audit:
        """Check every record, then what must hold at the end."""
        for entry in history:
            event = entry.event
            name = type(event).__name__
            self._seq = entry.seq
            self.counts[name] = self.counts.get(name, 0) + 1
            if event.at < self._at:
                raise Violation("I4", f"record {entry.seq} is older than the one before it")
            if entry.epoch < self._epoch:
                raise Violation("I4", f"{event} was written by epoch {entry.epoch}, after epoch {self._epoch} began")
            if self._root in entry.payload:
                raise Violation("I11", f"{event} has the absolute path of the experiment")
            check: Callable[[Any], None] = getattr(self, _CHECKS[type(event)])
            check(event)
            self._at = event.at
        self._nothing_acknowledged_is_lost()
        self._cost_is_flat()
        self.check_answers()
        return self

    # --- at the end

    def _nothing_acknowledged_is_lost(self) -> None:
        for link, sent in self.ledger.reports.items():
            if not sent.acked or link in self.ledger.void:
                continue
            if link not in self.links:
                raise Violation("I1", f"report {link} ({sent}) was acknowledged and is not in the journal")
            if sent.sealed and sent.sealed not in self.stages:
                raise Violation("I1", f"the checkpoint of report {link} ({sent}) was acknowledged and is not there")

    # --- drivers and the search

    def epoch(self, event: ev.EpochStarted) -> None:
        if event.epoch <= self._epoch:
            raise Violation("I4", f"epoch {event.epoch} follows epoch {self._epoch}")
        if self._epoch:
            self._lived_s += self._at - self._epoch_at
        self._epoch, self._epoch_at = event.epoch, event.at
        self.workers.clear()
        self.backlog_is_full = self.storage_lags = False
        self._failed_fast = False
        self._renewed = not self.trials
        self._statuses = [trial.status for trial in self.trials]
        self._requeued.clear()

    def joined(self, event: ev.WorkerJoined) -> None:
        self.workers.add(event.worker)

    def search_asked(self, event: ev.SearchAsked) -> None:
        if not self.scenario.searcher or event.count < 1:
            raise Violation("I5", f"{event}, and nobody would answer")
        if self._asks != len(self.trials):
            raise Violation("I5", f"{event}, and the searcher still owes {self._asks - len(self.trials)}")
        self._asks += event.count

    def search_ended(self, event: ev.SearchEnded) -> None:
        if not event.reason.startswith("stop: "):
            self._check_search_end(event.reason)
            return
        self.stopping = event.reason.removeprefix("stop: ")
        budget = self.scenario.time_budget_s
        lived = self._lived_s + event.at - self._epoch_at
        if "time budget" in self.stopping:
            if budget is None or lived < budget - TOLERANCE_S:
                raise Violation("I5", f"a time budget of {budget} s was used up after {lived} s")
        elif self._rows_told() < self.scenario.stop_all_after:
            raise Violation("I5", f"{self.stopping} after {self._rows_told()} rows")

    def _check_search_end(self, reason: str) -> None:
        if reason == WAITS_IN_VAIN:
            if any(trial.status not in FINAL for trial in self.trials):
                raise Violation("I5", f"the search ended because nothing is left, and there is {self.trials}")
        elif reason != FINISHED and len(self.trials) != self.samples:
            raise Violation("I5", f"the search ended after {len(self.trials)} of {self.samples} trials")

    def _rows_told(self) -> int:
        return sum(trial.told_before + sum(row.told for row in trial.rows) for trial in self.trials)

    def search_reopened(self, _: ev.SearchReopened) -> None:
        self.stopping = ""

    def budget_renewed(self, _: ev.BudgetRenewed) -> None:
        self._renewed = True
        finished, unfinished, errored = self.ledger.resumes[self._epoch]
        for trial, status in zip(self.trials, self._statuses, strict=True):
            wanted = {"TERMINATED": finished, "ERROR": errored}.get(status, "")
            if wanted and self._requeued.get(trial.n, "skip") != wanted:
                raise Violation("I5", f"trial {trial.n} was {status} and should {wanted}: {self._requeued}")
            if trial.status not in FINAL:
                trial.failures = 0
                # One that had been told to stop counts as finished.
                if not wanted and unfinished != "resume" and self._requeued.get(trial.n) not in (unfinished, finished):
                    raise Violation("I5", f"trial {trial.n} was {status} and should {unfinished}")

    def stopped(self, event: ev.DriverStopped) -> None:
        untold = {key for key in self.ledger.failed_callbacks if key[0] == self._epoch} - self._complaints
        if untold:
            raise Violation("I9", f"{event}, and nobody knows that callbacks failed for {untold}")

    # --- trials

    def created(self, event: ev.TrialCreated) -> None:
        n = len(self.trials)
        if event.n != n or (self._configs and event.config != self._configs[n]):
            raise Violation("I5", f"trial {event.n} got {event.config}, an uninterrupted run {self._configs[n]}")
        self.trials.append(Account(n, cpus=_cpus(event.request)))

    def started(self, event: ev.TrialStarted) -> None:
        trial = self._in(event, "PENDING")
        if event.attempt != trial.attempt + 1:
            raise Violation("I7", f"attempt {event.attempt} of trial {trial.n} follows attempt {trial.attempt}")
        if not self._renewed:
            raise Violation("I8", f"trial {trial.n} is started by a new driver before its retries were renewed")
        if trial.user_stop:
            raise Violation("requests", f"trial {trial.n} is started although a user has stopped it")
        if self._failed_fast:
            raise Violation("I5", f"trial {trial.n} is started although a trial has failed and fail_fast is set")
        trial.epoch = self._epoch
        self._check_not_overdue(event)
        if self.stopping:
            raise Violation("I5", f"trial {trial.n} is started although the experiment was stopped: {self.stopping}")
        source, kept, rows = start_of(self.trials, trial) or (None, None, 0)
        if event.source != source:
            raise Violation("I2", f"trial {trial.n} starts from {event.source} instead of {source}: {trial}")
        lost = {k.index: k for k in trial.kept.values() if k.stored == "bad" and k.index >= trial.floor}
        if source is None:
            self._check_from_scratch(trial, lost)
        trial.given_up.update(lost)
        if any(k.stored == "staged" for k in trial.kept.values()):
            raise Violation("I2", f"trial {trial.n} starts before its last checkpoint was committed")
        if event.rows != rows:
            raise Violation("I6", f"trial {trial.n} starts with {event.rows} rows from {kept}")
        trial.status, trial.attempt, trial.ordinal, trial.source = "RUNNING", event.attempt, 0, source
        self._check_limits()
        del trial.rows[rows:]
        trial.told_before = 0
        trial.time_total = 0.0 if kept is None else kept.time_total
        trial.training = TrainingProgress() if kept is None else kept.training
        trial.shown = None if kept is None else kept.metrics
        self._check_loaded(trial, kept)

    def _check_loaded(self, trial: Account, kept: Kept | None) -> None:
        """What the attempt really began with is what was saved in that checkpoint, whoever saved it."""
        life = self.ledger.lives.get((self._epoch, trial.n, trial.attempt))
        if life is None or not life.began:
            return  # it was never launched, or has failed before
        saved = (0, 0) if kept is None else self.store.made[kept.sealed][1:]
        if life.start[1:] != saved:
            raise Violation("I2", f"trial {trial.n} began with {life.start}, and {kept} holds {saved}")

    def _check_from_scratch(self, trial: Account, lost: dict[int, Kept]) -> None:
        """TrainingProgress that was once committed is never given up; what never was may be, and a note says so."""
        if any(k.digest for k in lost.values()):
            raise Violation("I2", f"trial {trial.n} starts from scratch after its checkpoints were damaged")
        if lost.keys() - trial.given_up and trial.n not in self._noted:
            raise Violation("I2", f"trial {trial.n} starts from scratch, and nobody says that {lost} were lost")
        self._noted.discard(trial.n)

    def noted(self, event: ev.Noted) -> None:
        if "from the beginning" in event.text:
            self._noted.add(event.n)

    def _check_not_overdue(self, event: ev.TrialStarted) -> None:
        """Nothing starts once the experiment's own rules have ended it."""
        budget, limit = self.scenario.time_budget_s, self.scenario.stop_all_after
        lived = self._lived_s + event.at - self._epoch_at
        if budget is not None and lived > budget + TOLERANCE_S:
            raise Violation("I5", f"{event} after {lived} s, the time budget is {budget} s")
        if limit and self._rows_told() >= limit and event.at > self._full_at:
            raise Violation("I5", f"{event} after {self._rows_told()} rows, the limit is {limit}")

    def _check_limits(self) -> None:
        running = [trial for trial in self.trials if trial.status == "RUNNING"]
        limit = self.scenario.max_concurrent
        if (limit and len(running) > limit) or sum(trial.cpus for trial in running) > self.scenario.cpus:
            raise Violation("limits", f"{len(running)} trials run at once, of {limit}, on {self.scenario.cpus} CPUs")

    def reported(self, event: ev.Reported) -> None:
        trial = self._current(event)
        link = event.metrics["link"]
        sent = self.ledger.reports.get(link)
        trial.ordinal += 1
        if sent is None or (sent.n, sent.attempt, sent.epoch) != (trial.n, trial.attempt, trial.epoch):
            raise Violation("I6", f"{event} was never sent by this attempt: {sent}")
        if link in self.links or sent.ordinal != trial.ordinal:
            raise Violation("I6", f"report {link} of trial {trial.n} is row {trial.ordinal} of its attempt: {sent}")
        step, before, iteration = trial.training
        if sent.step != step + 1 or sent.before != before:
            raise Violation("I6", f"{event} continues {sent.before} of step {sent.step}, not {trial.training}")
        if event.worker not in self.workers and not (sent.ahead and sent.epoch < self._epoch):
            raise Violation("I6", f"{event} comes from a worker that nobody knows")
        self.links.add(link)
        told = event.metrics.get("done") is not True and not self.stopping and not trial.user_stop
        trial.rows.append(ShadowRow(link, event.metrics, told))
        trial.training = TrainingProgress(sent.step, link, iteration + 1)
        trial.shown = event.metrics
        trial.time_total += event.dt
        if self.scenario.stop_all_after and self._rows_told() < self.scenario.stop_all_after:
            self._full_at = math.inf
        else:
            self._full_at = min(self._full_at, event.at)
        self._check_verdict(trial, event)
        trial.judged = max(trial.judged, len(trial.rows))
        trial.verdict, trial.why = event.verdict, event.why

    def _check_verdict(self, trial: Account, event: ev.Reported) -> None:
        """What was said is what rules that were never interrupted would have said; schedulers: see ``replay_check``."""
        scenario, again = self.scenario, len(trial.rows) <= trial.judged
        if not again:
            self.told.append(("result", trial.n, trial.training.link))
        if self._rules_stop(trial, event):
            expected = "stop"
        elif again:
            expected = ""
        elif scenario.scheduler:
            self.scheduled.add(self._seq)
            return
        else:
            pauses = trial.training.iteration == scenario.pause_at and trial.attempt <= PAUSES
            expected = "pause" if pauses else ""
        if event.verdict != expected:
            raise Violation("I5", f"{event.verdict!r} ({event.why}) for {event}, {expected!r} without interruptions")

    def _rules_stop(self, trial: Account, event: ev.Reported) -> bool:
        scenario = self.scenario
        if event.metrics.get("done") is True or self.stopping or trial.user_stop:
            return True
        if scenario.stop_at:
            return trial.training.iteration >= scenario.stop_at
        good = sum(row.told and is_good(row.metrics) for row in trial.rows)
        return bool(scenario.stop_after_good) and good >= scenario.stop_after_good

    def paused(self, event: ev.TrialPaused) -> None:
        trial = self._current(event)
        if trial.verdict != "pause":
            raise Violation("I5", f"trial {trial.n} is paused though nobody said so")
        trial.status, trial.verdict = "PAUSED", ""
        self.told.append(("pause", trial.n))

    def resumed(self, event: ev.TrialResumed) -> None:
        self._in(event, "PAUSED").status = "PENDING"
        self.told.append(("unpause", event.n))

    def reconfigured(self, event: ev.TrialReconfigured) -> None:
        trial = self.trials[event.n]
        leaves = trial.status == "RUNNING" and trial.verdict == "pause"
        if trial.status not in ("PENDING", "PAUSED") and not leaves:
            raise Violation("I5", f"{event} of a trial that is {trial.status} and was told {trial.verdict!r}")
        if event.donor is not None:
            self._kept(*event.donor, "committed")
            trial.origin = Origin(*event.donor, len(trial.rows), trial.attempt)
            trial.judged = len(trial.rows)

    def resized(self, event: ev.TrialResized) -> None:
        trial = self.trials[event.n]
        if trial.status not in ("PENDING", "PAUSED"):
            raise Violation("I5", f"{event} of a trial that is {trial.status}")
        trial.cpus = _cpus(event.request)

    def stood_still(self, event: ev.StoodStill) -> None:
        statuses = {trial.status for trial in self.trials}
        staged = any(kept.stored == "staged" for trial in self.trials for kept in trial.kept.values())
        if "RUNNING" in statuses or staged or not statuses & {"PENDING", "PAUSED"}:
            raise Violation("liveness", f"{event} although something is under way: {statuses}")

    def terminated(self, event: ev.TrialTerminated) -> None:
        trial = self.trials[event.n]
        if trial.status == "RUNNING":
            self._current(event)
        elif trial.status not in ("PENDING", "PAUSED"):
            raise Violation("I5", f"trial {trial.n} was {trial.status} and is terminated again")
        self._check_reason(trial, event)
        self._check_saved_at_end(trial, event)
        trial.status, trial.verdict, trial.user_stop = "TERMINATED", "", False
        self._tell_end(trial, error=False)

    def _check_reason(self, trial: Account, event: ev.TrialTerminated) -> None:
        steps = self.scenario.training(trial.n).steps
        reason = event.reason
        if reason in ("returned", "done"):
            if trial.training.step < steps:
                raise Violation("I6", f"trial {trial.n} ended by itself after {trial.training} of {steps} steps")
        elif trial.verdict == "stop":
            if reason != trial.why:
                raise Violation("I5", f"trial {trial.n} was told to stop for {trial.why!r} and did for {reason!r}")
        elif reason in ("not resumed", self.stopping) or (trial.user_stop and reason == BY_USER):
            pass
        elif self.scenario.scheduler and trial.status != "RUNNING":
            self.scheduled.add(self._seq)
        else:
            raise Violation("I5", f"trial {trial.n} was terminated because of {reason!r}")

    def _tell_end(self, trial: Account, *, error: bool) -> None:
        self.told.append(("end", trial.n, 0 if trial.shown is None else trial.shown["link"], error))

    def _check_saved_at_end(self, trial: Account, event: ev.TrialTerminated) -> None:
        """A class that saves at its end, and came to it in order, has a checkpoint of its last row."""
        life = self.ledger.lives.get((self._epoch, event.n, event.attempt))
        # One that was told to pause, and ended because everything did, saves only what it would need.
        ends = trial.status == "RUNNING" and trial.verdict != "pause"
        in_order = ends and life is not None and life.end in ("Returned", "Stopped")
        if in_order and self.scenario.at_end and all(k.rows != len(trial.rows) for k in trial.kept.values()):
            raise Violation("I2", f"trial {trial.n} ended with {event} without its last checkpoint")

    def requeued(self, event: ev.TrialRequeued) -> None:
        trial = self.trials[event.n]
        self._requeued[event.n] = event.mode
        self._complaints.add((self._epoch, event.n))  # about an end that does not count any more
        if trial.status == "RUNNING":
            raise Violation("I7", f"trial {trial.n} is queued again while it runs")
        if event.mode == "resume" and trial.cause == Cause.DAMAGED:
            for kept in trial.kept.values():  # the user says that they were repaired
                if kept.stored == "bad" and kept.digest and kept.index >= trial.floor:
                    kept.stored = "committed"
        trial.status, trial.failures, trial.verdict, trial.cause = "PENDING", 0, "", ""
        if event.mode == "restart":
            trial.told_before += sum(row.told for row in trial.rows)
            trial.rows.clear()
            trial.floor = trial.next_index
            trial.origin, trial.judged, trial.shown, trial.training = None, 0, None, TrainingProgress()

    # --- failures

    def failed(self, event: ev.AttemptFailed) -> None:
        trial = self._current(event)
        self._own_fault(event)
        limit = self.scenario.max_failures
        if 0 <= limit <= trial.failures:
            raise Violation("I8", f"failure {trial.failures + 1} of trial {trial.n} is forgiven, the limit is {limit}")
        trial.failures += 1
        trial.status = "PENDING"

    def errored(self, event: ev.TrialErrored) -> None:
        trial = self.trials[event.n]
        if event.cause == Cause.DAMAGED:
            bad = [k for k in trial.kept.values() if k.stored == "bad" and k.index >= trial.floor]
            if trial.usable() or not any(k.digest for k in bad):
                raise Violation("I2", f"trial {trial.n} is given up as damaged with {trial.usable()} left")
        elif event.cause == Cause.CALLBACK:
            if trial.status != "TERMINATED" or (self._epoch, trial.n) not in self.ledger.failed_callbacks:
                raise Violation("I8", f"{event} of a trial that is {trial.status}, and no callback failed")
            self._complaints.add((self._epoch, trial.n))
            self._failed_fast = self._failed_fast or self.scenario.fail_fast
        else:
            self._current(event)
            self._own_fault(event)
            limit = self.scenario.max_failures
            if not self.stopping and (limit < 0 or trial.failures < limit):
                raise Violation("I8", f"trial {trial.n} is ERROR after {trial.failures + 1} failures of {limit}")
            trial.failures += 1
        if event.cause != Cause.DAMAGED:
            self._failed_fast = self.scenario.fail_fast
        if trial.status != "TERMINATED":
            self._tell_end(trial, error=True)
        trial.status, trial.verdict, trial.user_stop, trial.cause = "ERROR", "", False, event.cause

    def _own_fault(self, event: ev.AttemptFailed | ev.TrialErrored) -> None:
        life = self.ledger.lives.get((self._epoch, event.n, event.attempt))
        if event.cause not in OWN_FAULTS or life is None:
            raise Violation("I8", f"{event} is not the trial's fault: {life}")
        if self.trials[event.n].verdict:
            raise Violation("I8", f"{event} of a trial that was told to {self.trials[event.n].verdict}")
        guilty = life.hung if event.cause == Cause.STALLED else life.end == event.cause
        if not guilty:
            raise Violation("I8", f"{event}, but the attempt's own story is {life}")

    def interrupted(self, event: ev.AttemptInterrupted) -> None:
        trial = self._current(event)
        life = self.ledger.lives.get((self._epoch, event.n, event.attempt))
        free = (Cause.PREEMPTED, Cause.ENGINE_LOST, Cause.STORAGE, Cause.LOADING)
        if event.cause in free and (life is None or life.end != event.cause):
            raise Violation("I8", f"{event}, but the attempt's own story is {life}")
        if event.cause == Cause.DRIVER_LOST:
            wrong = life is not None
        elif event.cause == Cause.DRIVER_STOPPED:
            wrong = self._epoch not in self.ledger.told_to_end and not self._failed_fast
        else:
            wrong = event.cause not in free
        if wrong:
            raise Violation("I8", f"{event}, but the attempt's own story is {life}, and its driver lives")
        trial.status, trial.verdict = "PENDING", ""


def _cpus(request: dict[str, float] | None) -> float:
    return 1.0 if request is None else request.get("CPU", 0.0)


_CHECKS: dict[type, str] = {
    ev.EpochStarted: "epoch",
    ev.WorkerJoined: "joined",
    ev.TrialCreated: "created",
    ev.TrialStarted: "started",
    ev.Reported: "reported",
    ev.CheckpointStaged: "staged",
    ev.CheckpointCommitted: "committed",
    ev.CheckpointRejected: "rejected",
    ev.CheckpointsDropped: "drop",
    ev.CheckpointsDeleted: "deleted",
    ev.TrialPaused: "paused",
    ev.TrialResumed: "resumed",
    ev.TrialReconfigured: "reconfigured",
    ev.TrialResized: "resized",
    ev.StoodStill: "stood_still",
    **STORAGE_CHECKS,
    ev.SearchAsked: "search_asked",
    ev.AttemptFailed: "failed",
    ev.AttemptInterrupted: "interrupted",
    ev.TrialErrored: "errored",
    ev.TrialTerminated: "terminated",
    ev.TrialRequeued: "requeued",
    ev.BudgetRenewed: "budget_renewed",
    ev.SearchEnded: "search_ended",
    ev.SearchReopened: "search_reopened",
    ev.Noted: "noted",
    ev.UserRequested: "user_requested",
    ev.SettingsChanged: "settings_changed",
    ev.DriverStopped: "stopped",
}
