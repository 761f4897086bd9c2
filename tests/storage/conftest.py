"""Stores of every kind, opened as a driver opens them: through the agent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for folder in (Path(__file__).parent, Path(__file__).parents[1]):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from store_fixtures import *  # noqa: E402, F403

from servers.fixtures import *  # noqa: E402, F403


@pytest.fixture(autouse=True)
def _no_credentials_of_this_machine(no_credentials: None) -> None:
    pass
