"""Shared by all tests."""

import signal
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# A shell without job control starts its background jobs with SIGINT ignored, nohup does so with SIGHUP, and children
# inherit both: drivers under test would not hear Ctrl+C. Programs that are started from here have the defaults again.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No limits in wall time: a machine that stands still for 0.2 s, as a busy one does, would fail a test.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# Helpers that several tests of one folder share are plain modules beside them; those of many are packages of this one.
for folder in ("core", "cli", ""):
    sys.path.insert(0, str(Path(__file__).parent / folder))
