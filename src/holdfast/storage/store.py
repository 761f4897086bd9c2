"""What holdfast needs of an object store: ten verbs.

Owns the `Store` protocol and what can be built on it alone. Must never know of S3 or of experiments. Keys are relative
to the store's address, ``/`` separated, without a leading slash. Failures come in the classes of ``errors.py``
(missing, denied, unreachable); the caller decides whether to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

ABSENT = ""
"""The version of an object that is not there."""

ANY = "*"
"""The version of objects in a store that knows no versions: whatever is there."""


class Stat(msgspec.Struct, frozen=True):
    """One object: its key, its size in bytes, when it was written (seconds since 1970, by the store's clock).

    ``version`` changes whenever the object is written with another content. Listings do not tell it.
    """

    key: str
    size: int
    modified: float
    version: str = ANY


class Sending(NamedTuple):
    """A local file that is to become an object. Nobody may change the file meanwhile."""

    path: str
    key: str


class Replacing(NamedTuple):
    """A local file that is to take the place of an object, if that is still the one that it was known to be."""

    path: str
    key: str
    version: str


class Replaced(NamedTuple):
    """Whether an object was replaced, and the version that it has now."""

    done: bool
    version: str


class Fetching(NamedTuple):
    """An object that is to become a local file. Missing directories are made, an existing file is replaced."""

    key: str
    path: str


class Store(Protocol):
    """A bucket, or a part of one. May be used from several threads.

    Each call raises `ObjectMissingError`, `StoreDeniedError` or `StoreUnreachableError`; the last one only after the
    store's own retries, which never last longer than its deadline.
    """

    @property
    def url(self) -> str:
        """What keys are relative to, for people."""

    def put(self, key: str, data: bytes) -> None:
        """Write an object, whatever is there."""

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one; of any number of callers exactly one succeeds.

        Returns:
            False if there is an object already. That may be this very call's, if an answer was lost: see `create_once`.
        """

    def get(self, key: str) -> bytes:
        """Return a small object's content."""

    def stat(self, key: str) -> Stat | None:
        """Return what is known of an object, or None if there is none."""

    def list(self, prefix: str) -> list[Stat]:
        """Return all objects whose keys begin with ``prefix``, in order of keys."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there count as deleted."""

    def send(self, files: Sequence[Sending]) -> Sequence[str]:
        """Upload files, several at once. Returns the xxh3-128 hex digest of each one's bytes, as they were sent."""

    def replace(self, files: Sequence[Replacing]) -> Sequence[Replaced]:
        """Upload files over objects that nobody else has written meanwhile, several at once.

        However late a request arrives: it changes nothing if somebody was faster. Two kinds are sent without that
        condition: files that are too large for one request, and all where the store does not know conditions.

        Returns:
            What came of each. An unexpected version may be this very call's, if an answer was lost.
        """

    def fetch(self, files: Sequence[Fetching]) -> Sequence[str]:
        """Download files, several at once. Returns the xxh3-128 hex digest of each one's bytes, as they arrived."""

    def abort_stale(self, prefix: str) -> int:
        """Give up multipart uploads below ``prefix`` that nobody works at any more. Returns how many."""

    def close(self) -> None:
        """Let go of connections. Closing twice is allowed."""


def create_once(store: Store, key: str, data: bytes) -> bytes | None:
    """Create an object whose content no other writer could have chosen, and distinguish who made it.

    An answer can be lost after the store has acted; the repetition then finds the object there and reports a conflict
    with ourselves. Whoever calls this puts something unique into ``data``.

    Returns:
        None if the object has our content; otherwise the content that somebody else was faster with.
    """
    if store.create(key, data):
        return None
    found = store.get(key)
    return None if found == data else found
