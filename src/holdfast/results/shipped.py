"""What of an experiment in a store is on this machine only: counted from its mirror. Must never write."""

from __future__ import annotations

import os
import shlex
import socket

from holdfast.checkpoints.names import checkpoint_name
from holdfast.controller.remote_experiment import mirror_root
from holdfast.display.words import plural
from holdfast.errors import FencedError, JournalDamagedError
from holdfast.journal.reader import START, Position, read_journal
from holdfast.journal.segments import parse_name
from holdfast.results.history import History
from holdfast.shipping.parts import PLACES
from holdfast.shipping.progress_file import Shipped, read_note
from holdfast.storage.remote_root import remote_of
from holdfast.views.trials import trial_dirname


def unshipped(history: History) -> dict[str, int] | None:
    """How many records and checkpoints the mirror on this machine has and the store lacks; None if none."""
    if history.restored is None:
        return None
    last = START.next_seq - 1 if history.position is None else history.position.next_seq - 1
    found = {"records": max(0, last - _shipped(history).seq), "checkpoints": _staged_locally(history)}
    return found if any(found.values()) else None


def unshipped_text(count: dict[str, int]) -> str:
    """The same in words."""
    return " and ".join(plural(number, name.removesuffix("s")) for name, number in count.items() if number)


def ship_command(url: str) -> str:
    """What to type to send it."""
    return f"holdfast ship {shlex.quote(url)}"


def is_driven_locally(history: History) -> bool:
    """Whether the live driver writes the mirror that was read, so that more is known than the store knows."""
    owner = history.owner
    if owner is None or not owner.alive or owner.claim.host != socket.gethostname():
        return False
    remote = remote_of(history.info.url, history.info.filesystem)
    return remote is not None and mirror_root(remote).path == history.root


def oldest_unshipped(history: History) -> bytes | None:
    """The oldest record that the loss of this machine would take; None if there is none."""
    try:
        rest = read_journal(history.root, after=_position(_shipped(history)))
        return next((payload for _, payload in rest), None)
    except (FencedError, JournalDamagedError, FileNotFoundError):  # the driver continued elsewhere while we looked
        return None


def _shipped(history: History) -> Shipped:
    """What is in the store: as it was when we looked, or as the mirror has noted since."""
    assert history.restored is not None
    known, note = history.restored.shipped, read_note(str(history.root))
    return note if note is not None and note.number > known.number else known


def _position(shipped: Shipped) -> Position:
    """The place in the mirror's journal behind what is in the store."""
    files = (file.removeprefix(PLACES[0]) for file in shipped.files if file.startswith(PLACES[0]))
    newest = max((name for file in files if (name := parse_name(file))), default=None)
    if newest is None:
        return START
    return Position(newest.file, shipped.files[f"{PLACES[0]}{newest.file}"].size, shipped.seq + 1)


def _staged_locally(history: History) -> int:
    """Checkpoints whose upload has not been recorded, and whose files are on this machine."""
    count = 0
    for n, index in history.state.staged:
        trial = history.state.trials[n]
        record = trial.find(index)
        folder = history.root / trial_dirname(history.info, trial)
        if record is not None and any(os.path.isdir(folder / name) for name in (record.sealed, checkpoint_name(index))):
            count += 1
    return count
