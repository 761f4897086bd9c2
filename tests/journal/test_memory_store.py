"""The store for tests: it keeps its word unless it was told to break it, and remembers what it was asked."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import xxhash

from holdfast.errors import ObjectMissingError, StoreDeniedError, StoreUnreachableError
from holdfast.storage.store import Fetching, Sending, Store, create_once
from holdfast.testing.memory_store import Fault, MemoryStore


def test_it_does_what_a_store_does(tmp_path: Path) -> None:
    store: Store = MemoryStore(clock=lambda: 5.0)
    store.put("b/x", b"1")
    assert store.create("a/y", b"22")
    assert not store.create("a/y", b"33")
    assert store.get("a/y") == b"22"
    assert [(stat.key, stat.size, stat.modified) for stat in store.list("")] == [("a/y", 2, 5.0), ("b/x", 1, 5.0)]
    assert [stat.key for stat in store.list("b/")] == ["b/x"]
    assert store.stat("b/z") is None
    with pytest.raises(ObjectMissingError):
        store.get("b/z")
    (tmp_path / "up").write_bytes(b"file")
    assert store.send([Sending(str(tmp_path / "up"), "c")]) == [xxhash.xxh3_128_hexdigest(b"file")]
    assert store.fetch([Fetching("c", str(tmp_path / "new" / "down"))]) == [xxhash.xxh3_128_hexdigest(b"file")]
    assert (tmp_path / "new" / "down").read_bytes() == b"file"
    store.delete(["c", "nothing"])
    assert store.stat("c") is None
    assert store.abort_stale("") == 0
    store.close()


def test_of_many_who_create_at_once_one_succeeds() -> None:
    store = MemoryStore()
    ready = threading.Barrier(16)
    outcomes: list[bytes | None] = []

    def create(n: int) -> None:
        ready.wait(30)
        outcomes.append(create_once(store, "key", b"%d" % n))

    threads = [threading.Thread(target=create, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(None) == 1
    assert set(outcomes) - {None} == {store.get("key")}


def test_faults_come_and_go_as_planned() -> None:
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    store.fail(Fault("unreachable", ("get",), times=2))
    store.put("key", b"1")
    for _ in range(2):
        with pytest.raises(StoreUnreachableError):
            store.get("key")
    assert store.get("key") == b"1"
    store.fail(Fault("denied", prefix="a/", until=10.0))
    with pytest.raises(StoreDeniedError):
        store.put("a/x", b"1")
    store.put("b/x", b"1")
    now[0] = 10.0
    store.put("a/x", b"1")
    assert [request.outcome for request in store.requests] == [
        "ok",
        "unreachable",
        "unreachable",
        "ok",
        "denied",
        "ok",
        "ok",
    ]


def test_a_lost_answer_means_that_it_was_done() -> None:
    store = MemoryStore()
    store.fail(Fault("lost", times=1))
    assert store.list("") == []  # a read has nothing to lose
    with pytest.raises(StoreUnreachableError):
        store.create("key", b"1")
    assert create_once(store, "key", b"1") is None
    assert create_once(store, "key", b"2") == b"1"


def test_a_slow_store_takes_its_time() -> None:
    slept: list[float] = []
    store = MemoryStore(sleep=slept.append)
    store.fail(Fault("slow", times=1, delay_s=3.0))
    store.put("key", b"1")
    store.put("key", b"2")
    assert slept == [3.0]


def test_chance_repeats_itself_under_a_seed() -> None:
    def story(seed: int) -> list[str]:
        store = MemoryStore(seed=seed)
        store.fail(Fault("unreachable", chance=0.5))
        for _ in range(50):
            try:
                store.put("key", b"")
            except StoreUnreachableError:
                pass
        return [request.outcome for request in store.requests]

    assert story(1) == story(1) != story(2)
    assert 10 < story(1).count("ok") < 40
