from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from worker_wire import Driver


@pytest.fixture
def driver(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Driver]]:
    """Start workers; all of them have left when the test ends."""
    monkeypatch.chdir(tmp_path)  # workers live in this process, and go back to their experiment's directory
    drivers: list[Driver] = []
    # Trainables are pickled by value, as if they came from a script: so closures are really copied.
    cloudpickle.register_pickle_by_value(request.module)

    def start(trainable: Any, **settings: Any) -> Driver:
        drivers.append(Driver(tmp_path / f"exp_{len(drivers)}", trainable, **settings))
        return drivers[-1]

    yield start
    for one in drivers:
        one.close()
    cloudpickle.unregister_pickle_by_value(request.module)
