"""What the blocks of the guides are given: a machine of their own, a module to import, a bucket."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

for folder in (Path(__file__).parent, Path(__file__).parents[1]):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

pytest.register_assert_rewrite("guide_scripts")

from guide_scripts import Machine  # noqa: E402

from holdfast.storage import agent_client  # noqa: E402
from servers.fixtures import *  # noqa: E402, F403
from servers.seaweedfs import SeaweedFS  # noqa: E402


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that has nothing yet; `~` is its home directory."""
    for name in agent_client.credentials(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Machine(tmp_path / "home")


@pytest.fixture
def bucket(seaweedfs: SeaweedFS, bucket_name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a new bucket of a real S3 server, for this process and the scripts."""
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(machine.home / "cache-of-the-test"))
    agents = agent_client._Agents()
    monkeypatch.setattr(agent_client, "_agents", agents)
    seaweedfs.bucket(bucket_name)
    yield f"s3://{bucket_name}"  # type: ignore[misc]
    agents.stop()
