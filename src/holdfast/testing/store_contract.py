"""What every store must do, as functions that take a factory of stores.

Each check gets ``make``: a function that returns a store in which there is nothing yet. ``CHECKS`` is all of them; give
them to ``pytest.mark.parametrize``. A check closes the store that it made.

Owns the behaviour that ``storage.store.Store`` promises. Must never rely on what keeps the bytes.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from holdfast.errors import ObjectMissingError, StorageError
from holdfast.storage.probe import probe
from holdfast.storage.store import ABSENT, ANY, Fetching, Replaced, Replacing, Sending, Store, create_once
from holdfast.testing.expect import expect_error

MakeStore = Callable[[], Store]

WRITERS = 16
DEADLINE_S = 60.0
LONG_AGO = 1_600_000_000.0
CONTENTS = (b"", b"x", b"y" * 100_000, bytes(range(256)) * 80_000)
"""Of files that are sent; the last one is 20 MB, which many stores take in parts."""


@contextlib.contextmanager
def using(make: MakeStore) -> Iterator[tuple[Store, Path]]:
    """A store and a directory for local files; both are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="holdfast-store-") as folder:
        store = make()
        try:
            yield store, Path(folder)
        finally:
            store.close()


def keys_in(store: Store, prefix: str = "") -> list[str]:
    """What a listing shows."""
    return [found.key for found in store.list(prefix)]


def check_objects_are_written_read_and_deleted(make: MakeStore) -> None:
    with using(make) as (store, _):
        assert store.stat("a/b.txt") is None
        store.put("a/b.txt", b"one")
        store.put("a/b.txt", b"three")
        store.put("a/c/d", b"")
        assert (store.get("a/b.txt"), store.get("a/c/d")) == (b"three", b"")
        store.delete(["a/b.txt", "not/there"])
        store.delete([])
        store.delete(["not/there"])
        assert store.stat("a/b.txt") is None
        assert keys_in(store) == ["a/c/d"]


def check_a_stat_tells_size_and_time(make: MakeStore) -> None:
    with using(make) as (store, _):
        store.put("a/b.txt", b"three")
        found = store.stat("a/b.txt")
        assert found is not None
        assert (found.key, found.size) == ("a/b.txt", 5)
        assert found.modified > LONG_AGO, "`modified` is in seconds since 1970"


def check_listings_are_in_order_and_go_by_prefix(make: MakeStore) -> None:
    with using(make) as (store, _):
        assert store.list("") == []
        for key in ("ab", "a/c/d", "a/b.txt"):
            store.put(key, key.encode())
        assert [(found.key, found.size) for found in store.list("a/b")] == [("a/b.txt", 7)]
        assert keys_in(store) == keys_in(store, "a") == ["a/b.txt", "a/c/d", "ab"]
        assert keys_in(store, "a/") == ["a/b.txt", "a/c/d"]
        assert keys_in(store, "nothing/") == []


def check_a_missing_object_is_told_by_its_name(make: MakeStore) -> None:
    with using(make) as (store, folder):
        store.put("something", b"x")
        with expect_error(ObjectMissingError, "nope"):
            store.get("nope")
        with expect_error(ObjectMissingError, "nope"):
            store.fetch([Fetching("nope", str(folder / "nope"))])
        assert not (folder / "nope").exists(), "what could not be fetched must leave no file"


def check_names_with_spaces_and_other_letters_survive(make: MakeStore) -> None:
    names = sorted(["a b", "50%.txt", "ü/日本", "..a", "x=1,y=2"])
    with using(make) as (store, _):
        for name in names:
            store.put(name, name.encode())
        assert keys_in(store) == names
        assert [store.get(name).decode() for name in names] == names
        store.delete(names)
        assert keys_in(store) == []


def check_create_keeps_what_is_there(make: MakeStore) -> None:
    with using(make) as (store, _):
        assert store.create("parts/1", b"first")
        assert not store.create("parts/1", b"second")
        assert store.get("parts/1") == b"first"
        assert create_once(store, "parts/1", b"first") is None
        assert create_once(store, "parts/1", b"third") == b"first"


def check_of_many_creators_one_wins(make: MakeStore) -> None:
    with using(make) as (store, _):
        barrier = threading.Barrier(WRITERS)

        def create(number: int) -> bool:
            barrier.wait(DEADLINE_S)
            return bool(store.create("parts/1", b"%d" % number))

        with ThreadPoolExecutor(WRITERS) as pool:
            made = list(pool.map(create, range(WRITERS)))
        assert sum(made) == 1, f"{sum(made)} of {WRITERS} were told that they had made the object"
        assert store.get("parts/1") == b"%d" % made.index(True)


def check_the_probe_passes_and_leaves_nothing(make: MakeStore) -> None:
    """What a driver tries before it uses a store at all."""
    with using(make) as (store, _):
        probe(store)
        assert store.list("") == []


