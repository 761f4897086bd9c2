"""The thread that writes files: order, batching, and a disk that refuses."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.callbacks import file_writer
from holdfast.callbacks.file_writer import OPENED_TOGETHER, FileWriter
from holdfast.errors import InternalError
from holdfast.storage.local import TEMP_PREFIX

DEADLINE_S = 20.0


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@pytest.fixture
def writer() -> Iterator[FileWriter]:
    writer = FileWriter(linger_s=0.01)
    yield writer
    writer.close(0.1)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Paths for which the disk is full: their bytes go to a device that says so."""
    full: set[str] = set()
    really_open = file_writer._open

    def open_full(path: str, flags: int) -> int:
        return os.open("/dev/full", os.O_WRONLY) if path in full else really_open(path, flags)

    monkeypatch.setattr(file_writer, "_open", open_full)
    return full


@pytest.fixture
def bad_disk(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Paths that cannot be opened as long as they are in this set."""
    bad: set[str] = set()
    really_open = file_writer._open

    def open_bad(path: str, flags: int) -> int:
        if path in bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return really_open(path, flags)

    monkeypatch.setattr(file_writer, "_open", open_bad)
    return bad


def test_appends_arrive_in_order_and_directories_are_made(writer: FileWriter, tmp_path: Path) -> None:
    paths = [tmp_path / f"trial{n}" / "deep" / "result.json" for n in range(5)]
    for i in range(100):
        for path in paths:
            writer.append(str(path), b"%d\n" % i)
    assert writer.flush()
    expected = b"".join(b"%d\n" % i for i in range(100))
    assert all(path.read_bytes() == expected for path in paths)
    assert writer.unwritten == 0


def test_bytes_are_written_soon_without_being_asked(writer: FileWriter, tmp_path: Path) -> None:
    path = tmp_path / "file"
    writer.append(str(path), b"row\n")
    wait_until(lambda: path.exists() and path.read_bytes() == b"row\n")


def test_changes_of_one_file_are_carried_out_in_order(writer: FileWriter, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    writer.append(path, b"one\n")
    writer.append(path, b"two\n")
    writer.edit(path, lambda data: data[:4])
    writer.append(path, b"three\n")
    writer.edit(path, lambda data: b"head\n" + data)
    assert writer.flush()
    assert Path(path).read_bytes() == b"head\none\nthree\n"
    writer.replace(path, b"new\n")
    writer.append(path, b"more\n")
    assert writer.flush()
    assert Path(path).read_bytes() == b"new\nmore\n"


def test_a_file_that_is_only_shortened_stays_the_same_file(writer: FileWriter, tmp_path: Path) -> None:
    path = tmp_path / "file"
    writer.append(str(path), b"one\ntwo\n")
    assert writer.flush()
    before = path.stat().st_ino
    writer.edit(str(path), lambda data: data[:4])
    assert writer.flush()
    assert (path.read_bytes(), path.stat().st_ino) == (b"one\n", before)


def test_replacing_never_shows_a_mixture_and_leaves_nothing_behind(writer: FileWriter, tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    seen = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            if path.exists():
                seen.add(path.read_bytes())

    looker = threading.Thread(target=look)
    looker.start()
    contents = [b"%d" % i * 50_000 for i in range(10)]
    for content in contents:
        writer.replace(str(path), content)
        assert writer.flush()
    stop.set()
    looker.join()
    assert seen <= set(contents)
    assert os.listdir(tmp_path) == ["params.json"]


def test_reading_shows_what_the_file_will_be(tmp_path: Path) -> None:
    writer = FileWriter(linger_s=3600)
    path = str(tmp_path / "file")
    assert writer.read(path) is None
    writer.append(path, b"one\n")
    assert writer.read(path) == b"one\n"
    assert writer.flush()
    writer.append(path, b"two\n")
    writer.edit(path, lambda data: data.upper())
    assert Path(path).read_bytes() == b"one\n"
    assert writer.read(path) == b"ONE\nTWO\n"
    assert writer.close()


def test_no_file_is_kept_open(writer: FileWriter, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for n in range(300):
        writer.append(str(tmp_path / f"t{n}" / "result.json"), b"x\n")
    assert writer.flush()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_full_disk_is_waited_for_and_nothing_is_lost(writer: FileWriter, tmp_path: Path, full_disk: set[str]) -> None:
    full = tmp_path / "full"
    full_disk.add(str(full))
    writer.append(str(full), b"one\n")
    wait_until(lambda: writer.trouble)
    assert "No space left" in writer.trouble
    assert str(full) in writer.trouble
    writer.append(str(full), b"two\n")
    assert writer.flush(0.05) is False
    assert writer.unwritten == 1
    full_disk.clear()
    assert writer.flush(DEADLINE_S)
    assert full.read_bytes() == b"one\ntwo\n"
    assert writer.trouble == ""


def test_half_a_row_is_taken_back_before_the_row_is_written_again(writer: FileWriter, tmp_path: Path) -> None:
    """The disk fills up in the middle of a write: the limit on the size of files does the same."""
    path = tmp_path / "file"
    limit = 1_000_000
    path.write_bytes(b"x" * (limit - 6) + b"\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        writer.append(str(path), b"0123456789\n")
        wait_until(lambda: writer.trouble)
        assert path.stat().st_size == limit  # half of the row
        assert (writer.read(str(path)) or b"").endswith(b"x\n0123456789\n")
        assert writer.flush(0.05) is False
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert writer.flush(DEADLINE_S)
    assert path.read_bytes().endswith(b"x\n0123456789\n")


def test_trouble_with_one_file_does_not_stop_the_others(writer: FileWriter, tmp_path: Path, bad_disk: set[str]) -> None:
    blocked = tmp_path / "blocked"
    bad_disk.add(str(blocked / "result.json"))
    writer.append(str(blocked / "result.json"), b"one\n")
    writer.append(str(tmp_path / "other"), b"row\n")
    wait_until(lambda: writer.trouble and (tmp_path / "other").exists())
    assert not writer.flush(0.05)
    bad_disk.clear()
    assert writer.flush(DEADLINE_S)
    assert (blocked / "result.json").read_bytes() == b"one\n"


def test_too_many_waiting_bytes_slow_the_caller_down_but_never_stop_it(tmp_path: Path, full_disk: set[str]) -> None:
    writer = FileWriter(linger_s=0.01, max_waiting_bytes=100, max_stall_s=0.01)
    full = tmp_path / "full"
    full_disk.add(str(full))
    for _ in range(5):
        writer.append(str(full), b"x" * 60)
    full_disk.clear()
    assert writer.flush(DEADLINE_S)
    assert full.stat().st_size == 300
    assert writer.close()


def test_waiting_callers_go_on_as_soon_as_there_is_room(tmp_path: Path) -> None:
    writer = FileWriter(linger_s=3600, max_waiting_bytes=100, max_stall_s=3600)
    for _ in range(20):
        writer.append(str(tmp_path / "file"), b"x" * 60)
    assert writer.close()
    assert (tmp_path / "file").stat().st_size == 1200


def test_closing_writes_everything_and_nothing_can_follow(tmp_path: Path) -> None:
    writer = FileWriter(linger_s=3600)
    writer.append(str(tmp_path / "file"), b"row\n")
    assert writer.close()
    assert writer.close()
    assert (tmp_path / "file").read_bytes() == b"row\n"
    with pytest.raises(InternalError, match="closed"):
        writer.append(str(tmp_path / "file"), b"late\n")


def test_closing_with_a_full_disk_says_so_and_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, full_disk: set[str]
) -> None:
    writer = FileWriter(linger_s=0.01)
    full_disk.add(str(tmp_path / "full"))
    writer.append(str(tmp_path / "full"), b"row\n")
    wait_until(lambda: writer.trouble)
    thread = writer._thread
    assert writer.close(0.05) is False
    assert "1 file is incomplete" in caplog.text
    assert thread is not None
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_an_unused_writer_has_no_thread() -> None:
    before = threading.active_count()
    writer = FileWriter()
    assert writer.flush()
    assert threading.active_count() == before
    assert writer.close()


def test_writing_from_several_threads_loses_nothing(writer: FileWriter, tmp_path: Path) -> None:
    def write(name: str) -> None:
        for i in range(500):
            writer.append(str(tmp_path / name), b"%d\n" % i)

    threads = [threading.Thread(target=write, args=(f"f{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.flush()
    expected = b"".join(b"%d\n" % i for i in range(500))
    assert all((tmp_path / f"f{n}").read_bytes() == expected for n in range(4))


@pytest.mark.parametrize(
    "change",
    [
        lambda writer, path: writer.append(path, b"late\n"),
        lambda writer, path: writer.edit(path, lambda data: data[:2]),
    ],
    ids=["append", "shorten"],
)
def test_a_writer_that_was_stopped_before_its_write_reaches_no_file_of_its_successor(
    tmp_path: Path, change: Callable[[FileWriter, str], None]
) -> None:
    """It has asked whether it still may, and stands still until another driver has replaced the file and finished."""
    path, answers = tmp_path / "result.json", iter([False, False, True])

    def taken_over_now() -> bool:
        other = tmp_path / "other"
        other.write_bytes(b"theirs\n")
        other.replace(path)
        return next(answers)

    path.write_bytes(b"ours\n")
    writer = FileWriter(linger_s=0.0, is_void=taken_over_now)
    change(writer, str(path))
    assert writer.close()
    assert path.read_bytes() == b"theirs\n"


def test_a_writer_that_was_stopped_with_its_temporary_file_open_writes_nothing_into_its_successors(
    tmp_path: Path,
) -> None:
    path = tmp_path / "params.json"
    with open(tmp_path / f"{TEMP_PREFIX}params.json", "wb", buffering=0) as of_the_sleeper:
        writer = FileWriter(linger_s=0.0)
        writer.replace(str(path), b"{}")
        assert writer.close()
        of_the_sleeper.write(b"late, and longer")
    assert path.read_bytes() == b"{}"


def test_a_writer_that_becomes_void_leaves_no_temporary_file(tmp_path: Path) -> None:
    path, answers = tmp_path / "params.json", iter([False, False, True])
    path.write_bytes(b"theirs")
    writer = FileWriter(linger_s=0.0, is_void=lambda: next(answers))
    writer.replace(str(path), b"{}")
    assert writer.close()
    assert os.listdir(tmp_path) == ["params.json"]
    assert path.read_bytes() == b"theirs"


def test_a_writer_that_is_void_creates_no_file(tmp_path: Path) -> None:
    writer = FileWriter(linger_s=0.0, is_void=lambda: True)
    for number in range(OPENED_TOGETHER + 1):
        writer.replace(str(tmp_path / f"params-{number}.json"), b"{}")
        writer.append(str(tmp_path / f"result-{number}.json"), b"{}\n")
    assert writer.close()
    assert os.listdir(tmp_path) == []


def test_the_fence_is_looked_at_for_groups_of_files(tmp_path: Path) -> None:
    looks = 0

    def count() -> bool:
        nonlocal looks
        looks += 1
        return False

    writer = FileWriter(linger_s=3600.0, is_void=count)
    for number in range(4 * OPENED_TOGETHER):
        writer.append(str(tmp_path / f"{number}"), b"row\n")
    assert writer.close()
    assert len(os.listdir(tmp_path)) == 4 * OPENED_TOGETHER
    assert looks <= 8


def test_one_file_that_cannot_be_opened_keeps_none_of_its_group_back(tmp_path: Path, bad_disk: set[str]) -> None:
    bad_disk.add(str(tmp_path / "bad"))
    writer = FileWriter(linger_s=3600.0)
    for name in ("a", "bad", "c"):
        writer.append(str(tmp_path / name), b"row\n")
    deadline = time.monotonic() + 60
    while not writer.trouble and time.monotonic() < deadline:
        assert not writer.flush(0.01)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "c").read_bytes() == b"row\n"
    assert "bad cannot be written" in writer.trouble
    bad_disk.clear()
    assert writer.close()
    assert (tmp_path / "bad").read_bytes() == b"row\n"


def test_bytes_added_to_what_replaces_a_file_that_is_not_there_make_one_file(tmp_path: Path) -> None:
    writer = FileWriter(linger_s=3600.0)
    writer.replace(str(tmp_path / "new"), b"head\n")
    writer.append(str(tmp_path / "new"), b"row\n")
    writer.edit(str(tmp_path / "new"), bytes.upper)
    assert writer.close()
    assert (tmp_path / "new").read_bytes() == b"HEAD\nROW\n"
