"""Directories over a connection: they arrive as they were, or not at all."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.carrier import Carrier, UnreadableFileError, Warehouse
from holdfast.engines.cluster.handshake import frame
from holdfast.engines.cluster.tree_stream import TransferCut, receive_tree, tree_of
from holdfast.errors import StorageError, StorageFullError


@contextlib.contextmanager
def connected(top: Path) -> Iterator[Carrier]:
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=Warehouse(str(top)).serve, args=(theirs,))
    thread.start()
    carrier = Carrier(ours, "b")
    try:
        yield carrier
    finally:
        carrier.close()
        thread.join()


def fill(directory: Path) -> None:
    (directory / "inner" / "empty").mkdir(parents=True)
    (directory / "inner" / "weights é.bin").write_bytes(os.urandom(3 << 20))
    (directory / "nothing").write_bytes(b"")
    script = directory / "run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o750)
    with (directory / "holes").open("wb") as file:
        file.write(b"begin")
        file.seek(64 << 20)
        file.write(b"end")
    os.utime(script, ns=(10**18, 10**18 + 7))


def facts_of(directory: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(directory.rglob("*")):
        stat = path.stat()
        name = str(path.relative_to(directory))
        facts = (stat.st_mode, stat.st_size, stat.st_mtime_ns)
        found[name] = "directory" if path.is_dir() else (facts, path.read_bytes())
    return found


def test_a_directory_arrives_as_it_was(tmp_path: Path) -> None:
    there = tmp_path / "there"
    fill(there / "stage")
    with connected(there) as carrier:
        assert carrier.bring("stage", str(tmp_path / "here"))
    assert facts_of(tmp_path / "here") == facts_of(there / "stage")
    assert (tmp_path / "here" / "holes").stat().st_blocks < (1 << 20) // 512  # a hole stays a hole


def test_a_directory_is_pushed_as_it_is_and_replaces_the_one_before(tmp_path: Path) -> None:
    source, there = tmp_path / "source", tmp_path / "there"
    fill(source)
    (there / "root" / "t" / "checkpoint_000001").mkdir(parents=True)
    (there / "root" / "t" / "checkpoint_000001" / "older").write_text("x")
    with connected(there) as carrier:
        carrier.push(str(source), tree_of(str(source)), "root/t/checkpoint_000001", whole=True)
    assert facts_of(there / "root" / "t" / "checkpoint_000001") == facts_of(source)


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with connected(tmp_path) as carrier:
        assert not carrier.bring("nowhere", str(tmp_path / "here"))
    assert not (tmp_path / "here").exists()


def test_only_changed_files_are_brought_and_no_stages(tmp_path: Path) -> None:
    there, here, known = tmp_path / "there", tmp_path / "here", {}
    for name in ("a.txt", "deep/b.txt", ".stage-1-0011aabb/x", ".sealed-1-0011aabb/x", "checkpoint_000003/x", "stdout"):
        (there / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (there / "t" / name).write_text(name)
    with connected(there) as carrier:
        carrier.bring_changed("t", known, str(here), ("stdout",))
        assert facts_of(here).keys() == {"a.txt", "deep", "deep/b.txt"}
        (here / "a.txt").unlink()
        (there / "t" / "deep" / "b.txt").write_text("changed")
        carrier.bring_changed("t", known, str(here), ("stdout",))
    assert (here / "deep" / "b.txt").read_text() == "changed"
    assert not (here / "a.txt").exists()  # it was brought before, and has not changed


@pytest.mark.parametrize("when", ["listed", "opened"])
def test_a_file_that_vanishes_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """As the temporary file of a process that replaces its state again and again."""
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "t").mkdir(parents=True)
    for name in ("a.bin", "state.tmp", "z.bin"):
        (there / "t" / name).write_text(name)
    look, open_file = os.lstat, os.open

    def vanish(path: str) -> None:
        if str(path).startswith(str(there)) and path.endswith("state.tmp"):
            os.rename(path, path[:-4])

    def lstat(path: str) -> os.stat_result:
        if when == "listed":
            vanish(path)
        return look(path)

    def opened(path: str, *arguments: int, **named: int) -> int:
        vanish(path)
        return open_file(path, *arguments, **named)

    monkeypatch.setattr(os, "lstat", lstat)
    monkeypatch.setattr(os, "open", opened)
    with connected(there) as carrier:
        known: dict[str, tuple[int, int]] = {}
        carrier.bring_changed("t", known, str(here))
        assert known.keys() >= {"a.bin", "z.bin"}
        assert facts_of(here).keys() >= {"a.bin", "z.bin"}
        carrier.bring_changed("t", known, str(here))
    assert facts_of(here).keys() == {"a.bin", "z.bin", "state"}


def test_a_file_that_cannot_be_read_there_or_written_here_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "t" / "in").mkdir(parents=True)
    for name in ("a.bin", "in/x", "secret", "z.bin"):
        (there / "t" / name).write_text(name)
    here.mkdir()
    (here / "in").write_text("no directory")
    open_file = os.open

    def opened(path: str, *arguments: int, **named: int) -> int:
        if str(path).endswith("t/secret"):
            raise PermissionError(13, "Permission denied")
        return open_file(path, *arguments, **named)

    monkeypatch.setattr(os, "open", opened)
    with connected(there) as carrier:
        with pytest.raises(StorageError, match=r"in/x|secret"):
            carrier.bring_changed("t", {}, str(here))
        (here / "in").unlink()
        with pytest.raises(UnreadableFileError, match="reading secret on b: Permission denied"):
            carrier.bring_changed("t", {}, str(here))
    assert facts_of(here).keys() == {"a.bin", "in", "in/x", "z.bin"}


def test_what_could_be_brought_before_the_disk_was_full_is_not_brought_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "t").mkdir(parents=True)
    for name, size in {"a.bin": 1, "model.bin": 5000, "z.bin": 1}.items():
        (there / "t" / name).write_bytes(b"x" * size)
    known: dict[str, tuple[int, int]] = {}
    write = os.pwrite

    def full(fd: int, data: memoryview, offset: int) -> int:
        if len(data) > 1000:
            raise OSError(28, "No space left on device")
        return write(fd, data, offset)

    with connected(there) as carrier:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(StorageFullError, match="No space left on device"):
                carrier.bring_changed("t", known, str(here))
        assert known.keys() == facts_of(here).keys() == {"a.bin", "z.bin"}
        carrier.bring_changed("t", known, str(here))
    assert (here / "model.bin").stat().st_size == 5000


def test_a_checkpoint_that_vanishes_while_it_is_pushed_is_not_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, source = tmp_path / "there", tmp_path / "source"
    there.mkdir()
    source.mkdir()
    for name in "ab":
        (source / name).write_text(name)
    tree = tree_of(str(source))
    (source / "b").unlink()
    with connected(there) as carrier:
        with pytest.raises(StorageError, match=f"reading {source}: No such file"):
            carrier.push(str(source), tree, "root/t/checkpoint_000001", whole=True)
        assert not (there / "root" / "t" / "checkpoint_000001").exists()
        (source / "b").write_text("b")
        carrier.push(str(source), tree, "root/t/checkpoint_000001", whole=True)
    assert facts_of(there / "root" / "t" / "checkpoint_000001").keys() == {"a", "b"}


@pytest.mark.parametrize("path", ["../outside", "/etc", "a/../../b"])
def test_nothing_leaves_the_scratch_directory(tmp_path: Path, path: str) -> None:
    (tmp_path / "there").mkdir()
    with connected(tmp_path / "there") as carrier, pytest.raises(StorageError, match="leads out"):
        carrier.bring(path, str(tmp_path / "here"))


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd"])
def test_a_tree_that_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TransferCut, match="leads out"):
        receive_tree(ours, say.Tree((say.TreeEntry(path, 0o600, 1, 0),)), str(tmp_path / "here"), whole=True)
    assert not (tmp_path / "here").exists()


def test_a_transfer_that_is_cut_is_told(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(frame(say.Tree((say.TreeEntry("a", 0o600, 100, 0),))) + b"\0" * 3)
        with pytest.raises(TransferCut):
            Carrier(ours, "b").bring("stage", str(tmp_path / "here"))


def test_a_full_disk_here_is_told_and_the_connection_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "there"
    fill(there / "stage")
    (there / "small").mkdir()
    (there / "small" / "x").write_text("x")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with connected(there) as carrier:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(StorageFullError):
                carrier.bring("stage", str(tmp_path / "here"))
        assert carrier.bring("small", str(tmp_path / "second"))


def test_a_changed_byte_on_the_way_is_noticed(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        entry = say.TreeEntry("a", 0o600, 3, 0)
        piece = (0).to_bytes(8, "little") + (3).to_bytes(4, "little") + b"abd"
        import xxhash

        theirs.sendall(frame(say.Tree((entry,))) + piece + bytes(12) + xxhash.xxh3_128_digest(b"abc"))
        with pytest.raises(TransferCut, match="checksum"):
            Carrier(ours, "b").bring("stage", str(tmp_path / "here"))
