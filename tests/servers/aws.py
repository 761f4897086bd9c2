"""The aws command line, where the machine has one: it is not installed by `make test`."""

from __future__ import annotations

import shutil
import subprocess

from servers.install import Unavailable

# The command line sometimes misreads the answer to a small upload (its "100 Continue" arrives in pieces). It then waits
# for its read timeout, by default a minute, before it tries again.
READ_TIMEOUT_S = 3
SYNC = f"aws s3 sync --only-show-errors --cli-read-timeout {READ_TIMEOUT_S}"

VERSION_TIMEOUT_S = 60


def check_aws() -> None:
    """Raise `Unavailable`, with the way to get it, where the command line is missing or does not work."""
    if shutil.which("aws") is None:
        raise Unavailable("the aws command line is not on this machine: pip install awscli")
    try:
        code = subprocess.run(["aws", "--version"], capture_output=True, timeout=VERSION_TIMEOUT_S).returncode
    except subprocess.TimeoutExpired:
        code = None
    if code != 0:
        raise Unavailable("the aws command line does not work on this machine: `aws --version` fails")
