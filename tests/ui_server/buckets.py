"""The fixture of a bucket in a real server, for this process and those that it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.storage import agent_client
from servers.seaweedfs import SeaweedFS


@pytest.fixture
def bucket(seaweedfs: SeaweedFS, bucket_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URI of a new bucket."""
    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "cache"))
    for name in agent_client.credentials(dict(seaweedfs.environment())):
        monkeypatch.delenv(name, raising=False)
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    seaweedfs.bucket(bucket_name)
    agents = agent_client._Agents()
    monkeypatch.setattr(agent_client, "_agents", agents)
    yield f"s3://{bucket_name}"
    agents.stop()
