"""``holdfast verify``: reads every byte of an experiment and names everything that is damaged. Never writes."""

from __future__ import annotations

import argparse
import logging
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.callbacks.progress_words import plural
from holdfast.callbacks.trial_view import trial_dirname
from holdfast.checkpoints.names import checkpoint_name
from holdfast.checkpoints.reader import quick_check, verify
from holdfast.cli.output import print_json, say, size_text
from holdfast.controller.opening import open_state
from holdfast.controller.remote import remote_of
from holdfast.controller.spec import PRIVATE, Root, Spec, read_spec
from holdfast.core import events as ev
from holdfast.core.state import State, Status, Stored, Trial
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
from holdfast.results.history import History, info_from
from holdfast.storage.address import parse

SNAPSHOTS = f"{PRIVATE}/snapshots"


class Finding(msgspec.Struct):
    """Something noteworthy, and the file it is in, relative to the root."""

    level: Literal["damage", "lost", "note"]
    """``lost`` is a trial that has saved checkpoints and has no good one left."""

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
        """Whether nothing is damaged, and no trial has lost all that it had saved."""
        return all(finding.level == "note" for finding in self.findings)

    def count(self, level: str) -> int:
        """How many findings there are of this kind."""
        return sum(finding.level == level for finding in self.findings)

    def damage(self, file: str, message: str) -> None:
        self.findings.append(Finding("damage", file, message))

    def lost(self, file: str, message: str) -> None:
        self.findings.append(Finding("lost", file, message))

    def note(self, file: str, message: str) -> None:
        self.findings.append(Finding("note", file, message))


class Checked(NamedTuple):
    """A checkpoint that was looked at: how large it is, or which file of it is damaged and why."""

    bytes: int
    file: str = ""
    reason: str = ""


Check: TypeAlias = Callable[[str, str, str], Checked]
"""Looks at the checkpoint in a directory below the root, given the digest and the trial that it should have."""


def run(arguments: argparse.Namespace) -> int:
    """Check an experiment and print the findings."""
    report = verify_path(arguments.path, quick=arguments.quick)
    if arguments.json:
        print_json(_as_data(report))
    else:
        say(*_lines(report, quick=arguments.quick))
    return 0 if report.whole else 1


def verify_path(path: str, *, quick: bool = False) -> Report:
    """Check the experiment at a path or a URI; raises as ``verify_experiment`` does."""
    remote = remote_of(path)
    if remote is None:
        return verify_experiment(Root(parse(path).path), quick=quick)
    from holdfast.cli.verify_store import verify_stored

    return verify_stored(remote, quick=quick)


def verify_experiment(root: Root, *, quick: bool = False) -> Report:
    """Check everything that belongs to an experiment; a live driver may go on writing meanwhile.

    Args:
        root: The experiment.
        quick: Of checkpoints, compare names and sizes only.

    Raises:
        ExperimentNotFoundError: There is none.
        NewerFormatError: It was written by a newer holdfast.
    """
    report = Report()
    owner = holder(root.path)

    def check(where: str, digest: str, trial_id: str) -> Checked:
        return _check_local(root.path / where, where, digest, trial_id, quick)

    alive = owner is not None and owner.alive
    check_root(root, report, lambda: check, alive=alive)
    return report


def check_root(
    root: Root,
    report: Report,
    make_check: Callable[[], Check],
    *,
    alive: bool,
    again: Callable[[], Root] | None = None,
) -> None:
    """Check a journal that is here, and the checkpoints that it names.

    Args:
        root: Where the journal is.
        report: Takes the findings.
        make_check: Gives what looks at checkpoints, after the journal has been read.
        alive: Whether a driver may go on writing meanwhile.
        again: Where the journal is if it is to be read once more.
    """
    spec = _check_spec(root, report)
    for found in verify_journal(root.path):
        report.findings.append(Finding(found.level, found.file, found.message, found.offset))
    state = _check_records(root, spec, report)
    _check_snapshots(root, spec, None if alive else state, report)
    history = History(state, info_from(root, spec))
    suspects = _check_checkpoints(history, make_check(), report)
    if suspects and alive:
        # The driver may have deleted some while we read; the journal says so before a file goes.
        state = open_state((again() if again else root).path, spec.retention).state
        suspects = [found for found in suspects if _is_committed(state, found.n, found.index)]
    _tell_damage(history, state, suspects, report)


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


