"""``holdfast rm``: removes an experiment, after asking, and nothing that is not the experiment's.

The journal goes last: it knows which directories are trials, so a removal that was cut short can be repeated. When only
the journal is left, it is set aside (or marked, in a store) first: half of it would be a damaged experiment.
"""

from __future__ import annotations

import argparse
import os
import shlex
import uuid
from pathlib import Path
from typing import NamedTuple

from holdfast.callbacks.result_files import is_of_experiment
from holdfast.checkpoints.tree import remove_tree
from holdfast.cli.copy_source import read_history, refuse_live
from holdfast.cli.printing import confirmed, print_json, say, size_text
from holdfast.controller.remote_experiment import mirror_root
from holdfast.display.tracker import existing_counts
from holdfast.display.words import counts_text, plural
from holdfast.errors import DamageError, ExperimentNotFoundError
from holdfast.journal.epoch import holder
from holdfast.results.history import History
from holdfast.shipping.remote_holder import remote_claim
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.storage.address import parse
from holdfast.storage.layout import PRIVATE, REMOVING, SPEC, Root
from holdfast.storage.remote_root import Remote, remote_of
from holdfast.storage.store import Stat
from holdfast.views.trials import trial_dirname

ASIDE = f"{PRIVATE}.removed-"
"""How the journal's directory is called while it goes."""


class _Found(NamedTuple):
    """What there is to remove: how it is called, in numbers, and what stays."""

    shown: str
    summary: str
    bytes: int
    stays: list[str]


def run(arguments: argparse.Namespace) -> int:
    """Ask, then remove."""
    remote = remote_of(arguments.path)
    if _finish_earlier(arguments.path, remote):
        say(f"Finished an earlier removal of {arguments.path}.")
        return 0
    target = _LocalTarget(Root(parse(arguments.path).path)) if remote is None else _StoredTarget(remote)
    found = target.found
    if not arguments.json:
        say(f"{found.shown}: {found.summary}, {size_text(found.bytes)}")
        if found.stays:
            say(f"kept, not part of the experiment: {', '.join(found.stays)}")
    if not arguments.yes and not confirmed("Remove it permanently? [y/N] ", "rm"):
        say("Nothing was removed.")
        return 1
    target.remove()
    if arguments.json:
        print_json({"removed": found.shown, "bytes": found.bytes, "stays": found.stays})
    else:
        say(f"Removed {found.shown}.")
    return 0


def _finish_earlier(path: str, remote: Remote | None) -> bool:
    """Remove what a removal that was cut short has left; False if there was none."""
    if remote is not None:
        if remote.exists() or remote.store.stat(REMOVING) is None:
            return False
        _delete_private(remote)
        return True
    root = Root(parse(path).path)
    left = [] if root.exists() else sorted(root.path.glob(f"{ASIDE}*"))
    for directory in left:
        remove_tree(str(directory))
    if left and not any(root.path.iterdir()):
        root.path.rmdir()
    return bool(left)


def _delete_private(remote: Remote) -> None:
    """Delete the journal and all else that is private; the mark that this has begun goes last."""
    keys = [stat.key for stat in remote.store.list(f"{PRIVATE}/") if stat.key != REMOVING]
    remote.store.delete(keys)
    remote.store.delete([REMOVING])


class _LocalTarget:
    """An experiment in a directory."""

    def __init__(self, root: Root) -> None:
        self._root = root
        trials, summary = _known(root)
        refuse_live(root.shown, holder(root.path), "removed")
        self._trials: list[Path] = []
        self._files: list[Path] = []
        stays = []
        for entry in sorted(os.scandir(root.path), key=lambda entry: entry.name):
            is_directory = entry.is_dir(follow_symlinks=False)
            if is_directory and entry.name in trials:
                self._trials.append(Path(entry.path))
            elif entry.is_file(follow_symlinks=False) and is_of_experiment(entry.name):
                self._files.append(Path(entry.path))
            elif entry.name != PRIVATE:
                stays.append(entry.name)
        total = sum(_size(path) for path in (*self._trials, *self._files, root.private))
        self.found = _Found(root.shown, summary, total, stays)

    def remove(self) -> None:
        """Remove trials, then the files that tell of all of them, then the journal."""
        for directory in self._trials:
            remove_tree(str(directory))
        for file in self._files:
            file.unlink(missing_ok=True)
        # By one rename it is no experiment any more, whatever happens while its files go.
        going = self._root.path / f"{ASIDE}{uuid.uuid4().hex[:8]}"
        self._root.private.rename(going)
        remove_tree(str(going))
        if not self.found.stays:
            self._root.path.rmdir()


class _StoredTarget:
    """An experiment in a store, and its mirror on this machine."""

    def __init__(self, remote: Remote) -> None:
        if not remote.exists():
            raise ExperimentNotFoundError(f"There is no experiment at {remote.url}: no {SPEC} there.")
        self._remote = remote
        self._mirror = mirror_root(remote)
        refuse_live(remote.url, remote_claim(remote.store, self._mirror.path), "removed")
        trials, summary = _known(remote)
        stays: set[str] = set()
        self._objects: list[Stat] = []
        for stat in remote.store.list(""):
            top, slash, _ = stat.key.partition("/")
            if (slash and (top in trials or top == PRIVATE)) or (not slash and is_of_experiment(top)):
                self._objects.append(stat)
            else:
                stays.add(top)
        total = sum(stat.size for stat in self._objects)
        self.found = _Found(remote.url, summary, total, sorted(stays))

    def remove(self) -> None:
        """Remove trials, then what says that this is an experiment, then the journal; the mirror last."""
        store = self._remote.store
        store.delete([stat.key for stat in self._objects if not stat.key.startswith(f"{PRIVATE}/")])
        store.put(REMOVING, b"")
        store.delete([SPEC])
        _delete_private(self._remote)
        self._remote.store.abort_stale("")
        for path in (self._mirror.path, self._mirror.path.with_name(f"{self._mirror.path.name}.view")):
            if path.is_dir():
                remove_tree(str(path))


def _known(place: Root | Remote) -> tuple[set[str], str]:
    """The names of trials' directories, and the experiment in a few words."""
    try:
        history = read_history(place if isinstance(place, Root) else _restored(place))
    except DamageError as error:
        way = (
            f"remove the directory itself: rm -r {shlex.quote(place.shown)}"
            if isinstance(place, Root)
            else (f"delete all objects below {place.url} with the tools of the store")
        )
        error.add_note(
            f"It is unknown which directories are trials, so nothing was removed. If nothing in it is needed, {way}"
        )
        raise
    return {trial_dirname(history.info, trial) for trial in history.state.trials}, _summary(history)


def _restored(remote: Remote) -> Root:
    return Root(restore_mirror(remote.store, mirror_root(remote).path, read_only=True).root, remote=remote)


def _summary(history: History) -> str:
    trials = plural(len(history.state.trials), "trial")
    saved = plural(sum(len(trial.checkpoints) for trial in history.state.trials), "checkpoint")
    counts = counts_text(existing_counts(history.state))
    return f"{trials} ({counts}), {saved}" if counts else f"{trials}, {saved}"


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.lstat().st_size
    return sum(os.lstat(os.path.join(parent, name)).st_size for parent, _, files in os.walk(path) for name in files)
