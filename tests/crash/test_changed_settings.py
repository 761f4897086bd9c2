"""Killed right before or right after the change of its settings became a fact, it has the one or the other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.controller.changes import read_changed

SCRIPT = Path(__file__).with_name("changing.py")


def run(root: Path, step: str, crash: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOLDFAST_CRASH": crash}
    command = [sys.executable, str(SCRIPT), str(root), step]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)


def must(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("step", ["extend", "metric"])
def test_a_driver_killed_around_the_change_is_continued_without_arguments(tmp_path: Path, step: str) -> None:
    """The searcher's suggestions tell: they are those of the driver that was not killed."""
    root = tmp_path / "exp"
    must(run(root, "begin"))
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(root, undisturbed)
    expected = must(run(undisturbed, step))
    for point in ("epoch.claimed", "journal.before_write"):
        assert run(root, step, point).returncode == -9
        assert read_changed(root).times == 0
        assert len(tune.ResultGrid.from_path(root)) == 4
    assert must(run(root, "go on")) == expected[:4]  # nothing was changed, so there is nothing to do
    assert run(root, step, "journal.after_write").returncode == -9
    assert read_changed(root).times == 1
    assert run(root, "go on", "journal.after_write:2").returncode == -9
    assert must(run(root, "go on")) == expected
    assert len(expected) == 8
    shutil.rmtree(root / ".holdfast" / "snapshots")
    shutil.rmtree(undisturbed / ".holdfast" / "snapshots")
    assert must(run(root, "more")) == must(run(undisturbed, "more"))
