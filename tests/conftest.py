"""Shared by all tests."""

import sys
from pathlib import Path

# Helpers that several tests of one folder share are plain modules beside them.
for folder in ("core", "cli"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
