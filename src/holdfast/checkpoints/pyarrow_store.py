"""An object store as a ``pyarrow.fs.FileSystem``: what ``Checkpoint.filesystem`` is where pyarrow is installed.

Owns that view. It goes through the storage agent instead of pyarrow's own clients: so it has the same address, endpoint
and credentials as the experiment, and works in the fork of a process that has used it, where pyarrow's S3 client hangs.
Paths are ``bucket/key`` or whole URIs, such as ``Checkpoint.path``. Must never be imported before somebody asks for it:
importing pyarrow takes longer than most trials.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType, PyFileSystem

from holdfast.checkpoints import scratch
from holdfast.storage.address import Address, parse
from holdfast.storage.store import Fetching, Sending, Stat, Store


def filesystem_for(scheme: str, options: tuple[tuple[str, str], ...]) -> Any:
    """The file system of all buckets at an address."""
    return PyFileSystem(StoreHandler(scheme, options))


class StoreHandler(FileSystemHandler):  # type: ignore[misc]
    """What pyarrow calls.

    Args:
        scheme: ``"s3"``, ``"gs"`` or ``"az"``.
        options: Those of the address.
    """

    def __init__(self, scheme: str, options: tuple[tuple[str, str], ...] = ()) -> None:
        self._scheme = scheme
        self._options = options
        self._stores: dict[tuple[int, str], Store] = {}  # by process, because a connection does not survive a fork

    def __reduce__(self) -> Any:
        return StoreHandler, (self._scheme, self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreHandler) and self.__reduce__() == other.__reduce__()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self._scheme, self._options))

    def uri_of(self, path: str) -> str:
        """The URI of a path in this file system."""
        return str(self._address(path))

    def _address(self, path: str) -> Address:
        if "://" in path:
            return msgspec.structs.replace(parse(path), options=self._options)
        bucket, _, key = path.strip("/").partition("/")
        return Address(self._scheme, bucket, "", self._options) / key

    def _find(self, path: str) -> tuple[Store, str]:
        """The store of a path's bucket, and its key there."""
        address = self._address(path)
        place = os.getpid(), address.bucket
        if place not in self._stores:
            from holdfast.storage.agent_client import connect

            self._stores[place] = connect(msgspec.structs.replace(address, path=""))
        return self._stores[place], address.path

    # --- what there is

    def get_type_name(self) -> str:
        return self._scheme

    def normalize_path(self, path: str) -> str:
        address = self._address(path)
        return f"{address.bucket}/{address.path}".rstrip("/")

    def get_file_info(self, paths: Iterable[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> FileInfo:
        store, key = self._find(path)
        found = store.stat(key) if key else None
        if found is not None:
            return _file(path, found)
        exists = not key or bool(store.list(f"{key}/"))
        return FileInfo(path, FileType.Directory if exists else FileType.NotFound)

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        store, key = self._find(selector.base_dir)
        found = store.list(f"{key}/" if key else "")
        if not found and not selector.allow_not_found:
            raise FileNotFoundError(selector.base_dir)
        base, inside = selector.base_dir.rstrip("/"), len(key) + 1 if key else 0
        infos: dict[str, FileInfo] = {}
        for stat in found:
            parts = stat.key[inside:].split("/")
            for depth in range(1, len(parts)):
                if selector.recursive or depth == 1:
                    folder = "/".join([base, *parts[:depth]])
                    infos.setdefault(folder, FileInfo(folder, FileType.Directory))
            if selector.recursive or len(parts) == 1:
                name = "/".join([base, *parts])
                infos[name] = _file(name, stat)
        return list(infos.values())

    # --- reading and writing

    def open_input_file(self, path: str) -> Any:
        store, key = self._find(path)
        folder = scratch.make("arrow")
        try:
            copy = os.path.join(folder, "file")
            store.fetch([Fetching(key, copy)])
            return pyarrow.OSFile(copy, "rb")  # which stays open when its name is removed
        finally:
            scratch.remove(folder)

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pyarrow.PythonFile(_Upload(*self._find(path)), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError(f"{path}: an object cannot be appended to. Write it anew with open_output_stream.")

    def create_dir(self, path: str, recursive: bool) -> None:
        """Nothing to do: a store has no directories, only keys."""

    def delete_file(self, path: str) -> None:
        store, key = self._find(path)
        if store.stat(key) is None:
            raise FileNotFoundError(path)
        store.delete([key])

    def delete_dir(self, path: str) -> None:
        self.delete_dir_contents(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        store, key = self._find(path)
        if not key:
            raise PermissionError(f"{path}: a whole bucket is not deleted. Name something in it.")
        found = store.list(f"{key}/")
        if not found and not missing_dir_ok:
            raise FileNotFoundError(path)
        store.delete([stat.key for stat in found])

    def delete_root_dir_contents(self) -> None:
        raise PermissionError("all buckets are not deleted. Name a directory.")

    def copy_file(self, src: str, dest: str) -> None:
        with self.open_input_file(src) as source, self.open_output_stream(dest, None) as target:
            target.upload(source)

    def move(self, src: str, dest: str) -> None:
        self.copy_file(src, dest)
        self.delete_file(src)


def _file(path: str, stat: Stat) -> FileInfo:
    return FileInfo(path, FileType.File, size=stat.size, mtime_ns=int(stat.modified * 1e9))


class _Upload:
    """A file that becomes an object when it is closed, and never if it is only dropped: it may be half written."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self._folder = scratch.make("arrow")
        self._path = os.path.join(self._folder, "file")
        self._file = open(self._path, "wb")  # noqa: SIM115
        self.closed = False

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._file.close()
        try:
            self._store.send([Sending(self._path, self._key)])
        finally:
            scratch.remove(self._folder)

    def __del__(self) -> None:
        if not self.closed:
            self._file.close()
            scratch.remove(self._folder)
