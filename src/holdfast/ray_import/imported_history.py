"""An experiment of Ray Tune as holdfast's events: trials, attempts, results and checkpoints, with their true times.

Every event is folded as it is made, so what no driver could have written fails at once. A row whose iteration is not
above the one before begins a new attempt, and the rows that it repeats are superseded (I6).

Owns the events, and copying checkpoints and other files of trials to the new root. Must never write below the source.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from heapq import merge
from pathlib import Path
from typing import Any

import msgspec

from holdfast.callbacks.result_files import is_of_trial
from holdfast.checkpoints.commit import commit
from holdfast.checkpoints.names import MANIFEST, index_of
from holdfast.checkpoints.stage import Stage
from holdfast.checkpoints.tree import remove_tree
from holdfast.controller.imported import MARK, NO_SPACE
from holdfast.controller.rebuild import as_reported
from holdfast.controller.report_facts import report_facts
from holdfast.core import events as ev
from holdfast.core.observations import SealedStage
from holdfast.core.retention import Retention
from holdfast.core.state import State, Stored, Trial
from holdfast.core.transitions import apply
from holdfast.errors import DamageError, InvalidInputError
from holdfast.journal.claims import Claim
from holdfast.ray_import.configs import of_row
from holdfast.ray_import.facts import FINAL, KnownCheckpoint, RayExperiment, RayTrial, iteration_of, time_of
from holdfast.ray_import.reading import describe
from holdfast.storage.untrusted import copy_regular, odd_entries
from holdfast.trainable.class_checkpoint import COUNTERS_FILE, Counters
from holdfast.views.trials import ExperimentInfo, trial_dirname

IMPORTED = "imported from Ray Tune"


class ImportCounts(msgspec.Struct):
    """What was taken over."""

    trials: int = 0
    rows: int = 0
    superseded: int = 0
    checkpoints: int = 0
    bytes: int = 0
    files: int = 0


class ImportedHistory:
    """Makes the events of one import.

    Args:
        source: What was read.
        root: Where the new experiment is being written.
        info: Its facts.
        retention: Its rule for checkpoints.
        claim: Of its one writer.
    """

    def __init__(
        self, source: RayExperiment, root: Path, info: ExperimentInfo, retention: Retention, claim: Claim
    ) -> None:
        self._source = source
        self._from = Path(source.path)
        self._root = root
        self._info = info
        self._retention = retention
        self._claim = claim
        self._state = State()
        self._head: list[ev.AnyEvent] = []
        self._numbers = {trial.folder: n for n, trial in enumerate(source.trials) if trial.folder}
        self._surviving: dict[int, list[int]] = {}  # of each trial, the iterations of its surviving rows
        self._workers: dict[tuple[str, str, int], int] = {}
        self.copied = ImportCounts(trials=len(source.trials))

    def events(self) -> list[ev.AnyEvent]:
        """Everything that happened, in order of time. Copies checkpoints on the way."""
        source, claim = self._source, self._claim
        start = self._start = _first_time(source)
        self._tell(self._head, ev.EpochStarted(start, claim.epoch, claim.writer, claim.host, claim.pid))
        for n, trial in enumerate(source.trials):
            self._create(n, trial)
        told = [self._retell(n, trial) for n, trial in enumerate(source.trials)]
        events = list(merge(self._head, *told, key=lambda event: event.at))
        end = events[-1].at
        # Only now: these may name any checkpoint of any trial.
        for n, trial in enumerate(source.trials):
            if trial.status not in FINAL:
                self._interrupt(events, end, n, trial)
        if source.space_keys != []:
            events.append(ev.SearchEnded(end, NO_SPACE))
        events += [ev.Noted(end, -1, note) for note in source.notes]
        events.append(ev.DriverStopped(end, IMPORTED))
        return events

    def _tell(self, events: list[ev.AnyEvent], event: ev.AnyEvent) -> None:
        apply(self._state, event, self._retention)
        events.append(event)

    def _create(self, n: int, source: RayTrial) -> None:
        config = of_row(source.config, source.rows[0].get("config")) if source.rows else source.config
        created = ev.TrialCreated(
            self._start,
            n,
            source.id,
            config,
            source.tag.partition("@perturbed")[0] or str(n),
            source.params,
            MARK,
            source.request,
            source.name,
            source.dirname,
        )
        self._tell(self._head, created)

    # --- one trial

    def _retell(self, n: int, source: RayTrial) -> list[ev.AnyEvent]:
        events: list[ev.AnyEvent] = []
        trial = self._state.trials[n]
        if source.rows or source.status in ("RUNNING", "ERROR", "TERMINATED"):
            first = time_of(source.rows[0]) if source.rows else source.started_at
            begun = min(source.started_at, first) if source.started_at and first else source.started_at or first
            self._tell(events, ev.TrialStarted(max(begun, self._start), n, 1))
        self._copy_others(source, trial)
        places = self._places(source)
        before: dict[str, Any] | None = None
        for number, row in enumerate(source.rows):
            if before is not None and _begins_anew(before, row):
                self._begin_again(trial, source, events, before, row)
            self._tell(events, self._report(trial, events, row, source, last=number == len(source.rows) - 1))
            for name in places.get(number, ()):
                self._add_checkpoint(trial, source, events, name)
            before = row
        self.copied.rows += trial.rows
        self.copied.superseded += len(source.rows) - trial.rows
        if source.status in FINAL:
            self._end(events, trial, source)
        return events

    def _begin_again(
        self, trial: Trial, source: RayTrial, events: list[ev.AnyEvent], before: dict[str, Any], row: dict[str, Any]
    ) -> None:
        """A row of a new attempt: after a failure, after an interruption, or with what another trial had learnt."""
        at, n = self._time(events, row), trial.n
        config = of_row(source.config, row.get("config"))
        told = trial.total_failures
        exploits = config != of_row(source.config, before.get("config"))
        if exploits:
            self._tell(events, ev.TrialPaused(at, n, trial.attempt))
            self._tell(events, ev.TrialReconfigured(at, n, config, source.tag))
            self._tell(events, ev.TrialResumed(at, n))
        elif told < source.num_failures - (source.status == "ERROR"):
            error = source.failures[told] if told < len(source.failures) else ev.ErrorFacts()
            self._tell(events, ev.AttemptFailed(at, n, trial.attempt, ev.Cause.EXCEPTION, error))
        else:
            detail = "Ray Tune has started it again"
            self._tell(events, ev.AttemptInterrupted(at, n, trial.attempt, ev.Cause.PREEMPTED, detail))
        iteration = iteration_of(row)
        kept = sum(1 for each in self._surviving[n] if each < iteration)
        del self._surviving[n][kept:]
        own = next((record for record in reversed(trial.committed()) if record.row == kept), None)
        source_of = None if own is None or not kept or exploits else (n, own.index)
        self._tell(events, ev.TrialStarted(at, n, trial.attempt + 1, kept, source_of))

    def _time(self, events: list[ev.AnyEvent], row: dict[str, Any]) -> float:
        return max(events[-1].at if events else self._start, time_of(row))

    def _report(
        self, trial: Trial, events: list[ev.AnyEvent], row: dict[str, Any], source: RayTrial, *, last: bool
    ) -> ev.Reported:
        at = self._time(events, row)
        dt, metrics = as_reported(trial, row, at)
        self._surviving.setdefault(trial.n, []).append(iteration_of(row))
        done = last and row.get("done") is True and source.status == "TERMINATED"
        verdict, why = ("stop", "done") if done else ("", "")
        return ev.Reported(at, trial.n, trial.attempt, self._worker(row), dt, metrics, verdict, why)

    def _worker(self, row: dict[str, Any]) -> int:
        pid = row.get("pid")
        number = pid if type(pid) is int and 0 <= pid < 1 << 32 else 0
        place = (str(row.get("hostname", "")), str(row.get("node_ip", "")), number)
        known = self._workers
        if place not in known:
            known[place] = self._claim.epoch * 100 + 1 + len(known)
            self._tell(self._head, ev.WorkerJoined(self._start, known[place], *place))
        return known[place]

    # --- its end

    def _end(self, events: list[ev.AnyEvent], trial: Trial, source: RayTrial) -> None:
        n, at = trial.n, max(events[-1].at, source.ended_at)
        if source.config != trial.config:  # it was to continue with another, and had ended by then
            self._tell(events, ev.TrialReconfigured(at, n, source.config, source.tag))
        if source.status == "TERMINATED":
            self._tell(events, ev.TrialTerminated(at, n, trial.attempt, trial.why or "it was done"))
            return
        error = source.failures[-1] if source.failures else ev.ErrorFacts(message="Ray Tune gives no reason")
        self._tell(events, ev.TrialErrored(at, n, trial.attempt, ev.Cause.EXCEPTION, error))

    def _interrupt(self, events: list[ev.AnyEvent], at: float, n: int, source: RayTrial) -> None:
        """Let a trial that had not ended continue, with the config and checkpoint that it was to continue with."""
        trial, donor = self._state.trials[n], self._donor(source)
        if source.config != trial.config or donor is not None:
            self._tell(events, ev.TrialReconfigured(at, n, source.config, source.tag, donor))
        if n in self._state.running:
            detail = "the driver of Ray Tune has ended"
            self._tell(events, ev.AttemptInterrupted(at, n, trial.attempt, ev.Cause.DRIVER_LOST, detail))

    def _donor(self, source: RayTrial) -> tuple[int, int] | None:
        """Another trial's checkpoint that this one would continue from."""
        latest = source.latest
        if latest is None or latest.folder == source.folder or latest.folder not in self._numbers:
            return None
        other, index = self._numbers[latest.folder], index_of(latest.name)
        record = None if index is None else self._state.trials[other].find(index)
        if record is None or record.stored != Stored.COMMITTED:
            self._source.notes.append(
                f"trial {source.id} was about to continue from {latest.folder}/{latest.name}, which is "
                f"{describe(self._from / latest.folder / latest.name)}: it resumes from its own latest checkpoint"
            )
            return None
        return other, record.index

    # --- checkpoints

    def _places(self, source: RayTrial) -> dict[int, list[str]]:
        """The names of checkpoints by the number of the row that each came with."""
        rows, place_of = source.rows, dict[str, int]()
        for number, row in enumerate(rows):
            name = row.get("checkpoint_dir_name")
            if isinstance(name, str):
                place_of[name] = number  # a later row has replaced an earlier checkpoint of that name
        numbers = {iteration_of(row): number for number, row in enumerate(rows)}
        for saved in source.saved or ():
            if saved.folder == source.folder and saved.iteration in numbers:
                place_of.setdefault(saved.name, numbers[saved.iteration])
        present = self._present(source)
        if self._source.is_class:
            for name in present:
                if name not in place_of and rows:
                    place_of[name] = _row_at(rows, os.stat(self._from / source.folder / name).st_mtime)
        self._note_missing(source, place_of, present)
        found: dict[int, list[str]] = {}
        for name in sorted(present, key=lambda each: index_of(each) or 0):
            if name in place_of:
                found.setdefault(place_of[name], []).append(name)
        return found

    def _present(self, source: RayTrial) -> set[str]:
        if not source.folder:
            return set()
        with os.scandir(self._from / source.folder) as entries:
            return {entry.name for entry in entries if index_of(entry.name) is not None and _is_plain(entry)}

    def _note_missing(self, source: RayTrial, place_of: dict[str, int], present: set[str]) -> None:
        """Checkpoints that ought to be there; what the rule for keeping them had deleted is not missing."""
        wanted: list[KnownCheckpoint] = list(source.saved or ())
        if source.latest is not None:
            wanted.append(source.latest)
        if source.saved is None and place_of:
            newest = max(place_of, key=lambda name: place_of[name])
            wanted.append(KnownCheckpoint(source.folder, newest))
        missing = sorted({saved.name for saved in wanted if saved.folder == source.folder} - present)
        left = sorted(each for each in present if each in place_of)
        if self._retention.num_to_keep is not None and left:  # older ones were deleted after the state was written
            missing = [name for name in missing if (index_of(name) or 0) > (index_of(left[-1]) or 0)]
        for name in missing:
            way = (
                f"the one before it is {left[-1]}"
                if left
                else "it has no other, and starts from scratch if it is resumed"
            )
            what = describe(self._from / source.folder / name)
            self._source.notes.append(f"checkpoint {source.folder}/{name} is {what}: {way}")
        for name in sorted(present - place_of.keys()):
            self._source.notes.append(f"checkpoint {source.folder}/{name} is left out: no result says when it was made")

    def _add_checkpoint(self, trial: Trial, source: RayTrial, events: list[ev.AnyEvent], name: str) -> None:
        index = max(index_of(name) or 0, trial.next_index)
        target = self._root / trial_dirname(self._info, trial)
        stage = Stage(target, trial.id, trial.attempt)
        made = stage.new_directory()
        try:
            sealed = self._stage(stage, made, self._from / source.folder / name, trial)
        except (DamageError, InvalidInputError) as error:  # not one that this machine's disk is the cause of
            self._source.notes.append(f"checkpoint {source.folder}/{name} is not imported: {error}")
            remove_tree(str(made))
            return
        at = events[-1].at
        staged = ev.CheckpointStaged(at, trial.n, trial.attempt, index, sealed.name, sealed.bytes, sealed.files)
        self._tell(events, staged)
        record = trial.find(index)
        assert record is not None
        facts = report_facts(record)
        done = commit(target, sealed.name, index, trial_id=trial.id, attempt=trial.attempt, metadata=facts, sync=False)
        self._tell(events, ev.CheckpointCommitted(at, trial.n, index, done.digest, done.bytes))
        self.copied.checkpoints += 1
        self.copied.bytes += done.bytes

    def _stage(self, stage: Stage, made: Path, directory: Path, trial: Trial) -> SealedStage:
        """Copy a checkpoint's files, and for a class what the trial had counted by then."""
        odd = next(odd_entries(directory), None)
        if odd is not None:
            raise DamageError(f"{os.path.relpath(odd, self._from)} is {describe(Path(odd))}")
        self.copied.files += _copy_tree(directory, made)
        if (made / MANIFEST).exists():
            raise DamageError(f"it holds a file {MANIFEST}, a name that holdfast needs for its own")
        if self._source.is_class and not (made / COUNTERS_FILE).exists():
            counters = Counters(trial.iteration, trial.time_total, trial.timesteps_total, trial.episodes_total)
            (made / COUNTERS_FILE).write_bytes(msgspec.json.encode(counters))
        return stage.seal(made)

    def _copy_others(self, source: RayTrial, trial: Trial) -> None:
        """Copy what else lies in the trial's directory, except for files that are written anew from the results."""
        if not source.folder:
            return
        target = self._root / trial_dirname(self._info, trial)
        with os.scandir(self._from / source.folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            if index_of(entry.name) is not None or is_of_trial(entry.name) or entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                self.copied.files += _copy_tree(Path(entry.path), target / entry.name)
            elif entry.is_file(follow_symlinks=False):
                target.mkdir(parents=True, exist_ok=True)
                copy_regular(entry.path, target / entry.name)
                self.copied.files += 1


def _is_plain(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _copy_tree(source: Path, target: Path) -> int:
    """Copy a directory's regular files; links are left out, never followed."""
    count = 0
    target.mkdir(parents=True, exist_ok=True)
    for parent, file in _files(source):
        place = target / parent
        place.mkdir(parents=True, exist_ok=True)
        if file:
            copy_regular(source / parent / file, place / file)
            count += 1
    return count


def _files(top: Path) -> Iterator[tuple[str, str]]:
    """(directory relative to ``top``, file) of every regular file; "" for the file of an empty directory."""
    for parent, _, files in os.walk(top):
        where = os.path.relpath(parent, top)
        yield where, ""
        for file in files:
            if not os.path.islink(os.path.join(parent, file)) and os.path.isfile(os.path.join(parent, file)):
                yield where, file


def _begins_anew(before: dict[str, Any], row: dict[str, Any]) -> bool:
    return iteration_of(row) <= iteration_of(before) or row.get("iterations_since_restore") == 1


def _row_at(rows: list[dict[str, Any]], moment: float) -> int:
    """The last row that was reported by then."""
    done = [number for number, row in enumerate(rows) if time_of(row) <= moment]
    return done[-1] if done else 0


def _first_time(source: RayExperiment) -> float:
    times = [source.started_at, *(trial.started_at for trial in source.trials)]
    times += [time_of(trial.rows[0]) for trial in source.trials if trial.rows]
    return min((at for at in times if at > 0), default=0.0)
