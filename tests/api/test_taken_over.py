"""A driver that was taken over says who has the experiment now, and does not tell anybody to resume it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import holdfast as tune
from holdfast.errors import OwnershipError
from holdfast.journal.epoch import claim_epoch

TRAIN = """
def train(config):
    first = tune.get_checkpoint() is None
    save(1 if first else 2)
    (DIR / "saved").touch()
    while first:  # until the driver ends
        tune.report({"waiting": True})
        time.sleep(0.02)
"""
RUN = """
tune.Tuner(train, run_config=config(verbose={verbose})).fit()
"""


@pytest.mark.parametrize("verbose", [0, 1])
def test_the_old_driver_names_the_new_one_and_offers_no_resume(drivers, root, tmp_path, verbose):
    old = drivers.start(TRAIN + RUN.format(verbose=verbose))
    old.wait_for(tmp_path / "saved")
    old.wait_until(lambda: tune.ResultGrid.from_path(root)[0].checkpoint, "a committed checkpoint")
    (result,) = tune.Tuner.restore(root, takeover=True).fit()
    code, output = old.end()
    assert (code, result.metrics["training_iteration"]) == (1, 2), output
    assert f"exp was taken over by pid {os.getpid()} on {socket.gethostname()}" in output
    assert "This process stops; nothing is lost." in output
    assert f"holdfast status {root}" in output
    assert "Resume with" not in output


class TakenOver(tune.Callback):
    """Somebody takes the experiment over, and starts workers, while its driver is still opening it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def setup(self, **_: object) -> None:
        claim_epoch(self.root, takeover=True)
        note_of_workers(self.root).parent.mkdir()
        note_of_workers(self.root).write_text("the successor's")


def note_of_workers(root: Path) -> Path:
    """By which the next driver finds the workers of a dead one, to end them."""
    return root / ".holdfast" / "logs" / "nanny.run"


def test_a_driver_that_is_taken_over_while_it_opens_leaves_its_successors_workers_alone(make_tuner, root):
    with pytest.raises(OwnershipError, match="was taken over by pid"):
        make_tuner(lambda config: None, callbacks=[TakenOver(root)]).fit()
    assert note_of_workers(root).read_text() == "the successor's"
