"""Request files: how a person's request travels from any process to the live driver of an experiment.

<root>/.holdfast/requests/<id>.json    created whole by whoever asks, removed by the driver once its answer is durable

Owns the format and the directory. Whatever is read here is untrusted: regular files only, small ones, with names that
only this module makes. Must never follow a request: the driver makes an event of it.
"""

from __future__ import annotations

import os
import re
import time
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.core.events import Action
from holdfast.core.user_asked import MAX_TAGS
from holdfast.errors import InvalidInputError
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.local import TEMP_PREFIX, create_exclusive, fsync_dir, look_anew, make_dirs
from holdfast.storage.untrusted import open_directory, read_regular

FOLDER = "requests"
FORMAT = 1
MAX_BYTES = 64 * 1024
MAX_TEXT = 4000
MAX_TAG = 64
MAX_NAME = 200
MAX_SAMPLES = 1_000_000_000
MAX_LISTED = 10_000
"""Names in the directory that are looked at: whoever puts more there waits."""

LOOKS_AFTER_CHANGE = 6
"""After a change of the directory's time stamp: two changes may have the same one."""

LOOKS_BETWEEN = 20
"""Without any change: where time stamps cannot be relied on, a request takes this many looks."""

ABANDONED_S = 3600.0
"""Age at which a half-written file counts as left behind."""

_NAME = re.compile(r"([0-9a-f]{32})\.json")


class UserRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for.

    Attributes:
        epoch: Of the driver that it is made for; any other refuses it.
        action: One of ``core.events.Action``.
        trial: Id of the trial; "": the whole experiment.
        text: Of a note.
        tags: To add or to remove.
        num_samples: In total; -1: without end.
        by: Who asks.
    """

    epoch: int
    action: str
    trial: str = ""
    text: str = ""
    tags: tuple[str, ...] = ()
    num_samples: int = 0
    by: str = ""
    format: int = FORMAT


_decode_user_request = msgspec.json.Decoder(UserRequest).decode


def id_of(name: str) -> str:
    """The id of the request in the file of this name; "" if it is not a request's."""
    found = _NAME.fullmatch(name)
    return found[1] if found else ""


def new_id() -> str:
    """An id that nobody else has; those of one machine sort by time."""
    return f"{time.time_ns():016x}{os.urandom(8).hex()}"


def folder_of(root: str | os.PathLike[str]) -> str:
    """The directory of the requests of the experiment at ``root``."""
    return os.path.join(root, ".holdfast", FOLDER)


def path_of(root: str | os.PathLike[str], request_id: str) -> str:
    """The file of a request."""
    return os.path.join(folder_of(root), f"{request_id}.json")


def parse_request(data: bytes) -> UserRequest:
    """Read a request.

    Raises:
        InvalidInputError: It is none, or asks for what nobody can ask for. The text says why, in a few words.
    """
    if len(data) > MAX_BYTES:
        raise InvalidInputError(f"the request has more than {MAX_BYTES:,} bytes")
    try:
        request = _decode_user_request(data)
        msgspec.msgpack.encode(request)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInputError(f"the request cannot be read: {error}") from None
    check_request(request)
    return request


def check_request(request: UserRequest) -> None:
    """Refuse what cannot be asked for.

    Raises:
        InvalidInputError: The text says why, in a few words.
    """
    if request.format > FORMAT:
        raise InvalidInputError(f"the request was made by a newer holdfast (format {request.format})")
    if request.action not in Action.ALL:
        raise InvalidInputError(f"there is no request {request.action[:MAX_NAME]!r}")
    if max(len(request.trial), len(request.by)) > MAX_NAME:
        raise InvalidInputError(f"a name in the request has more than {MAX_NAME} characters")
    if not _is_unicode(request.trial):
        raise InvalidInputError(f"{request.trial!r} is not the id of a trial: it is not valid Unicode")
    _CHECKS[request.action](request)


def _check_stop(request: UserRequest) -> None:
    """There is nothing more to say."""


def _check_note(request: UserRequest) -> None:
    if not request.text.strip():
        raise InvalidInputError("a note needs some text")
    if len(request.text) > MAX_TEXT:
        raise InvalidInputError(f"a note can have {MAX_TEXT:,} characters, this one has {len(request.text):,}")
    if not _is_unicode(request.text):
        raise InvalidInputError("the text of the note is not valid Unicode: it has half of a surrogate pair")


