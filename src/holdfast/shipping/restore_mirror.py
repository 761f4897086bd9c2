"""Restore the local mirror from the remote store, and keep what only the mirror has.

The remote journal is assembled next to the mirror: the plain files in the store, and all parts applied on top, each
checked against its predecessor. What the mirror is known to hold (`progress_file`) is not downloaded. Then the two are
compared, and a new ``.holdfast`` is moved in as a whole if the store has newer records. So a crash at any point leaves
the old mirror, the new one, or none, and restoring again works.

Owns the mirror's ``.holdfast`` until the local claim is made. Must never write to the store, except to
read its clock, and must never remove records of the mirror that the store does not have: they are set aside.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple

from holdfast.errors import (
    JournalDamagedError,
    NewerFormatError,
    ObjectMissingError,
    StorageError,
    StorageFullError,
    StoreUnreachableError,
)
from holdfast.journal import epoch as epochs
from holdfast.journal.claims import Claim
from holdfast.journal.durable_mark import publish
from holdfast.journal.epoch import Holder
from holdfast.journal.identity import uid_in
from holdfast.journal.reader import read_journal
from holdfast.journal.segments import parse_name
from holdfast.shipping import parts
from holdfast.shipping.lost_parts import measured
from holdfast.shipping.merging import SCRATCH_PREFIX
from holdfast.shipping.parts import Part, Span
from holdfast.shipping.progress_file import VIEW, Shipped, read_note, write_note
from holdfast.shipping.remote_holder import MAX_TRIES, RemoteListing, judge, look, with_unlisted
from holdfast.shipping.remote_tree import RemoteTree, compare, end_of, keep_own_files, sync_tree
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.layout import PRIVATE, SPEC
from holdfast.storage.local import REAL_DISK, fsync_dir
from holdfast.storage.locks import lock, who_holds
from holdfast.storage.mounts import free_bytes
from holdfast.storage.store import Fetching, Stat, Store
from holdfast.storage.untrusted import read_regular

Case = Literal["absent", "equal", "ahead", "behind", "diverged"]

LOCK_S = 120.0
"""How long to wait for another process that restores the same mirror."""

_WORK_PREFIX = ".holdfast.hydrating-"
_log = logging.getLogger("holdfast.journal")


class RestoredMirror(NamedTuple):
    """A mirror that can be opened.

    Attributes:
        root: Where it is. Of a reader it may be a view beside the mirror that it asked for.
        case: What was found: no mirror, one that is equal, one that is ahead of the store, one that was behind it, or
            one that had continued in another way.
        shipped: What of it is in the store.
        holder: The driver that made the newest part; None if there is none.
        superseded: Where the mirror's own history was set aside; empty if it was not.
        message: What a person should be told; empty if nothing.
    """

    root: str
    case: Case
    shipped: Shipped
    holder: Holder | None
    superseded: str = ""
    message: str = ""


# ------------------------------------------------------------------------------------------- restoring


def restore_mirror(store: Store, root: str | os.PathLike[str], *, read_only: bool = False) -> RestoredMirror:
    """Bring the mirror at ``root`` up to what the store has.

    Args:
        store: The experiment's address.
        root: The mirror, or where it is to be.
        read_only: Leave a mirror that is there as it is, and the store too. If the store has continued, a view beside
            the mirror is returned instead.

    Raises:
        JournalDamagedError: A part is missing or damaged; its key is named.
        NewerFormatError: The parts were written by a newer holdfast.
        StorageError: The store does not answer or refuses, or another process is at it for too long. The mirror is as
            it was, or will be after another call.

    Durability:
        The mirror's journal survives a power cut when this returns.
    """
    root = os.path.abspath(root)
    restored = _restore(store, root, keep=read_only, ask=not read_only)
    if read_only and restored.case in ("behind", "diverged"):
        return _restore(store, root + VIEW, keep=False, ask=False)
    return restored


def _restore(store: Store, root: str, *, keep: bool, ask: bool) -> RestoredMirror:
    """As `restore_mirror`; ``keep`` leaves the mirror alone, ``ask`` allows a look at the store's clock."""
    os.makedirs(root, exist_ok=True)
    with alone(store, root):
        _sweep(root, (_WORK_PREFIX,) if keep else (_WORK_PREFIX, SCRATCH_PREFIX))
        try:
            return _try_to_restore(store, root, keep, ask)
        except JournalDamagedError as damage:
            raise measured(store, root, damage) from damage.__cause__


