"""Places of their own for the tests of syncers, and the servers that some of them copy to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from servers.fixtures import *  # noqa: E402, F403
from servers.seaweedfs import SeaweedFS  # noqa: E402
from servers.sshd import Sshd  # noqa: E402


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing outside of the test's own directory is written, and nothing there found."""
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path / "here"))
    monkeypatch.delenv("HOLDFAST_LOCAL_CACHE_DIR", raising=False)


@pytest.fixture
def rsync(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> str:
    """The beginning of an rsync command; it finds the ssh that reaches the server."""
    for name, value in sshd.environment().items():
        monkeypatch.setenv(name, value)
    return "rsync -a"


@pytest.fixture
def bucket(aws: None, seaweedfs: SeaweedFS, bucket_name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a bucket of a real S3 server, which the aws command line finds through the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{seaweedfs.bucket(bucket_name)}"
