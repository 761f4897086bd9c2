"""Rebuild what a journal has lost, as ordinary events: from a snapshot, result files and checkpoints.

The events are the difference between the journal and the files, so that rebuilding twice adds nothing. What no file
contains is not made up: a trial whose end is not known resumes from its newest checkpoint.

Owns the events and the account of what is lost. Must never write: the repair adds all events at once.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from heapq import merge
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoints.manifest import digest
from holdfast.checkpoints.names import checkpoint_name
from holdfast.controller.evidence import Unknown
from holdfast.controller.lost_deletions import absent_checkpoints
from holdfast.controller.object_files import ObjectFiles
from holdfast.controller.opening import read_snapshot
from holdfast.controller.remains import Remains, gather, names_in
from holdfast.controller.report_facts import ReportFacts, facts_of
from holdfast.controller.spec import Spec
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State, Status, Stored, Trial
from holdfast.core.transitions import apply
from holdfast.display.words import plural
from holdfast.errors import JournalDamagedError
from holdfast.journal.reach import REPAIRING
from holdfast.journal.records import read_events
from holdfast.space.naming import experiment_tag, trial_id
from holdfast.space.templates import exact_config
from holdfast.storage.layout import Root
from holdfast.views.results import OURS, ResultBuilder, RowFolder, is_number
from holdfast.views.trials import ExperimentInfo, trial_dirname

REASON = "the journal was repaired"
REBUILT = "rebuilt by holdfast repair"
DETAIL = f"{REBUILT}: the record of how this attempt ended is lost"
MAX_NAMES = 3
_CLOSE = 1e-6


class Rebuilt(msgspec.Struct):
    """What could be rebuilt.

    Attributes:
        events: To be added to the journal, in order.
        trials: How many trials were created anew.
        rows: How many results were.
        checkpoints: How many checkpoints the journal knows again.
        lost: What is lost for all that is known, in sentences.
    """

    events: list[ev.AnyEvent] = []
    trials: int = 0
    rows: int = 0
    checkpoints: int = 0
    lost: list[str] = []

    def payloads(self) -> list[bytes]:
        """The events as records."""
        return [ev.encode(event) for event in self.events]


def rebuild(root: Path, spec: Spec, info: ExperimentInfo, epoch: int) -> Rebuilt:
    """Work out what the journal at ``root`` lacks of what the files there tell.

    Args:
        root: The experiment's root; its journal ends before all damage.
        spec: Its facts.
        info: The same for views.
        epoch: Of the repair.
    """
    return _Rebuilding(root, spec, info, epoch).run()


class _Rebuilding:
    def __init__(self, root: Path, spec: Spec, info: ExperimentInfo, epoch: int) -> None:
        self._root = root
        self._spec = spec
        self._info = info
        self._epoch = epoch
        self._retention: Retention = spec.retention
        self._state, self._rows = _fold(root, spec, ResultBuilder(info))
        self._snapshot = read_snapshot(root, spec.retention)
        self._remains = gather(root)
        self._start = max(self._state.last_at, spec.created_at)
        self._learns = self._state.asks > 0 or not self._state.trials
        self._head: list[ev.AnyEvent] = []
        self._unsure: dict[str, set[str]] = {}  # parameters whose types may differ now, and of which trials
        self._left: dict[int, set[int]] = {}  # checkpoints of steps that a trial has repeated since
        self._out = Rebuilt()

    def run(self) -> Rebuilt:
        begin = ev.EpochStarted(self._start, self._epoch, "", platform.node(), os.getpid(), self._digests())
        self._tell(self._head, begin)
        lists = [self._head]
        self._create_missing()
        for trial in list(self._state.trials):
            lists.append(self._retell(trial))
        events = list(merge(*lists, key=lambda event: event.at))
        snapshot = self._snapshot
        end = max((event.at for event in events), default=self._start)
        self._tell_of_absent(events, end)
        if snapshot is not None and snapshot.search_ended and not self._state.search_ended:
            events.append(ev.SearchEnded(end, snapshot.search_ended))
        self._count_lost()
        events.append(ev.Noted(end, -1, f"{REASON}: {self._summary()}"))
        events.append(ev.DriverStopped(end, REASON))
        self._out.events = events
        return self._out

    def _digests(self) -> dict[str, str]:
        """What the stored objects must be, by whatever knows most; empty: as the journal still says."""
        state, snapshot = self._state, self._snapshot
        knows_most = snapshot if snapshot is not None and snapshot.epoch > state.epoch else state
        digests, unsure = ObjectFiles(Root(self._root), self._spec).digests_after_loss(knows_most)
        if unsure:
            self._out.lost.append(
                f"which objects the last driver ran with: {', '.join(unsure)} match their own checksums and are used, "
                f"but could not be compared with the journal (to be sure, pass the trainable and the search space to "
                f"Tuner.restore)"
            )
        return {} if digests == state.objects else digests

    def _summary(self) -> str:
        out = self._out
        told = f"{out.trials} trials, {out.rows} results and {out.checkpoints} checkpoints were recovered"
        return "; ".join([told, *out.lost])

    def _tell(self, events: list[ev.AnyEvent], event: ev.AnyEvent) -> None:
        apply(self._state, event, self._retention)
        events.append(event)

    # --- trials

    def _create_missing(self) -> None:
        state, snapshot = self._state, self._snapshot
        known = {} if snapshot is None else {trial.id: trial for trial in snapshot.trials}
        ids = [*known, *self._remains]
        prefix = next((each.rpartition("_")[0] for each in [*state.by_id, *ids]), self._spec.uid[:5])
        numbers = [int(each.rpartition("_")[2]) for each in ids if each.startswith(f"{prefix}_")]
        for n in range(len(state.trials), max(numbers, default=-1) + 1):
            identity = trial_id(prefix, n)
            self._create(n, identity, known.get(identity), self._remains.get(identity))

    def _create(self, n: int, identity: str, known: Trial | None, remains: Remains | None) -> None:
        at, events = self._start, self._head
        if self._learns and self._state.asks <= n:
            self._tell(events, ev.SearchAsked(at, n + 1 - self._state.asks))
        self._out.trials += 1
        if known is not None:
            folder = trial_dirname(self._info, known)
            created = ev.TrialCreated(
                at, n, identity, known.config, known.tag, known.params, known.mark, known.request, known.name, folder
            )
            self._tell(events, created)
            return
        if remains is None or remains.config is None:
            folder = "" if remains is None else remains.folder
            self._tell(events, ev.TrialCreated(at, n, identity, {}, experiment_tag(n, {}), dirname=folder))
            self._out.lost.append(f"the parameters of trial {identity}, unless the search chooses them again")
            return
        tag = str(remains.rows[-1].get("experiment_tag", "")) if remains.rows else ""
        params = tuple(key for key in remains.config if f"{key}=" in tag)
        config = self._exact(identity, remains.config)
        self._tell(
            events,
            ev.TrialCreated(at, n, identity, config, tag or experiment_tag(n, {}), params, dirname=remains.folder),
        )

    def _exact(self, identity: str, config: dict[str, Any]) -> dict[str, Any]:
        """A config that a file shows as JSON, with the types that its values had."""
        try:
            exact, unsure = exact_config(self._spec.template, config)
        except RecursionError:
            self._out.lost.append(f"the parameters of trial {identity}: no file holds any that a trial can have")
            return {}
        for name in unsure:
            self._unsure.setdefault(name, set()).add(identity)
        return exact

    # --- one trial

    def _retell(self, trial: Trial) -> list[ev.AnyEvent]:
        """Add what the files tell of a trial and the journal does not; the events, in order of time."""
        events: list[ev.AnyEvent] = []
        known = self._snapshot_of(trial)
        remains = self._remains.get(trial.id)
        rows = [] if remains is None else list(remains.rows)
        if known is not None and known.rows > len(rows) and known.metrics is not None:
            rows.append(_last_row(known))
        if remains is not None:
            self._commit_staged(trial, events, remains)
            rows = self._with_checkpointed(trial, rows, remains)
        same = _common(self._rows.get(trial.n, []), rows)
        fresh = {} if remains is None else {i: c for i, c in remains.checkpoints.items() if i >= trial.next_index}
        if len(rows) > same and (same == trial.rows or _time_of(rows[-1]) >= int(trial.last_at)):
            self._begin(trial, events, same, fresh)
            self._add_rows(trial, events, rows, same, fresh, known)
        for index in sorted(fresh):
            self._add_checkpoint(trial, events, fresh[index])
        if events:
            self._end(trial, events, known)
        return events

    def _snapshot_of(self, trial: Trial) -> Trial | None:
        """The trial as the snapshot knows it."""
        n = None if self._snapshot is None else self._snapshot.by_id.get(trial.id)
        return None if self._snapshot is None or n is None else self._snapshot.trials[n]

    def _commit_staged(self, trial: Trial, events: list[ev.AnyEvent], remains: Remains) -> None:
        """Add the commits of checkpoints that the journal knows as staged, and that are there."""
        for index, found in sorted(remains.checkpoints.items()):
            record, manifest = trial.find(index), found.manifest
            if record is None or record.stored != Stored.STAGED:
                continue
            if (record.sealed, record.attempt) == (manifest.stage, manifest.attempt):
                committed = ev.CheckpointCommitted(self._start, trial.n, index, digest(manifest), manifest.total)
                self._tell(events, committed)
                self._out.checkpoints += 1

    def _tell_of_absent(self, events: list[ev.AnyEvent], at: float) -> None:
        """Record which checkpoints were deleted, and say which are missing; after all that is there was added."""
        for trial in self._state.trials:
            remains = self._remains.get(trial.id)
            absent = absent_checkpoints(
                self._state,
                trial,
                self._retention,
                names_in(self._root, trial_dirname(self._info, trial)) if remains is None else remains.folders,
                snapshot=self._snapshot_of(trial),
                left=self._left.get(trial.n, ()),
            )
            if absent.deleted:
                self._tell(events, ev.CheckpointsDropped(at, trial.n, absent.deleted, REBUILT))
                self._tell(events, ev.CheckpointsDeleted(at, trial.n, absent.deleted))
            if absent.missing:
                names = ", ".join(map(checkpoint_name, absent.missing[:MAX_NAMES]))
                more = ", ..." if len(absent.missing) > MAX_NAMES else ""
                count = plural(len(absent.missing), "checkpoint")
                self._out.lost.append(f"{count} of trial {trial.id} that should be there ({names}{more})")

    def _with_checkpointed(self, trial: Trial, rows: list[dict[str, Any]], remains: Remains) -> list[dict[str, Any]]:
        """Add rows that only checkpoints tell of; what lies between is lost."""
        rows = rows or self._rows.get(trial.n, [])
        last = max((row["training_iteration"] for row in rows if _is_count(row.get("training_iteration"))), default=0)
        extra: list[dict[str, Any]] = []
        for index, found in sorted(remains.checkpoints.items()):
            facts = facts_of(found.manifest)
            if facts is not None and facts.iteration > last and index >= trial.next_index:
                extra.append(_checkpointed_row(trial, facts, index))
                last = facts.iteration
        if extra and (lost := last - len(rows) - len(extra)) > 0:
            self._out.lost.append(f"up to {lost} results of trial {trial.id}")
        return [*rows, *extra]

    def _begin(self, trial: Trial, events: list[ev.AnyEvent], rows: int, fresh: dict[int, Unknown]) -> None:
        """Let the trial be running, with so many rows."""
        newest = max((each.manifest.attempt for each in fresh.values()), default=0)
        if trial.status == Status.RUNNING and trial.rows == rows and newest <= trial.attempt:
            return
        at, n = self._start, trial.n
        if trial.status == Status.RUNNING:
            self._tell(events, ev.AttemptInterrupted(at, n, trial.attempt, ev.Cause.DRIVER_LOST, DETAIL))
        elif trial.status == Status.PAUSED:
            self._tell(events, ev.TrialResumed(at, n, REBUILT))
        elif trial.final:
            self._tell(events, ev.TrialRequeued(at, n, "resume", REBUILT))
        self._left[n] = {each.index for each in trial.checkpoints if each.row > rows}
        own = next((each for each in reversed(trial.committed()) if each.row == rows), None)
        source = None if own is None else (n, own.index)
        self._tell(events, ev.TrialStarted(at, n, max(trial.attempt + 1, newest), rows, source))

    def _add_rows(
        self,
        trial: Trial,
        events: list[ev.AnyEvent],
        rows: list[dict[str, Any]],
        same: int,
        fresh: dict[int, Unknown],
        known: Trial | None,
    ) -> None:
        at_row = _rows_of_checkpoints(rows, fresh, known)
        for index in sorted(index for index, place in at_row.items() if place <= same):
            self._add_checkpoint(trial, events, fresh.pop(index))
        for number, row in enumerate(rows[same:], start=same + 1):
            before = rows[number - 2].get("config") if number >= 2 else row.get("config")
            config = row.get("config")
            if isinstance(config, dict) and isinstance(before, dict) and before != config:
                tag = str(row.get("experiment_tag", "")) or trial.tag
                config = self._exact(trial.id, config)
                changed = ev.TrialReconfigured(self._time(events, row), trial.n, config, tag, why=REBUILT)
                self._tell(events, changed)
            self._tell(events, self._report(trial, events, row))
            self._out.rows += 1
            for index in sorted(index for index, place in at_row.items() if place == number):
                self._add_checkpoint(trial, events, fresh.pop(index))

    def _time(self, events: list[ev.AnyEvent], row: dict[str, Any]) -> float:
        return max(events[-1].at if events else self._start, _time_of(row))

    def _report(self, trial: Trial, events: list[ev.AnyEvent], row: dict[str, Any]) -> ev.Reported:
        at = self._time(events, row)
        dt, metrics = as_reported(trial, row, at)
        worker = self._worker(row)
        verdict, why = ("stop", "it was done") if row.get("done") is True else ("", "")
        return ev.Reported(at, trial.n, trial.attempt, worker, dt, metrics, verdict, why)

    def _worker(self, row: dict[str, Any]) -> int:
        """The number of the worker that reported a row; a new one if the journal does not know it."""
        pid = row.get("pid")
        place = (str(row.get("hostname", "")), str(row.get("node_ip", "")), pid if isinstance(pid, int) else 0)
        for number, facts in self._state.workers.items():
            if (facts.host, facts.ip, facts.pid) == place:
                return number
        number = max(self._state.workers, default=0) + 1
        self._tell(self._head, ev.WorkerJoined(self._start, number, *place))
        return number

    def _add_checkpoint(self, trial: Trial, events: list[ev.AnyEvent], found: Unknown) -> None:
        manifest = found.manifest
        at = max(events[-1].at if events else self._start, self._start)
        staged = ev.CheckpointStaged(
            at, trial.n, manifest.attempt, manifest.index, manifest.stage, manifest.total, len(manifest.files)
        )
        self._tell(events, staged)
        self._tell(events, ev.CheckpointCommitted(at, trial.n, manifest.index, digest(manifest), manifest.total))
        self._out.checkpoints += 1

    def _end(self, trial: Trial, events: list[ev.AnyEvent], known: Trial | None) -> None:
        """Let the trial end as it is known to have ended; if that is not known, it continues later."""
        at, n = events[-1].at, trial.n
        if trial.final:
            return
        if known is not None and known.final and known.rows >= trial.rows:
            if known.status == Status.TERMINATED:
                self._tell(events, ev.TrialTerminated(at, n, trial.attempt, known.reason))
            elif known.error is not None:
                self._tell(events, ev.TrialErrored(at, n, trial.attempt, known.cause, known.error))
        elif trial.status == Status.RUNNING and trial.verdict == "stop":
            self._tell(events, ev.TrialTerminated(at, n, trial.attempt, "it was done"))
        if trial.status == Status.RUNNING:
            self._tell(events, ev.AttemptInterrupted(at, n, trial.attempt, ev.Cause.DRIVER_LOST, DETAIL))

    def _count_lost(self) -> None:
        if self._unsure:
            count = plural(len(set().union(*self._unsure.values())), "trial")
            names = ", ".join(sorted(self._unsure)[:MAX_NAMES]) + (", ..." if len(self._unsure) > MAX_NAMES else "")
            self._out.lost.append(
                f"the types of some parameters of {count} ({names}): they are as JSON shows them in result files, so "
                f"that tuples may be lists now, and objects text"
            )
        unended = sum(1 for trial in self._state.trials if not trial.final and trial.rows)
        if unended:
            self._out.lost.append(
                f"how {unended} trials with results ended: they resume from their newest checkpoints, or from the "
                f"beginning if they have none"
            )


def _fold(root: Path, spec: Spec, builder: ResultBuilder) -> tuple[State, dict[int, list[dict[str, Any]]]]:
    """What the journal still tells: the state, and the rows of all trials."""
    state, folder = State(), RowFolder(builder)
    for event in _events(root):
        folder.feed(state, event)
        apply(state, event, spec.retention)
    return state, folder.rows


def _events(root: Path) -> Iterator[ev.AnyEvent]:
    try:
        yield from read_events(root)
    except JournalDamagedError as error:
        if not error.file.endswith(REPAIRING):  # that we are at it is no damage
            raise


def _common(told: list[dict[str, Any]], rows: list[dict[str, Any]]) -> int:
    """How many rows at the start are the same."""
    count = 0
    for one, other in zip(told, rows, strict=False):
        if one.get("training_iteration") != other.get("training_iteration"):
            break
        mine, theirs = one.get("time_total_s"), other.get("time_total_s")
        if isinstance(mine, int | float) and isinstance(theirs, int | float):
            if abs(mine - theirs) > _CLOSE * max(1.0, abs(mine)):
                break
        count += 1
    return count


def _rows_of_checkpoints(rows: list[dict[str, Any]], fresh: dict[int, Unknown], known: Trial | None) -> dict[int, int]:
    """With which row each checkpoint came: by the row, by the snapshot, or by the time at which it was committed."""
    places: dict[int, int] = {}
    for number, row in enumerate(rows, start=1):
        name = row.get("checkpoint_dir_name")
        if isinstance(name, str) and name.startswith("checkpoint_") and name[11:].isdecimal():
            places[int(name[11:])] = number
    records = {} if known is None else {record.index: record.row for record in known.checkpoints}
    for index, found in fresh.items():
        if index not in places and index in records:
            places[index] = records[index]
        elif index not in places:
            done = [n for n, row in enumerate(rows, start=1) if _time_of(row) <= found.written_at]
            places[index] = done[-1] if done else 0
    return {index: places[index] for index in fresh}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _checkpointed_row(trial: Trial, facts: ReportFacts, index: int) -> dict[str, Any]:
    """A row as the manifest of its checkpoint tells it."""
    return {
        **facts.metrics,
        "training_iteration": facts.iteration,
        "time_total_s": facts.time_total_s,
        "timestamp": int(facts.at),
        "trial_id": trial.id,
        "checkpoint_dir_name": checkpoint_name(index),
    }


def _time_of(row: dict[str, Any]) -> float:
    told = row.get("timestamp")
    return float(told) if isinstance(told, int | float) else 0.0


def _last_row(known: Trial) -> dict[str, Any]:
    """The last row of a trial as far as a snapshot tells it."""
    return {
        **(known.metrics or {}),
        "training_iteration": known.iteration,
        "time_total_s": known.time_total,
        "time_this_iter_s": known.dt,
        "timestamp": int(known.last_at),
        "trial_id": known.id,
    }


def as_reported(trial: Trial, row: dict[str, Any], at: float) -> tuple[float, dict[str, Any]]:
    """The seconds and the metrics of the report that a row of a result file was made from.

    A fold adds times, iteration and timestamp to each report, so they are left out where it would add the same. The
    total decides about the seconds, because a fold sums them: where the row's step disagrees, that is kept as a metric.

    Args:
        trial: As it was before the report.
        row: The row.
        at: The time that the event will have.
    """
    metrics = {str(key): value for key, value in row.items() if key not in OURS}
    step, total = metrics.pop("time_this_iter_s", None), row.get("time_total_s")
    dt = float(step) if is_number(step) else 0.0
    if is_number(total) and abs(trial.time_total + dt - total) > _CLOSE * max(1.0, abs(total)):
        metrics["time_this_iter_s"] = dt
        dt = float(total) - trial.time_total
    if metrics.get("timestamp") == int(at):
        del metrics["timestamp"]
    if metrics.get("training_iteration") == trial.iteration + 1:
        del metrics["training_iteration"]
    return dt, encodable(metrics)


def encodable(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics that can be journaled: what JSON can say and a record cannot is kept as text."""
    try:
        msgspec.msgpack.encode(metrics)
        return metrics
    except (OverflowError, UnicodeEncodeError, TypeError):
        return {str(key): value if _fits(value) else ascii(value) for key, value in metrics.items()}


def _fits(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError, TypeError):
        return False
    return True
