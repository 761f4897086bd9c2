"""What the contract suites are run over: implementations and fakes from every corner of the project."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
for folder in (TESTS / "storage", TESTS):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from store_fixtures import *  # noqa: E402, F403

from servers.fixtures import *  # noqa: E402, F403
