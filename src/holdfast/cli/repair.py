"""``holdfast repair``: lets an experiment whose journal is damaged continue, after asking."""

from __future__ import annotations

import argparse
import shlex

from holdfast.cli.copy_source import refuse_live
from holdfast.cli.printing import confirmed, say
from holdfast.controller.evidence import Known, Unknown, unknown_checkpoints
from holdfast.controller.lost_reports import LostReports, lost_reports
from holdfast.controller.object_files import ObjectFiles
from holdfast.controller.opening import open_state
from holdfast.controller.rebuild import Rebuilt, rebuild
from holdfast.controller.snapshot_check import state_of_journal, unusable_snapshots
from holdfast.controller.spec import Spec, read_spec
from holdfast.display.words import plural
from holdfast.errors import InvalidInputError
from holdfast.journal.epoch import holder
from holdfast.journal.recovery import repair_journal, set_aside_snapshots, verify_journal
from holdfast.results.history import info_from
from holdfast.storage.address import parse
from holdfast.storage.layout import PRIVATE, Root
from holdfast.storage.remote_root import Remote, remote_of
from holdfast.trainable.sealed import remedy

MAX_LINES = 10


def run(arguments: argparse.Namespace) -> int:
    """Repair the journal."""
    if (remote := remote_of(arguments.path)) is not None:
        raise _not_in_a_store(remote)
    root = Root(parse(arguments.path).path)
    spec = read_spec(root)
    refuse_live(root.shown, holder(root.path), "repaired")
    info = info_from(root, spec)
    damage = [
        f"{found.file} at byte {found.offset}: {found.message}"
        for found in verify_journal(root.path)
        if found.level == "damage"
    ]
    unknown, more = ([], []) if damage else _unrecorded(root, spec)
    if not damage and not unknown and not more:
        snapshots = unusable_snapshots(root.path, spec.retention, state_of_journal(root.path, spec.retention))
        return _repair_snapshots(root, spec, snapshots, arguments.yes) if snapshots else _say_intact(root, spec)
    say(f"The journal of {root.path} is damaged:")
    say(
        *_some([f"  {text}" for text in damage], "damaged place"),
        *_some(
            [f"  {found.place}: the journal has lost the record of this checkpoint" for found in unknown],
            "such checkpoint",
        ),
        *_some([f"  {found.file}: {found.text}" for found in more], "such file"),
    )
    say(
        "A repair copies journal, epochs and snapshots to .holdfast/damaged-<n>, truncates the journal before the "
        "damage,",
        "and rebuilds what it can of the rest from snapshots, result files and checkpoints. No checkpoint is deleted.",
    )
    if not arguments.yes and not confirmed("Repair it? [y/N] ", "repair"):
        say("Nothing was changed.")
        return 1
    rebuilt = Rebuilt()

    def add(epoch: int) -> list[bytes]:
        nonlocal rebuilt
        rebuilt = rebuild(root.path, spec, info, epoch)
        return rebuilt.payloads()

    report = repair_journal(root.path, rebuild=add, force=True)
    say(
        f"Repaired: {plural(report.kept, 'record')} kept, {report.cut:,} after the damage left out; the originals are "
        f"in {root.path / report.copy}.",
        f"Rebuilt from files: {plural(rebuilt.trials, 'trial')}, {plural(rebuilt.rows, 'result')} and "
        f"{plural(rebuilt.checkpoints, 'checkpoint')}.",
        *(f"Lost: {text}." for text in rebuilt.lost),
    )
    objects = _damaged_objects(root, spec)
    if objects:
        say("Stored objects are damaged too, which a repair cannot rebuild:", *_some(objects, "damaged object"))
    say(_how_to_resume(root) if objects else f"Resume with: holdfast resume {root.path}")
    return 1 if objects else 0


def _repair_snapshots(root: Root, spec: Spec, found: list[tuple[str, str]], sure: bool) -> int:
    """The journal is whole, but not its snapshots: remove them, and keep a copy."""
    say(f"The journal of {root.path} is intact, but it has snapshots that cannot be used:")
    say(*_some([f"  {file}: {reason}" for file, reason in found], "such snapshot"))
    say("A repair copies all snapshots to .holdfast/damaged-<n> and removes these. Nothing is lost.")
    if not sure and not confirmed("Repair it? [y/N] ", "repair"):
        say("Nothing was changed.")
        return 1
    removed, copies = 0, []
    state = state_of_journal(root.path, spec.retention)
    while found:  # behind the newest one there may be another that cannot be used
        copies.append(set_aside_snapshots(root.path, [file for file, _ in found]))
        removed += len(found)
        found = unusable_snapshots(root.path, spec.retention, state)
    say(
        f"Repaired: {plural(removed, 'snapshot')} removed; the originals are in "
        f"{', '.join(str(root.path / copy) for copy in copies)}. The next driver creates new ones."
    )
    return _say_intact(root, spec) if _damaged_objects(root, spec) else 0


def _say_intact(root: Root, spec: Spec) -> int:
    """The journal needs no repair; stored objects may be damaged, and then this fails."""
    objects = _damaged_objects(root, spec)
    if objects:
        say(f"The journal of {root.path} is intact, but stored objects are damaged, which a repair cannot rebuild:")
        say(*_some(objects, "damaged object"), _how_to_resume(root))
        return 1
    say(
        f"The journal of {root.path} is intact: there is nothing to repair.",
        "Damaged checkpoints need no repair, trials fall back to older ones; to find them: "
        f"holdfast verify {root.path}",
    )
    return 0


def _damaged_objects(root: Root, spec: Spec) -> list[str]:
    """Stored objects that are missing or damaged, as `holdfast verify` names them, and what to do about each."""
    state = open_state(root.path, spec.retention).state
    found = ObjectFiles(root, spec).findings(state)
    return [f"  {PRIVATE}/objects/{name}: {reason}. {remedy(name)}." for name, reason in found]


def _how_to_resume(root: Root) -> str:
    return (
        f'Resume with Tuner.restore("{root.path}", ...), and pass again what is damaged. The results can be read as '
        "they are."
    )


def _unrecorded(root: Root, spec: Spec) -> tuple[list[Unknown], list[LostReports]]:
    """What files tell and the journal does not know, though it is whole as far as anybody has said."""
    opened = open_state(root.path, spec.retention)
    unknown = unknown_checkpoints(root.path, Known(opened.state, spec.uid, finished=True))
    if opened.is_vouched:
        return unknown, []
    return unknown, lost_reports(root.path, opened.state, spec.uid, created_at=spec.created_at)


def _some(lines: list[str], what: str) -> list[str]:
    """The first lines, and how many more there are."""
    more = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], f"  and {plural(more, f'more {what}')}"] if more > 0 else lines


def _not_in_a_store(remote: Remote) -> InvalidInputError:
    copy = f"holdfast copy {shlex.quote(remote.url)} {shlex.quote(remote.name)}"
    return InvalidInputError(
        f"{remote.url} is in a store, whose journal is never changed. First look for an older version of the damaged "
        f"object in the bucket, or for the mirror on the machine that wrote it. Otherwise copy the part before the "
        f"damage to a local directory and repair the copy: {copy} --before-damage. Nothing was changed."
    )
