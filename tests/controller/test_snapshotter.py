from __future__ import annotations

import logging
from pathlib import Path

import pytest

from holdfast.controller.clock import RealClock
from holdfast.controller.snapshots import Snapshotter
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State
from holdfast.core.transitions import apply
from holdfast.errors import FencedError, InternalError
from holdfast.journal.reader import START, Position
from holdfast.journal.snapshot import SnapshotStore


class Journal:
    """Durable, unless ``error`` says otherwise."""

    position: Position = START
    error: Exception | None = None

    def wait_synced(self, seq: int, timeout: float | None = None) -> bool:
        if self.error is not None:
            raise self.error
        return True


@pytest.mark.parametrize("error", [OSError("broken"), InternalError("our bug"), FencedError("taken"), KeyError("n")])
def test_a_snapshot_that_fails_ends_nothing_and_the_next_one_has_everything(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    state, journal, store = State(), Journal(), SnapshotStore(tmp_path, epoch=1)
    apply(state, ev.EpochStarted(1.0, 1, "w", "h", 1), Retention())
    apply(state, ev.TrialCreated(2.0, 0, "t0", {}, "0"), Retention())
    snapshotter = Snapshotter(state, store, RealClock(not_before=0.0), journal, changed={0})
    journal.error = error
    with caplog.at_level(logging.WARNING, "holdfast"):
        snapshotter.finish()
    assert "no snapshot could be written" in caplog.text
    assert type(error).__name__ in caplog.text
    directory = tmp_path / ".holdfast" / "snapshots"
    assert not list(directory.glob("*.hfs"))
    journal.error = None
    snapshotter.finish()
    store.close()
    assert len(list(directory.glob("*.hfs"))) == 1
