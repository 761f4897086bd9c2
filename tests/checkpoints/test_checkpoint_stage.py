from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_trial import FILES, Trial, fill_disk, read_tree, write_tree

from holdfast.checkpoints import copying
from holdfast.checkpoints.checkpoint_reader import verify
from holdfast.checkpoints.stage import Stage, read_seal
from holdfast.core.observations import SealedStage
from holdfast.errors import InvalidInputError, StorageError, StorageFullError

MB = 1024 * 1024


def test_a_new_directory_is_hidden_in_the_trial_directory_and_empty(trial: Trial) -> None:
    path = trial.stage.new_directory()
    assert path.parent == trial.dir
    assert path.name.startswith(".stage-1-")
    assert list(path.iterdir()) == []


def test_sealing_in_place_renames_so_that_later_writes_fail(trial: Trial) -> None:
    path = trial.stage.new_directory()
    (path / "a").write_bytes(b"abc")
    sealed = trial.stage.seal(path)
    assert sealed == SealedStage(path.name.replace(".stage", ".sealed"), 1, 3, False)
    assert read_tree(trial.dir / sealed.name) == {"a": b"abc"}
    with pytest.raises(FileNotFoundError):
        (path / "b").write_bytes(b"late")


def test_sealing_in_place_does_not_read_the_files(trial: Trial) -> None:
    """A file of one terabyte, all of it a hole: reading it would take minutes."""
    path = trial.stage.new_directory()
    (path / "huge").touch()
    os.truncate(path / "huge", 1 << 40)
    assert trial.stage.seal(path).bytes == 1 << 40


def test_sealing_the_same_directory_twice_says_that_it_was_reported(trial: Trial) -> None:
    path = trial.stage.new_directory()
    trial.stage.seal(path)
    with pytest.raises(InvalidInputError, match="already reported"):
        trial.stage.seal(path)


def test_a_directory_reached_through_a_link_is_still_sealed_in_place(trial: Trial, tmp_path: Path) -> None:
    path = trial.stage.new_directory()
    (tmp_path / "shortcut").symlink_to(trial.dir)
    sealed = trial.stage.seal(tmp_path / "shortcut" / path.name)
    assert trial.names() == [sealed.name]


def test_a_foreign_directory_is_copied_hashed_and_left_alone(
    trial: Trial, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "clone", lambda reader, writer: False)

    def facts() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in source.rglob("*")}

    before = facts()
    sealed = trial.stage.seal(source)
    assert sealed == SealedStage(sealed.name, 3, sum(map(len, FILES.values())), True)
    assert read_tree(trial.dir / sealed.name) == FILES == read_tree(source)
    assert facts() == before


def test_a_copy_shares_no_file_with_the_source(trial: Trial, source: Path) -> None:
    copy = trial.dir / trial.stage.seal(source).name
    with open(source / "note.txt", "r+b") as file:
        file.write(b"EPOCH")
    assert (copy / "note.txt").read_bytes() == b"epoch 1"
    assert all(path.stat().st_nlink == 1 for path in copy.rglob("*") if path.is_file())


def test_the_same_foreign_directory_may_be_handed_in_at_every_report(trial: Trial, source: Path) -> None:
    stages = []
    for epoch in range(3):
        (source / "note.txt").write_text(f"epoch {epoch}")
        stages.append(trial.dir / trial.stage.seal(source).name)
    assert [(stage / "note.txt").read_text() for stage in stages] == ["epoch 0", "epoch 1", "epoch 2"]


