"""What every store does, whatever keeps the bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import xxhash

from holdfast.errors import InvalidInputError, ObjectMissingError, StorageError, StoreDeniedError, UnsafeStoreError
from holdfast.storage.key_names import from_key, to_key
from holdfast.storage.probe import probe
from holdfast.storage.store import ABSENT, ANY, Fetching, Replaced, Replacing, Sending, create_once

BUCKETS = ["seaweedfs", "moto", "azurite", "gcs"]


@pytest.fixture(params=[*BUCKETS, "local", "pyarrow", "fsspec"])
def store(request: pytest.FixtureRequest, opened: Callable[..., Any], tmp_path: Path) -> Any:
    place = str(tmp_path / "place")
    if request.param == "local":
        return opened(place)
    if request.param == "pyarrow":
        fs = pytest.importorskip("pyarrow.fs")
        (tmp_path / "base").mkdir()
        return opened("place", filesystem=fs.SubTreeFileSystem(str(tmp_path / "base"), fs.LocalFileSystem()))
    if request.param == "fsspec":
        return opened(place, filesystem=pytest.importorskip("fsspec").filesystem("file"))
    return request.getfixturevalue("bucket_of")(request.param)


def test_objects_are_written_read_listed_and_deleted(store: Any) -> None:
    assert store.list("") == []
    assert store.stat("a/b.txt") is None
    store.put("a/b.txt", b"one")
    store.put("a/b.txt", b"three")
    store.put("a/c/d", b"")
    store.put("ab", b"x")
    assert store.get("a/b.txt") == b"three"
    assert store.get("a/c/d") == b""
    stat = store.stat("a/b.txt")
    assert (stat.key, stat.size) == ("a/b.txt", 5)
    assert stat.modified > 1_600_000_000
    assert [found.key for found in store.list("")] == ["a/b.txt", "a/c/d", "ab"]
    assert [found.key for found in store.list("a/")] == ["a/b.txt", "a/c/d"]
    assert [(found.key, found.size) for found in store.list("a/b")] == [("a/b.txt", 5)]
    assert [found.key for found in store.list("a")] == ["a/b.txt", "a/c/d", "ab"]
    assert store.list("nothing/") == []
    store.delete(["a/b.txt", "not/there", "ab"])
    store.delete([])
    store.delete(["not/there"])
    assert [found.key for found in store.list("")] == ["a/c/d"]


def test_a_missing_object_is_missing(store: Any, tmp_path: Path) -> None:
    store.put("something", b"x")
    with pytest.raises(ObjectMissingError, match="nope"):
        store.get("nope")
    with pytest.raises(ObjectMissingError, match="nope"):
        store.fetch([Fetching("nope", str(tmp_path / "nope"))])
    assert not (tmp_path / "nope").exists()


def test_of_sixteen_creators_one_wins(store: Any) -> None:
    barrier = threading.Barrier(16)

    def create(number: int) -> bool:
        barrier.wait()
        return bool(store.create("parts/1", b"%d" % number))

    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(create, range(16)))
    assert sum(made) == 1
    assert store.get("parts/1") == b"%d" % made.index(True)
    assert create_once(store, "parts/1", b"mine") == b"%d" % made.index(True)
    assert create_once(store, "parts/1", b"%d" % made.index(True)) is None


def test_the_probe_passes_and_leaves_nothing(store: Any) -> None:
    probe(store)
    assert store.list("") == []


def test_files_arrive_as_they_were_sent(store: Any, tmp_path: Path) -> None:
    contents = [b"", b"x", b"y" * 100_000, bytes(range(256)) * 80_000]  # the last one goes in parts
    sent = []
    for number, content in enumerate(contents):
        (tmp_path / f"in{number}").write_bytes(content)
        sent.append(Sending(str(tmp_path / f"in{number}"), f"deep/er/file {number}"))
    digests = store.send(sent)
    assert list(digests) == [xxhash.xxh3_128_hexdigest(content) for content in contents]
    assert [found.size for found in store.list("deep/")] == [len(content) for content in contents]
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "1").write_bytes(b"is replaced")
    fetched = [Fetching(file.key, str(tmp_path / "new" / str(number))) for number, file in enumerate(sent)]
    assert list(store.fetch(fetched)) == list(digests)
    assert [Path(file.path).read_bytes() for file in fetched] == contents
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["0", "1", "2", "3"]
    assert list(store.send([])) == []
    assert list(store.fetch([])) == []


def test_a_local_file_that_is_not_there_is_named(store: Any, tmp_path: Path) -> None:
    for send in (
        lambda path: store.send([Sending(path, "key")]),
        lambda path: store.replace([Replacing(path, "key", ABSENT)]),
    ):
        with pytest.raises(StorageError, match="nofile") as caught:
            send(str(tmp_path / "nofile"))
        assert not isinstance(caught.value, ObjectMissingError)


def test_files_take_the_place_of_objects(store: Any, tmp_path: Path) -> None:
    version = ABSENT
    for content in (b"one", b"", b"three" * 100_000):
        (tmp_path / "file").write_bytes(content)
        [(done, version)] = store.replace([Replacing(str(tmp_path / "file"), "a/file", version)])
        assert done
        assert store.get("a/file") == content
        assert store.stat("a/file").version == version
        assert [found.version for found in store.list("a/")] == [ANY]
    assert list(store.replace([])) == []


@pytest.mark.parametrize("kind", BUCKETS)
def test_what_somebody_else_has_written_meanwhile_is_kept(
    bucket_of: Callable[..., Any], kind: str, tmp_path: Path
) -> None:
    store = bucket_of(kind)
    (tmp_path / "mine").write_bytes(b"mine")
    mine = str(tmp_path / "mine")
    first = store.replace([Replacing(mine, key, ABSENT) for key in ("written", "deleted")])
    written, deleted = (replaced.version for replaced in first)
    store.put("written", b"theirs")
    store.put("made", b"theirs")
    store.delete(["deleted"])
    theirs = store.stat("written").version
    expected = {"written": written, "made": ABSENT, "deleted": deleted}
    assert list(store.replace([Replacing(mine, key, version) for key, version in expected.items()])) == [
        Replaced(False, theirs),
        Replaced(False, store.stat("made").version),
        Replaced(False, ABSENT),
    ]
    assert {found.key: store.get(found.key) for found in store.list("")} == {"written": b"theirs", "made": b"theirs"}
    [(done, _)] = store.replace([Replacing(mine, "written", theirs)])
    assert done
    assert store.get("written") == b"mine"


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
