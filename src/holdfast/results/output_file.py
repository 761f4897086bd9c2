"""Files that a user has asked for, such as an export: each appears whole or not at all.

Owns the temporary file beside it and the error. Must never be used for an experiment's own files, which also have to
survive a power cut: nothing is fsynced, because the command can be repeated.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import StorageError


@contextlib.contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """Give a path to write to; the file there becomes ``out`` at the end, unless something was raised.

    Raises:
        StorageError: It cannot be written.
    """
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, out)
    except OSError as error:
        hint = "" if out.parent.is_dir() else f" Create the directory first: mkdir -p {shlex.quote(str(out.parent))}."
        raise StorageError(f"{out} cannot be written: {error.strerror or error}.{hint}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