class _Suspect(msgspec.Struct):
    """A checkpoint that may be damaged."""

    n: int
    index: int
    file: str
    reason: str


def _check_checkpoints(history: History, check: Check, report: Report) -> list[_Suspect]:
    suspects: list[_Suspect] = []
    for trial in history.state.trials:
        folder = trial_dirname(history.info, trial)
        for record in trial.checkpoints:
            where = f"{folder}/{checkpoint_name(record.index)}"
            if record.stored == Stored.COMMITTED:
                found = check(where, record.digest, trial.id)
                if found.reason:
                    suspects.append(_Suspect(trial.n, record.index, found.file, found.reason))
                else:
                    report.checkpoints += 1
                    report.bytes += found.bytes
            elif record.stored == Stored.BAD:
                report.note(where, f"rejected earlier and not used: {record.reason}")
            elif record.stored == Stored.STAGED and trial.status != Status.RUNNING:
                report.note(where, "written but not committed; the next driver finishes that or rejects it")
    return suspects


def _tell_damage(history: History, state: State, suspects: list[_Suspect], report: Report) -> None:
    damaged: dict[int, set[int]] = {}
    for found in suspects:
        report.damage(found.file, found.reason)
        damaged.setdefault(found.n, set()).add(found.index)
    for trial in state.trials:
        if trial.checkpoints and (bad := _lost(trial, damaged.get(trial.n, set()))):
            report.lost(trial_dirname(history.info, trial), _lost_text(history, trial, bad))


def _lost(trial: Trial, damaged: set[int]) -> int:
    """How many checkpoints of the trial are bad if it has no good one left; else 0."""
    bad = 0
    for record in trial.checkpoints:
        if record.index < trial.floor or record.stored == Stored.DROPPED:
            continue  # of a life that the user has ended, or no longer wanted
        if record.stored != Stored.BAD and record.index not in damaged:
            return 0
        bad += 1
    return bad


def _lost_text(history: History, trial: Trial, bad: int) -> str:
    restart = f"`holdfast resume {shlex.quote(history.shown)} --restart-errored`"
    if trial.status == Status.TERMINATED:
        then = "the trial has ended and its results are whole, but nothing can be loaded from it"
    elif trial.status == Status.ERROR:
        then = f"repair the files, or run the trial again from the beginning with {restart}"
    else:
        then = f"repair the files; otherwise the next resume ends the trial in ERROR, and {restart} runs it again"
    return f"{history.name(trial)} has no good checkpoint left, {plural(bad, 'bad one')}: {then}"


def _is_committed(state: State, n: int, index: int) -> bool:
    record = state.trials[n].find(index)
    return record is not None and record.stored == Stored.COMMITTED


def _check_local(directory: Path, where: str, digest: str, trial_id: str, quick: bool) -> Checked:
    try:
        if quick:
            manifest = quick_check(directory, expect_digest=digest)
        else:
            manifest = verify(directory, expect_digest=digest, trial_id=trial_id)
    except CheckpointDamagedError as error:
        return Checked(0, where, error.reason)
    except StorageError as error:
        return Checked(0, where, f"cannot be read now: {error}")
    return Checked(manifest.total)


def _as_data(report: Report) -> dict[str, Any]:
    return {
        "whole": report.whole,
        "records": report.records,
        "checkpoints": report.checkpoints,
        "bytes": report.bytes,
        "findings": report.findings,
    }


def _lines(report: Report, *, quick: bool = False) -> list[str]:
    lines = []
    for finding in report.findings:
        place = "" if finding.offset is None else f" at byte {finding.offset}"
        lines.append(f"{finding.level}: {finding.file}{place}: {finding.message}")
    saved = f"{plural(report.checkpoints, 'checkpoint')} ({size_text(report.bytes)})"
    seen = f"{plural(report.records, 'record')} and {saved}"
    if report.whole and quick:
        return [*lines, f"whole: {seen}; of checkpoints, only names and sizes were compared"]
    if report.whole:
        return [*lines, f"whole: {seen} are as they were written"]
    counts = [plural(report.count("damage"), "damaged place")] if report.count("damage") else []
    if lost := report.count("lost"):
        counts.append(f"{plural(lost, 'trial')} without a good checkpoint")
    return [*lines, f"DAMAGED: {', '.join(counts)}; {seen} are as they were written. Nothing was changed."]
