"""File transfers: how many at once, how many bytes of them in memory, hashed while they stream.

Owns the byte budget, the pool of threads that move files, and the temporary names of incomplete downloads. Must never
know which store is on the other side.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from io import FileIO
from typing import BinaryIO, TypeVar

from holdfast.errors import StorageError, StorageFullError, StoreUnreachableError
from holdfast.storage.local import TEMP_PREFIX, is_full
from holdfast.storage.options import REQUEST_BACKOFF

T = TypeVar("T")
R = TypeVar("R")


class Progress:
    """When something has last moved, and whether it is time to give up."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._moved = time.monotonic()
        self._failures = 0

    def moved(self) -> None:
        """Something has moved just now."""
        self._moved = time.monotonic()
        self._failures = 0

    def wait_for_next_try(self, failure: StoreUnreachableError) -> None:
        """Sleep a little longer than last time; raise ``failure`` if nothing has moved for too long."""
        delay_s = REQUEST_BACKOFF.delay_s(self._failures + 1)
        if self.left_s <= delay_s:
            raise failure
        time.sleep(delay_s)
        self._failures += 1

    @property
    def left_s(self) -> float:
        """How long something may still take to move."""
        return self._moved + self._stall_s - time.monotonic()


def _result(future: Future[R], watch: Progress | None) -> R:
    while watch is not None and not future.done():
        if watch.left_s <= 0:
            raise StoreUnreachableError("Nothing has moved for too long: the file system hangs.")
        wait([future], timeout=watch.left_s)
    return future.result()


class ByteBudget:
    """So many bytes may be in memory at once; who wants more waits.

    A network that is too slow for what is on its way shrinks the budget: many parts that share it would all take too
    long and start again for ever. Each success lets it grow again.
    """

    def __init__(self, limit: int, least: int) -> None:
        self._most = limit
        self._least = least
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """How many bytes may be in use now."""
        return self._limit

    @property
    def used(self) -> int:
        """How many bytes are in use now."""
        return self._used

    @contextmanager
    def take(self, wanted: int) -> Iterator[None]:
        """Hold so many bytes. More than there is room for is granted when nobody else holds any."""
        with self._changed:
            self._changed.wait_for(lambda: self._used == 0 or self._used + wanted <= self._limit)
            self._used += wanted
        try:
            yield
        finally:
            with self._changed:
                self._used -= wanted
                self._changed.notify_all()

    def shrink(self) -> None:
        """Something took too long: half as much from now on."""
        with self._changed:
            self._limit = max(self._least, self._limit // 2)

    def grow(self) -> None:
        """Something arrived: a little more from now on."""
        if self._limit < self._most:
            with self._changed:
                self._limit = min(self._most, self._limit + self._least)
                self._changed.notify_all()


class Transfers:
    """The threads that move files, for all stores of this process."""

    def __init__(self, files_at_once: int, bytes_in_flight: int, part_bytes: int) -> None:
        self.budget = ByteBudget(bytes_in_flight, part_bytes)
        # Two pools, because the thread of a file waits for the file's parts. In one pool large files could take every
        # thread, and none would be left for the parts that all of them wait for. Twice as many for parts: so many of
        # the default size fit into the default budget, which is what limits them.
        self._files = ThreadPoolExecutor(files_at_once, thread_name_prefix="file")
        self._parts = ThreadPoolExecutor(files_at_once * 2, thread_name_prefix="part")

    def each(self, move: Callable[[T], R], files: Sequence[T], *, watch: Progress | None = None) -> list[R]:
        """Move all files, several at once, and return the results in the order of ``files``.

        The first failure is raised at once; files that have not begun are left out. If ``watch`` is given and nothing
        moves for too long, that is a failure too: a thread that hangs inside somebody's library cannot be ended.
        """
        moves = [self._files.submit(move, file) for file in files]
        try:
            return [_result(future, watch) for future in moves]
        except BaseException:
            # Only what has not begun: a thread cannot be interrupted, and waiting for it would hold up the error (a
            # full disk, a refusal) for as long as the slowest upload takes. What still runs does no harm: a download
            # has a temporary name of its own, and if an upload is tried again meanwhile, both write the same bytes.
            for future in moves:
                future.cancel()
            raise

    def part(self, fetch: Callable[[], R]) -> Future[R]:
        """Fetch one part of a file in the background."""
        return self._parts.submit(fetch)

    def close(self) -> None:
        """Start nothing more."""
        self._files.shutdown(wait=False, cancel_futures=True)
        self._parts.shutdown(wait=False, cancel_futures=True)


class HashedReader:
    """A file's bytes in pieces, hashed on the way. One pass, used once."""

    def __init__(self, path: str, size: int, piece_bytes: int, moved: Callable[[], None]) -> None:
        import xxhash

        self._path = path
        self._size = size
        self._piece_bytes = piece_bytes
        self._moved = moved
        self._hash = xxhash.xxh3_128()
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        with open(self._path, "rb", buffering=0) as file:
            while piece := _read_full(file, self._piece_bytes):
                self._hash.update(piece)
                self.sent += len(piece)
                self._moved()
                yield piece

    def digest(self) -> str:
        """Return the hash of everything that was read.

        Raises:
            StorageError: If that is not what the file held at the beginning.
        """
        if self.sent != self._size:
            raise StorageError(
                f"{self._path} has changed while it was uploaded: {self._size} bytes before, {self.sent} now. "
                f"No process may write to it during the upload."
            )
        return self._hash.hexdigest()


def read_whole(path: str, size: int) -> bytes:
    """Return a small file's content; what grows meanwhile is refused as in `HashedReader`."""
    with open(path, "rb", buffering=0) as file:
        data = _read_full(file, size + 1)
    if len(data) != size:
        raise StorageError(f"{path} has changed while it was uploaded: {size} bytes before, {len(data)} or more now.")
    return data


def _read_full(file: FileIO, size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end of the file."""
    data: bytes = file.read(size)
    if len(data) in (0, size):
        return data
    pieces, missing = [data], size - len(data)
    while missing and (data := file.read(missing)):
        pieces.append(data)
        missing -= len(data)
    return b"".join(pieces)


def write_hashed(path: str, pieces: Iterable[bytes], moved: Callable[[], None]) -> tuple[int, str]:
    """Write a file from its pieces under a temporary name, then under its own.

    Returns:
        Its size, and the xxh3-128 hex digest of the bytes that were written.

    Durability:
        None: a caller that needs the file to survive a power cut flushes it with everything else of its directory.
    """
    import xxhash

    hashed, size = xxhash.xxh3_128(), 0
    parent = os.path.dirname(path)
    temp = os.path.join(parent, f"{TEMP_PREFIX}{os.getpid()}-{os.urandom(6).hex()}")
    try:
        with _open_new(temp, parent) as file:
            for piece in pieces:
                hashed.update(piece)
                size += len(piece)
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(file.fileno(), rest) :]
                moved()
        os.replace(temp, path)
    except BaseException as error:
        try:
            os.remove(temp)
        except OSError:
            pass
        if isinstance(error, OSError) and error.errno is not None and is_full(error):
            raise StorageFullError(f"There is no space left to download {path}: {error.strerror}.") from error
        raise
    return size, hashed.hexdigest()


def _open_new(temp: str, parent: str) -> BinaryIO:
    try:
        return open(temp, "xb")
    except FileNotFoundError:
        os.makedirs(parent, exist_ok=True)
        return open(temp, "xb")
