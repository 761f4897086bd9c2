"""Where ``holdfast copy`` copies from: an experiment that nobody writes, in a directory or in a store. Never writes."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.callbacks.result_files import is_of_experiment
from holdfast.checkpoints import names
from holdfast.checkpoints.checkpoint_reader import quick_check
from holdfast.checkpoints.commit import recover
from holdfast.checkpoints.copying import copy_tree
from holdfast.checkpoints.manifest import Manifest
from holdfast.checkpoints.remote_checkpoints import fetch
from holdfast.checkpoints.syscalls import rename_noreplace
from holdfast.checkpoints.tree import TreeListing, refuse_links, remove_quietly, scan, storage_error
from holdfast.cli.log_places import is_log
from holdfast.cli.verify_store import read_parts
from holdfast.controller.evidence import Known, Unknown, records_lost, unknown_checkpoints, unknown_in_store
from holdfast.controller.lost_reports import lost_reports, reports_lost
from holdfast.controller.opening import open_state
from holdfast.controller.spec import read_spec
from holdfast.core.state import CheckpointRecord, Trial
from holdfast.errors import CheckpointDamagedError, ExperimentLockedError, JournalDamagedError, ObjectMissingError
from holdfast.journal.epoch import Holder, holder, silence_text
from holdfast.results.history import History, info_from
from holdfast.shipping import parts
from holdfast.shipping.parts import Part
from holdfast.shipping.progress_file import Shipped
from holdfast.shipping.remote_holder import look, remote_claim
from holdfast.shipping.remote_tree import RemoteTree
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.space.naming import is_inside
from holdfast.storage.layout import PRIVATE, Root
from holdfast.storage.local import TEMP_PREFIX
from holdfast.storage.remote_root import Remote
from holdfast.storage.store import Fetching, Store
from holdfast.storage.untrusted import copy_regular
from holdfast.views.trials import trial_dirname


class File(NamedTuple):
    """A file that is copied as it is: its path relative to the root, its size, when it was written."""

    path: str
    size: int
    modified: float


class CopySource(Protocol):
    """An experiment that is copied."""

    history: History
    """Its root has the journal and all private files, wherever the rest is."""

    files: list[File]
    """What is in trials' directories besides checkpoints, and what tells of all trials."""

    others: list[str]
    """What is below the root and not the experiment's."""

    unknown: list[Unknown]
    """Checkpoints that stand behind the damage of a journal, and are copied for a repair."""

    def checkpoint(self, where: str, digest: str) -> contextlib.AbstractContextManager[Path]:
        """A committed checkpoint as a directory of this machine, for a while."""

    def copy_checkpoint(self, where: str, digest: str, target: Path) -> None:
        """Make ``target`` a copy of it, whole or not at all."""

    def pending(self, trial: Trial, record: CheckpointRecord) -> contextlib.AbstractContextManager[Path | None]:
        """A checkpoint whose commit was not recorded, in its committed form; None if its files are not there."""

    def near(self, files: Sequence[File]) -> contextlib.AbstractContextManager[Path]:
        """A directory of this machine that has these files, for a while."""

    def copy_files(self, files: Sequence[File], target: Path) -> None:
        """Copy files to a directory."""


def refuse_live(shown: str, owner: Holder | None, what: str) -> None:
    """Refuse to continue if a driver writes the experiment.

    Raises:
        ExperimentLockedError: One does.
    """
    if owner is None or not owner.alive:
        return
    raise ExperimentLockedError(
        f"{shown} is being written by {owner.who} (last heartbeat {owner.age_s:.0f} s ago), so it cannot be {what} "
        f"now. Nothing was changed. {silence_text(owner)}Wait until that driver has finished, or stop it first.",
        host=owner.claim.host,
        pid=owner.claim.pid,
        age_s=owner.age_s,
        dead_in_s=owner.dead_in_s,
    )


def read_history(root: Root) -> History:
    """The experiment as its journal has it: trials that were running are shown as such."""
    spec = read_spec(root)
    opened = open_state(root.path, spec.retention)
    state = opened.state
    if root.remote is None:
        found = unknown_checkpoints(root.path, Known(state, spec.uid, finished=True))
        if found:
            raise records_lost(root.shown, found, state)
        if not opened.is_vouched and (more := lost_reports(root.path, state, spec.uid, created_at=spec.created_at)):
            raise reports_lost(root.shown, more)
    return History(state, info_from(root, spec), spec=spec)


