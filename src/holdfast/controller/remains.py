"""What is left of trials on disk, without their journal: rows of result files, configs, checkpoints.

Owns reading these files back as facts. Must never write, unpickle, or trust an incomplete line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoints.names import MANIFEST, index_of
from holdfast.controller.evidence import TRIAL_ID, Unknown, read_manifest
from holdfast.errors import DamageError
from holdfast.space.naming import why_no_name
from holdfast.storage.layout import PARAMS_FILE, RESULT_FILE
from holdfast.storage.untrusted import open_regular, read_regular
from holdfast.views.trials import ERROR_FILE

MAX_ERROR_BYTES = 1 << 20


class Remains(msgspec.Struct):
    """What one trial's directory tells.

    Attributes:
        trial_id: Whose it is.
        folder: The directory, relative to the root.
        rows: The result file's rows, in order: each step that survived, once.
        config: The trial's parameters as JSON knows them; None if no file tells.
        checkpoints: Those that are committed, by index.
        folders: Names of all that is in the directory.
        error: The end of ``error.txt``; "" if there is none.
    """

    trial_id: str
    folder: str
    rows: list[dict[str, Any]]
    config: dict[str, Any] | None
    checkpoints: dict[int, Unknown]
    folders: set[str]
    error: str


def gather(root: Path) -> dict[str, Remains]:
    """Read what the directories of trials tell, by trial id."""
    found: dict[str, Remains] = {}
    for folder in sorted(_names(root)):
        path = root / folder
        if folder.startswith(".") or path.is_symlink() or not path.is_dir():
            continue
        remains = _read(root, folder)
        if remains is not None and remains.trial_id not in found:
            found[remains.trial_id] = remains
    return found


def names_in(root: Path, folder: str) -> set[str]:
    """Names of all that is in a directory below the root; none if it is a link."""
    path = root / folder
    return set() if path.is_symlink() else set(_names(path))


def _read(root: Path, folder: str) -> Remains | None:
    path = root / folder
    rows = list(_rows(path / RESULT_FILE))
    checkpoints: dict[int, Unknown] = {}
    names = set(_names(path))
    for name in names:
        index = index_of(name)
        read = None if index is None else read_manifest(path / name / MANIFEST)
        if index is not None and read is not None and read[0].index == index and not why_no_name(read[0].stage):
            checkpoints[index] = Unknown(folder, *read)
    config = _object(path / PARAMS_FILE)
    trial_id = _trial_id(folder, rows, checkpoints)
    if trial_id is None or not (rows or checkpoints or config is not None):
        return None
    if config is None and rows and isinstance(rows[-1].get("config"), dict):
        config = rows[-1]["config"]
    checkpoints = {index: each for index, each in checkpoints.items() if each.manifest.trial == trial_id}
    return Remains(trial_id, folder, rows, config, checkpoints, names, _error(path / ERROR_FILE))


def _trial_id(folder: str, rows: list[dict[str, Any]], checkpoints: dict[int, Unknown]) -> str | None:
    told = [str(row.get("trial_id", "")) for row in rows[-1:]]
    told += [each.manifest.trial for each in checkpoints.values()]
    told += TRIAL_ID.findall(folder)[-1:]
    return next((each for each in told if TRIAL_ID.fullmatch(each)), None)


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows before the first line that is not one: a crash may have torn the file."""
    try:
        fd = open_regular(path)
    except (OSError, DamageError):
        return
    with open(fd, "rb") as file:
        for line in file:
            try:
                row = json.loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                return
            if not isinstance(row, dict):
                return
            yield row


def _object(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(_regular(path))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _error(path: Path) -> str:
    return _regular(path)[-MAX_ERROR_BYTES:].decode("utf-8", "replace")


def _regular(path: Path) -> bytes:
    """The content of a regular file; empty if it is something else, far too large, or cannot be read."""
    try:
        return read_regular(path)
    except (OSError, DamageError):
        return b""
