"""``holdfast verify`` of a root on this machine: spec, claims, journal, snapshots, checkpoints. Never writes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

from holdfast.cli.verify_checkpoints import Inspector, LocalCheckpoints, check_checkpoints
from holdfast.cli.verify_report import Finding, VerifyReport
from holdfast.controller.evidence import Known, still_unknown, unknown_checkpoints, unknown_in_store
from holdfast.controller.lost_reports import lost_reports, still_lost
from holdfast.controller.object_files import ObjectFiles
from holdfast.controller.opening import open_state
from holdfast.controller.snapshot_check import unusable_snapshots
from holdfast.controller.spec import Spec, read_spec
from holdfast.core.state import State
from holdfast.core.transitions import apply, check_known
from holdfast.errors import (
    DamageError,
    IllegalTransitionError,
    JournalDamagedError,
)
from holdfast.journal.durable_mark import damaged_marks
from holdfast.journal.epoch import damaged_claims, holder
from holdfast.journal.reader import read_journal
from holdfast.journal.records import Unfit, parse_record
from holdfast.journal.recovery import verify_journal
from holdfast.journal.snapshot import damaged_snapshots
from holdfast.results.history import History, info_from
from holdfast.storage.layout import PRIVATE, SPEC, Root
from holdfast.storage.untrusted import kind_of, odd_entries
from holdfast.trainable.sealed import remedy


def verify_experiment(root: Root, *, quick: bool = False) -> VerifyReport:
    """Check everything that belongs to an experiment; a live driver may continue writing meanwhile.

    Args:
        root: The experiment.
        quick: Of checkpoints, compare names and sizes only.

    Raises:
        ExperimentNotFoundError: There is none.
        NewerFormatError: It was written by a newer holdfast.
    """
    report = VerifyReport()
    owner = holder(root.path)
    alive = owner is not None and owner.alive
    check_root(root, report, lambda: LocalCheckpoints(root.path, quick=quick), alive=alive)
    return report


def check_root(
    root: Root,
    report: VerifyReport,
    make_inspector: Callable[[], Inspector],
    *,
    alive: bool,
    again: Callable[[], Root] | None = None,
) -> None:
    """Check a journal that is here, and the checkpoints that it names.

    Args:
        root: Where the journal is.
        report: Takes the findings.
        make_inspector: Gives what looks at checkpoints, after the journal has been read.
        alive: Whether a driver may continue writing meanwhile.
        again: Where the journal is if it is to be read once more.
    """
    odd = sorted(odd_entries(root.private)) if not root.private.is_symlink() else [str(root.private)]
    for path in odd:
        report.damage(os.path.relpath(path, root.path), f"is {kind_of(path)}; nothing was read through it")
    if odd:
        return  # whatever else is there, no reader opens it
    known = _check_spec(root, report)
    spec = known or _stand_in(root)
    _check_claims(root, report)
    for found in verify_journal(root.path):
        report.findings.append(Finding(found.level, found.file, found.message, found.offset))
    state = _check_records(root, spec, report)
    foretell = report.whole  # a driver does not open a journal that is damaged
    for name, reason in ObjectFiles(root, spec).findings(state):
        report.damage(f"{PRIVATE}/objects/{name}", f"{reason}. {remedy(name)}")
    _check_snapshots(root, spec, None if alive else state, report)
    _check_unknown(root, spec, state, report, again if alive else None)
    _check_marks(root, report)
    if known is None:
        report.note("", f"checkpoints were not looked at: which directories are whose follows from {SPEC}")
        return

    def read_again() -> State:
        return open_state((again() if again else root).path, spec.retention).state

    check_checkpoints(
        History(state, info_from(root, spec), spec=spec),
        make_inspector(),
        report,
        again=read_again if alive else None,
        foretell=foretell,
    )


def _check_spec(root: Root, report: VerifyReport) -> Spec | None:
    try:
        return read_spec(root)
    except DamageError as error:
        report.damage(SPEC, str(error))
        return None


def _stand_in(root: Root) -> Spec:
    """Enough to read the journal and the objects with; names of directories do not follow from it."""
    return Spec(uid="", name=root.path.name, trainable="", is_class=False, created_at=0.0, seed=0, num_samples=0)


def _check_marks(root: Root, report: VerifyReport) -> None:
    """Look at what drivers say of their syncs: a mark that says nothing would not miss lost records."""
    vouched_by = _vouched_by(root)
    for file, reason in damaged_marks(root.path):
        text = f"the mark that says how much of the journal was durable {reason}"
        if int(Path(file).stem) < vouched_by:
            report.note(file, f"{text}; it is no longer needed")
        else:
            report.damage(
                file,
                f"{text}. No reader needs it, but without it only result files and checkpoints can show that records "
                "are lost: put it back from a backup, or delete it",
            )


def _check_claims(root: Root, report: VerifyReport) -> None:
    """Of past drivers nobody needs to know more than that they were there."""
    found = damaged_claims(root.path)
    newest = holder(root.path)
    if newest is not None and newest.damage:
        found[newest.claim.epoch] = newest.damage  # also if it is missing
    for epoch, reason in found.items():
        file = f"{PRIVATE}/epochs/{epoch:08d}"
        if newest is not None and epoch == newest.claim.epoch:
            report.damage(
                file,
                f"the epoch file of the newest driver is damaged: {reason}. This file holds no results. If no driver "
                "runs, a restore creates a new one; if one may still run, Tuner.restore(path, takeover=True) or "
                f"`holdfast resume {shlex.quote(root.shown)} --takeover` ends it",
            )
        else:
            report.note(file, f"the epoch file of a past driver is damaged: {reason}; it is no longer needed")


def _check_records(root: Root, spec: Spec, report: VerifyReport) -> State:
    """Fold the journal as far as it can be read; what cannot be folded is damage that no checksum shows."""
    state = State()
    try:
        for seq, payload in read_journal(root.path):
            try:
                event = parse_record(payload)
                check_known(state, event)
                apply(state, event, spec.retention)
            except (Unfit, IllegalTransitionError) as error:
                why = error.fact if isinstance(error, IllegalTransitionError) else error
                report.damage(f"{PRIVATE}/journal", f"record {seq} does not fit the history before it: {why}")
                break
            report.records += 1
    except JournalDamagedError:
        pass  # verify_journal has named every damaged place
    return state


def _check_unknown(
    root: Root, spec: Spec, state: State, report: VerifyReport, again: Callable[[], Root] | None
) -> None:
    """Look for committed checkpoints of which the journal knows nothing: it has lost records."""
    known = Known(state, spec.uid, finished=True)
    remote = root.remote
    found = unknown_checkpoints(root.path, known) if remote is None else unknown_in_store(remote.store, known)
    if found and report.whole:
        # A driver may have committed them while we read; the journal knows them before they are there.
        state = open_state((again() if again else root).path, spec.retention).state
        found = still_unknown(found, Known(state, spec.uid, finished=True))
    shown = shlex.quote(root.shown)
    todo = f"`holdfast repair {shown}` recovers it"
    if remote is not None:
        todo = f"`holdfast copy {shown} DIR --before-damage` and `holdfast repair DIR` recover it"
    for each in found:
        text = "the journal has lost the record of this checkpoint"
        report.damage(each.place, f"{text}; {todo}")
    if remote is None:
        _check_reports(root, spec, state, report, todo)


def _check_reports(root: Root, spec: Spec, state: State, report: VerifyReport, todo: str) -> None:
    """Look for rows of result files without a report in the journal, if nobody vouches for its end."""
    vouched_by = _vouched_by(root)
    if vouched_by and vouched_by == state.epoch:
        return
    found = lost_reports(root.path, state, spec.uid, created_at=spec.created_at)
    if found and report.whole:  # a driver may have added them while we read
        state = open_state(root.path, spec.retention).state
    for each in still_lost(found, state):
        report.damage(each.file, f"{each.text}: the journal has lost records; {todo}")


def _vouched_by(root: Root) -> int:
    try:
        return read_journal(root.path).vouched_by
    except JournalDamagedError:
        return 0


def _check_snapshots(root: Root, spec: Spec, state: State | None, report: VerifyReport) -> None:
    """Check the snapshots; ``state`` is what the whole journal says, None if it may have grown."""
    found = unusable_snapshots(root.path, spec.retention, state) if report.whole else damaged_snapshots(root.path)
    todo = "" if root.remote else f"; `holdfast repair {shlex.quote(root.shown)}` removes it"
    for file, reason in found:
        report.damage(file, f"the snapshot cannot be used: {reason}. Nothing is lost, opening takes longer{todo}")
