"""When to take snapshots and what they contain. A snapshot makes reopening fast: losing one loses only time.

Settled trials are appended to an archive once; a snapshot holds the others. So the cost of one is what changed since
the last one, not the size of the experiment (I10), and at most 5 % of the driver's time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from holdfast.controller.clock import Clock
from holdfast.controller.opening import archive_record, is_settled, snapshot_payload
from holdfast.core.state import State
from holdfast.journal.reader import Position
from holdfast.journal.snapshot import SnapshotStore

logger = logging.getLogger("holdfast")

MIN_PERIOD_S = 10.0
SYNC_TIMEOUT_S = 60.0
SHARE = 19.0  # the next one comes no sooner than this many times its duration: 5 %


def next_period(duration_s: float, fixed_s: float | None) -> float:
    """Seconds until the next snapshot, given how long the last one took."""
    return fixed_s if fixed_s is not None else max(MIN_PERIOD_S, SHARE * duration_s)


class JournalEnd(Protocol):
    """Where the journal ends, and a way to wait until that is durable."""

    @property
    def position(self) -> Position: ...

    def wait_synced(self, seq: int, timeout: float | None = None) -> bool: ...


class Snapshotter:
    """Takes snapshots of a live experiment; the files are written by a thread of its own."""

    def __init__(
        self,
        state: State,
        store: SnapshotStore,
        clock: Clock,
        journal: JournalEnd,
        *,
        changed: set[int],
        period_s: float | None = None,
        policies: Callable[[], dict[str, bytes]] = dict,
        flush_files: Callable[[], bool] = lambda: True,
    ) -> None:
        """Begin with no snapshot taken.

        Args:
            state: What snapshots hold.
            store: Where they are written.
            clock: For when they are due.
            journal: What must be durable before them.
            changed: Trials that changed since the last snapshot; others add to it, each snapshot clears it.
            period_s: Seconds between two; None: as what they cost allows.
            policies: The memories that a snapshot holds too.
            flush_files: Brings the result files up to the state; whether that was possible.
        """
        self._state = state
        self._store = store
        self._clock = clock
        self._journal = journal
        self._changed = changed
        self._fixed_s = period_s
        self._policies = policies
        self._flush_files = flush_files
        self._due = clock.now() + next_period(0.0, period_s)
        self._live: set[int] = {trial.n for trial in state.trials if not is_settled(trial)}
        self._thread: threading.Thread | None = None
        self._failed = False

    def maybe(self) -> bool:
        """Take one if it is due and the last one is on disk; whether that was so."""
        now = self._clock.now()
        if now < self._due or (self._thread is not None and self._thread.is_alive()):
            return False
        self._take(background=True)
        self._due = now + next_period(self._clock.now() - now, self._fixed_s)
        return True

    def finish(self) -> None:
        """Take the last one and wait for it."""
        if self._thread is not None:
            self._thread.join()
        self._take(background=False)

    def _take(self, *, background: bool) -> None:
        state, changed = self._state, self._changed
        if self._failed:  # nobody knows what reached the archive: write all of it again, later records win
            self._failed = False
            changed.update(range(len(state.trials)))
        if not changed:
            return
        settled = []
        for n in changed:
            trial = state.trials[n]
            if is_settled(trial):
                settled.append(archive_record(trial))
                self._live.discard(n)
            else:
                self._live.add(n)
        changed.clear()
        payload = snapshot_payload(state, [state.trials[n] for n in sorted(self._live)], self._policies())
        position = self._journal.position
        if background:
            self._thread = threading.Thread(
                target=self._write, args=(settled, position, payload), name="holdfast-snapshot", daemon=True
            )
            self._thread.start()
        else:
            self._write(settled, position, payload)

    def _write(self, settled: list[bytes], position: Position, payload: bytes) -> None:
        seq = position.next_seq - 1
        try:
            self._store.archive(settled)
            if not self._journal.wait_synced(seq, SYNC_TIMEOUT_S):
                raise OSError("the journal is not durable yet")
            # The next driver repairs the result files of trials that changed after its snapshot, and of no others.
            if not self._flush_files():
                raise OSError("the result files are not written yet")
            self._store.write(seq, position, payload)
        except Exception as error:  # whatever it is: a run must never end for want of a snapshot
            self._failed = True
            logger.warning(
                "no snapshot could be written (%s: %s); reopening will take longer, nothing is lost",
                type(error).__name__,
                error,
            )
