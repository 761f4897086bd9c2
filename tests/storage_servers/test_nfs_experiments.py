"""Experiments on a real NFS: killed at one client and continued at another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from servers.nfs import NFS

pytestmark = pytest.mark.slow

STORY = str(Path(__file__).with_name("nfs_story.py"))
TIMEOUT_S = 280.0
WHOLE = "[(1.0, 4, 4), (2.0, 4, 4)]"


def inside(nfs: NFS, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": nfs.mounts[0], **environment}
    words = [f"{name}={value}" for name, value in settings.items()]
    return nfs.run(["/usr/bin/env", *words, sys.executable, *command], TIMEOUT_S)


def storages(nfs: NFS, name: str) -> list[str]:
    """The same directory through both clients."""
    return [f"{mount}/{name}" for mount in nfs.mounts]


def test_an_experiment_killed_at_one_client_goes_on_at_another(nfs: NFS) -> None:
    here, there = storages(nfs, "killed")
    died = inside(nfs, STORY, here, HOLDFAST_CRASH="journal.after_write:12")
    assert died.returncode == -9, died.stdout
    continued = inside(nfs, STORY, there)
    assert (continued.returncode, continued.stdout.splitlines()[-1:]) == (0, [WHOLE]), continued.stdout
    verified = inside(nfs, "-m", "holdfast", "verify", f"{here}/exp")
    assert verified.returncode == 0, verified.stdout
