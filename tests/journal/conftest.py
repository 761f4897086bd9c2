"""What the tests of the journal share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _the_dead_hold_no_files(tmp_path: Path) -> Iterator[None]:
    """Close what drivers that died in the middle of a test left open: the process of the tests lives on.

    A thousand of these files would be more than ``select`` can wait for, in any test that comes after.
    """
    before = set(os.listdir("/proc/self/fd"))
    yield
    for name in set(os.listdir("/proc/self/fd")) - before:
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(str(tmp_path)):
                os.close(int(name))
        except OSError:
            pass  # it was the one that listed the directory
