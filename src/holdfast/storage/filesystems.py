"""A pyarrow or fsspec file system, or a local directory, as a `Store`.

Owns what holdfast needs of a file system, and its three forms. Must be used in the storage agent only: these objects
have their own threads and connections.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

from holdfast.errors import (
    InvalidTypeError,
    ObjectMissingError,
    StorageError,
    StorageFullError,
    StoreDeniedError,
    StoreUnreachableError,
    TuneError,
)
from holdfast.storage import local
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.options import MB, StoreOptions
from holdfast.storage.store import ANY, Fetching, Replaced, Replacing, Sending, Stat
from holdfast.storage.transfers import HashedReader, Progress, Transfers, write_hashed

T = TypeVar("T")

_PIECE_BYTES = MB
_CREATES_ATOMICALLY = ("s3fs.", "gcsfs.", "adlfs.")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")
_TAKEN = re.compile(r"PreconditionFailed|ConditionNotMet|AlreadyExists|\b412\b")
_REFUSED = re.compile(
    r"Access_?Denied|Forbidden|Unauthorized|Expired|Invalid_?Access_?Key_?Id|Signature_?Does_?Not_?Match|"
    r"No_?Such_?Bucket|No_?Credentials|Container_?Not_?Found|\b40[13]\b",
    re.IGNORECASE,
)


class _Found(NamedTuple):
    path: str
    size: int
    modified: float


class Files(Protocol):
    """What a store needs of a file system. Paths are the file system's own."""

    def create_is_atomic(self) -> bool | None:
        """True: of several writers one wins. False: all may. None: a trial tells."""

    def open_in(self, path: str) -> BinaryIO:
        """Open a file for reading."""

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write a file, making its directory, replacing what is there."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a file unless there is one."""

    def stat(self, path: str) -> _Found | None:
        """Return what is known of a file."""

    def walk(self, folder: str) -> Iterator[_Found]:
        """Yield all files below a directory; none if it is not there."""

    def remove(self, path: str) -> None:
        """Remove a file; `FileNotFoundError` is allowed if it is not there."""

    def remove_empty(self, folder: str) -> bool:
        """Remove a directory that is empty. Returns whether it was."""


class LocalFiles:
    """A directory of this machine, or a mounted one."""

    def create_is_atomic(self) -> bool | None:
        return True

    def open_in(self, path: str) -> BinaryIO:
        return open(path, "rb")

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        write_hashed(path, pieces, lambda: None)

    def create(self, path: str, data: bytes) -> bool:
        made = local.create_exclusive(path, data)
        local.fsync_dir(os.path.dirname(path))
        return made

    def stat(self, path: str) -> _Found | None:
        try:
            facts = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _Found(path, facts.st_size, facts.st_mtime) if os.path.isfile(path) else None

    def walk(self, folder: str) -> Iterator[_Found]:
        for parent, _, names in os.walk(folder):
            for name in names:
                if not name.startswith(local.TEMP_PREFIX):
                    found = self.stat(os.path.join(parent, name))
                    if found is not None:
                        yield found

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_empty(self, folder: str) -> bool:
        try:
            os.rmdir(folder)
        except OSError:
            return False
        return True


class ArrowFiles:
    """A ``pyarrow.fs.FileSystem``. It has no create-only write."""

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem

    def create_is_atomic(self) -> bool | None:
        return False

    def open_in(self, path: str) -> BinaryIO:
        stream: BinaryIO = self._fs.open_input_stream(path)
        return stream

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        try:
            stream = self._fs.open_output_stream(path)
        except FileNotFoundError:  # stores of objects need no directory, and would get a useless object for one
            self._fs.create_dir(path.rpartition("/")[0], recursive=True)
            stream = self._fs.open_output_stream(path)
        with stream:
            for piece in pieces:
                stream.write(piece)

    def create(self, path: str, data: bytes) -> bool:
        if self.stat(path) is not None:
            return False
        self.write(path, [data])
        return True

    def stat(self, path: str) -> _Found | None:
        info = self._fs.get_file_info(path)
        return _Found(path, info.size or 0, (info.mtime_ns or 0) / 1e9) if info.is_file else None

    def walk(self, folder: str) -> Iterator[_Found]:
        from pyarrow.fs import FileSelector

        for info in self._fs.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True)):
            if info.is_file:
                yield _Found(info.path, info.size or 0, (info.mtime_ns or 0) / 1e9)

    def remove(self, path: str) -> None:
        self._fs.delete_file(path)

    def remove_empty(self, folder: str) -> bool:
        from pyarrow.fs import FileSelector

        # ``delete_dir`` would delete what is inside as well, so look first.
        if self._fs.get_file_info(FileSelector(folder, allow_not_found=True)):
            return False
        self._fs.delete_dir(folder)
        return True


