"""Fixtures for stores of every kind, opened as a driver opens them: through the agent.

A conftest takes them with ``from store_fixtures import *``, beside those of ``servers.fixtures``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.storage import agent_client
from holdfast.storage.options import StoreOptions

SCHEMES = {"seaweedfs": "s3", "moto": "s3", "rclone": "s3", "azurite": "az", "gcs": "gs"}


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing that this machine knows of stores is used."""
    for name in agent_client.credentials(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def opened(no_credentials: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`opened(url, **connect's arguments)`; everything is closed with the test, and the agent with it."""
    # An agent of its own: other tests of this process may have left stores open.
    agents = agent_client._Agents()
    monkeypatch.setattr(agent_client, "_agents", agents)
    stores: list[Any] = []

    def connect(address: Any, **arguments: Any) -> Any:
        stores.append(agent_client.connect(address, **arguments))
        return stores[-1]

    yield connect
    for store in stores:
        store.close()
    assert agents.agent_pid is None


@pytest.fixture
def bucket_of(
    request: pytest.FixtureRequest, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, bucket_name: str
) -> Callable[..., Any]:
    """`bucket_of("seaweedfs")` opens a fresh bucket of a server; `endpoint` puts a proxy between."""

    def open_bucket(kind: str, endpoint: str | None = None, **options: Any) -> Any:
        server = request.getfixturevalue(kind)
        for name, value in server.environment(endpoint).items():
            monkeypatch.setenv(name, value)
        server.bucket(bucket_name)
        return opened(f"{SCHEMES[kind]}://{bucket_name}/some/prefix", options=StoreOptions(**options))

    return open_bucket


@pytest.fixture
def proxied(
    request: pytest.FixtureRequest, fault_proxy: Callable[..., Any], bucket_of: Callable[..., Any]
) -> Callable[..., Any]:
    """`store, proxy = proxied()`: a bucket of SeaweedFS behind a faulty network."""

    def open_bucket(kind: str = "seaweedfs", **options: Any) -> Any:
        proxy = fault_proxy(request.getfixturevalue(kind).endpoint)
        return bucket_of(kind, endpoint=proxy.endpoint, **options), proxy

    return open_bucket
