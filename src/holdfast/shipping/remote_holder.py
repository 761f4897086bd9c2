"""Which driver holds an experiment in a store, and what the store has of it.

Owns the first read of a store, before anything is downloaded or claimed. Must never be needed for safety: liveness only
decides whether a second driver is refused. Safety is the create-only claim in `claiming`.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from holdfast.errors import ObjectMissingError, StoreDeniedError, StoreUnreachableError
from holdfast.journal import epoch as epochs
from holdfast.journal.epoch import Holder
from holdfast.shipping import parts
from holdfast.shipping.parts import PartHeader, Span
from holdfast.shipping.progress_file import FILE as NOTE
from holdfast.space.naming import is_inside
from holdfast.storage.probe import PROBE_PREFIX
from holdfast.storage.store import Stat, Store

CLOCK = ".holdfast/clock/"
"""Where objects are made only to learn the store's time."""

SHIPPED_BEAT_S = 15.0
"""How often a live driver ships something."""

MAX_TRIES = 16

MAX_OBJECT_BYTES = 4 << 30
"""More than any object of the journal has: at most 256 parts of some megabytes are merged."""

_NOT_PLAIN = (*parts.PLACES, parts.PREFIX, parts.MARKS, PROBE_PREFIX, CLOCK)


class RemoteListing(NamedTuple):
    """What the store lists."""

    spans: list[Span]
    base: list[Stat]  # plain files of the journal and the epochs
    plain: list[Stat]  # other private files
    modified: dict[Span, float]
    marked: int = 0  # the newest part of which a mark says that it was there


def remote_claim(store: Store, root: str | os.PathLike[str] | None = None) -> Holder | None:
    """Return who writes the experiment in a store, or None if nobody has shipped anything there.

    Like `epoch.holder`, but ``age_s`` is the age of the newest part, by the store's clock.

    Args:
        store: The experiment's address.
        root: The mirror, if there may be one: a driver that has let go of it could not always tell the store.
    """
    for _ in range(MAX_TRIES):
        remote = look(store, parts.PREFIX)
        if not remote.spans:
            return None
        newest = max(remote.spans, key=lambda span: (span.last, span.first))
        try:
            part = parts.decode_parts(store.get(newest.key), newest.key)[-1]
        except ObjectMissingError:
            continue  # it was merged meanwhile
        found = judge(store, part.header, remote.modified[newest])
        local = epochs.holder(root) if root is not None and found.alive else None
        if local is not None and local.released and local.claim == found.claim:
            found = found._replace(alive=False, released=True, certain=True, dead_in_s=None)
        return found
    raise StoreUnreachableError(f"The newest part in {store.url} vanishes whenever it is read. Try again.")


def refuse_live(store: Store, holder: Holder | None) -> None:
    """Refuse to continue if somebody else writes the experiment.

    Raises:
        ExperimentLockedError: A live driver holds it.
    """
    if holder is not None and holder.alive:
        raise epochs.locked_error(store.url, holder)


def judge(store: Store, header: PartHeader, modified: float, *, ask: bool = True) -> Holder:
    needs_age = ask and not header.released and header.by.machine != epochs.this_machine()
    age_s = max(0.0, (_store_time(store) if needs_age else time.time()) - modified)
    if header.released:
        return Holder(header.by, False, True, age_s)
    return epochs.assess(header.by, age_s, beat_s=SHIPPED_BEAT_S)


def _store_time(store: Store) -> float:
    key = f"{CLOCK}{os.urandom(8).hex()}"
    try:
        store.put(key, b"")
        stat = store.stat(key)
        store.delete([key])
    except StoreDeniedError:  # somebody who may only look; this machine's clock will do
        stat = None
    return time.time() if stat is None else stat.modified


def look(store: Store, prefix: str) -> RemoteListing:
    """Return what the store lists.

    Keys that could not be files below the mirror are left out: whoever can write to the store must not be able to write
    elsewhere on the machines that read it.

    Raises:
        JournalDamagedError: An object of the journal is far larger than what is ever written there.
    """
    remote = RemoteListing([], [], [], {})
    marked = 0
    for stat in store.list(prefix):
        marked = max(marked, parts.parse_mark(stat.key) or 0)
        span = parts.parse_key(stat.key)
        if span is not None:
            if stat.size > MAX_OBJECT_BYTES:  # before anybody downloads it
                raise parts.damaged(stat.key, f"has {stat.size:,} bytes, more than holdfast ever writes there")
            remote.spans.append(span)
            remote.modified[span] = stat.modified
        elif parts.is_shipped(stat.key):
            remote.base.append(stat)
        elif not stat.key.startswith(_NOT_PLAIN) and stat.key != NOTE and is_inside(stat.key):
            remote.plain.append(stat)
    return remote._replace(marked=marked)


def with_unlisted(store: Store, remote: RemoteListing, number: int) -> RemoteListing:
    """Add the parts up to ``number`` that the store has and does not list.

    Some stores list an object only a while after it can be read. Such a part would be called missing, which is damage.
    """
    newest = max((span.last for span in remote.spans), default=0)
    for unlisted in range(newest + 1, number + 1):
        stat = store.stat(parts.part_key(unlisted))
        if stat is None:
            break
        span = Span(unlisted, unlisted)
        remote.spans.append(span)
        remote.modified[span] = stat.modified
    return remote
