"""``holdfast copy``: an experiment in another place, from which it can continue.

What is copied: the journal, facts and stored objects; every checkpoint that the journal refers to, compared with its
manifest on the way; result files and whatever else is in trials' directories. The file that makes a place an experiment
comes last. In a store the copy has the layout of a directory; the next driver adds its parts to that.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.checkpoints.manifest import digest
from holdfast.checkpoints.names import checkpoint_name
from holdfast.cli.copy_source import CopySource, LocalSource, StoreSource
from holdfast.cli.copy_target import MARK, CopyMark, LocalTarget, StoreTarget, Target
from holdfast.cli.printing import print_json, say, size_text
from holdfast.cli.scratch_directories import scratch
from holdfast.cli.verify import verify_path
from holdfast.cli.verify_report import Finding
from holdfast.controller.remote_experiment import mirror_root
from holdfast.core.state import Stored
from holdfast.display.words import plural
from holdfast.errors import CheckpointDamagedError, ExperimentNotFoundError, InvalidInputError
from holdfast.journal.epoch import holder
from holdfast.results.history import open_history
from holdfast.results.shipped import ship_command, unshipped, unshipped_text
from holdfast.shipping.progress_file import FILE as NOTE
from holdfast.storage.address import parse
from holdfast.storage.layout import PRIVATE, SPEC, Root
from holdfast.storage.local import TEMP_PREFIX
from holdfast.storage.remote_root import Remote, remote_of
from holdfast.storage.untrusted import read_regular
from holdfast.views.trials import trial_dirname

BATCH = 256
MAX_NAMED = 5
_LEFT_OUT = ("logs/nanny", "logs/.", "parts/", "clock/", "probe-", "damaged-", "requests/")
_LEFT_OUT_OF_STORES = ("snapshots/",)  # an accelerator for this machine; a store's readers would fetch it for nothing


class CopySummary(msgspec.Struct):
    """What a copy consists of."""

    source: str
    target: str
    records: int = 0
    checkpoints: int = 0
    files: int = 0
    bytes: int = 0
    present: int = 0
    """Checkpoints that were there already, from a copy that was cut short."""

    damaged: list[Finding] = []
    left: list[str] = []
    """What is below the source and not the experiment's."""

    unshipped: dict[str, int] | None = None
    """What only this machine has of the source, and the copy lacks."""

    whole: bool = True


def run(arguments: argparse.Namespace) -> int:
    """Copy an experiment."""
    copied = copy_experiment(arguments.path, arguments.target, before_damage=arguments.before_damage)
    if arguments.json:
        print_json(copied)
    else:
        say(*_lines(copied))
    return 0 if copied.whole else 1


def copy_experiment(source: str, target: str, *, before_damage: bool = False) -> CopySummary:
    """Copy the experiment at a path or URI to another one.

    Durability: when this returns, the copy survives a loss of power.

    Raises:
        ExperimentLockedError: A live driver holds it.
        ExperimentExistsError: There is one at the target.
        InvalidInputError: The target is not empty.
        StorageError: A place refuses or does not answer. Calling again continues.
    """
    remote, new = remote_of(source), remote_of(target)
    if new is None and remote is None:
        _refuse_nested(parse(source).path, parse(target).path)
    if before_damage and remote is None:
        raise InvalidInputError(
            "--before-damage is for a source in a store. For a directory use `holdfast repair`, which keeps a copy of "
            "everything."
        )
    with _room(remote or new, target) as work_dir:
        origin = _open_source(source, remote, work_dir, before_damage)
        place = LocalTarget(Path(parse(target).path)) if new is None else StoreTarget(new)
        copied = CopySummary(origin.history.shown, place.shown, left=origin.others)
        spec = read_regular(origin.history.root / SPEC)
        place.begin(CopyMark(origin.history.spec.uid, origin.history.shown))
        _copy_checkpoints(origin, place, copied)
        _copy_unknown(origin, place, copied)
        _copy_files(origin, place, copied)
        _copy_private(origin.history.root, place, in_store=new is not None)
        place.finish(spec)
    if remote is not None and not before_damage and mirror_root(remote).private.is_dir():
        copied.unshipped = unshipped(open_history(source))
    report = verify_path(target, quick=new is not None)
    copied.records = report.records
    told = tuple(finding.file for finding in copied.damaged)
    new_findings = (found for found in report.findings if found.level != "note")
    copied.damaged += [found for found in new_findings if not (told and found.file.startswith(told))]
    copied.whole = report.whole and not copied.damaged
    return copied


