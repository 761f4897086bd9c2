"""A real driver works while its root is sent; whatever has arrived when its machine is lost continues elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sync_tools import TreeSyncer, until

import holdfast as tune
from holdfast.journal.recovery import verify_journal
from holdfast.sync.synced_copy import SyncedCopy

pytestmark = pytest.mark.slow

TRIALS, EPOCHS, HELD = 2, 60, 40
ROUNDS = 6

DRIVER = """
import sys
import holdfast as tune
from test_living_experiment import train, TRIALS

tune.Tuner(
    train,
    param_space={"trial": tune.grid_search(list(range(TRIALS)))},
    run_config=tune.RunConfig(name="exp", storage_path=sys.argv[1], verbose=0, engine=tune.LocalEngine(cpus=2)),
).fit()
"""


def train(config: dict[str, int]) -> None:
    checkpoint = tune.get_checkpoint()
    first = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    for epoch in range(first, EPOCHS):
        while epoch == HELD and "HELD" in os.environ:  # in the process whose machine will be lost
            time.sleep(0.05)
        tune.report({"epoch": epoch}, checkpoint=tune.Checkpoint.from_dict({"epoch": epoch}))


def fetched(remote: Path, root: Path) -> Path:
    sync = SyncedCopy(root, str(remote), TreeSyncer())
    sync.fetch()
    sync.close()
    return root


def test_whatever_has_arrived_of_a_living_experiment_goes_on_elsewhere(tmp_path: Path) -> None:
    root, remote = tmp_path / "here" / "exp", tmp_path / "remote"
    paths = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HELD": "1"}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(root.parent)], env=environment)
    sync = SyncedCopy(root, str(remote), TreeSyncer())
    try:
        until(lambda: list(root.glob("*/checkpoint_000002")), "the first checkpoints")
        for number in range(ROUNDS):
            sync.request()
            assert sync.step(number)
            assert sync.trouble is None
            copy = fetched(remote, tmp_path / f"round-{number}" / "exp")
            assert [finding for finding in verify_journal(copy) if finding.level == "damage"] == []
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        sync.close()
    shutil.rmtree(root)
    assert not list(remote.glob(f"*/checkpoint_{EPOCHS - 1:06d}"))
    last = fetched(remote, tmp_path / "elsewhere" / "exp")
    results = tune.Tuner.restore(str(last), trainable=train).fit()
    assert [result.metrics["epoch"] for result in results] == [EPOCHS - 1] * TRIALS
    for result in results:
        assert [row["epoch"] for row in result.metrics_history] == list(range(EPOCHS))
