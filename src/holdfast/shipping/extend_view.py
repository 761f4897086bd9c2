"""Append to a reader's view what the store has gained, instead of assembling it anew.

A view is the copy that `restore_mirror` makes for readers beside a mirror that is behind its store. It grows as a live
journal does, so others may read it meanwhile. Owns that shortcut: whatever is not the plain next part gives None, and
`restore_mirror` then does it the long way, and says what is wrong. Must never touch a mirror, or write to the store.
"""

from __future__ import annotations

import os
import time

from holdfast.errors import JournalDamagedError, NewerFormatError, ObjectMissingError
from holdfast.journal import epoch as epochs
from holdfast.journal.epoch import Holder
from holdfast.shipping import parts
from holdfast.shipping.parts import Part, Span
from holdfast.shipping.progress_file import VIEW, Extent, Shipped, extent_of, read_note, write_note
from holdfast.shipping.remote_holder import SHIPPED_BEAT_S, RemoteListing, judge, look
from holdfast.shipping.remote_tree import RemoteTree
from holdfast.shipping.restore_mirror import RestoredMirror, alone
from holdfast.storage.store import Store


def extend_view(store: Store, restored: RestoredMirror) -> RestoredMirror | None:
    """Bring a view up to what the store has, at the price of what is new; None if it cannot be done so simply.

    Args:
        store: The experiment's address.
        restored: As the view was last restored or extended.

    Raises:
        StorageError: The store does not answer or refuses, or another process is at it for too long.
    """
    root, known = restored.root, restored.shipped
    if not root.endswith(VIEW) or restored.holder is None:
        return None
    try:
        with alone(store, root):
            note = read_note(root)
            if note is None or (note.number, note.prev) != (known.number, known.prev):
                return None
            remote = look(store, parts.PREFIX)
            chosen = parts.cover(remote.spans, after=known.number)
            if not chosen:
                return restored._replace(holder=_heard(remote, restored.holder, known.number))
            return _append(store, restored, remote, chosen)
    except (JournalDamagedError, NewerFormatError, ObjectMissingError, FileNotFoundError):
        return None


def _heard(remote: RemoteListing, holder: Holder, number: int) -> Holder:
    """The same driver, by the age of its newest part."""
    modified = max((at for span, at in remote.modified.items() if span.last == number), default=None)
    if holder.released or modified is None:
        return holder
    return epochs.assess(holder.claim, max(0.0, time.time() - modified), beat_s=SHIPPED_BEAT_S)


def _append(store: Store, restored: RestoredMirror, remote: RemoteListing, chosen: list[Span]) -> RestoredMirror | None:
    root, known = restored.root, restored.shipped
    fresh = _fresh_parts(store, chosen, known)
    if not fresh:
        return None
    tree = RemoteTree(root, root, Shipped())  # in place: nothing is known that would have to be copied
    files = dict(known.files)
    for part in fresh:
        for piece in part.header.pieces:
            os.makedirs(os.path.dirname(os.path.join(root, piece.file)), exist_ok=True)
        tree.apply(part, parts.part_key(part.header.number))
    for file in {piece.file for part in fresh for piece in part.header.pieces}:
        files[file] = extent_of(os.path.join(root, file)) or Extent(0, "")
    newest = fresh[-1]
    shipped = Shipped(newest.header.number, newest.digest, newest.header.seq, files)
    write_note(root, shipped)
    modified = max(at for span, at in remote.modified.items() if span.last == newest.header.number)
    holder = judge(store, newest.header, modified, ask=False)
    return restored._replace(shipped=shipped, holder=holder)


def _fresh_parts(store: Store, chosen: list[Span], known: Shipped) -> list[Part]:
    """The parts behind the known one, each with the hash of its predecessor; none if they do not follow it."""
    fresh: list[Part] = []
    number, prev = known.number, known.prev
    for span in chosen:
        for part in parts.decode_parts(store.get(span.key), span.key):
            if part.header.number <= number:
                continue
            if fresh:
                parts.check_link(fresh[-1], part, span.key)
            elif part.header.number != number + 1 or part.header.prev != prev:
                return []
            fresh.append(part)
            number = part.header.number
    return fresh
