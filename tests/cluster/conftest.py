"""Machines and a Ray cluster for the tests below; where they cannot be made, the tests say why and are skipped."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hosts import why_not

from ray_cluster import RayHosts


@pytest.fixture(scope="session")
def machines() -> Iterator[RayHosts]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed here: make test-ray")
    if reason := why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="hf-hosts-") as work:
        cluster = RayHosts(Path(work))
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.fixture
def cluster(machines: RayHosts) -> RayHosts:
    """Three machines with a Ray node each: "a", the head and the driver's, "b" and "c"."""
    machines.up("a", "b", "c")
    return machines