def _refuse_nested(source: str, target: str) -> None:
    if os.path.commonpath([source, target]) == source:
        raise InvalidInputError(f"{target} is inside {source}: choose a directory elsewhere.")


@contextlib.contextmanager
def _room(remote: Remote | None, target: str) -> Iterator[Path]:
    """A directory for what is on its way."""
    if remote is not None:
        with scratch(remote) as work_dir:
            yield work_dir
        return
    parent = Path(parse(target).path).parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".scratch-", dir=parent) as name:
        yield Path(name)


def _open_source(source: str, remote: Remote | None, work_dir: Path, before_damage: bool) -> CopySource:
    if remote is None:
        return LocalSource(Root(parse(source).path), work_dir)
    if not remote.exists():
        raise ExperimentNotFoundError(f"There is no experiment at {remote.url}.")
    return StoreSource(remote, work_dir, before_damage=before_damage)


def _copy_checkpoints(source: CopySource, target: Target, copied: CopySummary) -> None:
    history = source.history
    for trial in history.state.trials:
        folder = trial_dirname(history.info, trial)
        for record in trial.checkpoints:
            where = f"{folder}/{checkpoint_name(record.index)}"
            try:
                if record.stored == Stored.STAGED:
                    with source.pending(trial, record) as directory:
                        if directory is None:
                            continue
                        target.take_checkpoint(directory, where)
                elif record.stored != Stored.COMMITTED:
                    continue
                elif target.has_checkpoint(where, record.digest):
                    copied.present += 1
                else:
                    target.copy_checkpoint(source, where, record.digest)
            except CheckpointDamagedError as error:
                copied.damaged.append(Finding("damage", where, f"not copied: {error.reason}"))
                continue
            copied.checkpoints += 1
            copied.bytes += record.bytes


def _copy_unknown(source: CopySource, target: Target, copied: CopySummary) -> None:
    for found in source.unknown:
        expected = digest(found.manifest)
        try:
            if not target.has_checkpoint(found.place, expected):
                target.copy_checkpoint(source, found.place, expected)
        except CheckpointDamagedError as error:
            copied.damaged.append(Finding("damage", found.place, f"not copied: {error.reason}"))
            continue
        copied.checkpoints += 1
        copied.bytes += found.manifest.total


def _copy_files(source: CopySource, target: Target, copied: CopySummary) -> None:
    copied.files = len(source.files)
    copied.bytes += sum(file.size for file in source.files)
    stale = target.stale(source.files)
    for at in range(0, len(stale), BATCH):
        target.copy_files(source, stale[at : at + BATCH])


def _copy_private(top: Path, target: Target, *, in_store: bool) -> None:
    left_out = _LEFT_OUT + (_LEFT_OUT_OF_STORES if in_store else ())
    files = []
    for parent, _, found in os.walk(top / PRIVATE):
        for name in found:
            file = os.path.relpath(os.path.join(parent, name), top)
            inside = file.removeprefix(f"{PRIVATE}/")
            if file in (SPEC, NOTE, MARK) or name.startswith(TEMP_PREFIX) or inside.startswith(left_out):
                continue
            if in_store and name.endswith(".synced"):  # what a driver says of its own disk
                continue
            files.append(file)
    files.sort()
    for at in range(0, len(files), BATCH):
        target.put_private(top, files[at : at + BATCH])
    owner = holder(top)
    if owner is not None and not owner.released:
        # Whoever had the original does not have the copy, and nobody should have to wait until that shows.
        target.put_mark(f"{PRIVATE}/epochs/{owner.claim.epoch:08d}.released")


def _lines(copied: CopySummary) -> list[str]:
    lines = [f"{finding.level}: {finding.file}: {finding.message}" for finding in copied.damaged]
    if copied.left:
        some = ", ".join(copied.left[:MAX_NAMED]) + (", .." if len(copied.left) > MAX_NAMED else "")
        lines.append(f"not copied, because it does not belong to the experiment: {some}")
    if copied.unshipped:
        lines.append(
            f"not copied, because it is on this machine only: {unshipped_text(copied.unshipped)} of {copied.source}. "
            f"To upload it, so that a new copy includes it: {ship_command(copied.source)}"
        )
    before = f" ({copied.present:,} already copied)" if copied.present else ""
    what = (
        f"{plural(copied.records, 'record')}, {plural(copied.checkpoints, 'checkpoint')}{before} and "
        f"{plural(copied.files, 'file')}, {size_text(copied.bytes)}"
    )
    end = "verified" if copied.whole else "INCOMPLETE: see above"
    return [*lines, f"copied {copied.source} to {copied.target}: {what}; {end}"]
