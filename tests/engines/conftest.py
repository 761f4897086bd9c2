from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_harness import LocalDriver

from holdfast.engines import process_tree


@pytest.fixture
def new_children() -> Callable[[], list[int]]:
    """Child processes of this one that were not there before the test, as the servers of other tests may be."""
    before = set(process_tree.children(os.getpid()))
    return lambda: [pid for pid in process_tree.children(os.getpid()) if pid not in before]


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., LocalDriver]]:
    """Opens local engines with the given settings, and closes them at the end."""
    drivers: list[LocalDriver] = []

    def make(**settings: Any) -> LocalDriver:
        drivers.append(LocalDriver(tmp_path, **settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.engine.close()
