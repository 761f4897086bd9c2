"""Room for things that are looked at once, on the disk that has space for mirrors."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from holdfast.controller.remote_experiment import mirror_root
from holdfast.storage.remote_root import Remote

PREFIX = ".scratch-"


@contextlib.contextmanager
def scratch(remote: Remote) -> Iterator[Path]:
    """A directory beside the place of a mirror, for a while."""
    parent = mirror_root(remote).path.parent
    parent.mkdir(parents=True, exist_ok=True)
    directory = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    try:
        yield Path(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
