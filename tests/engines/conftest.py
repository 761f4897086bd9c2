from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_harness import LocalDriver


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
