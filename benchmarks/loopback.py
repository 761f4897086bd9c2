"""The S3 server that workloads with a store share: SeaweedFS on this machine, as the tests start it.

Owns its buckets: each sample gets a fresh one, and the disk space of the last sample back before it begins.
Must never import holdfast or a peer.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import ROOT

if TYPE_CHECKING:
    from benchmarks.harness import Bench


class ServerMissing(RuntimeError):
    """The server is not installed."""


class Loopback:
    """A running server. Made by `serve`."""

    def __init__(self, server: Any) -> None:
        self._server = server

    @property
    def endpoint(self) -> str:
        """Its URL."""
        url: str = self._server.endpoint
        return url

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to know."""
        variables: dict[str, str] = self._server.environment()
        return variables

    def cpu_s(self) -> float:
        """The CPU time that it has used so far."""
        return cpu_of(self._server.pid)

    @contextlib.contextmanager
    def bucket(self) -> Iterator[str]:
        """A new bucket; afterwards all of it is gone, from the disk too.

        The first object of a bucket takes the server 0.2 s, which nobody is to be charged with.
        """
        name: str = self._server.bucket(f"bench-{uuid.uuid4().hex[:12]}")
        self._request("PUT", f"/{name}/warm-up", b"x")
        self._request("DELETE", f"/{name}/warm-up")
        os.sync()
        try:
            yield name
        finally:
            self._request("DELETE", f"/{name}")
            os.sync()

    def sizes(self, bucket: str) -> list[int]:
        """The sizes of the first 1,000 objects of a bucket."""
        return [int(size) for size in re.findall(rb"<Size>(\d+)</Size>", self._request("GET", f"/{bucket}"))]

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        status, answer = self._server.request(method, path, body)
        if status not in (200, 204):
            raise RuntimeError(f"the server answered {method} {path} with {status}: {answer[:200]!r}")
        found: bytes = answer
        return found


@contextlib.contextmanager
def serve(bench: Bench) -> Iterator[Loopback]:
    """Start the server over a directory of the benchmark.

    Raises:
        ServerMissing: It is not installed.
    """
    tests = str(ROOT / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    from servers.install import Unavailable
    from servers.seaweedfs import SeaweedFS

    server = SeaweedFS(bench.directory())
    try:
        server.start()
    except Unavailable as reason:
        raise ServerMissing(
            f"{bench.name} needs SeaweedFS, which is not installed for {sys.executable}: {reason}. Type: make servers"
        ) from None
    with server:
        yield Loopback(server)


def cpu_of(pid: int | str) -> float:
    """The CPU time of a process and of its children that have ended; 0 if it is gone."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
