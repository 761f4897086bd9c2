"""Only regular files are read, and only as much as such files can hold: nothing hangs or leads out of the root."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forging import READERS, append, arguments, good, really_run, train, tree

import holdfast as tune
from holdfast.core import events as ev
from holdfast.errors import DamageError, TuneError
from holdfast.shipping.progress_file import read_note
from holdfast.storage.untrusted import copy_regular, read_regular

PRIVATE = {
    "spec": ".holdfast/spec.json",
    "segment": ".holdfast/journal/*.hfj",
    "epoch": ".holdfast/epochs/00000001",
    "mark": ".holdfast/epochs/*.synced",
    "snapshot": ".holdfast/snapshots/*.hfs",
    "journal": ".holdfast/journal",
    "private": ".holdfast",
}


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path, outside: Path) -> None:
    """To the very file or directory that was there, now outside the root."""
    path.symlink_to(outside)


def dangling(path: Path, outside: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def listening(path: Path, outside: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the address of a socket has a short limit
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


KINDS = [pipe, zeros, link, dangling, listening]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    writer = good(tmp_path / "home" / "exp")
    writer.snapshot()
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    return writer.die().path


def replace(root: Path, pattern: str, kind: Callable[[Path, Path], None]) -> Path:
    """Put something else in the place of a file; the file itself lies outside the root now."""
    path = next(iter(sorted(root.glob(pattern))), None) if "*" in pattern else root / pattern
    if path is None:
        path = root / pattern.replace("*", "00000001")
    outside = root.parents[1] / "outside" / path.name
    if path.exists():
        shutil.move(path, outside)
    kind(path, outside)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pattern", PRIVATE.values(), ids=PRIVATE)
def test_what_is_no_regular_file_is_named_and_not_read(
    root: Path, holdfast: Callable[..., Any], pattern: str, kind: Callable[[Path, Path], None]
) -> None:
    path = replace(root, pattern, kind)
    outside, out = tree(root.parents[1] / "outside"), root.parents[1] / "out"
    for command in READERS:
        answer = holdfast(*arguments(command, root, out))
        assert answer.code in (1, 2), command
        assert path.name in answer.said, command
    assert tree(root.parents[1] / "outside") == outside
    assert not list(out.rglob("*.hfj"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["weights.txt", "_manifest.json", ""], ids=["file", "manifest", "directory"])
def test_a_checkpoint_with_something_else_in_it_is_damaged(
    root: Path, holdfast: Callable[..., Any], name: str, kind: Callable[[Path, Path], None]
) -> None:
    (checkpoint,) = root.glob("*/checkpoint_000000")
    replace(root, str((checkpoint / name).relative_to(root)), kind)
    out = root.parents[1] / "out"
    for command in (("verify",), ("verify", "--quick"), ("copy",)):
        answer = holdfast(*arguments(command, root, out))
        assert answer.code == 1
        assert "checkpoint_000000" in answer.said
    assert not list(out.rglob("weights.txt"))
    assert holdfast("gc", root, "--now").code == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_with_something_else_in_it_is_not_copied(
    tmp_path: Path, holdfast: Callable[..., Any], kind: Callable[[Path, Path], None]
) -> None:
    writer = good(tmp_path / "home" / "exp")
    (tmp_path / "outside").mkdir()
    writer.stage(0, {"weights.txt": "w", "more.txt": "m"})
    root = writer.die().path
    (stage,) = root.glob("*/.sealed-*")
    replace(root, str((stage / "weights.txt").relative_to(root)), kind)
    answer = holdfast("copy", root, tmp_path / "copy")
    assert answer.code == 1
    assert "weights.txt" in answer.said
    assert not list((tmp_path / "copy").rglob("checkpoint_000001"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_restore_refuses_before_it_loads_or_writes_anything(
    tmp_path: Path, kind: Callable[[Path, Path], None]
) -> None:
    root = really_run(tmp_path / "home" / "exp")
    (tmp_path / "outside").mkdir()
    replace(root, ".holdfast/objects/settings.pkl", kind)
    before = tree(tmp_path)
    with pytest.raises(DamageError, match=r"settings\.pkl"):
        tune.Tuner.restore(str(root), trainable=train)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("pattern", ["*/result.json", "*/progress.csv", "*/params.json", "*/error.txt"])
@pytest.mark.parametrize("kind", KINDS)
def test_result_files_of_a_single_trial_are_read_only_if_they_are_files(
    tmp_path: Path, pattern: str, kind: Callable[[Path, Path], None]
) -> None:
    root = really_run(tmp_path / "home" / "exp")
    (tmp_path / "outside").mkdir()
    (trial,) = (path for path in root.iterdir() if path.is_dir() and path.name != ".holdfast")
    alone = tmp_path / "home" / "alone"
    shutil.copytree(trial, alone)
    replace(alone, pattern.removeprefix("*/"), kind)
    if pattern == "*/progress.csv":
        (alone / "result.json").unlink()
    if kind is link:
        with pytest.raises(DamageError, match="symbolic link"):
            tune.Result.from_path(str(alone))
    else:  # as good as no file, or named; it must not hang
        with contextlib.suppress(TuneError):
            tune.Result.from_path(str(alone))


@pytest.mark.parametrize("size", [1 << 40, (1 << 30)])
@pytest.mark.parametrize("pattern", ["segment", "spec", "epoch", "snapshot"])
def test_files_of_holes_do_not_fill_the_memory(
    root: Path, holdfast: Callable[..., Any], pattern: str, size: int
) -> None:
    path = sorted(root.glob(PRIVATE[pattern]))[0]
    try:
        os.truncate(path, size)
    except OSError as error:  # not on this file system
        pytest.skip(str(error))
    answer = holdfast("status", root)
    if pattern == "snapshot":  # never needed
        assert answer.code == 0
    else:
        assert answer.code == 1
        assert path.name in answer.said
    assert holdfast("verify", root).code == 1


def test_a_copy_of_a_file_never_follows_what_is_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("new")
    (tmp_path / "mine").write_text("old")
    (tmp_path / "target").symlink_to(tmp_path / "mine")
    copy_regular(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "mine").read_text() == "old"
    assert (tmp_path / "target").read_text() == "new"
    (tmp_path / "again").symlink_to(tmp_path / "mine")
    with pytest.raises(DamageError, match="symbolic link"):
        copy_regular(tmp_path / "again", tmp_path / "target")


def test_a_forged_offset_or_size_reserves_no_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 1, 1 << 60) == b"2345"
    assert read_regular(tmp_path / "file", 1 << 80, 5) == b""
    assert read_regular(tmp_path / "file", -1, 5) == b""


def test_a_note_of_shipping_that_names_other_files_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / ".holdfast").mkdir()
    note = b'{"number":1,"prev":"","seq":1,"files":{"../../victim":[1,""]},"format":1}'
    (tmp_path / ".holdfast" / "shipped.json").write_bytes(note)
    assert read_note(str(tmp_path)) is None


# ------------------------------------------------------------------------------------------- nothing is executed


class Trap:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("command", [*READERS, ("list",), ("show", "--story"), ("repair",)], ids=" ".join)
def test_no_reader_loads_a_pickle(tmp_path: Path, holdfast: Callable[..., Any], command: tuple[str, ...]) -> None:
    root = really_run(tmp_path / "home" / "exp")
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    for file in [*root.rglob("*.pkl"), root / ".holdfast" / "objects" / "value-1.pkl"]:
        file.write_bytes(trap)
    (tmp_path / "out").mkdir()
    where = root.parent if command[0] == "list" else root
    holdfast(*arguments(command, where, tmp_path / "out"))
    assert not sprung.exists()
    pickle.loads(trap)
    assert sprung.exists()


def test_reading_results_loads_no_pickle(tmp_path: Path) -> None:
    root = really_run(tmp_path / "home" / "exp")
    sprung = tmp_path / "sprung"
    for file in root.rglob("*.pkl"):
        file.write_bytes(pickle.dumps(Trap(sprung)))
    grid = tune.ResultGrid.from_path(root)
    assert grid.get_dataframe() is not None
    assert grid[0].metrics
    assert grid[0].config == {"lr": 0.5}
    assert not sprung.exists()


def test_a_forged_value_in_a_config_leads_to_no_file(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    """A marker in a config names a pickle of the experiment; a forged one could name any."""
    root = really_run(tmp_path / "home" / "exp")
    sprung = tmp_path / "sprung"
    (tmp_path / "home" / "evil.pkl").write_bytes(pickle.dumps(Trap(sprung)))
    marker = {"__object__": "value-/../../../../evil", "type": "x.Y"}
    append(root, ev.TrialCreated(4_000_000_000.0, 1, "abcde_00001", {"lr": marker}, "1"))
    for command in READERS:
        (tmp_path / "out").mkdir(exist_ok=True)
        holdfast(*arguments(command, root, tmp_path / "out"))
    tune.ResultGrid.from_path(root).get_dataframe()
    assert not sprung.exists()
