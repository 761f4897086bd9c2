"""What the tests of experiments in stores share: a real S3 server, a laboratory with machines, a quiet environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

for folder in (Path(__file__).parents[1], Path(__file__).parents[1] / "crash"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

pytest.register_assert_rewrite("lab", "remote_lab")

from experiments import Plan  # noqa: E402
from lab import Lab, searched  # noqa: E402
from remote_lab import RemoteLab  # noqa: E402

from holdfast.storage import agent_client  # noqa: E402
from servers.fixtures import *  # noqa: E402, F403
from servers.process import Server  # noqa: E402


@pytest.fixture(autouse=True)
def _no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in agent_client.credentials(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    # One of its own: a thread that another test has left may ask for something at any time, and the agent that is
    # started for it knows no credentials, or others.
    agents = agent_client._Agents()
    monkeypatch.setattr(agent_client, "_agents", agents)
    yield
    agents.stop()


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bucket_name: str) -> Iterator[Callable[..., RemoteLab]]:
    """`machines(server)`: a laboratory over a fresh bucket; `endpoint` is what drivers see instead of the server."""
    made: list[RemoteLab] = []

    def make(server: Any, endpoint: str | None = None, name: str = "exp", scheme: str = "s3") -> RemoteLab:
        for variable, value in server.environment().items():
            monkeypatch.setenv(variable, value)
        server.bucket(bucket_name)
        made.append(RemoteLab(tmp_path, f"{scheme}://{bucket_name}/runs/{name}", server.environment(endpoint)))
        return made[-1]

    yield make
    for laboratory in made:
        laboratory.close()


@pytest.fixture
def lab(machines: Callable[..., RemoteLab], seaweedfs: Server) -> RemoteLab:
    """A laboratory whose drivers talk to SeaweedFS directly."""
    return machines(seaweedfs)


@pytest.fixture
def proxied(machines: Callable[..., RemoteLab], seaweedfs: Server, fault_proxy: Callable[..., Any]) -> Any:
    """`lab, proxy`: the drivers talk to SeaweedFS through a faulty network, the test directly."""
    proxy = fault_proxy(seaweedfs.endpoint)
    return machines(seaweedfs, proxy.endpoint), proxy


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the search chooses when nothing happens, and there is no store."""
    laboratory = Lab(tmp_path_factory.mktemp("uninterrupted"))
    try:
        plan = Plan(trials=4, steps=4, pause_s=0.0)
        laboratory.run(plan).must_finish()
        return [searched(trial.config) for trial in laboratory.check_finished(plan).trials]
    finally:
        laboratory.close()