class FsspecFiles:
    """An ``fsspec`` file system. Those of the three clouds have a create-only write."""

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem

    def create_is_atomic(self) -> bool | None:
        return None if type(self._fs).__module__.startswith(_CREATES_ATOMICALLY) else False

    def open_in(self, path: str) -> BinaryIO:
        file: BinaryIO = self._fs.open(path, "rb", cache_type="none", block_size=4 * _PIECE_BYTES)
        return file

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        try:
            file = self._fs.open(path, "wb")
        except FileNotFoundError:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            file = self._fs.open(path, "wb")
        with file:
            for piece in pieces:
                file.write(piece)

    def create(self, path: str, data: bytes) -> bool:
        if self.create_is_atomic() is False:
            if self.stat(path) is not None:
                return False
            self.write(path, [data])
            return True
        try:
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except Exception as error:
            if _TAKEN.search(f"{type(error).__name__} {error}"):
                return False
            raise
        return True

    def stat(self, path: str) -> _Found | None:
        self._fs.invalidate_cache()
        try:
            facts = self._fs.info(path)
        except FileNotFoundError:
            return None
        return _found(path, facts) if facts.get("type") == "file" else None

    def walk(self, folder: str) -> Iterator[_Found]:
        self._fs.invalidate_cache()
        try:
            entries = self._fs.find(folder, detail=True)
        except FileNotFoundError:
            return
        for path, facts in entries.items():
            yield _found(path, facts)

    def remove(self, path: str) -> None:
        self._fs.rm_file(path)

    def remove_empty(self, folder: str) -> bool:
        self._fs.invalidate_cache()
        if self._fs.ls(folder, detail=False):
            return False
        self._fs.rmdir(folder)
        return True


def _found(path: str, facts: Any) -> _Found:
    when: Any = next((facts[name] for name in _TIMES if facts.get(name) is not None), 0.0)
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    return _Found(path, int(facts.get("size") or 0), when.timestamp() if isinstance(when, datetime) else float(when))


def adapt(filesystem: Any, path: str) -> tuple[Files, str]:
    """Find the shape of a file system object, looking through wrappers, and what ``path`` is called inside.

    Raises:
        InvalidTypeError: If it is neither pyarrow's nor fsspec's.
    """
    if isinstance(filesystem, LocalFiles):
        return filesystem, os.path.abspath(path)
    kind = type(filesystem)
    names = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in kind.__mro__}
    if "pyarrow.SubTreeFileSystem" in names:
        return adapt(filesystem.base_fs, f"{filesystem.base_path.rstrip('/')}/{path.strip('/')}")
    if "fsspec.DirFileSystem" in names:
        return adapt(filesystem.fs, f"{str(filesystem.path).rstrip('/')}/{path.strip('/')}")
    if "pyarrow.PyFileSystem" in names and hasattr(filesystem.handler, "fs"):
        return adapt(filesystem.handler.fs, path)
    if names & {"pyarrow.LocalFileSystem", "fsspec.LocalFileSystem"}:
        return LocalFiles(), os.path.abspath(path.removeprefix("file://"))
    if "pyarrow.FileSystem" in names:
        return ArrowFiles(filesystem), path.rstrip("/")
    if "fsspec.AbstractFileSystem" in names:
        return FsspecFiles(filesystem), str(filesystem._strip_protocol(path)).rstrip("/")
    raise InvalidTypeError(
        f"storage_filesystem is a {kind.__module__}.{kind.__name__}. Expected a pyarrow.fs.FileSystem or an fsspec "
        f"file system, for example pyarrow.fs.S3FileSystem(...) or fsspec.filesystem('sftp', host=...)."
    )