def test_a_cloned_file_is_hashed_by_the_commit(trial: Trial, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some file systems can clone; a copy in one call has the same effect."""

    def clone(reader: int, writer: int) -> bool:
        return os.sendfile(writer, reader, 0, 1 << 30) > 0

    monkeypatch.setattr(copying, "clone", clone)
    sealed = trial.stage.seal(source)
    assert not sealed.hashed
    trial.commit(sealed.name)
    verify(trial.dir / "checkpoint_000000")
    assert read_tree(trial.dir / "checkpoint_000000") == FILES


def test_files_of_every_size_around_the_buffer_are_copied(trial: Trial, tmp_path: Path) -> None:
    size = copying.BUFFER_BYTES
    sizes = [0, 1, size - 1, size, size + 1, 2 * copying.RESERVE_FROM_BYTES + 7, *range(30)]
    source = write_tree(tmp_path / "many", {f"{k:03d}": os.urandom(size) for k, size in enumerate(sizes)})
    sealed = trial.stage.seal(source)
    assert read_tree(trial.dir / sealed.name) == read_tree(source)
    trial.commit(sealed.name)
    verify(trial.dir / "checkpoint_000000")


def test_links_are_followed(trial: Trial, source: Path, tmp_path: Path) -> None:
    write_tree(tmp_path / "elsewhere", {"data": b"data"})
    (source / "latest").symlink_to("weights.bin")
    (source / "linked").symlink_to(tmp_path / "elsewhere")
    copy = trial.dir / trial.stage.seal(source).name
    assert read_tree(copy) == {**FILES, "latest": FILES["weights.bin"], "linked/data": b"data"}
    assert not any(path.is_symlink() for path in copy.rglob("*"))


def test_links_in_place_are_replaced_by_what_they_point_to(trial: Trial, source: Path) -> None:
    path = write_tree(trial.stage.new_directory(), FILES)
    (path / "latest").symlink_to("weights.bin")
    (path / "hard").hardlink_to(source / "note.txt")
    sealed = trial.stage.seal(path)
    with open(source / "note.txt", "r+b") as file:
        file.write(b"EPOCH")
    assert trial.names() == [sealed.name]
    trial.commit(sealed.name)
    verify(trial.dir / "checkpoint_000000")
    expected = {**FILES, "latest": FILES["weights.bin"], "hard": b"epoch 1"}
    assert read_tree(trial.dir / "checkpoint_000000") == expected


def make_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)  # bind() takes no path of more than 107 bytes


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path.symlink_to("nowhere"), "'nowhere', which does not exist"),
        (lambda path: path.symlink_to(path.name), "which does not exist"),
        (lambda path: path.symlink_to(".."), "a directory that contains it"),
        (lambda path: path.symlink_to("/dev/null"), "is a device"),
        (os.mkfifo, "is a named pipe"),
        (make_socket, "is a socket"),
    ],
    ids=["broken link", "link to itself", "link cycle", "device", "pipe", "socket"],
)
@pytest.mark.parametrize("in_place", [False, True], ids=["foreign", "in place"])
def test_what_cannot_be_saved_is_refused_by_name(
    trial: Trial, source: Path, make: Callable[[Path], None], what: str, in_place: bool
) -> None:
    directory = trial.stage.new_directory() if in_place else source
    (directory / "sub").mkdir()
    make(directory / "sub" / "odd")
    with pytest.raises(InvalidInputError, match=rf"'sub/odd' in the checkpoint directory .*{what}"):
        trial.stage.seal(directory)
    assert trial.dir.exists() == in_place
    assert directory.exists()


def test_a_file_name_that_is_not_text_is_refused(trial: Trial, source: Path) -> None:
    with open(os.fsencode(source) + b"/\xff", "wb"):
        pass
    with pytest.raises(InvalidInputError, match="not valid UTF-8"):
        trial.stage.seal(source)


def test_empty_directories_and_permissions_are_kept(trial: Trial, source: Path) -> None:
    (source / "empty" / "below").mkdir(parents=True)
    (source / "note.txt").chmod(0o444)
    (source / "run.sh").touch(0o755)
    copy = trial.dir / trial.stage.seal(source).name
    assert (copy / "empty" / "below").is_dir()
    assert os.access(copy / "run.sh", os.X_OK)
    assert (copy / "note.txt").read_bytes() == b"epoch 1"


def test_a_sparse_file_stays_sparse(trial: Trial, source: Path) -> None:
    with open(source / "sparse", "wb") as file:
        file.seek(32 * MB)
        file.write(b"middle")
        file.truncate(64 * MB + 5)
    copy = trial.dir / trial.stage.seal(source).name
    assert (copy / "sparse").read_bytes() == (source / "sparse").read_bytes()
    assert (copy / "sparse").stat().st_blocks * 512 < MB


def test_a_directory_inside_a_stage_is_copied(trial: Trial) -> None:
    stage = write_tree(trial.stage.new_directory(), FILES)
    sealed = trial.stage.seal(stage / "optimizer")
    assert sealed.hashed
    assert read_tree(trial.dir / sealed.name) == {"state.bin": FILES["optimizer/state.bin"]}
    assert read_tree(stage) == FILES


def test_the_stage_of_another_attempt_is_copied(trial: Trial) -> None:
    other = write_tree(Stage(trial.dir, trial.id, 2).new_directory(), FILES)
    assert trial.stage.seal(other).name.startswith(".sealed-1-")
    assert read_tree(other) == FILES


def test_a_missing_source_is_named(trial: Trial, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"/nothing does not exist"):
        trial.stage.seal(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match=r"/file is not a directory"):
        trial.stage.seal(tmp_path / "file")


def test_a_directory_that_contains_the_trial_directory_is_refused(trial: Trial, tmp_path: Path) -> None:
    trial.stage.new_directory()
    for directory in (trial.dir, tmp_path):
        with pytest.raises(InvalidInputError, match="contains the trial's own directory"):
            trial.stage.seal(directory)


def test_a_saved_checkpoint_can_be_reported_again(trial: Trial) -> None:
    saved = trial.saved(0)
    in_place = trial.stage.new_directory()
    write_tree(in_place, {**read_tree(saved), "_manifest.json": (saved / "_manifest.json").read_bytes()})
    for index, again in enumerate([saved, in_place], start=1):
        trial.commit(trial.stage.seal(again).name, index)
        assert verify(trial.dir / f"checkpoint_{index:06d}").index == index
    assert verify(saved).index == 0


@pytest.mark.parametrize("in_place", [False, True], ids=["foreign", "in place"])
def test_a_users_file_in_the_place_of_the_manifest_is_refused(trial: Trial, source: Path, in_place: bool) -> None:
    directory = trial.stage.new_directory() if in_place else source
    (directory / "_manifest.json").write_text("{}")
    with pytest.raises(InvalidInputError, match=r"_manifest\.json"):
        trial.stage.seal(directory)
    assert (directory / "_manifest.json").read_text() == "{}"


def test_a_full_disk_leaves_no_partial_copy_and_can_be_tried_again(small_disk: Path, tmp_path: Path) -> None:
    trial = Trial(small_disk / "trial")
    (small_disk / "ballast").write_bytes(bytes(5 * MB))
    source = write_tree(tmp_path / "source", {f"{k}": os.urandom(700_000) for k in range(8)})
    with pytest.raises(StorageFullError, match="ENOSPC"):
        trial.stage.seal(source)
    assert trial.names() == []
    (small_disk / "ballast").unlink()
    assert read_tree(trial.dir / trial.stage.seal(source).name) == read_tree(source)


def test_a_large_file_that_cannot_fit_is_refused_before_it_is_copied(small_disk: Path, tmp_path: Path) -> None:
    trial = Trial(small_disk / "trial")
    source = write_tree(tmp_path / "source", {"big": bytes(9 * MB)})
    with pytest.raises(StorageFullError):
        trial.stage.seal(source)
    assert trial.names() == []


def test_a_disk_too_full_for_the_seal_keeps_the_users_files(small_disk: Path) -> None:
    trial = Trial(small_disk / "trial")
    path = write_tree(trial.stage.new_directory(), FILES)
    ballast = fill_disk(small_disk)
    with pytest.raises(StorageFullError):
        trial.stage.seal(path)
    assert read_tree(path) == FILES
    ballast.unlink()
    assert trial.stage.seal(path).files == 3


def test_other_trouble_names_path_and_errno(small_disk: Path, source: Path) -> None:
    trial = Trial(small_disk / "trial")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StorageError, match=r"trial.*Read-only file system \[EROFS\]") as caught:
        trial.stage.seal(source)
    assert not isinstance(caught.value, StorageFullError)


def append_after_read(monkeypatch: pytest.MonkeyPatch, path: Path, times: int) -> None:
    """Append to ``path`` right after it was read, as a writer that is not finished would."""
    real = os.readv
    left = [times]

    def readv(fd: int, buffers: list[memoryview]) -> int:
        count = real(fd, buffers)
        if os.path.samestat(os.fstat(fd), os.stat(path)) and left[0] > 0:
            left[0] -= 1
            with open(path, "ab") as file:
                file.write(b"more")
        return count

    monkeypatch.setattr(os, "readv", readv)


def test_a_file_that_grows_once_during_the_copy_is_copied_again(
    trial: Trial, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_after_read(monkeypatch, source / "note.txt", times=1)
    copy = trial.dir / trial.stage.seal(source).name
    assert (copy / "note.txt").read_bytes() == b"epoch 1more"


def test_a_file_that_keeps_growing_is_refused_by_name(
    trial: Trial, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_after_read(monkeypatch, source / "note.txt", times=1000)
    with pytest.raises(InvalidInputError, match=r"note\.txt changed while .*from 11 to 15 bytes"):
        trial.stage.seal(source)
    assert trial.names() == []


def test_a_file_that_disappears_during_the_copy_is_named(
    trial: Trial, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = copying._Copier.copy

    def copy(self: copying._Copier, paths: list[str]) -> list[object]:
        (source / "weights.bin").unlink(missing_ok=True)
        return real(self, paths)

    monkeypatch.setattr(copying._Copier, "copy", copy)
    with pytest.raises(InvalidInputError, match=r"weights\.bin disappeared"):
        trial.stage.seal(source)
    assert trial.names() == []


def test_a_hash_that_the_caller_knows_goes_into_the_seal(tmp_path: Path) -> None:
    """A dict is in memory when it is written: damage before its commit, by whichever driver, must not become truth."""
    stage = Stage(tmp_path / "trial", "t1", 1)
    directory = stage.new_directory()
    (directory / "known").write_bytes(b"dict")
    (directory / "unknown").write_bytes(b"file")
    sealed = stage.seal(directory, {"known": "abc"})
    seal = read_seal(str(tmp_path / "trial" / sealed.name))
    assert {file.path: file.hash for file in seal.files} == {"known": "abc", "unknown": ""}
    assert not sealed.hashed
