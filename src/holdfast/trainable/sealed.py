"""Pickles with a checksum: nothing is unpickled before it was found to be what was stored.

Files that are written when an experiment is created are what they are, and the experiment's facts name their digests.
A file that replaces one of them, or is written again and again, is sealed: it ends with the experiment and the name
that it belongs to, the epoch of the driver that wrote it, and a digest of everything before. So it can take the
place of another by one rename, and is never in place without its digest. A value in a file of its own is named by its
digest.

Owns that format, and the comparison. Must never unpickle.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import xxhash

from holdfast.errors import ObjectDamagedError
from holdfast.storage.digest import digest_of
from holdfast.storage.untrusted import read_regular

MAGIC = b"HFOBJ\x01\r\n"

_DIGEST = 16
_LENGTH = struct.Struct("<H")
_OWN_NAME = re.compile(r"value-([0-9a-f]{32})\.pkl")

_REMEDIES = {
    "trainable.pkl": "Pass the trainable again: Tuner.restore(path, trainable=...)",
    "values.pkl": "Pass the search space again: Tuner.restore(path, param_space=...)",
    "settings.pkl": "Pass all settings again: Tuner.restore(path, param_space=..., tune_config=..., run_config=...)",
    "callback-states.pkl": "Callbacks start without their stored state: delete the file",
}

_FROM_COPY = "Put the file back from a copy of the experiment"


class _Seal(msgspec.Struct, array_like=True):
    uid: str
    name: str
    epoch: int


_decode_seal = msgspec.msgpack.Decoder(_Seal).decode


class Content(NamedTuple):
    """A file that is what was stored.

    Attributes:
        payload: What was stored in it.
        digest: Of the whole file.
        epoch: Of the driver that wrote it; 0 if it was written when the experiment was created.
    """

    payload: bytes
    digest: str
    epoch: int


class BadObject(Exception):
    """A file is not what was stored; says why."""


def seal(payload: bytes, uid: str, name: str, epoch: int = 0) -> bytes:
    """The content of a file that can be told from any other.

    Args:
        payload: What to store.
        uid: The experiment.
        name: Of the file.
        epoch: Of the driver.
    """
    facts = msgspec.msgpack.encode(_Seal(uid, name, epoch))
    body = payload + facts + _LENGTH.pack(len(facts))
    return body + xxhash.xxh3_128_digest(body) + MAGIC


def is_own_file(name: str) -> bool:
    """Whether a file of this name holds one value, and its name says which."""
    return _OWN_NAME.fullmatch(name) is not None


def is_sealed(data: bytes) -> bool:
    """Whether a file says of itself what it is."""
    return data.endswith(MAGIC)


def check_object(data: bytes, name: str, uid: str = "", digests: Mapping[str, str] | None = None) -> Content:
    """What was stored in a file.

    Args:
        data: Its content.
        name: Its name.
        uid: The experiment; "" if that is not known.
        digests: Of files as they were when the experiment was created. Without any, a file of an earlier version is
            taken as it is.

    Raises:
        BadObject: It is not what was stored.
    """
    digest = digest_of(data)
    own = _OWN_NAME.fullmatch(name)
    if own is not None:
        if digest != own[1]:
            raise BadObject("its content does not match the checksum in its name")
        return Content(data, digest, 0)
    if is_sealed(data):
        found, payload = _unsealed(data)
        if found.name != name:
            raise BadObject(f"it holds what was stored as {found.name!r}")
        if uid and found.uid != uid:
            raise BadObject("it belongs to another experiment")
        return Content(payload, digest, found.epoch)
    if digests and digests.get(name) != digest:
        raise BadObject("its content does not match its checksum")
    return Content(data, digest, 0)


def _unsealed(data: bytes) -> tuple[_Seal, bytes]:
    end = len(data) - len(MAGIC) - _DIGEST
    body = memoryview(data)[: max(0, end)]
    if len(body) < _LENGTH.size or xxhash.xxh3_128_digest(body) != data[end : end + _DIGEST]:
        raise BadObject("its content does not match its checksum")
    facts_end = end - _LENGTH.size
    start = facts_end - _LENGTH.unpack_from(body, facts_end)[0]
    try:
        return _decode_seal(body[max(0, start) : facts_end]), bytes(body[: max(0, start)])
    except msgspec.DecodeError as error:
        raise BadObject(f"it cannot be read ({error})") from error


def read_object(
    path: str | os.PathLike[str], uid: str = "", digests: Mapping[str, str] | None = None, expect: str = ""
) -> Content:
    """Read a file and compare it with what was stored.

    Args:
        path: The file.
        uid: As for `check_object`.
        digests: As for `check_object`.
        expect: The digest that the whole file must have, if that is known.

    Raises:
        ObjectDamagedError: It is not what was stored, or is not there.
        DamageError: It is no regular file.
    """
    name = os.path.basename(path)
    try:
        content = check_object(read_regular(path), name, uid, digests)
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    except IsADirectoryError:
        raise damaged(path, "it is a directory") from None
    except BadObject as error:
        raise damaged(path, str(error)) from None
    if expect and content.digest != expect:
        raise damaged(path, "it is not the one that the driver has loaded")
    return content


def remedy(name: str) -> str:
    """What to do about a damaged file of this name."""
    again = _REMEDIES.get(name)
    return f"{again}; or put the file back from a copy of the experiment" if again else _FROM_COPY


def damaged(path: str | os.PathLike[str], reason: str) -> ObjectDamagedError:
    """The error that names a file, what is safe, and what to do."""
    return ObjectDamagedError(
        f"{os.fspath(path)} is damaged: {reason}. Nothing was loaded from it and nothing was overwritten; the journal, "
        f"all results and all checkpoints are untouched. {remedy(os.path.basename(path))}. `holdfast verify` names "
        "everything that is damaged.",
        path=os.fspath(path),
        reason=reason,
    )
