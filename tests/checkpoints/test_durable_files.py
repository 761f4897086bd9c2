"""Many small files are made durable by one call, where that is as safe as a call for each of them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from checkpoint_trial import Trial, read_tree

from holdfast.checkpoints import durable_files, syscalls
from holdfast.checkpoints.checkpoint_reader import verify
from holdfast.checkpoints.durable_files import MANY_FILES, may_sync_at_once, unwritten_bytes
from holdfast.errors import StorageError

MANY = {f"sub/part-{number}": b"%d" % number for number in range(MANY_FILES)}


class Calls(NamedTuple):
    """What was asked of the kernel: the call, and for what."""

    made: list[tuple[str, str]]
    failing: dict[tuple[str, str], int]

    def wrap(self, kind: str, real: Callable[[int], None] | None) -> Callable[[int], None]:
        def call(fd: int) -> None:
            name = re.sub(r"\.tmp-.*", "manifest", os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
            self.made.append((kind, name))
            code = self.failing.pop((kind, name if kind != "syncfs" else ""), 0)
            if code:
                raise OSError(code, os.strerror(code))
            if real is not None:
                real(fd)

        return call

    def of(self, kind: str) -> list[str]:
        return [name for made, name in self.made if made == kind]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The kernel's calls on a disk to which nobody else writes."""
    calls = Calls([], {})
    monkeypatch.setattr(durable_files, "may_sync_at_once", lambda directory, size: True)
    monkeypatch.setattr(durable_files, "sync_file_system", calls.wrap("syncfs", None))
    monkeypatch.setattr(durable_files, "raise_write_error", calls.wrap("ask", None))
    monkeypatch.setattr(os, "fsync", calls.wrap("fsync", os.fsync))
    return calls


def test_many_files_take_one_call_and_each_is_asked_for_its_error_before_the_manifest(
    trial: Trial, calls: Calls
) -> None:
    name = trial.sealed(MANY).name
    trial.commit(name)
    verify(trial.dir / "checkpoint_000000")
    assert calls.made[0] == ("syncfs", name)
    assert sorted(calls.of("ask")) == sorted(map(os.path.basename, MANY))
    assert calls.made[len(MANY) + 1] == ("fsync", "manifest")
    assert sorted(calls.of("fsync")) == sorted(["manifest", name, "sub", trial.dir.name])


def test_few_files_are_synced_one_by_one(trial: Trial, calls: Calls) -> None:
    trial.commit(trial.sealed(dict(list(MANY.items())[1:])).name)
    assert calls.of("syncfs") == calls.of("ask") == []
    assert len([name for name in calls.of("fsync") if name.startswith("part-")]) == MANY_FILES - 1


def test_a_file_that_could_not_be_written_is_found_though_the_file_system_was_synced(
    trial: Trial, calls: Calls
) -> None:
    """Its error may have been told to whoever synced the file system before us."""
    name = trial.sealed(MANY).name
    calls.failing["ask", "part-7"] = errno.EIO
    with pytest.raises(StorageError, match="EIO"):
        trial.commit(name)
    assert trial.names() == [f"{name}.resync"]  # only a copy of it can be committed
    trial.commit(name)
    verify(trial.dir / "checkpoint_000000")
    assert read_tree(trial.dir / "checkpoint_000000") == MANY


def test_an_error_of_the_file_system_is_looked_for_file_by_file(trial: Trial, calls: Calls) -> None:
    calls.failing["syncfs", ""] = errno.EIO
    trial.commit(trial.sealed(MANY).name)
    assert set(map(os.path.basename, MANY)) <= set(calls.of("fsync"))
    calls.failing["syncfs", ""] = errno.EIO
    calls.failing["fsync", "part-3"] = errno.EIO
    with pytest.raises(StorageError, match="EIO"):
        trial.commit(trial.sealed(MANY).name, 1)
    assert not (trial.dir / "checkpoint_000001").exists()


def test_many_files_are_committed_with_the_calls_of_this_machine(trial: Trial) -> None:
    trial.commit(trial.sealed(MANY).name)
    verify(trial.dir / "checkpoint_000000")
    assert read_tree(trial.dir / "checkpoint_000000") == MANY


@pytest.mark.skipif(not syscalls.can_sync_at_once(), reason="needs Linux 5.8 or newer")
def test_the_calls_take_a_directory_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path, call in ((tmp_path, syscalls.sync_file_system), (tmp_path / "file", syscalls.raise_write_error)):
        fd = os.open(path, os.O_RDONLY)
        call(fd)
        os.close(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            call(fd)


@pytest.mark.parametrize(
    ("release", "is_enough"), [("5.7.19-generic", False), ("5.8.0", True), ("4.18.0-553.el8", False), ("6.1-rc1", True)]
)
def test_older_kernels_do_not_report_errors(monkeypatch: pytest.MonkeyPatch, release: str, is_enough: bool) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "h", release, "v", "x86_64")))
    syscalls._kernel.cache_clear()
    try:
        assert syscalls.can_sync_at_once() == is_enough
    finally:
        syscalls._kernel.cache_clear()


MB = 1 << 20


@pytest.mark.parametrize(
    ("kind", "waiting", "may"),
    [
        ("ext4", 100 * MB, True),
        ("ext4", 200 * MB, False),
        ("ext4", None, False),
        ("xfs", 0, True),
        ("nfs4", 0, False),
        ("overlay", 0, False),
        ("fuse.sshfs", 0, False),
        ("", 0, False),
    ],
)
def test_it_is_one_call_only_on_a_local_disk_to_which_others_write_little(
    monkeypatch: pytest.MonkeyPatch, kind: str, waiting: int | None, may: bool
) -> None:
    monkeypatch.setattr(durable_files, "can_sync_at_once", lambda: True)
    monkeypatch.setattr(durable_files, "file_system_of", lambda path: kind)
    monkeypatch.setattr(durable_files, "unwritten_bytes", lambda: waiting)
    assert may_sync_at_once("anywhere", 50 * MB) == may
    monkeypatch.setattr(durable_files, "can_sync_at_once", lambda: False)
    assert not may_sync_at_once("anywhere", 50 * MB)


@pytest.mark.parametrize(
    ("text", "waiting"),
    [
        ("MemTotal:  9 kB\nDirty:   12 kB\nWriteback:  3 kB\nWritebackTmp: 7 kB\n", 15 * 1024),
        ("MemTotal: 9 kB\n", None),
        ("Dirty: many\nWriteback: 0 kB\n", None),
        ("nonsense", None),
    ],
)
def test_what_waits_to_be_written_is_read_from_the_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, waiting: int | None
) -> None:
    (tmp_path / "meminfo").write_text(text)
    monkeypatch.setattr(durable_files, "_MEMORY", str(tmp_path / "meminfo"))
    assert unwritten_bytes() == waiting
    (tmp_path / "meminfo").unlink()
    assert unwritten_bytes() is None