class LocalSource:
    """An experiment in a directory.

    Raises:
        ExperimentNotFoundError: There is none.
        ExperimentLockedError: A live driver holds it.
    """

    def __init__(self, root: Root, scratch: Path) -> None:
        refuse_live(root.shown, holder(root.path), "copied")
        self.history = read_history(root)
        refuse_live(root.shown, holder(root.path), "copied")  # who may have begun meanwhile
        self._scratch = scratch
        self._top = root.path
        self.files: list[File] = []
        self.others: list[str] = []
        self.unknown: list[Unknown] = []
        known = {trial_dirname(self.history.info, trial) for trial in self.history.state.trials}
        for entry in sorted(os.scandir(root.path), key=lambda entry: entry.name):
            if entry.name in known and entry.is_dir(follow_symlinks=False):
                self._walk(entry.name)
            elif is_of_experiment(entry.name) and entry.is_file(follow_symlinks=False):
                facts = entry.stat()
                self.files.append(File(entry.name, facts.st_size, facts.st_mtime))
            elif entry.name != PRIVATE and not entry.name.startswith((f"{PRIVATE}.", TEMP_PREFIX)):
                self.others.append(entry.name)

    def _walk(self, folder: str) -> None:
        for parent, below, files in os.walk(self._top / folder):
            inside = os.path.relpath(parent, self._top)
            if inside == folder:
                below[:] = [name for name in below if not _is_checkpoint(name) and not names.is_temporary(name)]
            for name in sorted([*files, *below]):
                facts = os.lstat(os.path.join(parent, name))
                if stat.S_ISREG(facts.st_mode) and not name.startswith(TEMP_PREFIX):
                    self.files.append(File(f"{inside}/{name}", facts.st_size, facts.st_mtime))
                elif not stat.S_ISREG(facts.st_mode) and not stat.S_ISDIR(facts.st_mode):
                    self.others.append(f"{inside}/{name}")

    @contextlib.contextmanager
    def checkpoint(self, where: str, digest: str) -> Iterator[Path]:
        refuse_links(self._top, where)
        quick_check(self._top / where, expect_digest=digest)
        yield self._top / where

    def copy_checkpoint(self, where: str, digest: str, target: Path) -> None:
        refuse_links(self._top, where)
        copy_local(self._top / where, target, digest)

    @contextlib.contextmanager
    def pending(self, trial: Trial, record: CheckpointRecord) -> Iterator[Path | None]:
        folder = trial_dirname(self.history.info, trial)
        trial_dir = self._top / folder
        refuse_links(self._top, f"{folder}/{names.checkpoint_name(record.index)}")
        refuse_links(self._top, f"{folder}/{record.sealed}")
        if (trial_dir / names.checkpoint_name(record.index) / names.MANIFEST).is_file():
            yield trial_dir / names.checkpoint_name(record.index)
        elif not (trial_dir / record.sealed).is_dir():
            yield None
        else:
            # The commit is carried out on a copy: it would rename what is here.
            work_dir = self._scratch / "pending" / folder
            (work_dir.parent / PRIVATE).mkdir(parents=True, exist_ok=True)
            try:
                _copy_stage(trial_dir / record.sealed, work_dir / record.sealed)
                done = recover(work_dir, record.sealed, record.index, trial_id=trial.id, attempt=record.attempt)
                yield None if done is None else work_dir / names.checkpoint_name(record.index)
            finally:
                remove_quietly([str(work_dir)])

    @contextlib.contextmanager
    def near(self, files: Sequence[File]) -> Iterator[Path]:
        yield self._top

    def copy_files(self, files: Sequence[File], target: Path) -> None:
        for file in files:
            (target / file.path).parent.mkdir(parents=True, exist_ok=True)
            copy_regular(self._top / file.path, target / file.path)


