"""Fixtures for tests of results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.storage import agent_client
from servers.fixtures import *  # noqa: F403
from servers.seaweedfs import SeaweedFS


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this machine keeps mirrors."""
    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bucket(seaweedfs: SeaweedFS, bucket_name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URI of a new bucket, for this process and those that it starts."""
    for name in agent_client.credentials(dict(seaweedfs.environment())):
        monkeypatch.delenv(name, raising=False)
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    seaweedfs.bucket(bucket_name)
    agents = agent_client._Agents()
    monkeypatch.setattr(agent_client, "_agents", agents)
    yield f"s3://{bucket_name}"
    agents.stop()
