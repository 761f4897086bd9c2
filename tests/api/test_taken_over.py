"""A driver that was taken over says who has the experiment now, and does not tell anybody to resume it."""

from __future__ import annotations

import os
import socket

import pytest

import holdfast as tune

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
    assert "This process stops here; nothing is lost." in output
    assert f"holdfast status {root}" in output
    assert "Resume with" not in output
