"""A checkpoint's metadata: ``.metadata.json``, which users may set and read at any time.

Owns that file's format. The manifest does not cover it, because it may change after the commit; so in a saved
checkpoint it has its own checksum. That is written as white space after the JSON: every JSON reader still accepts the
file, and no key is added to those of the user.
"""

from __future__ import annotations

import json
import os
from typing import Any

from holdfast.checkpoints import names
from holdfast.checkpoints.manifest import new_hasher
from holdfast.checkpoints.tree import read_own_file, storage_error
from holdfast.checkpoints.verified import inspect
from holdfast.errors import CheckpointDamagedError, InvalidTypeError
from holdfast.storage.local import write_atomic

_BLANKS = b" \t\n\r"  # two bits each
_LENGTH = 64  # of a 128-bit checksum
_REPORT = {"row", "iteration", "time_total_s", "at", "metrics"}


def read_metadata(directory: str) -> dict[str, Any]:
    """The metadata of a checkpoint: what was set last, else what it was committed with, else nothing.

    Raises:
        CheckpointDamagedError: It is not what was written.
        StorageError: It cannot be read now.
    """
    path = f"{directory}/{names.METADATA}"
    try:
        data = read_own_file(path)
    except (FileNotFoundError, NotADirectoryError):
        manifest = inspect(directory) if os.path.isdir(directory) else None
        # What a driver tells there of the report is for those who rebuild a journal; the user has not set it.
        return dict(manifest.meta) if manifest and manifest.meta.keys() != _REPORT else {}
    except OSError as error:
        raise storage_error(error, f"reading {path}") from error
    return decode_metadata(data, directory)


def decode_metadata(data: bytes, place: str) -> dict[str, Any]:
    """The inverse of ``encode_metadata``; a file without a checksum is taken if it is a JSON object.

    Args:
        place: The checkpoint, for the error message.
    """
    text = data.rstrip(_BLANKS)
    blanks = data[len(text) :]
    found: Any = None
    reason = f"{names.METADATA} is not a JSON object"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        if len(blanks) >= _LENGTH // 2 and blanks != _checksum(text):
            found, reason = None, f"{names.METADATA} does not match its checksum"
    if not isinstance(found, dict):
        raise CheckpointDamagedError(
            f"the metadata of the checkpoint {place} is damaged: {reason}. The checkpoint's files are not affected: "
            "call set_metadata() to replace the metadata.",
            path=place,
            reason=reason,
        )
    return found


def encode_metadata(metadata: dict[str, Any], *, sealed: bool = True) -> bytes:
    """The content of ``.metadata.json``; ``sealed`` adds the checksum."""
    if not isinstance(metadata, dict):
        raise InvalidTypeError(f"checkpoint metadata is a dict, not {type(metadata).__name__}: {metadata!r:.80}")
    try:
        text = json.dumps(metadata).encode()
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(
            f"checkpoint metadata cannot be written as JSON: {error}. Use strings, numbers, booleans, lists and dicts, "
            "and put anything else into a file of the checkpoint."
        ) from None
    return text + _checksum(text) if sealed else text


def write_metadata(directory: str, metadata: dict[str, Any]) -> None:
    """Replace ``.metadata.json``; a reader sees the old or the new one."""
    data = encode_metadata(metadata, sealed=os.path.exists(f"{directory}/{names.MANIFEST}"))
    path = f"{directory}/{names.METADATA}"
    try:
        write_atomic(path, data)
    except OSError as error:
        raise storage_error(error, f"writing {path}") from error


def seal_metadata(stage: str) -> None:
    """Add the checksum to metadata that a user has set before the checkpoint was reported.

    What is no JSON is left as it is: reading it says so, as it did in the user's own directory.
    """
    path = f"{stage}/{names.METADATA}"
    with open(path, "rb") as file:
        data = file.read()
    text = data.rstrip(_BLANKS)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return
    if data != text + _checksum(text):
        with open(path, "wb") as file:
            file.write(text + _checksum(text))


def _checksum(text: bytes) -> bytes:
    hasher = new_hasher()
    hasher.update(text)
    number = int(hasher.hexdigest(), 16)
    return bytes(_BLANKS[number >> 2 * k & 3] for k in range(_LENGTH))