def check_files_arrive_as_they_were_sent(make: MakeStore) -> None:
    with using(make) as (store, folder):
        sent = [Sending(_write(folder / f"in{n}", content), f"deep/file {n}") for n, content in enumerate(CONTENTS)]
        digests = [xxhash.xxh3_128_hexdigest(content) for content in CONTENTS]
        assert list(store.send(sent)) == digests
        assert [found.size for found in store.list("deep/")] == [len(content) for content in CONTENTS]
        new = folder / "new" / "er"
        fetched = [Fetching(file.key, str(new / str(n))) for n, file in enumerate(sent)]
        assert list(store.fetch(fetched)) == digests
        assert [Path(file.path).read_bytes() for file in fetched] == list(CONTENTS)
        assert sorted(os.listdir(new)) == ["0", "1", "2", "3"], "nothing else may be left beside the files"
        assert list(store.send([])) == list(store.fetch([])) == []


def check_a_fetched_file_replaces_the_one_that_was_there(make: MakeStore) -> None:
    with using(make) as (store, folder):
        store.put("key", b"short")
        path = _write(folder / "file", b"something longer")
        store.fetch([Fetching("key", path)])
        assert Path(path).read_bytes() == b"short"


def check_a_local_file_that_is_missing_is_told_by_its_name(make: MakeStore) -> None:
    with using(make) as (store, folder):
        path = str(folder / "nofile")
        with expect_error(StorageError, "nofile", but_not=ObjectMissingError):
            store.send([Sending(path, "key")])
        with expect_error(StorageError, "nofile", but_not=ObjectMissingError):
            store.replace([Replacing(path, "key", ABSENT)])


def check_files_take_the_place_of_objects(make: MakeStore) -> None:
    with using(make) as (store, folder):
        version = ABSENT
        for content in (b"one", b"", b"three" * 100_000):
            [(done, version)] = store.replace([Replacing(_write(folder / "file", content), "a/file", version)])
            assert done
            assert store.get("a/file") == content
            found = store.stat("a/file")
            assert found is not None
            assert found.version == version
            assert [each.version for each in store.list("a/")] == [ANY]
        assert list(store.replace([])) == []


def check_a_replacement_keeps_what_somebody_else_has_written(make: MakeStore) -> None:
    """Where the store knows versions; one that does not says ``ANY``."""
    with using(make) as (store, folder):
        mine = _write(folder / "mine", b"mine")
        first = store.replace([Replacing(mine, key, ABSENT) for key in ("written", "deleted")])
        written, deleted = (replaced.version for replaced in first)
        if ANY in (written, deleted):
            return
        store.put("written", b"theirs")
        store.put("made", b"theirs")
        store.delete(["deleted"])
        expected = {"written": written, "made": ABSENT, "deleted": deleted}
        outcomes = store.replace([Replacing(mine, key, version) for key, version in expected.items()])
        versions = {found.key: found.version for found in map(store.stat, expected) if found is not None}
        assert list(outcomes) == [Replaced(False, versions.get(key, ABSENT)) for key in expected]
        assert {key: store.get(key) for key in keys_in(store)} == {"written": b"theirs", "made": b"theirs"}
        [(done, _)] = store.replace([Replacing(mine, "written", versions["written"])])
        assert done
        assert store.get("written") == b"mine"


def check_several_threads_may_use_it(make: MakeStore) -> None:
    with using(make) as (store, _):

        def work(number: int) -> bytes:
            store.put(f"of/{number}", b"%d" % number)
            return store.get(f"of/{number}")

        with ThreadPoolExecutor(WRITERS) as pool:
            assert list(pool.map(work, range(4 * WRITERS))) == [b"%d" % number for number in range(4 * WRITERS)]
        assert len(store.list("of/")) == 4 * WRITERS


def check_it_names_itself_and_may_be_closed_twice(make: MakeStore) -> None:
    with using(make) as (store, _):
        assert store.url
        assert store.abort_stale("") == 0
        store.close()


def _write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


FROM_SEVERAL_THREADS: list[Callable[[MakeStore], None]] = [
    check_of_many_creators_one_wins,
    check_several_threads_may_use_it,
]
"""Those that a store for one thread, such as a fake in virtual time, need not pass."""

CHECKS: list[Callable[[MakeStore], None]] = [
    check_objects_are_written_read_and_deleted,
    check_a_stat_tells_size_and_time,
    check_listings_are_in_order_and_go_by_prefix,
    check_a_missing_object_is_told_by_its_name,
    check_names_with_spaces_and_other_letters_survive,
    check_create_keeps_what_is_there,
    check_the_probe_passes_and_leaves_nothing,
    check_files_arrive_as_they_were_sent,
    check_a_fetched_file_replaces_the_one_that_was_there,
    check_a_local_file_that_is_missing_is_told_by_its_name,
    check_files_take_the_place_of_objects,
    check_a_replacement_keeps_what_somebody_else_has_written,
    check_it_names_itself_and_may_be_closed_twice,
    *FROM_SEVERAL_THREADS,
]
