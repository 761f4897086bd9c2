"""What only some kinds of stores do; what all of them do is in ``tests/contracts/test_store_contract.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InvalidInputError, StoreDeniedError, UnsafeStoreError
from holdfast.storage.key_names import from_key, to_key
from holdfast.storage.probe import probe
from holdfast.storage.store import ABSENT, ANY, Fetching, Replaced, Replacing, Sending

BUCKETS = ["seaweedfs", "moto", "azurite", "gcs"]


@pytest.mark.parametrize("kind", BUCKETS)
def test_files_too_large_for_one_request_are_sent_without_a_condition(
    bucket_of: Callable[..., Any], kind: str, tmp_path: Path
) -> None:
    store = bucket_of(kind)
    store.put("large", b"theirs")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    assert list(store.replace([Replacing(str(tmp_path / "large"), "large", ABSENT)])) == [Replaced(True, ANY)]
    assert store.stat("large").size == 64 * 1024 * 1024 + 1


@pytest.mark.parametrize("kind", BUCKETS)
def test_odd_names_survive(bucket_of: Callable[..., Any], kind: str) -> None:
    store = bucket_of(kind)
    names = ["a b", "ü/日本", "50%.txt", "%0A", "new\nline", "tab\t", "back\\slash", "[x]{y}*?#&=+~'", "..a", "x%5Cy"]
    for name in names:
        store.put(name, name.encode())
    assert [found.key for found in store.list("")] == sorted(names)
    assert [store.get(name) for name in names] == [name.encode() for name in names]
    store.delete(names)
    assert store.list("") == []


@pytest.mark.parametrize("name", ["", "/a", "a//b", "a/../b", ".", "a/", "\udc80"])
def test_names_that_no_store_takes_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="name"):
        to_key(name)


def test_harmless_names_are_not_changed() -> None:
    for name in ("a/b.txt", "50%", "100%20", "ü ~#?"):
        assert to_key(name) == name
        assert from_key(name) == name


@pytest.mark.parametrize("kind", ["moto", "azurite", "gcs"])  # SeaweedFS makes a bucket that is not there
@pytest.mark.parametrize("verb", ["put", "create", "get", "stat", "list", "delete"])
def test_a_missing_bucket_is_a_refusal(bucket_of: Callable[..., Any], opened: Any, kind: str, verb: str) -> None:
    scheme = bucket_of(kind).url.partition(":")[0]
    store = opened(f"{scheme}://no-such-bucket/x")
    arguments = {"put": ("k", b""), "create": ("k", b""), "delete": (["k"],)}.get(verb, ("k",))
    with pytest.raises(StoreDeniedError, match="no-such-bucket"):
        getattr(store, verb)(*arguments)


def test_a_store_that_ignores_conditions_is_refused(bucket_of: Callable[..., Any], tmp_path: Path) -> None:
    store = bucket_of("rclone")
    with pytest.raises(UnsafeStoreError, match="unfenced_store=True"):
        probe(store)
    assert store.list("") == []
    content = bytes(range(256)) * 200_000
    (tmp_path / "in").write_bytes(content)
    digests = store.send([Sending(str(tmp_path / "in"), "big")])
    # It answers a request for a range with everything, so the file has to come in one stream.
    assert list(store.fetch([Fetching("big", str(tmp_path / "out"))])) == list(digests)
    assert (tmp_path / "out").read_bytes() == content


def test_a_file_system_that_cannot_create_is_refused(opened: Callable[..., Any]) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = opened("place", filesystem=fsspec.filesystem("memory"))
    with pytest.raises(UnsafeStoreError, match="unfenced_store=True"):
        probe(store)
    assert store.create("a", b"1")
    assert not store.create("a", b"2")
    assert store.get("a") == b"1"
    assert [found.key for found in store.list("")] == ["a"]
