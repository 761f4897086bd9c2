"""``holdfast gc``: removes what interrupted work has left behind and no record of the journal needs.

Only names that holdfast makes, only of trials that the journal knows, and only while nobody runs the experiment (I3),
in a directory as in a store. What may belong to somebody who is just beginning is removed when it is older than a day,
or with ``--now``. Must never name a key or a file that a driver could still need.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.checkpoints import names
from holdfast.checkpoints.checkpoint_reader import read_manifest
from holdfast.checkpoints.delete import delete
from holdfast.checkpoints.remote_checkpoints import delete_remote
from holdfast.checkpoints.tree import remove_tree
from holdfast.cli import scratch_directories
from holdfast.cli.copy_source import read_history, refuse_live
from holdfast.cli.printing import print_json, say, size_text
from holdfast.controller.remote_experiment import mirror_root
from holdfast.core.state import Stored, Trial
from holdfast.display.words import plural
from holdfast.errors import CheckpointDamagedError, InvalidInputError, StorageError
from holdfast.journal.epoch import holder
from holdfast.results.history import History
from holdfast.results.shipped import ship_command
from holdfast.shipping.remote_holder import CLOCK, remote_claim
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.storage.address import parse
from holdfast.storage.layout import PRIVATE, Root
from holdfast.storage.local import TEMP_PREFIX
from holdfast.storage.probe import PROBE_PREFIX
from holdfast.storage.remote_root import Remote, remote_of
from holdfast.storage.store import Stat
from holdfast.views.trials import trial_dirname

YOUNG_S = 24 * 3600.0


class Removed(msgspec.Struct):
    """Something that is gone, or would go."""

    what: str
    path: str
    bytes: int


class _Find(NamedTuple):
    """Something that can go: what it is, and how."""

    removed: Removed
    remove: Callable[[], None]


def run(arguments: argparse.Namespace) -> int:
    """Find what can go, and remove it."""
    young_s = 0.0 if arguments.now else YOUNG_S
    remote = remote_of(arguments.path)
    finds = _find_local(Root(parse(arguments.path).path), young_s) if remote is None else _find_remote(remote, young_s)
    dry_run: bool = arguments.dry_run
    removed, failed = [], []
    if finds and not dry_run:
        os.sync()  # what the journal says is durable before anything goes because of it (I3)
    for find in finds:
        try:
            if not dry_run:
                find.remove()
            removed.append(find.removed)
        except (StorageError, OSError) as error:
            failed.append(f"{find.removed.path} cannot be removed: {error}")
    uploads = remote.store.abort_stale("") if remote is not None and not dry_run else 0
    if arguments.json:
        total = sum(each.bytes for each in removed)
        print_json({"dry_run": dry_run, "removed": removed, "bytes": total, "uploads": uploads, "failed": failed})
    else:
        say(*_lines(removed, failed, uploads, dry_run=dry_run))
    return 1 if failed else 0


def _lines(removed: list[Removed], failed: list[str], uploads: int, *, dry_run: bool) -> list[str]:
    verb = "would go" if dry_run else "removed"
    lines = [f"{verb}: {each.path} ({each.what}, {size_text(each.bytes)})" for each in removed] + failed
    if uploads:
        lines.append(f"aborted: {plural(uploads, 'unfinished upload')}")
    total = size_text(sum(each.bytes for each in removed))
    return [*lines, f"{plural(len(removed), 'thing')} {verb}, {total}" if removed else "Nothing to remove."]


# ------------------------------------------------------------------------------------------- directories


def _find_local(root: Root, young_s: float) -> list[_Find]:
    refuse_live(root.shown, holder(root.path), "cleaned up")
    history = read_history(root)
    refuse_live(root.shown, holder(root.path), "cleaned up")  # who may have begun meanwhile
    return [*_in_trials(history, young_s), *_in_private(root, young_s)]


def _in_trials(history: History, young_s: float, *, keep_copies: bool = False) -> Iterator[_Find]:
    """Stages, trash, and checkpoints that the journal says are deleted.

    Args:
        history: Whose trials.
        young_s: What is younger and not known to the journal stays.
        keep_copies: Leave checkpoints alone: the store decides about them.
    """
    for trial in history.state.trials:
        folder = history.root / trial_dirname(history.info, trial)
        staged = {record.sealed for record in trial.checkpoints if record.stored == Stored.STAGED}
        for entry in _entries(folder):
            if not entry.is_dir(follow_symlinks=False):
                continue
            path = Path(entry.path)
            if names.is_temporary(entry.name):
                known = names.attempt_of(entry.name) <= trial.attempt
                if entry.name.removesuffix(names.RESYNC) not in staged and (known or _age(path) >= young_s):
                    yield _find("stage", path, lambda path=path: delete(path))  # type: ignore[misc]
            elif not keep_copies and _is_deleted(trial, path):
                yield _find("deleted checkpoint", path, lambda path=path: delete(path))  # type: ignore[misc]


def _is_deleted(trial: Trial, path: Path) -> bool:
    """Whether this is a checkpoint of the trial that the journal says is gone or has to go."""
    index = names.index_of(path.name)
    if index is None or index >= trial.next_index:
        return False
    record = trial.find(index)
    if record is not None and record.stored != Stored.DROPPED:
        return False
    if (path / names.TRASH_MARK).exists():
        return True
    try:
        return read_manifest(path, trial_id=trial.id).index == index
    except (CheckpointDamagedError, StorageError):
        return False  # not known to be ours


def _in_private(root: Root, young_s: float) -> Iterator[_Find]:
    """Files below ``.holdfast`` that never got their names, and directories of killed downloads."""
    for parent, _, files in os.walk(root.private):
        for name in files:
            path = Path(parent) / name
            if name.startswith(TEMP_PREFIX) and _age(path) >= young_s:
                yield _find("temporary file", path, path.unlink)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        if folder.is_symlink():  # what lies behind it is not the experiment's
            return []
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _find(what: str, path: Path, remove: Callable[[], None]) -> _Find:
    return _Find(Removed(what, str(path), _size(path)), remove)


def _age(path: Path) -> float:
    """Seconds since anything in it was written."""
    newest = 0.0
    with contextlib.suppress(OSError):
        newest = os.lstat(path).st_mtime
        for parent, below, files in os.walk(path):
            newest = max([newest, *(os.lstat(os.path.join(parent, name)).st_mtime for name in [*below, *files])])
    return time.time() - newest


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.lstat().st_size
    total = 0
    for parent, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


# ------------------------------------------------------------------------------------------- stores


def _find_remote(remote: Remote, young_s: float) -> list[_Find]:
    if not remote.exists():
        raise InvalidInputError(f"There is no experiment at {remote.url}.")
    store = remote.store
    refuse_live(remote.url, remote_claim(store), "cleaned up")
    mirror = mirror_root(remote)
    is_mirrored = mirror.private.is_dir()
    restored = restore_mirror(store, mirror.path, read_only=True)
    if restored.case == "ahead":
        raise InvalidInputError(
            f"Part of {remote.url} is on this machine only, so the store does not show yet what can be removed. "
            f"Nothing was changed. Upload it first: {ship_command(remote.url)}"
        )
    root = Root(restored.root, remote=remote)
    refuse_live(remote.url, holder(root.path), "cleaned up")
    history = read_history(root)
    finds = list(_in_store(remote, history, young_s))
    if is_mirrored and root.path == mirror.path:
        finds += [*_in_trials(history, young_s, keep_copies=True), *_in_private(root, young_s)]
    return [*finds, *_beside_mirror(mirror.path, young_s)]


def _in_store(remote: Remote, history: History, young_s: float) -> Iterator[_Find]:
    """What can go, by a listing of the whole experiment, whose journal nobody may be writing.

    What is younger than ``young_s``, by the store's newest time stamp, stays if somebody could be just making it.
    """
    store = remote.store
    listed = store.list("")
    # The newest object's time is the store's clock, or a little before it: things only look younger than they are.
    now = max((stat.modified for stat in listed), default=0.0)
    trials = {trial_dirname(history.info, trial): trial for trial in history.state.trials}
    checkpoints: dict[tuple[str, str], list[Stat]] = {}
    for stat in listed:
        folder, _, rest = stat.key.partition("/")
        name, slash, _ = rest.partition("/")
        if stat.key.startswith((CLOCK, PROBE_PREFIX)):
            if now - stat.modified >= young_s:
                removed = Removed("left by a test of the store", remote.below(stat.key).url, stat.size)
                yield _Find(removed, partial(store.delete, [stat.key]))
        elif slash and folder in trials and names.index_of(name) is not None:
            checkpoints.setdefault((folder, name), []).append(stat)
    for (folder, name), objects in checkpoints.items():
        what = _why(trials[folder], name, objects, partial(_is_old, now, young_s))
        if what:
            key = f"{folder}/{name}"
            removed = Removed(what, remote.below(key).url, sum(stat.size for stat in objects))
            yield _Find(removed, partial(delete_remote, store, key))  # the manifest first


def _is_old(now: float, young_s: float, objects: list[Stat]) -> bool:
    return now - max(stat.modified for stat in objects) >= young_s


def _why(trial: Trial, name: str, objects: list[Stat], is_old: partial[bool]) -> str:
    """Why a checkpoint's objects can go; "" if they cannot."""
    index = names.index_of(name)
    assert index is not None
    record = trial.find(index)
    if record is None and index < trial.next_index:
        return "deleted checkpoint"
    if record is not None and record.stored == Stored.DROPPED:
        return "deleted checkpoint"
    if record is not None and record.stored in (Stored.COMMITTED, Stored.STAGED):
        return ""
    has_manifest = any(stat.key.endswith(f"/{name}/{names.MANIFEST}") for stat in objects)
    return "unfinished checkpoint" if not has_manifest and is_old(objects) else ""


def _beside_mirror(mirror: Path, young_s: float) -> Iterator[_Find]:
    """Histories that were set aside, mirrors of experiments that were here before, views, and scratch."""
    aside = f"{PRIVATE}.superseded-"
    beside = (f"{mirror.name}.superseded-", scratch_directories.PREFIX)
    found = [entry for entry in _entries(mirror) if entry.name.startswith((aside, ".holdfast.hydrating-"))]
    found += [
        entry
        for entry in _entries(mirror.parent)
        if entry.name.startswith(beside) or entry.name == f"{mirror.name}.view"
    ]
    for entry in found:
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False) and _age(path) >= young_s:
            yield _find("leftover of a mirror", path, lambda path=path: remove_tree(str(path)))  # type: ignore[misc]
