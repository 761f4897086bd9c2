"""The safe ways to make, replace and grow a file on a real file system."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_disk import FaultyDisk

from holdfast.journal import Journal, claim_epoch, read_journal
from holdfast.storage import local
from holdfast.storage.local import REAL_DISK, Disk, create_exclusive, free_bytes, is_full, write_atomic


def test_replacing_a_file_leaves_nothing_else_behind(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_atomic(str(path), b"one")
    write_atomic(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["file"]


def test_a_failed_replacement_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(str(path), b"one")

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local.os, "write", full)
    with pytest.raises(OSError, match="No space") as caught:
        write_atomic(str(path), b"two")
    assert is_full(caught.value)
    assert path.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("links", [True, False])
def test_only_the_first_of_two_creations_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:

        def no_links(source: str, target: str) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(local.os, "link", no_links)
    path = tmp_path / "new" / "file"
    assert create_exclusive(str(path), b"first")
    assert not create_exclusive(str(path), b"second")
    assert path.read_bytes() == b"first"
    assert os.listdir(path.parent) == ["file"]


def test_a_creation_whose_answer_was_lost_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system carried out the link, lost the answer, and repeated the request."""
    real_link = os.link

    def link_twice(source: str, target: str) -> None:
        real_link(source, target)
        real_link(source, target)

    monkeypatch.setattr(local.os, "link", link_twice)
    assert create_exclusive(str(tmp_path / "file"), b"mine")


def test_other_errors_of_a_creation_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: str, target: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(local.os, "link", broken)
    with pytest.raises(OSError, match="Input/output"):
        create_exclusive(str(tmp_path / "file"), b"mine")
    assert os.listdir(tmp_path) == []


def test_free_space_is_told_for_places_that_do_not_exist_yet(tmp_path: Path) -> None:
    assert free_bytes(str(tmp_path / "not" / "yet")) > 0


@pytest.mark.parametrize("disk", [REAL_DISK, FaultyDisk()], ids=["real", "faulty"])
def test_the_faulty_disk_behaves_like_the_real_one_until_told_otherwise(disk: Disk, tmp_path: Path) -> None:
    directory = str(tmp_path / "d")
    path = f"{directory}/file"
    assert disk.list(directory) == []
    assert not disk.exists(path)
    with pytest.raises(FileNotFoundError):
        disk.read(path)
    with pytest.raises(FileNotFoundError):
        disk.open_append(path)
    disk.remove(path)
    assert disk.create_exclusive(path, b"0123")
    assert not disk.create_exclusive(path, b"other")
    disk.sync_dir(directory)
    file = disk.open_append(path)
    assert file.write(b"45") == 2
    assert file.write(memoryview(b"678")[1:]) == 2
    file.sync()
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file"):
        file.sync()
    assert disk.read(path) == b"01234578"
    assert (disk.read(path, 2, 3), disk.read(path, 6), disk.read(path, 99)) == (b"234", b"78", b"")
    disk.write_atomic(f"{directory}/other", b"x")
    assert sorted(disk.list(directory)) == ["file", "other"]
    before = disk.mtime(path)
    disk.touch(path)
    assert disk.mtime(path) >= before
    disk.remove(path)
    assert not disk.exists(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    target = tmp_path / "small"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(target)]
    if sys.platform != "linux" or os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("a file system can only be mounted by root on Linux")
    yield target
    subprocess.run(["umount", str(target)], check=True)


def test_a_journal_on_a_really_full_disk_waits_and_goes_on(small_disk: Path) -> None:
    journal = Journal.create_or_append(small_disk, claim_epoch(small_disk))
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 150_000)
    count = 0
    while journal.blocked is None:
        count += 1
        assert journal.append([b"record %d " % count + b"x" * 999]) == count
    assert is_full(journal.blocked)
    assert journal.accepted_seq == count - 1
    assert not journal.flush()
    ballast.unlink()
    assert journal.flush()
    assert journal.accepted_seq == count
    journal.close()
    assert [seq for seq, _ in read_journal(small_disk)] == list(range(1, count + 1))
