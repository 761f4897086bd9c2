"""Pytest fixtures: one server of each kind per test process, fresh buckets and proxies per test.

A conftest takes them with `from servers.fixtures import *`. A server that is not installed skips the test with the
reason; one that is installed and does not come up is an error.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import pytest

from servers.aws import check_aws
from servers.azurite import Azurite
from servers.fault_proxy import FaultProxy
from servers.gcs import GCS
from servers.install import Unavailable
from servers.moto import Moto
from servers.nfs import NFS
from servers.process import Server
from servers.rclone import Rclone
from servers.seaweedfs import SeaweedFS
from servers.sshd import Sshd

S = TypeVar("S", bound=Server)


class BucketServer(Protocol):
    """What the object stores have in common."""

    conditional_puts: bool
    durable: bool
    name: str

    @property
    def endpoint(self) -> str: ...
    def bucket(self, name: str) -> str: ...
    def environment(self, endpoint: str | None = None) -> dict[str, str]: ...
    def store(self, bucket: str, endpoint: str | None = None, **options: Any) -> Any: ...


def _serve(kind: Callable[[Any], S], factory: pytest.TempPathFactory) -> Iterator[S]:
    server = kind(factory.mktemp("server"))
    try:
        server.start()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with server:
        yield server


@pytest.fixture(scope="session")
def aws() -> None:
    """Skips the test where the aws command line is not usable."""
    try:
        check_aws()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """A shared SeaweedFS; a test that stops or pauses it starts one of its own instead."""
    yield from _serve(SeaweedFS, tmp_path_factory)


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    """A shared moto server."""
    yield from _serve(Moto, tmp_path_factory)


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rclone]:
    """A shared `rclone serve s3`, which ignores conditions."""
    yield from _serve(Rclone, tmp_path_factory)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """A shared Azurite."""
    yield from _serve(Azurite, tmp_path_factory)


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCS]:
    """A shared stand-in for Google Cloud Storage."""
    yield from _serve(GCS, tmp_path_factory)


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A shared sshd with rsync."""
    yield from _serve(Sshd, tmp_path_factory)


@pytest.fixture(scope="session")
def nfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NFS]:
    """A shared machine with an NFS server and two clients; it takes 20 seconds to start."""
    yield from _serve(NFS, tmp_path_factory)


@pytest.fixture
def bucket_name() -> str:
    """A name that no other test has; valid on every store."""
    return f"t-{uuid.uuid4().hex[:20]}"


@pytest.fixture
def fault_proxy() -> Iterator[Callable[..., FaultProxy]]:
    """`fault_proxy(server.endpoint)` puts a proxy in front of a server until the test ends."""
    started: list[FaultProxy] = []

    def start(upstream: str, **options: Any) -> FaultProxy:
        started.append(FaultProxy(upstream, **options).start())
        return started[-1]

    yield start
    for proxy in started:
        proxy.close()


__all__ = ["aws", "azurite", "bucket_name", "fault_proxy", "gcs", "moto", "nfs", "rclone", "seaweedfs", "sshd"]