def _is_unicode(text: str) -> bool:
    """Whether it can be stored: JSON from a browser and bytes from a command line may have lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_tags(request: UserRequest) -> None:
    if not 0 < len(request.tags) <= MAX_TAGS:
        raise InvalidInputError(f"1 to {MAX_TAGS} tags can be given at once, not {len(request.tags)}")
    for tag in request.tags:
        if not tag or len(tag) > MAX_TAG or not tag.isprintable() or any(char in " ," for char in tag):
            raise InvalidInputError(
                f"{tag[:MAX_TAG]!r} cannot be a tag: a tag has 1 to {MAX_TAG} printable characters, and no space or "
                "comma"
            )


def _check_samples(request: UserRequest) -> None:
    if request.trial:
        raise InvalidInputError("the number of samples belongs to the whole experiment, not to a trial")
    if request.num_samples != -1 and not 1 <= request.num_samples <= MAX_SAMPLES:
        raise InvalidInputError(
            f"the number of samples must be a whole number from 1 to {MAX_SAMPLES:,}, or -1 for no limit; got "
            f"{request.num_samples!r}"
        )


_CHECKS = {
    Action.STOP: _check_stop,
    Action.NOTE: _check_note,
    Action.TAG: _check_tags,
    Action.UNTAG: _check_tags,
    Action.SAMPLES: _check_samples,
}


def create_request(root: Path, request: UserRequest) -> str:
    """Leave a request for the driver, and return its id.

    Durability:
        The request is there as a whole or not at all, and survives a power cut when this returns.
    """
    request_id, folder = new_id(), folder_of(root)
    make_dirs(folder)
    os.close(open_directory(folder))  # a link would lead the file to somewhere else
    crashpoint("request.before_create")
    made = create_exclusive(path_of(root, request_id), msgspec.json.encode(request) + b"\n")
    assert made
    crashpoint("request.created")
    fsync_dir(folder)
    return request_id


class RequestSource(Protocol):
    """Where a driver finds requests."""

    def names(self) -> list[str] | None:
        """The names of files; None if nothing has changed since the last look."""

    def look_again(self) -> None:
        """The next look must not say that nothing has changed."""

    def read(self, name: str) -> bytes:
        """Return the content of a small regular file."""

    def remove(self, name: str) -> None:
        """Remove a file; nothing to do if it is gone."""


class RequestFolder:
    """The directory of an experiment's requests. A look without news costs three system calls."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._path = folder_of(root)
        self._stamp = -1
        self._unchanged = 0

    def names(self) -> list[str] | None:
        try:
            fd = open_directory(self._path)  # on a network file system, opening it brings news of it
        except FileNotFoundError:
            look_anew(os.path.dirname(self._path))
            return None
        try:
            stamp = os.fstat(fd).st_mtime_ns
            self._unchanged = self._unchanged + 1 if stamp == self._stamp else 0
            self._stamp = stamp
            if self._unchanged > LOOKS_AFTER_CHANGE and self._unchanged % LOOKS_BETWEEN:
                return None
            with os.scandir(fd) as found:
                return [entry.name for entry in islice(found, MAX_LISTED)]
        finally:
            os.close(fd)

    def look_again(self) -> None:
        self._unchanged = -1

    def read(self, name: str) -> bytes:
        fd = open_directory(self._path)
        try:
            return read_regular(name, 0, MAX_BYTES + 1, within=fd)
        finally:
            os.close(fd)

    def remove(self, name: str) -> None:
        fd = open_directory(self._path)
        try:
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            pass
        finally:
            os.close(fd)

    def sweep(self) -> None:
        """Remove what was never completed by somebody who was killed."""
        try:
            with os.scandir(self._path) as found:
                old = [entry.path for entry in islice(found, MAX_LISTED) if _is_abandoned(entry)]
            for path in old:
                os.unlink(path)
        except OSError:
            pass  # the next driver tries again


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    if not entry.name.startswith(TEMP_PREFIX) or not entry.is_file(follow_symlinks=False):
        return False
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED_S
