"""Every store, real and fake, keeps the promises of ``storage.store.Store``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_fakes import simulated_store

from holdfast.storage.store import Store
from holdfast.testing.memory_store import MemoryStore
from holdfast.testing.store_contract import CHECKS, FROM_SEVERAL_THREADS, MakeStore

BUCKETS = ["seaweedfs", "moto", "azurite", "gcs"]
EVERY_CHECK = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))


@EVERY_CHECK
@pytest.mark.parametrize("kind", BUCKETS)
def test_an_object_store(kind: str, check: Callable[[MakeStore], None], bucket_of: Callable[..., Store]) -> None:
    check(lambda: bucket_of(kind))


@EVERY_CHECK
@pytest.mark.parametrize("kind", ["local", "pyarrow", "fsspec"])
def test_a_file_system(
    kind: str, check: Callable[[MakeStore], None], opened: Callable[..., Store], tmp_path: Path
) -> None:
    check(lambda: _file_system(kind, opened, tmp_path))


def _file_system(kind: str, opened: Callable[..., Store], folder: Path) -> Store:
    place = str(folder / "place")
    if kind == "local":
        return opened(place)
    if kind == "fsspec":
        return opened(place, filesystem=pytest.importorskip("fsspec").filesystem("file"))
    fs = pytest.importorskip("pyarrow.fs")
    (folder / "base").mkdir()
    return opened("place", filesystem=fs.SubTreeFileSystem(str(folder / "base"), fs.LocalFileSystem()))


@EVERY_CHECK
def test_the_store_in_memory(check: Callable[[MakeStore], None]) -> None:
    check(MemoryStore)


@EVERY_CHECK
def test_the_store_of_the_simulator(check: Callable[[MakeStore], None]) -> None:
    if check in FROM_SEVERAL_THREADS:
        pytest.skip("a story has one thread")
    check(simulated_store)
