"""Trials, small file systems, and processes that die on command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkpoint_trial import FILES, Trial, write_tree


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path / "trial")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory of the user's own."""
    return write_tree(tmp_path / "source", FILES)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system is not permitted here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a new process; ``crash`` names the place where it dies."""

    def run(code: str, *args: object, crash: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "HOLDFAST_CRASH": crash}
        command = [sys.executable, "-W", "error", "-c", code, *map(str, args)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    return run
