"""``holdfast verify``: reads every byte of an experiment and names everything that is damaged. Never writes."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.callbacks.progress_words import plural
from holdfast.callbacks.trial_view import trial_dirname
from holdfast.checkpoints.names import checkpoint_name
from holdfast.checkpoints.reader import verify
from holdfast.cli.output import print_json, say, size_text
from holdfast.controller.opening import open_state
from holdfast.controller.spec import PRIVATE, Root, Spec, read_spec
from holdfast.core import events as ev
from holdfast.core.state import State, Status, Stored
from holdfast.core.transitions import apply
from holdfast.errors import (
    CheckpointDamagedError,
    DamageError,
    IllegalTransitionError,
    JournalDamagedError,
    StorageError,
)
from holdfast.journal.epoch import holder
from holdfast.journal.frames import decode_header, scan
from holdfast.journal.reader import read_journal
from holdfast.journal.repair import verify_journal
from holdfast.journal.snapshot import SnapshotStore
from holdfast.results.history import History, info_from, plain_path

SNAPSHOTS = f"{PRIVATE}/snapshots"


class Finding(msgspec.Struct):
    """Something noteworthy, and the file it is in, relative to the root."""

    level: Literal["damage", "note"]
    file: str
    message: str
    offset: int | None = None


class Report:
    """What was looked at and what was found."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.records = 0
        self.checkpoints = 0
        self.bytes = 0

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged."""
        return all(finding.level != "damage" for finding in self.findings)

    def damage(self, file: str, message: str) -> None:
        self.findings.append(Finding("damage", file, message))

    def note(self, file: str, message: str) -> None:
        self.findings.append(Finding("note", file, message))


def run(arguments: argparse.Namespace) -> int:
    """Check an experiment and print the findings."""
    report = verify_experiment(Root(plain_path(arguments.path)))
    if arguments.json:
        print_json(_as_data(report))
    else:
        say(*_lines(report))
    return 0 if report.whole else 1


def verify_experiment(root: Root) -> Report:
    """Check everything that belongs to an experiment; a live driver may go on writing meanwhile.

    Raises:
        ExperimentNotFoundError: There is none.
        NewerFormatError: It was written by a newer holdfast.
    """
    report = Report()
    spec = _check_spec(root, report)
    owner = holder(root.path)
    alive = owner is not None and owner.alive
    for found in verify_journal(root.path):
        report.findings.append(Finding(found.level, found.file, found.message, found.offset))
    state = _check_records(root, spec, report)
    _check_snapshots(root, spec, None if alive else state, report)
    _check_checkpoints(History(state, info_from(root, spec)), spec, alive, report)
    return report


def _check_spec(root: Root, report: Report) -> Spec:
    try:
        return read_spec(root)
    except DamageError as error:
        report.damage(f"{PRIVATE}/{root.spec_file.name}", str(error))
        # Enough to go on with: names of directories may be wrong, which shows as missing checkpoints.
        return Spec(uid="", name=root.path.name, trainable="", is_class=False, created_at=0.0, seed=0, num_samples=0)


def _check_records(root: Root, spec: Spec, report: Report) -> State:
    """Fold the journal as far as it can be read; what cannot be folded is damage that no checksum shows."""
    state = State()
    try:
        for seq, payload in read_journal(root.path):
            try:
                apply(state, ev.decode(payload), spec.retention)
            except (msgspec.DecodeError, IllegalTransitionError, IndexError) as error:
                report.damage(f"{PRIVATE}/journal", f"record {seq} does not fit the history before it: {error}")
                break
            report.records += 1
    except JournalDamagedError:
        pass  # verify_journal has named every damaged place
    return state


def _check_snapshots(root: Root, spec: Spec, state: State | None, report: Report) -> None:
    """Check the snapshots; ``state`` is what the whole journal says, None if it may have grown."""
    found = sorted((root.path / SNAPSHOTS).glob("*.hfs"), reverse=True)
    for file in found:
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            continue  # a live driver has replaced it by a newer one
        if not _is_whole_snapshot(data, file.stem):
            report.damage(f"{SNAPSHOTS}/{file.name}", "the snapshot is damaged; nothing is lost, opening takes longer")
    if not found or not report.whole:
        return
    quiet = logging.getLogger("holdfast.journal")
    quiet.addFilter(_nothing)  # it would say on stderr what the finding says
    try:
        snapshot = SnapshotStore(root.path).load()
    finally:
        quiet.removeFilter(_nothing)
    newest = f"{SNAPSHOTS}/{found[0].name}"
    if snapshot is None or snapshot.seq < int(found[0].stem):
        report.damage(newest, "the snapshot cannot be used: an archive that it names is damaged; nothing is lost")
    elif state is not None and not _same_trials(open_state(root.path, spec.retention).state, state):
        report.damage(newest, f"the snapshot contradicts the journal, which is right: delete {SNAPSHOTS}")


def _nothing(record: logging.LogRecord) -> bool:
    return False


def _is_whole_snapshot(data: bytes, name: str) -> bool:
    header = decode_header(data)
    if header is None or not name.isdecimal():
        return False
    body = scan(data, int(name), header.end)
    return len(body.payloads) == 1 and body.offset == len(data)


def _same_trials(one: State, other: State) -> bool:
    encode = msgspec.msgpack.encode
    return [encode(trial) for trial in one.trials] == [encode(trial) for trial in other.trials]


def _check_checkpoints(history: History, spec: Spec, alive: bool, report: Report) -> None:
    suspects: list[tuple[int, int, str, str]] = []
    for trial in history.state.trials:
        folder = trial_dirname(history.info, trial)
        for record in trial.checkpoints:
            where = f"{folder}/{checkpoint_name(record.index)}"
            if record.stored == Stored.COMMITTED:
                reason = _damage(history.root / where, record.digest, trial.id, report)
                if reason:
                    suspects.append((trial.n, record.index, where, reason))
            elif record.stored == Stored.BAD:
                report.note(where, f"rejected earlier and not used: {record.reason}")
            elif record.stored == Stored.STAGED and trial.status != Status.RUNNING:
                report.note(where, "written but not committed; the next driver finishes that or rejects it")
    if suspects and alive:
        # The driver may have deleted some while we read; the journal says so before a file goes.
        now = open_state(history.root, spec.retention).state
        suspects = [found for found in suspects if _is_committed(now, found[0], found[1])]
    for _, _, where, reason in suspects:
        report.damage(where, reason)


def _is_committed(state: State, n: int, index: int) -> bool:
    record = state.trials[n].find(index)
    return record is not None and record.stored == Stored.COMMITTED


def _damage(directory: Path, digest: str, trial_id: str, report: Report) -> str:
    """What is wrong with a checkpoint; "" if nothing is."""
    try:
        manifest = verify(directory, expect_digest=digest, trial_id=trial_id)
    except CheckpointDamagedError as error:
        return error.reason
    except StorageError as error:
        return f"cannot be read now: {error}"
    report.checkpoints += 1
    report.bytes += manifest.total
    return ""


def _as_data(report: Report) -> dict[str, Any]:
    return {
        "whole": report.whole,
        "records": report.records,
        "checkpoints": report.checkpoints,
        "bytes": report.bytes,
        "findings": report.findings,
    }


def _lines(report: Report) -> list[str]:
    lines = []
    for finding in report.findings:
        place = "" if finding.offset is None else f" at byte {finding.offset}"
        lines.append(f"{finding.level}: {finding.file}{place}: {finding.message}")
    saved = f"{plural(report.checkpoints, 'checkpoint')} ({size_text(report.bytes)})"
    seen = f"{plural(report.records, 'record')} and {saved}"
    if report.whole:
        return [*lines, f"whole: {seen} are as they were written"]
    count = sum(finding.level == "damage" for finding in report.findings)
    return [*lines, f"DAMAGED: {plural(count, 'damaged place')}; {seen} are as they were written. Nothing was changed."]
