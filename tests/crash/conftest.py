"""What the crash tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("lab")

from experiments import Plan  # noqa: E402
from lab import Lab, searched  # noqa: E402


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A laboratory that ends every process it has started."""
    laboratory = Lab(tmp_path)
    yield laboratory
    laboratory.close()


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the search chooses when nothing happens to the experiment."""
    laboratory = Lab(tmp_path_factory.mktemp("uninterrupted"))
    try:
        plan = Plan(pause_s=0.0)
        laboratory.run(plan).must_finish()
        return [searched(trial.config) for trial in laboratory.check_finished(plan).trials]
    finally:
        laboratory.close()
