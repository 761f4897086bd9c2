"""A module whose import takes very long, as those of large libraries seem to."""

import sys
import time
from pathlib import Path

# Its standard error is <test's directory>/logs/nanny.log.
Path(f"/proc/self/fd/{sys.stderr.fileno()}").resolve().parent.parent.joinpath("importing").touch()
time.sleep(1000)
