"""A module that cannot be preloaded: importing it kills the process."""

import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
