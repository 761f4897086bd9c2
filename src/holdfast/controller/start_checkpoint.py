"""The checkpoint that every trial of an experiment starts from (``tune.run(restore=...)``).

Owns the copy of it that belongs to the experiment: one archive among its objects, which travels with them, and the
directory beside them that a machine unpacks it into. The checkpoint that it was made from is not needed any more.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import uuid
from pathlib import Path

from holdfast.checkpoints.checkpoint import Checkpoint
from holdfast.checkpoints.names import METADATA, is_internal
from holdfast.errors import InvalidInputError, StorageError
from holdfast.storage.address import is_remote
from holdfast.storage.layout import PRIVATE, Root

ARCHIVE = "start.tar"
DIRECTORY = f"{PRIVATE}/start"


def check(source: str) -> None:
    """Refuse a local path at which there is no checkpoint, before anything is written."""
    if not is_remote(source) and not os.path.isdir(source):
        raise InvalidInputError(
            f"restore={source!r}: there is no checkpoint. Give the directory of one, such as "
            "~/holdfast_results/EXPERIMENT/TRIAL/checkpoint_000003. Nothing was started."
        )


def keep(root: Root, source: str) -> None:
    """Copy a checkpoint into an experiment that is being made.

    Durability: when this returns, the archive is complete and synced.
    """
    target = root.objects / ARCHIVE
    partial = target.with_name(f".{ARCHIVE}.{uuid.uuid4().hex[:8]}")
    try:
        with Checkpoint(source).as_directory() as path, open(partial, "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                archive.add(path, arcname=".", filter=_user_files)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _user_files(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """All but the marks of the experiment that the checkpoint comes from: those are not true of the copy."""
    name = member.name.removeprefix("./")
    return None if is_internal(name) and name != METADATA else member


def place(root: Root) -> str | None:
    """The directory that trials start from, relative to the root; None if they start from scratch.

    Raises:
        StorageError: The archive cannot be unpacked.
    """
    archive, target = root.objects / ARCHIVE, root.path / DIRECTORY
    if not archive.is_file():
        return None
    if not target.is_dir():
        partial = Path(f"{target}.{uuid.uuid4().hex[:8]}")
        try:
            with tarfile.open(archive) as packed:
                packed.extractall(partial, filter="data")
            os.rename(partial, target)
        except (OSError, tarfile.TarError) as error:
            if not target.is_dir():  # else another one was faster
                raise StorageError(
                    f"The checkpoint that trials start from, {archive}, cannot be unpacked: {error}"
                ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return DIRECTORY
