"""Many files, large files: intact, and within the memory that was promised."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash

from holdfast.errors import InvalidInputError, StorageError, StorageFullError, StoreUnreachableError
from holdfast.storage import agent_client
from holdfast.storage.options import StoreOptions
from holdfast.storage.store import Fetching, Sending
from holdfast.storage.transfers import ByteBudget, HashedReader, Progress, Transfers, read_whole, write_hashed

MB = 1024 * 1024
PROMISED_RSS_MB = 300


def peak_rss_mb() -> int:
    for line in Path(f"/proc/{agent_client.agent_pid()}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1024
    raise AssertionError("no VmHWM")


def write_random(path: Path, mb: int, seed: int) -> str:
    hashed, source = xxhash.xxh3_128(), random.Random(seed)
    with path.open("wb") as file:
        for _ in range(mb):
            piece = source.randbytes(MB)
            hashed.update(piece)
            file.write(piece)
    return hashed.hexdigest()


def test_a_thousand_small_files_arrive_intact(bucket_of: Callable[..., Any], tmp_path: Path) -> None:
    store = bucket_of("seaweedfs")
    source = random.Random(1)
    contents = [source.randbytes(64 * 1024) for _ in range(1000)]
    (tmp_path / "in").mkdir()
    sent = []
    for number, content in enumerate(contents):
        (tmp_path / "in" / str(number)).write_bytes(content)
        sent.append(Sending(str(tmp_path / "in" / str(number)), f"checkpoint/{number:04d}"))
    digests = store.send(sent)
    assert digests == [xxhash.xxh3_128_hexdigest(content) for content in contents]
    assert len(store.list("checkpoint/")) == 1000
    fetched = [Fetching(file.key, str(tmp_path / "out" / str(number))) for number, file in enumerate(sent)]
    assert store.fetch(fetched) == digests
    assert all(Path(file.path).read_bytes() == content for file, content in zip(fetched, contents, strict=True))
    store.delete([file.key for file in sent])
    assert store.list("") == []


@pytest.mark.slow
def test_a_large_file_keeps_the_memory_bounded(bucket_of: Callable[..., Any], tmp_path: Path) -> None:
    store = bucket_of("seaweedfs")
    digest = write_random(tmp_path / "large", 512, seed=2)
    assert store.send([Sending(str(tmp_path / "large"), "large")]) == [digest]
    assert store.fetch([Fetching("large", str(tmp_path / "back"))]) == [digest]
    assert peak_rss_mb() <= PROMISED_RSS_MB


@pytest.mark.slow
def test_many_middling_files_keep_the_memory_bounded(bucket_of: Callable[..., Any], tmp_path: Path) -> None:
    store = bucket_of("seaweedfs")
    digests = [write_random(tmp_path / str(number), 36, seed=number) for number in range(12)]
    files = [Sending(str(tmp_path / str(number)), str(number)) for number in range(12)]
    whole = [Sending(str(tmp_path / f"w{number}"), f"w{number}") for number in range(24)]
    for number, file in enumerate(whole):
        digests.append(write_random(Path(file.path), 15, seed=100 + number))
    assert store.send(files + whole) == digests
    fetched = [Fetching(file.key, str(tmp_path / "back" / file.key)) for file in files + whole]
    assert store.fetch(fetched) == digests
    assert peak_rss_mb() <= PROMISED_RSS_MB


def test_the_budget_makes_takers_wait() -> None:
    budget = ByteBudget(10, 2)
    entered = threading.Event()

    def take() -> None:
        with budget.take(5):
            entered.set()

    with budget.take(6):
        thread = threading.Thread(target=take)
        thread.start()
        assert not entered.wait(0.05)
        assert budget.used == 6
    thread.join(5)
    assert entered.is_set()
    assert budget.used == 0
    with budget.take(100):  # more than there is: granted to one who is alone
        assert budget.used == 100


def test_the_budget_shrinks_and_grows_between_its_bounds() -> None:
    budget = ByteBudget(16, 3)
    for expected in (8, 4, 3, 3):
        budget.shrink()
        assert budget.limit == expected
    for expected in (6, 9, 12, 15, 16, 16):
        budget.grow()
        assert budget.limit == expected


def test_a_file_that_changes_on_its_way_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_whole(str(path), 5) == b"12345"
    for size in (4, 6):
        with pytest.raises(StorageError, match="changed"):
            read_whole(str(path), size)
        reader = HashedReader(str(path), size, 2, lambda: None)
        assert list(reader) == [b"12", b"34", b"5"]
        with pytest.raises(StorageError, match="changed"):
            reader.digest()


def test_a_library_that_hangs_is_given_up() -> None:
    transfers, over = Transfers(2, 64, 8), threading.Event()
    try:
        with pytest.raises(StoreUnreachableError, match="hangs"):
            transfers.each(lambda _: over.wait(), [1, 2, 3], watch=Progress(0.05))
    finally:
        over.set()
        transfers.close()


def test_a_full_disk_is_named_and_leaves_no_half_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StorageFullError, match="no space left"):
        write_hashed(str(tmp_path / "file"), pieces(), lambda: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options", [{"timeout_s": 0}, {"stall_s": -1}, {"files_at_once": 0}, {"part_bytes": MB}, {"bytes_in_flight": MB}]
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        StoreOptions(**options)
