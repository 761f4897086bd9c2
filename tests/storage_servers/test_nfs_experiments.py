"""Experiments on a real NFS: killed at one client and continued at another, two drivers at once, a restarted server."""

from __future__ import annotations

import json
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


def verify(nfs: NFS, root: str) -> None:
    verified = inside(nfs, "-m", "holdfast", "verify", root)
    assert verified.returncode == 0, verified.stdout


def test_an_experiment_killed_at_one_client_goes_on_at_another(nfs: NFS) -> None:
    here, there = storages(nfs, "killed")
    died = inside(nfs, STORY, "live", here, HOLDFAST_CRASH="journal.after_write:12")
    assert died.returncode == -9, died.stdout
    continued = inside(nfs, STORY, "live", there)
    assert (continued.returncode, continued.stdout.splitlines()[-1:]) == (0, [WHOLE]), continued.stdout
    verify(nfs, f"{here}/exp")


def test_of_two_drivers_at_two_clients_the_older_one_is_fenced(nfs: NFS) -> None:
    """A client believes for a while that the name of the newer driver's epoch is still missing: it has to ask again."""
    here, there = storages(nfs, "met")
    met = inside(nfs, STORY, "meet", here, there, STORY="met")
    assert met.returncode == 0, met.stdout
    second, first, third = met.stdout.splitlines()[-3:]
    assert second.startswith("second: 1 holdfast.errors.ExperimentLockedError"), met.stdout
    assert first.startswith("first: 1 holdfast.errors.FencedError"), met.stdout
    assert third == f"third: 0 {WHOLE}", met.stdout
    verify(nfs, f"{here}/exp")


def test_an_experiment_outlives_a_restart_of_the_server(nfs: NFS) -> None:
    here, there = storages(nfs, "restarted")
    commands = (json.dumps(words) for words in nfs.restart_commands())
    lived = inside(nfs, STORY, "restart", here, *commands, STORY="restarted")
    assert (lived.returncode, lived.stdout.splitlines()[-1:]) == (0, [f"driver: 0 {WHOLE}"]), lived.stdout
    verify(nfs, f"{there}/exp")
