"""Committed checkpoints without a record in the journal: proof that the journal has lost records.

The record of a stage is durable before its checkpoint is committed. So a checkpoint with a manifest that the journal
does not contain was made by a driver whose records are lost.

Owns finding such checkpoints. Must never write, follow a link, or mistake another experiment's checkpoint for ours.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.checkpoints.manifest import BadManifest, Manifest, decode
from holdfast.checkpoints.names import MANIFEST, index_of
from holdfast.core.state import State
from holdfast.errors import DamageError, JournalDamagedError, ObjectMissingError, StorageError
from holdfast.journal.epoch import this_machine
from holdfast.journal.identity import uid_in
from holdfast.storage.layout import SPEC, Root
from holdfast.storage.remote_root import Remote
from holdfast.storage.untrusted import read_regular

if TYPE_CHECKING:
    from holdfast.shipping.restore_mirror import RestoredMirror
    from holdfast.storage.store import Store

TRIAL_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{5}_\d{5,})(?!\d)", re.ASCII)
"""A trial's id within the name of its directory."""


class Unknown(NamedTuple):
    """A checkpoint that the history does not know.

    Attributes:
        folder: The trial's directory, relative to the root.
        manifest: Its manifest, whose own checksum is right.
        written_at: When the manifest was written.
    """

    folder: str
    manifest: Manifest
    written_at: float

    @property
    def place(self) -> str:
        """The checkpoint's path relative to the root."""
        return f"{self.folder}/checkpoint_{self.manifest.index:06d}"


class Known:
    """What a history knows of checkpoints.

    Args:
        state: The folded history.
        uid: The experiment's; ids of its trials begin with it unless the user wanted something else.
        finished: Whether directories of finished trials are looked at too.
    """

    def __init__(self, state: State, uid: str, *, finished: bool) -> None:
        self._state = state
        self._finished = finished
        self._prefixes = {uid[:5]} | {trial.id.rpartition("_")[0] for trial in state.trials[:1] + state.trials[-1:]}

    def covers_folder(self, folder: str) -> bool:
        """Tell by its name alone that a directory need not be looked at."""
        if self._finished:
            return False
        match = TRIAL_ID.search(folder)
        n = None if match is None else self._state.by_id.get(match[1])
        return n is not None and self._state.trials[n].final

    def covers(self, folder: str, index: int) -> bool:
        """Tell by names alone that a checkpoint is known."""
        match = TRIAL_ID.search(folder)
        return match is not None and self._has(match[1], index)

    def is_unknown(self, manifest: Manifest, index: int) -> bool:
        """Tell whether a checkpoint was made by this experiment and is not in its history."""
        ours = manifest.trial.rpartition("_")[0] in self._prefixes and TRIAL_ID.fullmatch(manifest.trial)
        return bool(ours) and manifest.index == index and not self._has(manifest.trial, index)

    def _has(self, trial_id: str, index: int) -> bool:
        n = self._state.by_id.get(trial_id)
        return n is not None and index < self._state.trials[n].next_index


def unknown_checkpoints(root: Path, known: Known) -> list[Unknown]:
    """Return the committed checkpoints below ``root`` that the history does not know.

    Costs a look into the directory of every trial that ``known`` does not cover.
    """
    found: list[Unknown] = []
    for folder in trial_folders(root):
        if known.covers_folder(folder):
            continue
        for name in _folders(root / folder):
            index = index_of(name)
            if index is None or known.covers(folder, index):
                continue
            read = read_manifest(root / folder / name / MANIFEST)
            if read is not None and known.is_unknown(read[0], index):
                found.append(Unknown(folder, *read))
    return sorted(found, key=lambda each: (each.manifest.trial, each.manifest.index))


def unknown_in_store(store: Store, known: Known) -> list[Unknown]:
    """As `unknown_checkpoints`, of an experiment in a store: lists all of its keys."""
    found: list[Unknown] = []
    for there in store.list(""):
        folder, _, rest = there.key.partition("/")
        name, _, file = rest.partition("/")
        index = index_of(name)
        if file != MANIFEST or index is None or known.covers(folder, index):
            continue
        try:
            manifest = decode(store.get(there.key))
        except (BadManifest, StorageError):
            continue
        if known.is_unknown(manifest, index):
            found.append(Unknown(folder, manifest, there.modified))
    return sorted(found, key=lambda each: (each.manifest.trial, each.manifest.index))


def still_unknown(found: list[Unknown], known: Known) -> list[Unknown]:
    """Those of ``found`` that a history which was read after them does not know either."""
    return [each for each in found if known.is_unknown(each.manifest, each.manifest.index)]


def is_only_in_store(root: Root, restored: RestoredMirror, state: State) -> bool:
    """Whether nothing on this machine tells what was committed, so that only the store itself can be asked.

    The mirror of the last driver remembers how much it has shipped. A driver that has only claimed the experiment, and
    may have refused to continue, has no record.
    """
    last = restored.holder
    ran_here = last is not None and last.claim.machine == this_machine() and root.logs.is_dir()
    has_records = last is not None and last.claim.epoch == state.epoch
    return not (ran_here and has_records and restored.case in ("equal", "ahead"))


def records_lost(shown: str, found: list[Unknown], state: State, *, in_store: bool = False) -> JournalDamagedError:
    """Return the error for checkpoints that the history does not know."""
    since = state.last_at or None
    when = "it is empty"
    if since is not None:
        when = f"its last record is from {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(since))}"
    some = ", ".join(each.place for each in found[:3]) + (", ..." if len(found) > 3 else "")
    what = "checkpoint was" if len(found) == 1 else "checkpoints were"
    todo = f"`holdfast repair {shown}` keeps a copy of everything and rebuilds what it can"
    if in_store:
        todo = f"`holdfast copy {shown} DIR --before-damage`, then `holdfast repair DIR`, rebuild what they can"
    return JournalDamagedError(
        f"The journal of {shown} has lost records: {len(found)} {what} committed and it has no record of that "
        f"({some}), and {when}. These checkpoints and all result files still exist, and nothing was overwritten. Put "
        f".holdfast/journal back from a backup if there is one. Otherwise {todo}: trials then resume from these "
        f"checkpoints instead of from the beginning.",
        file=".holdfast/journal",
        offset=0,
        seq=0,
        since=since,
    )


def read_manifest(path: Path) -> tuple[Manifest, float] | None:
    """Return a manifest and when it was written; None if there is no good one."""
    try:
        return decode(read_regular(path)), os.lstat(path).st_mtime
    except (OSError, DamageError, BadManifest):
        return None


def trial_folders(root: Path) -> Iterator[str]:
    """Names of the directories that may be trials'."""
    return (folder for folder in _folders(root) if not folder.startswith("."))


def _folders(path: Path) -> Iterator[str]:
    try:
        with os.scandir(path) as entries:
            yield from sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return


def was_started_in_store(remote: Remote) -> bool:
    """Whether a driver has ever claimed the experiment in this store, even if its history is lost."""
    if remote.has_history():
        return True
    try:
        uid = uid_in(remote.store.get(SPEC))
    except ObjectMissingError:
        return False
    return bool(uid) and bool(unknown_in_store(remote.store, Known(State(), uid, finished=True)))
