from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_trial import FILES, Trial, open_to_others, read_tree

from holdfast.checkpoints import checkpoint_reader
from holdfast.checkpoints.checkpoint_reader import quarantine, quick_check, verify
from holdfast.errors import CheckpointDamagedError, StorageError


def flip(path: Path, position: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def replace_by_link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


SHAPE_DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: (path / "weights.bin").unlink(), r"weights\.bin is missing"),
    (lambda path: os.truncate(path / "weights.bin", 299_999), r"weights\.bin has 299,999 bytes instead of 300,000"),
    (lambda path: os.truncate(path / "weights.bin", 0), r"weights\.bin has 0 bytes"),
    (lambda path: os.truncate(path / "note.txt", 8), r"note\.txt has 8 bytes instead of 7"),
    (lambda path: (path / "extra").touch(), "extra is not one of the files that were saved"),
    (lambda path: (path / "optimizer" / ".hidden").touch(), r"optimizer/\.hidden is not one of"),
    (lambda path: flip(path / "_manifest.json", 30), "its manifest is damaged"),
    (lambda path: os.truncate(path / "_manifest.json", 50), "its manifest is damaged: it is truncated"),
    (lambda path: os.truncate(path / "_manifest.json", 0), "its manifest is damaged"),
    (lambda path: (path / "_manifest.json").unlink(), "it has no manifest"),
    (lambda path: shutil.rmtree(path / "optimizer"), r"optimizer/state\.bin is missing"),
    (lambda path: shutil.rmtree(path), "the directory is missing"),
    (lambda path: replace_by_link(path / "note.txt"), r"note\.txt is a symbolic link"),
    (lambda path: replace_by_directory(path / "note.txt"), r"note\.txt is missing"),
]


@pytest.mark.parametrize("check", [verify, quick_check])
@pytest.mark.parametrize(("damage", "reason"), SHAPE_DAMAGE)
def test_damage_is_found_and_named(
    trial: Trial, check: Callable[[Path], object], damage: Callable[[Path], object], reason: str
) -> None:
    saved = trial.saved()
    check(saved)
    damage(saved)
    with pytest.raises(CheckpointDamagedError, match=reason) as caught:
        check(saved)
    assert caught.value.path == str(saved)
    assert caught.value.reason


@pytest.mark.parametrize("position", [0, 150_000, 299_999])
def test_one_flipped_bit_is_found_by_reading(trial: Trial, position: int) -> None:
    saved = trial.saved()
    flip(saved / "weights.bin", position)
    quick_check(saved)
    with pytest.raises(CheckpointDamagedError, match=r"content of weights\.bin is not what was saved"):
        verify(saved)


def test_the_checkpoint_of_another_trial_is_not_taken(trial: Trial, tmp_path: Path) -> None:
    other = Trial(tmp_path / "other")
    other.id, other.stage._trial_id = "t2", "t2"
    mine, theirs = trial.saved(0), other.saved(0)
    digest = trial.commit(trial.sealed().name, 1).digest
    shutil.rmtree(mine)
    shutil.copytree(theirs, mine)
    with pytest.raises(CheckpointDamagedError, match="belongs to trial t2, not to t1"):
        verify(mine, trial_id="t1")
    with pytest.raises(CheckpointDamagedError, match="differs from the committed one"):
        verify(mine, expect_digest=digest)
    with pytest.raises(CheckpointDamagedError, match="differs from the committed one"):
        quick_check(mine, digest)


def test_a_checkpoint_under_another_index_is_not_taken(trial: Trial) -> None:
    saved = trial.saved(0)
    saved.rename(trial.dir / "checkpoint_000005")
    with pytest.raises(CheckpointDamagedError, match="belongs to checkpoint 0 of trial t1"):
        verify(trial.dir / "checkpoint_000005")


def test_a_copy_under_any_other_name_is_whole(trial: Trial, tmp_path: Path) -> None:
    digest = trial.commit(trial.sealed().name).digest
    shutil.copytree(trial.dir / "checkpoint_000000", tmp_path / "best")
    assert verify(tmp_path / "best", expect_digest=digest).index == 0


@pytest.mark.parametrize("name", [".metadata.json", ".nfs0000abcd", "optimizer/.fuse_hidden0001", ".tmp-12-00c0ffee"])
def test_files_that_are_nobodys_data_are_no_damage(trial: Trial, name: str) -> None:
    saved = trial.saved()
    (saved / name).touch()
    verify(saved)
    quick_check(saved)


def test_a_trial_directory_that_was_removed_is_damage(tmp_path: Path) -> None:
    """The storage is there, as the rest of the experiment shows: waiting would be for ever."""
    trial = Trial(tmp_path / "exp" / "trial")
    saved = trial.saved(0)
    (tmp_path / "exp" / ".holdfast").mkdir()
    verify(saved)
    shutil.rmtree(trial.dir)
    with pytest.raises(CheckpointDamagedError, match="the trial's directory is gone") as caught:
        verify(saved)
    assert caught.value.reason == "the trial's directory is gone"
    shutil.rmtree(tmp_path / "exp")
    with pytest.raises(StorageError, match="ENOENT"):
        verify(saved)


def test_storage_that_is_not_mounted_is_no_damage(trial: Trial, tmp_path: Path) -> None:
    saved = trial.saved()
    trial.dir.rename(tmp_path / "unmounted")
    with pytest.raises(StorageError, match="ENOENT"):
        verify(saved)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN])
@pytest.mark.parametrize("name", ["_manifest.json", "weights.bin"])
def test_storage_trouble_is_never_taken_for_damage(
    trial: Trial, code: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = trial.saved()
    for function in ("open_own_file", "read_own_file"):
        real = getattr(checkpoint_reader, function)

        def fail(path: str, real: Callable[[str], Any] = real) -> Any:
            if path.endswith(name):
                raise OSError(code, os.strerror(code), path)
            return real(path)

        monkeypatch.setattr(checkpoint_reader, function, fail)
    with pytest.raises(StorageError, match=rf"checkpoint_000000.*\[{errno.errorcode[code]}\]") as caught:
        verify(saved)
    assert caught.value.errno == code


def test_a_checkpoint_that_may_not_be_read_is_storage_trouble(
    trial: Trial, tmp_path: Path, run_python: Callable
) -> None:
    saved = trial.saved()
    (saved / "note.txt").chmod(0)
    code = """
import os, sys
from holdfast.checkpoints.checkpoint_reader import verify
from holdfast.errors import StorageError
if os.getuid() == 0:
    os.setuid(65534)
try:
    verify(sys.argv[1])
except StorageError as error:
    print(error)
"""
    open_to_others(tmp_path)
    result = run_python(code, saved)
    assert "note.txt" in result.stdout, result.stderr
    assert "[EACCES]" in result.stdout


def test_quarantine_moves_a_checkpoint_aside_whole(trial: Trial) -> None:
    saved = trial.saved()
    aside = quarantine(saved)
    assert aside is not None
    assert aside.name.startswith("checkpoint_000000.bad-")
    assert read_tree(aside) == FILES
    assert trial.names() == [aside.name]
    assert quarantine(saved) is None


def test_a_checkpoint_is_looked_for_anew_because_another_machine_may_have_made_it(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of a network file system remembers which names were missing."""
    saved = trial.saved()
    hidden = saved.with_name("not-yet-seen")
    saved.rename(hidden)

    def ask(directory: Path) -> None:
        if directory == saved.parent and hidden.exists():
            hidden.rename(saved)

    monkeypatch.setattr(checkpoint_reader, "look_anew", ask)
    verify(saved)
