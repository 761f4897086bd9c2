"""What tests of older spellings share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for folder in (Path(__file__).parent, Path(__file__).parents[1]):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from holdfast.compat import ray  # noqa: E402
from servers.fixtures import *  # noqa: E402, F403


@pytest.fixture(autouse=True)
def _two_cpus(request: pytest.FixtureRequest) -> Iterator[None]:
    """Trials share two CPUs, whatever the machine has; nothing that was put is left."""
    if "ray_stand_in" not in request.node.nodeid:
        ray.init(num_cpus=2)
    yield
    ray.shutdown()
