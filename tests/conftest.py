"""Shared by all tests."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# No limits in wall time: a machine that stands still for 0.2 s, as a busy one does, would fail a test.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# Helpers that several tests of one folder share are plain modules beside them.
for folder in ("core", "cli"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
