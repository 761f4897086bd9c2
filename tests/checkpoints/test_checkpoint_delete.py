from __future__ import annotations

import errno
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_trial import Trial, open_to_others, read_tree, write_tree

from holdfast.checkpoints.checkpoint_reader import verify
from holdfast.checkpoints.delete import delete
from holdfast.checkpoints.tree import remove_tree
from holdfast.errors import InternalError, StorageError


def test_a_checkpoint_is_deleted_and_its_neighbours_stay(trial: Trial) -> None:
    kept, saved = trial.saved(0), trial.saved(1)
    delete(saved)
    assert trial.names() == [kept.name]
    verify(kept)


def test_deleting_again_does_nothing(trial: Trial) -> None:
    saved = trial.saved()
    delete(saved)
    delete(saved)
    delete(saved.parent / "gone" / "checkpoint_000000")


def test_temporary_directories_of_ours_are_deleted(trial: Trial) -> None:
    delete(trial.dir / trial.sealed().name)
    delete(trial.stage.new_directory())
    write_tree(trial.dir, {".trash-00c0ffee/a": b"a"})
    delete(trial.dir / ".trash-00c0ffee")
    assert trial.names() == []


def test_what_a_killed_deletion_left_under_the_same_name_does_not_hinder(trial: Trial) -> None:
    saved = trial.saved()
    write_tree(trial.dir, {f".trash-{zlib.crc32(saved.name.encode()):08x}/half": b""})
    delete(saved)
    assert trial.names() == []


@pytest.mark.parametrize(
    "name", ["results", "checkpoint_best", "checkpoint_5", "checkpoint_000001.bad-00c0ffee", ".stage-x", "checkpoint_"]
)
def test_a_name_that_is_not_ours_is_refused(trial: Trial, name: str) -> None:
    path = write_tree(trial.dir / name, {"a": b"a", "_manifest.json": b"{}"})
    with pytest.raises(InternalError, match="refused to delete"):
        delete(path)
    assert read_tree(path) == {"a": b"a"}


@pytest.mark.parametrize("files", [{"a": b"a"}, {"a": b"a", "_manifest.json": b"{}"}])
def test_a_directory_without_our_manifest_is_refused(trial: Trial, files: dict[str, bytes]) -> None:
    path = write_tree(trial.dir / "checkpoint_000001", files)
    with pytest.raises(InternalError, match="manifest"):
        delete(path)
    assert read_tree(path) == {"a": b"a"}


def test_a_link_is_refused_and_its_target_stays(trial: Trial, tmp_path: Path) -> None:
    saved = trial.saved()
    other = tmp_path / "checkpoint_000000"
    other.symlink_to(saved)
    with pytest.raises(InternalError, match="not a directory"):
        delete(other)
    verify(saved)


def test_links_inside_are_removed_and_not_followed(trial: Trial, source: Path) -> None:
    saved = trial.saved()
    before = read_tree(source)
    (saved / "link").symlink_to(source)
    delete(saved)
    assert read_tree(source) == before


def test_a_file_system_that_refuses_is_storage_trouble(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = trial.saved()

    def refuse(source: str, target: str, **within: int) -> None:
        raise PermissionError(1, "Operation not permitted", source)

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.checkpoints.delete.os.rename", refuse)
        with pytest.raises(StorageError, match="EPERM"):
            delete(saved)
    verify(saved)


def test_a_file_that_a_reader_still_has_open_on_a_network_is_told_as_such(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = trial.saved()

    def keep_for_reader(place: int, name: str) -> None:
        path = saved.parent / name
        if path.exists():
            remove_tree(str(path))
            write_tree(path, {".nfs000000000000002200000002": b"a"})
            raise OSError(errno.ENOTEMPTY, "Directory not empty")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.checkpoints.delete.remove_below", keep_for_reader)
        with pytest.raises(StorageError, match="some process has files of it open"):
            delete(saved)
    delete(saved)
    assert trial.names() == []


def test_read_only_directories_are_deleted_too(tmp_path: Path, run_python: Callable) -> None:
    """As a user whom permissions bind."""
    code = """
import os, sys
from pathlib import Path
from holdfast.checkpoints.tree import remove_tree
if os.getuid() == 0:
    os.setuid(65534)
top = Path(sys.argv[1], "top")
(top / "a" / "b").mkdir(parents=True)
(top / "a" / "b" / "file").touch()
(top / "c").mkdir()
for name, mode in [("a/b", 0o500), ("a", 0o500), ("c", 0o000)]:
    (top / name).chmod(mode)
remove_tree(str(top))
print(top.exists())
"""
    tmp_path.chmod(0o777)
    open_to_others(tmp_path)
    result = run_python(code, tmp_path)
    assert result.stdout.strip() == "False", result.stderr
