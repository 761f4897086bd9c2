"""Fixtures for tests of imports from Ray Tune. The recorded experiments are made by ``record.py``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.cli.main import main
from holdfast.storage import agent_client
from servers.fixtures import *  # noqa: F403
from servers.seaweedfs import SeaweedFS

RECORDED = Path(__file__).parent / "recorded"


class Answer(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs a command in this process."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a recorded experiment, which a test may change."""

    def copy(name: str) -> Path:
        target = tmp_path / "ray" / name
        shutil.copytree(RECORDED / name, target)
        return target

    return copy


@pytest.fixture
def imported(holdfast: Callable[..., Answer], recorded: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A recorded experiment, imported."""

    def make(name: str) -> Path:
        answer = holdfast("import", recorded(name), tmp_path / "imported" / name)
        assert answer.code == 0, answer.err
        return tmp_path / "imported" / name

    return make


@pytest.fixture
def bucket(seaweedfs: SeaweedFS, bucket_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URI of a new bucket, for this process and those that it starts."""
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
