"""Which snapshots nobody can use, for those who verify and repair. Reads only; every fact stands in the journal too."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.controller.opening import open_state
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State
from holdfast.errors import JournalDamagedError
from holdfast.journal.snapshot import SnapshotStore, damaged_snapshots


def unusable_snapshots(root: Path, retention: Retention, state: State | None) -> list[tuple[str, str]]:
    """Return files of snapshots, relative to the root, and what is wrong with them.

    Args:
        root: The experiment's root. Its journal is whole.
        retention: The user's rule.
        state: What the whole journal says; None if that is not known, because it may grow.
    """
    if found := damaged_snapshots(root):
        return found
    store = SnapshotStore(root)
    numbers = store.numbers()
    if not numbers:
        return []
    with _quiet():
        snapshot = store.load()
        newest = f".holdfast/snapshots/{numbers[-1]:012d}.hfs"
        if snapshot is None or snapshot.seq < numbers[-1]:
            return [(newest, "it is of another history, or of another version of holdfast")]
        if state is not None and not _same_trials(open_state(root, retention).state, state):
            return [(newest, "it contradicts the journal, which takes precedence")]
    return []


def state_of_journal(root: Path, retention: Retention) -> State | None:
    """Fold the journal without a snapshot; None if that cannot be done."""
    try:
        with _quiet():
            return open_state(root, retention, listener=_WholeJournal()).state
    except JournalDamagedError:
        return None


class _WholeJournal:
    """Wants to see every event."""

    def accepts(self, policies: dict[str, bytes], state: State) -> bool:
        return False

    def before(self, state: State, event: ev.AnyEvent) -> None:
        pass

    def after(self, state: State, event: ev.AnyEvent) -> None:
        pass


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the log silent: it would say what the finding says."""
    log = logging.getLogger("holdfast.journal")
    log.addFilter(_nothing)
    try:
        yield
    finally:
        log.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


def _same_trials(one: State, other: State) -> bool:
    encode = msgspec.msgpack.encode
    return [encode(trial) for trial in one.trials] == [encode(trial) for trial in other.trials]