class FilesystemStore:
    """The `Store` of a file system.

    Args:
        filesystem: A pyarrow or fsspec file system, or `LocalFiles`.
        path: The directory, inside it, that keys are relative to.
        transfers: The threads that move files.
        options: Limits.
    """

    def __init__(self, filesystem: Any, path: str, transfers: Transfers, options: StoreOptions | None = None) -> None:
        self._files, self._base = adapt(filesystem, path)
        self._transfers = transfers
        self._stall_s = (options or StoreOptions()).stall_s

    @property
    def url(self) -> str:
        return self._base

    def create_is_atomic(self) -> bool | None:
        """Whether `create` keeps two writers apart; None if only a trial can tell."""
        return self._files.create_is_atomic()

    def put(self, key: str, data: bytes) -> None:
        self._run(f"put {key}", lambda: self._files.write(self._path(key), [data]))

    def create(self, key: str, data: bytes) -> bool:
        crashpoint("store.before_create")
        made = self._run(f"create {key}", lambda: self._files.create(self._path(key), data))
        crashpoint("store.after_create")
        return made

    def get(self, key: str) -> bytes:
        def work() -> bytes:
            with self._files.open_in(self._path(key)) as file:
                return file.read()

        return self._run(f"get {key}", work)

    def stat(self, key: str) -> Stat | None:
        found = self._run(f"stat {key}", lambda: self._files.stat(self._path(key)))
        return None if found is None else Stat(key=key, size=found.size, modified=found.modified)

    def list(self, prefix: str) -> list[Stat]:
        folder = prefix.rpartition("/")[0]
        base = self._base.lstrip("/") + "/"

        def work() -> list[Stat]:
            found = self._files.walk(self._path(folder) if folder else self._base or "/")
            keys = ((one.path.lstrip("/").removeprefix(base), one) for one in found)
            return [Stat(key=key, size=one.size, modified=one.modified) for key, one in keys if key.startswith(prefix)]

        return sorted(self._run(f"list {prefix or 'everything'}", work), key=lambda stat: stat.key)

    def delete(self, keys: Iterable[str]) -> None:
        names = list(keys)
        self._transfers.each(self._delete_one, names)
        self._remove_empty_folders(names)

    def _remove_empty_folders(self, keys: Sequence[str]) -> None:
        """Remove the directories that a deletion has emptied, so that a deleted checkpoint leaves nothing behind.

        Only those inside a trial's directory: nothing is ever written again to the place of a deleted checkpoint, but
        the next part of the journal may be on its way to a directory that is empty at this moment.
        """
        folders = {key.rpartition("/")[0] for key in keys if not key.startswith(".")}
        for folder in sorted(folders, key=len, reverse=True):
            while "/" in folder:
                try:
                    if not self._files.remove_empty(self._path(folder)):
                        break
                except Exception:  # a directory more or less: stores of objects have none, and say so in many ways
                    break
                folder = folder.rpartition("/")[0]

    def _delete_one(self, key: str) -> None:
        try:
            self._run(f"delete {key}", lambda: self._files.remove(self._path(key)))
        except ObjectMissingError:
            pass

    def send(self, files: Sequence[Sending]) -> Sequence[str]:
        progress = Progress(self._stall_s)
        return self._transfers.each(lambda file: self._send_one(file, progress), files, watch=progress)

    def _send_one(self, file: Sending, progress: Progress) -> str:
        try:
            size = os.stat(file.path).st_size
        except FileNotFoundError as error:
            raise StorageError(f"{file.path}, which is to become {self.url}/{file.key}, is not there.") from error
        reader = HashedReader(file.path, size, _PIECE_BYTES, progress.moved)
        with self._transfers.budget.take(min(size, 2 * _PIECE_BYTES)):
            self._run(f"send {file.key}", lambda: self._files.write(self._path(file.key), reader))
        progress.moved()
        digest = reader.digest()
        crashpoint("store.file_sent")
        return digest

    def replace(self, files: Sequence[Replacing]) -> Sequence[Replaced]:
        self.send([Sending(file.path, file.key) for file in files])  # a file system knows no conditions
        return [Replaced(True, ANY)] * len(files)

    def fetch(self, files: Sequence[Fetching]) -> Sequence[str]:
        progress = Progress(self._stall_s)
        return self._transfers.each(lambda file: self._fetch_one(file, progress), files, watch=progress)

    def _fetch_one(self, file: Fetching, progress: Progress) -> str:
        def work() -> str:
            with self._files.open_in(self._path(file.key)) as source:
                pieces = iter(lambda: source.read(_PIECE_BYTES), b"")
                return write_hashed(file.path, pieces, progress.moved)[1]

        with self._transfers.budget.take(2 * _PIECE_BYTES):
            return self._run(f"fetch {file.key}", work)

    def abort_stale(self, prefix: str) -> int:
        return 0  # a file system has no word for it

    def close(self) -> None:
        pass

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}" if self._base else key

    def _run(self, doing: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except TuneError:
            raise
        except Exception as error:
            raise _classify(error, doing, self.url) from error


def _classify(error: Exception, doing: str, url: str) -> StorageError:
    text = f"{url}: cannot {doing}: {type(error).__name__}: {error}".rstrip(".") + "."
    if isinstance(error, OSError) and error.errno is not None and local.is_full(error):
        return StorageFullError(f"{text} There is no space left.")
    if isinstance(error, PermissionError) or _REFUSED.search(str(error)):
        return StoreDeniedError(f"{text} Check the file system's credentials and their permissions.")
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return ObjectMissingError(text)
    return StoreUnreachableError(text)
