"""The names that checkpoints and their temporary directories have on disk.

Owns every name and pattern under a trial's directory that belongs to checkpoints; nothing else may spell them. A name
that does not match a pattern here was not made by us, and what we did not make is never removed (I3).
"""

from __future__ import annotations

import os
import re

from holdfast.storage.local import TEMP_PREFIX

MANIFEST = "_manifest.json"
METADATA = ".metadata.json"
SEAL = ".holdfast-seal"
NEW_SEAL = ".holdfast-seal.new"
TRASH_MARK = ".holdfast-trash"
DICT_FILE = "_dict_checkpoint.pkl"

RESYNC = ".resync"
EXPERIMENT_MARK = ".holdfast"  # in the root of every experiment

_CHECKPOINT = re.compile(r"checkpoint_(\d{6,})")
_STAGE = re.compile(r"\.stage-\d+-[0-9a-f]{8}")
_SEALED = re.compile(r"\.sealed-\d+-[0-9a-f]{8}")
_INTERRUPTED = re.compile(re.escape(TEMP_PREFIX) + r"\d+-[0-9a-f]+")
_TEMPORARY = re.compile(r"\.stage-(\d+)-[0-9a-f]{8}|\.sealed-(\d+)-[0-9a-f]{8}(?:\.resync)?|\.trash-[0-9a-f]{8}")


def unique() -> str:
    """Eight hex digits that no other process will come up with."""
    return os.urandom(4).hex()


def temporary_file() -> str:
    """A new name for a file that gets its final one when it is complete; readers pass it over."""
    return f"{TEMP_PREFIX}{os.getpid()}-{unique()}"


def checkpoint_name(index: int) -> str:
    """The directory of a trial's checkpoint number ``index``."""
    return f"checkpoint_{index:06d}"


def index_of(name: str) -> int | None:
    """The inverse of ``checkpoint_name``; None for any other name."""
    match = _CHECKPOINT.fullmatch(name)
    if match is None or checkpoint_name(int(match[1])) != name:
        return None
    return int(match[1])


def stage_name(attempt: int) -> str:
    """A new name for a directory that is being written."""
    return f".stage-{attempt}-{unique()}"


def sealed_name(stage: str) -> str:
    """What a directory called ``stage`` is called once nobody writes into it any more."""
    return ".sealed-" + stage.removeprefix(".stage-")


def is_stage(name: str, attempt: int) -> bool:
    """Whether ``stage_name(attempt)`` made this name."""
    return _STAGE.fullmatch(name) is not None and name.startswith(f".stage-{attempt}-")


def is_sealed(name: str) -> bool:
    """Whether ``sealed_name`` made this name."""
    return _SEALED.fullmatch(name) is not None


def is_temporary(name: str) -> bool:
    """Whether this is one of our directories that no reader may ever see."""
    return _TEMPORARY.fullmatch(name) is not None


def attempt_of(name: str) -> int:
    """Which attempt a temporary directory belongs to; 0 for what belongs to none."""
    match = _TEMPORARY.fullmatch(name)
    return int(match[1] or match[2] or 0) if match else 0


def is_internal(path: str) -> bool:
    """Whether a path relative to a checkpoint is ours, so that no manifest lists it.

    ``.metadata.json`` is here because ``Checkpoint.set_metadata`` may change it after the commit.
    """
    return path in (MANIFEST, METADATA, SEAL, NEW_SEAL, TRASH_MARK)


def is_leftover(path: str) -> bool:
    """Whether a file that no manifest lists is there by accident, not by damage.

    Network file systems keep a deleted file that somebody has open; a ``set_metadata`` that was killed leaves its
    temporary file.
    """
    return is_kept_for_readers(path) or is_temporary_file(path)


def is_kept_for_readers(path: str) -> bool:
    """Whether a file is a deleted one that a network file system keeps while somebody has it open."""
    return path.rpartition("/")[2].startswith((".nfs", ".fuse_hidden"))


def is_temporary_file(path: str) -> bool:
    """Whether a path relative to a checkpoint is that of a file which never got its final name."""
    return _INTERRUPTED.fullmatch(path) is not None
