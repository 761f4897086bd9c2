"""Become the one writer of an experiment in a store: the create-only claim, on which its safety rests (I4).

Owns the part that carries a claim, and what a driver does that finds its number taken. Must never overwrite an object.
"""

from __future__ import annotations

import os
import time

from holdfast.errors import (
    ExperimentLockedError,
    StoreUnreachableError,
)
from holdfast.journal import epoch as epochs
from holdfast.journal.claims import Claim, encode_claim
from holdfast.journal.epoch import Holder
from holdfast.journal.identity import uid_of
from holdfast.shipping import parts
from holdfast.shipping.parts import Part, PartHeader, Piece, Span
from holdfast.shipping.progress_file import Extent, Shipped, write_note
from holdfast.shipping.remote_holder import MAX_TRIES, judge, look
from holdfast.shipping.restore_mirror import RestoredMirror, epochs_directory, restore_mirror
from holdfast.shipping.shipper import ShipStart
from holdfast.storage.digest import digest_of
from holdfast.storage.local import REAL_DISK
from holdfast.storage.store import Store, create_once


def claim_remote(store: Store, restored: RestoredMirror, claim: Claim, *, takeover: bool = False) -> ShipStart:
    """Become the one writer of the experiment in the store: create the next part, with the claim's epoch file in it.

    Args:
        store: The experiment's address.
        restored: From `restore_mirror`, before the claim.
        claim: From `claim_epoch` on the mirror. Open the journal only after this call.
        takeover: Succeed a driver that turns out to be alive, too.

    Raises:
        ExperimentLockedError: Somebody else was faster, or the driver that seemed to be dead is not.
        StorageError: The store does not answer, or refuses.

    Durability:
        The claim is in the store when this returns, and every older driver is fenced.
    """
    root = restored.root
    for _ in range(MAX_TRIES):
        part, shipped = _claim_part(root, claim, restored.shipped)
        key = parts.part_key(part.header.number)
        foreign = _create(store, key, part.data)
        # Created is not enough: parts are merged and deleted, so an old number may be free again. After this second
        # look nobody can pass us any more: whoever continues must create the number that we have.
        if foreign is None and not _is_passed(store, part.header.number):
            write_note(root, shipped)
            return ShipStart(root, claim, shipped)
        if foreign is None:
            # The number was free only because its part was merged and deleted since we looked: it is not the next one.
            store.delete([key])
            restored, newest = _restore_up_to(store, root, part.header.number)
            if newest.claim.epoch >= claim.epoch or (newest.alive and not takeover):
                raise epochs.locked_error(store.url, newest)
            REAL_DISK.create_exclusive(_epoch_file(root, claim), encode_claim(claim))
            continue
        other = parts.decode_parts(foreign, key)[-1]
        holder = judge(store, other.header, time.time(), ask=False)
        if other.header.claims or (holder.alive and not takeover):
            _yield_to(root, other)
            raise epochs.locked_error(store.url, holder._replace(alive=True, age_s=0.0))
        # The driver that we succeed was still shipping. What has arrived counts.
        restored, newest = _restore_up_to(store, root, part.header.number)
        if newest.claim.writer != other.header.by.writer:
            raise epochs.locked_error(store.url, newest)
        REAL_DISK.create_exclusive(_epoch_file(root, claim), encode_claim(claim))
    raise _beaten(store, claim)


def _restore_up_to(store: Store, root: str, number: int) -> tuple[RestoredMirror, Holder]:
    """Restore the mirror once more, now that the store is known to have this part, and say who made the newest one.

    A listing may be older than what was just read by its name.
    """
    for _ in range(MAX_TRIES):
        restored = restore_mirror(store, root)
        if restored.holder is not None and restored.shipped.number >= number:
            return restored, restored.holder
    raise StoreUnreachableError(
        f"{store.url} has {parts.part_key(number)}, but does not list it. Nothing was changed. Try again."
    )


def _claim_part(root: str, claim: Claim, shipped: Shipped) -> tuple[Part, Shipped]:
    pieces: list[Piece] = []
    bodies: list[bytes] = []
    files = dict(shipped.files)
    for name in sorted(REAL_DISK.list(epochs_directory(root))):
        file = f"{parts.EPOCHS}{name}"
        if len(name) != 8 or not name.isdigit() or int(name) > claim.epoch or file in files:
            continue
        data = REAL_DISK.read(os.path.join(root, file))
        pieces.append(Piece(file, 0, len(data)))
        bodies.append(data)
        files[file] = Extent(len(data), digest_of(data))
    header = PartHeader(
        number=shipped.number + 1,
        by=claim,
        at=time.time(),
        prev=shipped.prev,
        seq=shipped.seq,
        claims=True,
        pieces=pieces,
        uid=uid_of(root),
    )
    body = b"".join(bodies)
    part = Part(header, body, parts.encode_part(header, body))
    return part, Shipped(header.number, part.digest, shipped.seq, files)


def _create(store: Store, key: str, data: bytes) -> bytes | None:
    """As `create_once`, but an answer that is lost is asked for once more: nobody else would find out."""
    try:
        return create_once(store, key, data)
    except StoreUnreachableError:
        return create_once(store, key, data)


def _is_passed(store: Store, number: int) -> bool:
    """Whether the store has another object with this part or a later one."""
    return any(span.last >= number and span != Span(number, number) for span in look(store, parts.PREFIX).spans)


def _yield_to(root: str, winner: Part) -> None:
    """Replace our epoch file, which the store will never know, by the winner's."""
    for piece, data in winner.contents():
        if piece.file.startswith(parts.EPOCHS) and piece.size:
            REAL_DISK.write_atomic(os.path.join(root, piece.file), data)


def _epoch_file(root: str, claim: Claim) -> str:
    return os.path.join(epochs_directory(root), f"{claim.epoch:08d}")


def _beaten(store: Store, claim: Claim) -> ExperimentLockedError:
    return ExperimentLockedError(
        f"The experiment {store.url} could not be claimed: its driver uploads faster than this one can take over. "
        f"Nothing was changed. Stop that driver, then try again.",
        host=claim.host,
        pid=claim.pid,
        age_s=0.0,
    )