def _try_to_restore(store: Store, root: str, keep: bool, ask: bool) -> RestoredMirror:
    bad: dict[str, JournalDamagedError] = {}
    for attempt in range(MAX_TRIES):
        work = tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=root)
        try:
            return _MirrorRestore(store, root, work, bad).run(keep=keep, ask=ask)
        except ObjectMissingError:
            continue  # it was merged after we had listed it: look again
        except JournalDamagedError as damage:
            span = parts.parse_key(damage.file)
            if span is not None and span.last > span.first and damage.file not in bad:
                bad[damage.file] = damage  # its parts may still be there, one by one
            elif bad:
                raise next(iter(bad.values())) from damage
            elif attempt >= 1:  # once, a listing of many pages may have been overtaken by a merge
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    raise StoreUnreachableError(f"The parts in {store.url} vanish whenever they are read. Try again.")


class _MirrorRestore:
    """One attempt."""

    def __init__(self, store: Store, root: str, work: str, bad: Collection[str]) -> None:
        self._store = store
        self._root = root
        self._work = work
        self._bad = bad
        self._note_is_right = False  # what the mirror remembers of its shipping has been confirmed

    def run(self, *, keep: bool, ask: bool) -> RestoredMirror:
        # The note first: a live driver may add parts meanwhile, but what the note says is in the store then.
        note = read_note(self._root)
        remote = look(self._store, PRIVATE + "/")
        remote = with_unlisted(self._store, remote, max(remote.marked, 0 if note is None else note.number))
        remote = remote._replace(spans=[span for span in remote.spans if span.key not in self._bad])
        tree, newest = self._assemble(remote, note)
        shipped = tree.shipped(newest)
        self._check_owner(newest)
        holder = None
        if newest is not None:
            number = newest.header.number
            modified = max(at for span, at in remote.modified.items() if span.last == number)
            holder = judge(self._store, newest.header, modified, ask=ask)
        case = self._case(tree, shipped.seq, bool(remote.spans or remote.base or remote.plain))
        if case != "absent" and self._is_of_another(remote):
            self._refuse_live()
            case = "diverged"
        missing = self._missed(remote, note, shipped.number) if case != "diverged" else ""
        if missing and case != "ahead":
            raise parts.damaged(parts.part_key(shipped.number + 1), missing, seq=shipped.seq + 1)
        if missing:
            _log.warning("%s: %s %s; this mirror has it", self._store.url, parts.part_key(shipped.number + 1), missing)
        restored = RestoredMirror(self._root, case, shipped, holder)
        if case == "absent" or not keep:
            if case in ("equal", "ahead"):
                self._add_marks(tree)
            else:
                restored = self._move_in(tree, remote, restored)
            self._age(holder)
        return restored

    def _assemble(self, remote: RemoteListing, note: Shipped | None) -> tuple[RemoteTree, Part | None]:
        """Put the store's journal together, on top of the mirror's if that is known to be in the store."""
        if note is not None and note.is_held_by(self._root):
            tree = RemoteTree(os.path.join(self._work, "known"), self._root, note)
            known = self._apply(tree, remote.spans, note)
            if known is not None:
                self._note_is_right = True
                return tree, known
        tree = RemoteTree(os.path.join(self._work, "tree"), self._root, Shipped())
        self._check_room(remote.base)
        self._store.fetch([Fetching(stat.key, tree.add_plain(stat.key)) for stat in remote.base])
        crashpoint("restore_mirror.file")
        return tree, self._apply(tree, remote.spans, Shipped())

    def _apply(self, tree: RemoteTree, spans: list[Span], known: Shipped) -> Part | None:
        """Apply the parts behind those that are known. Returns the newest one; None if there is no (such) part."""
        # The last part that is known is read again: its hash tells whether the note is of this history at all.
        chosen = parts.cover(spans, after=max(0, known.number - 1))
        paths = [os.path.join(self._work, "parts", f"{span.first}-{span.last}.hfp") for span in chosen]
        self._store.fetch([Fetching(span.key, path) for span, path in zip(chosen, paths, strict=True)])
        last: Part | None = None
        for span, path in zip(chosen, paths, strict=True):
            with open(path, "rb") as file:
                for part in parts.read_parts(file, span.key):
                    number = part.header.number
                    if number < known.number or (last is not None and number <= last.header.number):
                        continue
                    if last is not None:
                        parts.check_link(last, part, span.key)
                    elif known.number and part.digest != known.prev:
                        return None  # the note is of another history
                    elif not known.number and part.header.prev:
                        raise parts.damaged(span.key, "follows a part that is not there")
                    if number > known.number:
                        tree.apply(part, span.key)
                    last = part
            os.remove(path)
            crashpoint("restore_mirror.file")
        return last

    def _missed(self, remote: RemoteListing, note: Shipped | None, newest: int) -> str:
        """Say why the newest parts must have been there, if they are not; "" if none is missed."""
        if remote.marked > newest:
            return f"is missing: {parts.mark_key(remote.marked)} says that there were parts up to {remote.marked}"
        if note is not None and note.number > newest and not self._bad:
            return f"is missing: this machine has shipped parts up to {note.number}"
        return ""

    def _check_owner(self, newest: Part | None) -> None:
        """Refuse parts of another experiment than the one whose facts the store has."""
        if newest is None or not newest.header.uid or self._note_is_right:
            return
        try:
            uid = uid_in(self._store.get(SPEC))
        except ObjectMissingError:
            return
        if uid and uid != newest.header.uid:
            raise parts.damaged(parts.part_key(newest.header.number), "belongs to another experiment")

    def _is_of_another(self, remote: RemoteListing) -> bool:
        """Whether the mirror belongs to an experiment that was at this address before, or is on another server."""
        if SPEC not in (stat.key for stat in remote.plain):
            return False
        try:
            return read_regular(os.path.join(self._root, SPEC)) != self._store.get(SPEC)
        except (FileNotFoundError, ObjectMissingError):
            return False

    def _refuse_live(self) -> None:
        owner = epochs.holder(self._root)
        if owner is not None and owner.alive:
            raise epochs.locked_error(self._store.url, owner)

    def _case(self, tree: RemoteTree, seq: int, anything: bool) -> Case:
        if not os.path.isdir(os.path.join(self._root, PRIVATE)):
            return "absent"
        extra, lacking = compare(self._root, tree, seq) if anything else (True, False)
        if lacking:
            return "diverged" if extra and not self._is_past(tree) else "behind"
        return "ahead" if extra else "equal"

    def _is_past(self, tree: RemoteTree) -> bool:
        """Tell whether the mirror's history is the beginning of the store's, though it stands in other files.

        A driver that does not know what its predecessor has synced copies records into its first segment.
        """
        tree.complete()
        try:
            theirs = iter(read_journal(tree.path))
            return all(next(theirs, None) == record for record in read_journal(self._root))
        except (JournalDamagedError, NewerFormatError):
            return False  # whatever can be read of it may be worth keeping

    def _move_in(self, tree: RemoteTree, remote: RemoteListing, restored: RestoredMirror) -> RestoredMirror:
        """Replace the mirror's private files by the store's; what it had set off from them is set aside."""
        if restored.case == "absent" and not (remote.spans or remote.base or remote.plain):
            return restored
        tree.complete()
        new, mine = os.path.join(tree.path, PRIVATE), os.path.join(self._root, PRIVATE)
        os.makedirs(new, exist_ok=True)
        self._check_room(remote.plain)
        self._store.fetch([Fetching(stat.key, os.path.join(tree.path, stat.key)) for stat in remote.plain])
        crashpoint("restore_mirror.file")
        if restored.case == "behind":
            keep_own_files(mine, new)
        if restored.shipped.number:
            write_note(tree.path, restored.shipped)
        _publish(tree.path)
        sync_tree(new)
        aside = ""
        # Between the two renames the mirror has no private directory. Whoever is killed there leaves a mirror that the
        # next call finds absent and fills again; moving single files would leave a mixture of two histories.
        crashpoint("restore_mirror.before_move")
        if restored.case == "diverged":
            aside = self._aside()
            self._set_aside(mine, aside)
        elif restored.case != "absent":
            os.rename(mine, os.path.join(self._work, "old"))
        crashpoint("restore_mirror.before_move")
        os.rename(new, mine)
        fsync_dir(self._root)
        if restored.case != "diverged":
            return restored
        message = (
            f"{self._store.url} was resumed on another machine. The mirror {self._root} had records that "
            f"were never uploaded; they are not part of the experiment, and were set aside in {aside}."
        )
        _log.warning(message)
        return restored._replace(superseded=aside, message=message)

    def _check_room(self, wanted: list[Stat]) -> None:
        """Refuse before the disk is full: an object may be far larger than whatever a driver has put there."""
        free = free_bytes(self._work)
        if free is None or sum(stat.size for stat in wanted) <= free:
            return
        largest = max(wanted, key=lambda stat: stat.size)
        raise StorageFullError(
            f"{self._store.url} cannot be mirrored: {largest.key} alone has {largest.size:,} bytes, and {free:,} are "
            f"free on the disk of {self._root}. Nothing was changed. If the object is damaged, put it back from a copy "
            "of the experiment; otherwise free space, or set HOLDFAST_LOCAL_CACHE_DIR to a directory on another disk."
        )

    def _set_aside(self, mine: str, aside: str) -> None:
        """Move the mirror's own history away, and first of all the trials' directories.

        Checkpoints of a history that does not count may have the names of those that another driver has made since.
        """
        os.mkdir(aside)
        for name in os.listdir(self._root):
            if not name.startswith(PRIVATE):
                os.rename(os.path.join(self._root, name), os.path.join(aside, name))
        os.rename(mine, os.path.join(aside, PRIVATE))

    def _aside(self) -> str:
        newest = max((int(name) for name in REAL_DISK.list(epochs_directory(self._root)) if name.isdigit()), default=0)
        path = os.path.join(self._root, f"{PRIVATE}.superseded-{newest}")
        count = 1
        while os.path.lexists(path):
            count += 1
            path = os.path.join(self._root, f"{PRIVATE}.superseded-{newest}.{count}")
        return path

    def _add_marks(self, tree: RemoteTree) -> None:
        """Add what says that a driver has let go, if the mirror does not say so itself."""
        for file, data in tree.releases():
            with contextlib.suppress(OSError):
                REAL_DISK.create_exclusive(os.path.join(self._root, file), data)

    def _age(self, holder: Holder | None) -> None:
        """Let the local claim see how long ago a driver on another machine was heard of."""
        if holder is not None and holder.claim.machine != epochs.this_machine():
            path = os.path.join(epochs_directory(self._root), f"{holder.claim.epoch:08d}")
            heard = time.time() - holder.age_s
            with contextlib.suppress(FileNotFoundError):
                os.utime(path, (heard, heard))


def epochs_directory(root: str) -> str:
    """Where a mirror has the epoch files of its drivers."""
    return os.path.join(root, PRIVATE, "epochs")


def _publish(root: str) -> None:
    """Say that a journal which is about to be synced is durable, or the next driver would copy its last segment."""
    end = end_of(root)
    head = parse_name(end.segment)
    if head is not None:
        publish(root, Claim(head.epoch, "", "", 0, "", 0, 0.0), end, REAL_DISK)


@contextlib.contextmanager
def alone(store: Store, root: str) -> Iterator[None]:
    """Keep other processes of this machine from restoring the same mirror meanwhile."""
    fd = os.open(root, os.O_RDONLY)
    try:
        if not lock(fd, limit_s=LOCK_S):
            raise StorageError(
                f"{store.url} cannot be opened: {who_holds(fd)} has been updating its mirror on this machine ({root}) "
                f"for more than {LOCK_S:.0f} s. Nothing was changed. Wait for it and try again; if it "
                f"hangs, end it."
            )
        yield
    finally:
        os.close(fd)


def _sweep(root: str, prefixes: tuple[str, ...]) -> None:
    """Remove what killed processes left behind; nobody else restores this mirror now."""
    for name in os.listdir(root):
        if name.startswith(prefixes):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
