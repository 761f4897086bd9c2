"""Retry limits of a store, and how much of this machine it may use.

Owns `StoreOptions` and the backoff between requests. Must never read the environment.
"""

from __future__ import annotations

import msgspec

from holdfast.core.backoff import Backoff
from holdfast.errors import InvalidInputError

MB = 1024 * 1024
REQUEST_BACKOFF = Backoff(first_s=0.1, longest_s=5.0)


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one store.

    Attributes:
        timeout_s: A small request (put, create, get, stat, list, delete) gives up after this long, retries included.
        stall_s: An upload or download gives up when nothing has moved for this long.
        bytes_in_flight: All uploads and downloads together keep at most so many bytes in memory.
        files_at_once: At most so many files are on their way at a time.
        part_bytes: Files of more than two parts travel in parts of this size (S3 demands 5 MB or more).
    """

    timeout_s: float = 45.0
    stall_s: float = 600.0
    bytes_in_flight: int = 256 * MB
    files_at_once: int = 16
    part_bytes: int = 8 * MB

    def __post_init__(self) -> None:
        for name, least in (("timeout_s", 0.1), ("stall_s", 0.1), ("files_at_once", 1), ("part_bytes", 5 * MB)):
            if not getattr(self, name) >= least:
                raise InvalidInputError(f"StoreOptions({name}={getattr(self, name)!r}): expected {least} or more.")
        if self.bytes_in_flight < 2 * self.part_bytes:
            raise InvalidInputError(
                f"StoreOptions(bytes_in_flight={self.bytes_in_flight!r}): expected room for two parts of "
                f"{self.part_bytes} bytes."
            )
