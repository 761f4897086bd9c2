"""What a backend finds when it compares the history with the checkpoints that lie there."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoints.commit import commit
from holdfast.checkpoints.stage import Stage
from holdfast.controller.backends import LocalBackend
from holdfast.core.state import State
from holdfast.errors import FencedError, JournalDamagedError
from holdfast.journal import claim_epoch
from holdfast.storage.layout import Root

UID = "ab5e1" + "0" * 27


def make_checkpoint(root: Path) -> None:
    """What another driver's trial has saved."""
    trial_dir = root / "train_ab5e1_00000"
    stage = Stage(trial_dir, "ab5e1_00000", 1)
    folder = stage.new_directory()
    (folder / "weights").write_text("1")
    commit(trial_dir, stage.seal(folder).name, 0, trial_id="ab5e1_00000", attempt=1)


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    """The backend of a driver that has read an empty journal."""
    backend = LocalBackend(Root(tmp_path), "group")
    backend.open(backend.claim(takeover=False))
    return backend


def test_a_checkpoint_that_the_journal_does_not_know_is_a_loss(backend: LocalBackend, tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    with pytest.raises(JournalDamagedError, match="1 checkpoint was committed and it has no record of that"):
        backend.compare(State(), UID)


def test_the_checkpoints_of_a_driver_that_has_taken_over_are_no_loss(backend: LocalBackend, tmp_path: Path) -> None:
    """A driver that is stopped between reading the journal and looking at checkpoints finds those of its successor."""
    claim_epoch(tmp_path, takeover=True)
    make_checkpoint(tmp_path)
    with pytest.raises(FencedError):
        backend.compare(State(), UID)
