"""Files in a store that only the present driver may replace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.controller.fenced_uploads import REMEMBERED, FencedUploads
from holdfast.errors import StorageError, StoreUnreachableError
from holdfast.storage.store import Replaced, Sending
from holdfast.testing.memory_store import Fault, MemoryStore

KEY = "t/result.json"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def mine(tmp_path: Path) -> list[Sending]:
    (tmp_path / "result.json").write_bytes(b"mine")
    return [Sending(str(tmp_path / "result.json"), KEY)]


def nobody() -> bool:
    return False


def asked(store: MemoryStore) -> list[str]:
    return [request.verb for request in store.requests]


def test_a_file_of_its_own_is_replaced_by_one_request(store: MemoryStore, mine: list[Sending]) -> None:
    uploads = FencedUploads(store)
    for content in (b"one", b"two", b"three"):
        Path(mine[0].path).write_bytes(content)
        assert uploads.send(mine, is_void=nobody)
        assert store.objects == {KEY: content}
    assert asked(store) == ["replace"] * 3


def test_a_file_that_a_driver_before_it_has_written_is_replaced(store: MemoryStore, mine: list[Sending]) -> None:
    store.put(KEY, b"of the driver before")
    assert FencedUploads(store).send(mine, is_void=nobody)
    assert store.objects == {KEY: b"mine"}


def test_an_answer_that_was_lost_is_no_rival(store: MemoryStore, mine: list[Sending]) -> None:
    uploads = FencedUploads(store)
    store.fail(Fault("lost", ("replace",), times=1))
    with pytest.raises(StoreUnreachableError):
        uploads.send(mine, is_void=nobody)
    Path(mine[0].path).write_bytes(b"mine, longer")
    assert uploads.send(mine, is_void=nobody)
    assert store.objects == {KEY: b"mine, longer"}


class LateStore(MemoryStore):
    """Delivers a driver's upload after its successor has claimed the experiment and written the object."""

    overtaken = False

    def replace(self, files: Any) -> Any:
        if not self.overtaken:
            self.overtaken = True
            self.put(KEY, b"theirs")
        return super().replace(files)


@pytest.mark.parametrize("written_before", [False, True])
def test_an_upload_that_arrives_after_a_take_over_changes_nothing(mine: list[Sending], written_before: bool) -> None:
    """Its look at the fence had found nobody."""
    store = LateStore()
    uploads = FencedUploads(store)
    if written_before:
        store.overtaken = True
        assert uploads.send(mine, is_void=nobody)
        store.overtaken = False
    assert not uploads.send(mine, is_void=lambda: store.overtaken)
    assert store.objects == {KEY: b"theirs"}


def test_a_version_is_learnt_before_the_look_that_makes_it_count(store: MemoryStore, mine: list[Sending]) -> None:
    """The successor comes and writes between a refusal and the next look: the look finds it."""
    store.put(KEY, b"of the driver before")
    looks = iter([False, True])

    def is_void() -> bool:
        found = next(looks)
        if found:
            store.put(KEY, b"theirs")
        return found

    assert not FencedUploads(store).send(mine, is_void=is_void)
    assert store.objects == {KEY: b"theirs"}


def test_nothing_is_asked_when_there_is_nothing_to_send(store: MemoryStore) -> None:
    assert FencedUploads(store).send([], is_void=lambda: pytest.fail("looked"))
    assert store.requests == []


def test_somebody_who_writes_the_same_file_all_the_time_is_named_not_fought(mine: list[Sending]) -> None:
    class Contested(MemoryStore):
        def replace(self, files: Any) -> Any:
            self.put(KEY, b"of a tool")
            return super().replace(files)

    with pytest.raises(StorageError, match=r"result\.json is written by somebody else"):
        FencedUploads(Contested()).send(mine, is_void=nobody)


def test_few_versions_are_remembered(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")

    class Counting(MemoryStore):
        def replace(self, files: Any) -> Any:
            return [Replaced(True, file.key) for file in files]

    uploads = FencedUploads(Counting())
    files = [Sending(str(tmp_path / "file"), str(number)) for number in range(REMEMBERED + 10)]
    assert uploads.send(files, is_void=nobody)
    assert len(uploads._versions) == REMEMBERED
    assert "9" not in uploads._versions
    assert "10" in uploads._versions
