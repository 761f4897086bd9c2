"""File systems that a user hands over: looked through, rebuilt in the agent, refused with reasons."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InvalidInputError, InvalidTypeError, ObjectMissingError, StoreDeniedError, UnsafeStoreError
from holdfast.storage.filesystems import ArrowFiles, FilesystemStore, FsspecFiles, LocalFiles, _classify, adapt
from holdfast.storage.probe import probe
from holdfast.storage.store import Fetching, Sending
from holdfast.storage.transfers import Transfers


def test_wrappers_are_looked_through(tmp_path: Path) -> None:
    fs, fsspec = pytest.importorskip("pyarrow.fs"), pytest.importorskip("fsspec")
    local = fs.LocalFileSystem()
    base = str(tmp_path)
    assert isinstance(adapt(local, base)[0], LocalFiles)
    files, path = adapt(fs.SubTreeFileSystem(base, local), "a/b")
    assert isinstance(files, LocalFiles)
    assert path == f"{base}/a/b"
    files, path = adapt(fsspec.filesystem("dir", path=base, fs=fsspec.filesystem("file")), "a")
    assert isinstance(files, LocalFiles)
    assert path == f"{base}/a"
    wrapped = fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("memory")))
    assert isinstance(adapt(wrapped, "a")[0], FsspecFiles)
    assert isinstance(adapt(fs._MockFileSystem(), "a")[0], ArrowFiles)


def test_something_else_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match=r"builtins\.dict.*pyarrow\.fs\.FileSystem"):
        adapt({}, "a")


def test_an_object_that_cannot_be_pickled_is_refused(opened: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInputError, match="cannot be pickled"):
        opened("a", filesystem=threading.Lock())


def test_an_object_that_cannot_be_rebuilt_is_refused(opened: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInputError, match="cannot be rebuilt in the storage agent"):
        opened("a", filesystem=_Unbuildable()).put("a", b"")


def _fail() -> None:
    raise ImportError("no such module here")


class _Unbuildable:
    def __reduce__(self) -> Any:
        return _fail, ()


def test_a_pyarrow_bucket_works_but_cannot_fence(moto: Any, opened: Any, bucket_name: str, tmp_path: Path) -> None:
    fs = pytest.importorskip("pyarrow.fs")
    moto.bucket(bucket_name)
    bucket = fs.S3FileSystem(
        access_key=moto.access_key, secret_key=moto.secret_key, endpoint_override=moto.endpoint, region="us-east-1"
    )
    store = opened(f"{bucket_name}/prefix", filesystem=bucket)
    with pytest.raises(UnsafeStoreError, match="unfenced_store=True"):
        probe(store)
    store.put("a/b", b"12")
    assert store.get("a/b") == b"12"
    assert store.stat("a/b").size == 2
    assert store.stat("a/c") is None
    assert [found.key for found in store.list("a/")] == ["a/b"]
    with pytest.raises(ObjectMissingError):
        store.get("a/c")
    (tmp_path / "in").write_bytes(b"x" * 3_000_000)
    digests = store.send([Sending(str(tmp_path / "in"), "c/d")])
    assert store.fetch([Fetching("c/d", str(tmp_path / "out"))]) == digests
    store.delete(["a/b", "c/d", "nope"])
    assert [found for found in store.list("") if found.size] == []
    with pytest.raises(StoreDeniedError):
        opened("no-such-bucket/prefix", filesystem=bucket).put("a", b"")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(13, "no"), "StoreDeniedError"),
        (OSError(28, "No space left on device"), "StorageFullError"),
        (FileNotFoundError("x"), "ObjectMissingError"),
        (OSError("AWS Error ACCESS_DENIED during PutObject: 403"), "StoreDeniedError"),
        (RuntimeError("ExpiredToken"), "StoreDeniedError"),
        (TimeoutError("slow"), "StoreUnreachableError"),
        (RuntimeError("socket closed"), "StoreUnreachableError"),
    ],
)
def test_failures_are_told_apart(error: Exception, kind: str) -> None:
    assert type(_classify(error, "put a", "place")).__name__ == kind


def _local() -> Any:
    return LocalFiles(), lambda folder: Path(folder).is_dir()


def _arrow() -> Any:
    fs = pytest.importorskip("pyarrow.fs")
    made = fs._MockFileSystem()
    return made, lambda folder: made.get_file_info(folder).type == fs.FileType.Directory


def _fsspec() -> Any:
    made = pytest.importorskip("fsspec").filesystem("memory")
    return made, lambda folder: made.isdir(folder)


@pytest.mark.parametrize("make", [_local, _arrow, _fsspec])
def test_a_deleted_checkpoint_leaves_no_empty_directory(make: Callable[[], Any], tmp_path: Path) -> None:
    filesystem, is_directory = make()
    base = str(tmp_path / "root") if make is _local else "root"
    store = FilesystemStore(filesystem, base, Transfers(2, 1 << 20, 1 << 20))
    obsolete = ["trial/checkpoint_000000/model", "trial/checkpoint_000000/deep/er/optimizer"]
    for key in [*obsolete, "trial/checkpoint_000001/model", "trial/result.json"]:
        store.put(key, b"x")
    store.delete(obsolete)
    assert not is_directory(f"{base}/trial/checkpoint_000000")
    assert is_directory(f"{base}/trial/checkpoint_000001")
    assert [found.key for found in store.list("")] == ["trial/checkpoint_000001/model", "trial/result.json"]


def test_directories_of_the_journal_stay(tmp_path: Path) -> None:
    store = FilesystemStore(LocalFiles(), str(tmp_path), Transfers(2, 1 << 20, 1 << 20))
    store.put(".holdfast/marks/1", b"x")
    store.delete([".holdfast/marks/1"])
    assert (tmp_path / ".holdfast" / "marks").is_dir()  # the next one may be on its way there