class StoreSource:
    """An experiment in a store. What only this machine's mirror has is not part of it.

    Args:
        remote: The experiment.
        scratch: Room.
        before_damage: If the journal is damaged, take the history before the damage.

    Raises:
        ExperimentLockedError: A live driver holds it.
        JournalDamagedError: The journal is damaged; the key is named.
        StorageError: The store refuses or does not answer.
    """

    def __init__(self, remote: Remote, scratch: Path, *, before_damage: bool = False) -> None:
        self._store = remote.store
        self._scratch = scratch
        work_dir = scratch / "source"
        try:
            refuse_live(remote.url, remote_claim(self._store), "copied")
            restored = restore_mirror(self._store, work_dir, read_only=True)
            refuse_live(remote.url, restored.holder or holder(work_dir), "copied")
        except JournalDamagedError:
            if not before_damage:
                raise
            _assemble_before_damage(self._store, scratch, work_dir)
        self.history = read_history(Root(work_dir, remote=remote))
        self.files: list[File] = []
        self.others: list[str] = []
        known = {trial_dirname(self.history.info, trial) for trial in self.history.state.trials}
        self.unknown = _unknown(self._store, self.history) if before_damage else []
        known.update(found.folder for found in self.unknown)
        self._keys = set()
        for entry in self._store.list(""):
            folder, _, rest = entry.key.partition("/")
            self._keys.add(entry.key)
            if folder in known and rest and is_inside(entry.key):
                if not _is_checkpoint(rest.partition("/")[0]):
                    self.files.append(File(entry.key, entry.size, entry.modified))
            elif is_of_experiment(entry.key) or is_log(entry.key):
                self.files.append(File(entry.key, entry.size, entry.modified))
            elif folder != PRIVATE:
                self.others.append(entry.key)

    @contextlib.contextmanager
    def checkpoint(self, where: str, digest: str) -> Iterator[Path]:
        directory = self._scratch / "checkpoint" / where
        try:
            self.copy_checkpoint(where, digest, directory)
            yield directory
        finally:
            remove_quietly([str(directory)])

    def copy_checkpoint(self, where: str, digest: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        fetch(self._store, where, target, expect_digest=digest or None)
        if f"{where}/{names.METADATA}" in self._keys:
            with contextlib.suppress(ObjectMissingError):
                (target / names.METADATA).write_bytes(self._store.get(f"{where}/{names.METADATA}"))

    @contextlib.contextmanager
    def pending(self, trial: Trial, record: CheckpointRecord) -> Iterator[Path | None]:
        where = f"{trial_dirname(self.history.info, trial)}/{names.checkpoint_name(record.index)}"
        if f"{where}/{names.MANIFEST}" not in self._keys:
            yield None  # its upload was not complete
            return
        with self.checkpoint(where, "") as directory:
            yield directory

    @contextlib.contextmanager
    def near(self, files: Sequence[File]) -> Iterator[Path]:
        work_dir = self._scratch / "files"
        try:
            self.copy_files(files, work_dir)
            yield work_dir
        finally:
            remove_quietly([str(work_dir)])

    def copy_files(self, files: Sequence[File], target: Path) -> None:
        self._store.fetch([Fetching(file.path, str(target / file.path)) for file in files])


def _unknown(store: Store, history: History) -> list[Unknown]:
    """Checkpoints behind the damage: a repair of the copy finds them."""
    return unknown_in_store(store, Known(history.state, history.spec.uid, finished=True))


def copy_local(source: Path, target: Path, digest: str) -> None:
    """Copy a checkpoint between directories, every byte compared with the manifest.

    Raises:
        CheckpointDamagedError: It is not what was committed.
        StorageError: It cannot be read or written.
    """
    manifest = quick_check(source, expect_digest=digest or None)
    stage = target.with_name(names.stage_name(0))
    try:
        stage.mkdir(parents=True)
        copied = copy_tree(str(source), str(stage), _listed(source, manifest), algo=manifest.algo)
        hashes = {entry.path: entry.hash for entry in copied}
        for entry in manifest.files:
            if hashes[entry.path] != entry.hash:
                reason = f"the content of {entry.path} is not what was saved"
                raise CheckpointDamagedError(
                    f"the checkpoint {source} is damaged: {reason}", path=str(source), reason=reason
                )
        rename_noreplace(str(stage), str(target))
    except OSError as error:
        raise storage_error(error, f"copying the checkpoint {source} to {target}") from error
    finally:
        remove_quietly([str(stage)])


def _copy_stage(source: Path, target: Path) -> None:
    """Copy a stage as it is.

    Raises:
        CheckpointDamagedError: There is something in it that no checkpoint holds.
        StorageError: It cannot be read or written.
    """
    try:
        listing = scan(str(source), follow=False)
        for path, what in listing.odd.items():
            reason = f"{path} {what}"
            raise CheckpointDamagedError(f"the stage {source} is damaged: {reason}", path=str(source), reason=reason)
        target.mkdir(parents=True)
        copy_tree(str(source), str(target), listing)
    except OSError as error:
        raise storage_error(error, f"copying the stage {source}") from error


def _listed(directory: Path, manifest: Manifest) -> TreeListing:
    """What belongs to the checkpoint, without what network file systems and killed processes leave."""
    found = scan(str(directory), follow=False)
    wanted = {entry.path for entry in manifest.files} | {names.MANIFEST, names.METADATA}
    return found._replace(files={path: facts for path, facts in found.files.items() if path in wanted})


def _is_checkpoint(name: str) -> bool:
    """Whether this is a checkpoint's directory, or one that was moved aside."""
    return names.index_of(name.partition(".")[0]) is not None


def _assemble_before_damage(store: Store, scratch: Path, work_dir: Path) -> None:
    """Put the history together up to the first part that cannot be used."""
    shutil.rmtree(work_dir, ignore_errors=True)
    tree = RemoteTree(str(work_dir), str(scratch / "nothing"), Shipped())
    remote = look(store, f"{PRIVATE}/")
    store.fetch([Fetching(base.key, tree.add_plain(base.key)) for base in remote.base])
    last: Part | None = None
    for key, part in read_parts(store, sorted(remote.spans), scratch, {}):
        number = part.header.number
        if last is not None and number <= last.header.number:
            continue
        try:
            if number != (1 if last is None else last.header.number + 1):
                break
            if last is not None:
                parts.check_link(last, part, key)
            tree.apply(part, key)
        except JournalDamagedError:
            break
        last = part
    store.fetch([Fetching(plain.key, str(work_dir / plain.key)) for plain in remote.plain])
