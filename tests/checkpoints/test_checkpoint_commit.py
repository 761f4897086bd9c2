from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_trial import FILES, Trial, fill_disk, read_tree, write_tree

from holdfast.checkpoints import commit as commit_module
from holdfast.checkpoints import syscalls
from holdfast.checkpoints.checkpoint_reader import verify
from holdfast.checkpoints.commit import Committed, commit, recover, sweep
from holdfast.checkpoints.manifest import digest
from holdfast.checkpoints.stage import Stage
from holdfast.errors import CheckpointDamagedError, InternalError, StorageError, StorageFullError


def test_a_commit_makes_a_whole_checkpoint_and_nothing_else(trial: Trial) -> None:
    done = trial.commit(trial.sealed().name, 7)
    manifest = verify(trial.dir / "checkpoint_000007", expect_digest=done.digest, trial_id="t1")
    assert done == Committed(digest(manifest), sum(map(len, FILES.values())), 3)
    assert trial.names() == ["checkpoint_000007"]
    assert read_tree(trial.dir / "checkpoint_000007") == FILES
    assert not (trial.dir / "checkpoint_000007" / ".holdfast-seal").exists()


def test_copied_and_in_place_stages_give_the_same_hashes(trial: Trial, source: Path) -> None:
    trial.saved(0)
    trial.commit(trial.stage.seal(source).name, 1)
    first, second = (verify(trial.dir / f"checkpoint_{index:06d}") for index in (0, 1))
    assert first.files == second.files


def test_an_empty_checkpoint_can_be_committed(trial: Trial) -> None:
    assert trial.commit(trial.sealed({}).name).files == 0
    verify(trial.dir / "checkpoint_000000")


def test_metadata_goes_into_the_manifest(trial: Trial) -> None:
    name = trial.sealed().name
    commit(trial.dir, name, 0, trial_id="t1", attempt=1, metadata={"epoch": 3, "shape": (2, 3)})
    assert verify(trial.dir / "checkpoint_000000").meta == {"epoch": 3, "shape": [2, 3]}


def test_a_metadata_file_comes_along_without_being_listed(trial: Trial) -> None:
    saved = trial.saved(0, {"a": b"a", ".metadata.json": b"{}", "sub/.metadata.json": b"mine"})
    assert [entry.path for entry in verify(saved).files] == ["a", "sub/.metadata.json"]
    assert (saved / ".metadata.json").read_bytes().rstrip() == b"{}"  # its checksum follows, as white space


def test_committing_again_finds_the_work_done(trial: Trial) -> None:
    name = trial.sealed().name
    assert trial.commit(name) == trial.commit(name)
    assert trial.names() == ["checkpoint_000000"]


def test_recover_finds_nothing_where_there_is_nothing(trial: Trial) -> None:
    trial.dir.mkdir()
    assert recover(trial.dir, ".sealed-1-00000000", 0, trial_id="t1", attempt=1) is None
    with pytest.raises(CheckpointDamagedError, match="staged files are missing"):
        trial.commit(".sealed-1-00000000")


def test_storage_that_is_not_there_is_no_damage(trial: Trial) -> None:
    with pytest.raises(StorageError, match="ENOENT"):
        trial.commit(".sealed-1-00000000")


def test_a_name_that_is_not_a_stage_is_our_bug(trial: Trial) -> None:
    for name in ("checkpoint_000001", "../.sealed-1-00000000", ".stage-1-00000000"):
        with pytest.raises(InternalError):
            trial.commit(name)


def same_index_of_another_stage(trial: Trial, target: Path) -> None:
    trial.saved(0, {"other": b"other"})


@pytest.mark.parametrize(
    "occupy",
    [
        same_index_of_another_stage,
        lambda trial, target: write_tree(target, {"other": b"other"}),
        lambda trial, target: write_tree(target, {"other": b"other", "_manifest.json": b"{}"}),
        lambda trial, target: write_tree(target.parent, {target.name: b"other"}),
        lambda trial, target: target.mkdir(parents=True),
    ],
    ids=["another stage", "no manifest", "not our manifest", "a file", "an empty directory"],
)
@pytest.mark.parametrize("old_system", [False, True])
def test_what_is_in_the_way_is_moved_aside_and_kept(
    trial: Trial, occupy: Callable[[Trial, Path], None], old_system: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if old_system:
        monkeypatch.setattr(syscalls, "_function", lambda name: None)
    target = trial.dir / "checkpoint_000000"
    occupy(trial, target)
    before = target.read_bytes() if target.is_file() else read_tree(target)
    trial.commit(trial.sealed().name)
    verify(target)
    _, orphan = trial.names()
    assert orphan.startswith("checkpoint_000000.orphan-")
    aside = trial.dir / orphan
    assert (aside.read_bytes() if aside.is_file() else read_tree(aside)) == before


def append(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"!")


def overwrite(path: Path) -> None:
    facts = path.stat()
    with open(path, "r+b") as file:
        file.write(b"W")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))  # coarse clocks may not have moved on


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (append, r"weights\.bin has 300,001 bytes instead of the 300,000"),
        (lambda path: os.truncate(path, 5), r"weights\.bin has 5 bytes instead of the 300,000"),
        (overwrite, r"weights\.bin was written to after the checkpoint was reported"),
        (os.unlink, r"weights\.bin is missing"),
        (lambda path: (path.parent / "late").touch(), "late appeared after the checkpoint was reported"),
        (lambda path: (path.parent / "late").symlink_to("note.txt"), "late is a symbolic link"),
        (lambda path: (path.parent / ".holdfast-seal").unlink(), "it has no seal"),
        (lambda path: append(path.parent / ".holdfast-seal"), "its seal is damaged"),
        (lambda path: os.truncate(path.parent / ".holdfast-seal", 0), "its seal is damaged"),
    ],
)
def test_a_stage_that_changed_after_it_was_sealed_is_never_committed(
    trial: Trial, change: Callable[[Path], None], reason: str
) -> None:
    name = trial.sealed().name
    change(trial.dir / name / "weights.bin")
    with pytest.raises(CheckpointDamagedError, match=reason):
        trial.commit(name)
    assert trial.names() == [name]


def test_a_stage_of_another_trial_or_attempt_is_refused(trial: Trial) -> None:
    name = trial.sealed().name
    with pytest.raises(CheckpointDamagedError, match="attempt 1 of trial t1"):
        commit(trial.dir, name, 0, trial_id="t2", attempt=1)
    with pytest.raises(CheckpointDamagedError, match="attempt 1 of trial t1"):
        commit(trial.dir, name, 0, trial_id="t1", attempt=2)


def test_an_experiment_copied_elsewhere_can_still_be_committed(trial: Trial, tmp_path: Path) -> None:
    """``cp -r`` gives every file another inode and another time; neither is a change of content."""
    name = trial.sealed().name
    shutil.copytree(trial.dir, tmp_path / "moved", copy_function=shutil.copyfile)
    assert Trial(tmp_path / "moved").commit(name) == trial.commit(name)


def test_without_sync_nothing_is_synced(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    name = trial.sealed().name
    monkeypatch.setattr(os, "fsync", lambda fd: pytest.fail("fsync was called"))
    commit(trial.dir, name, 0, trial_id="t1", attempt=1, sync=False)
    verify(trial.dir / "checkpoint_000000")


def test_everything_is_synced_before_the_rename_and_the_parent_after_it(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = trial.sealed().name
    real = os.fsync
    synced: list[str] = []

    def fsync(fd: int) -> None:
        path = os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), trial.dir)
        synced.append(re.sub(r"/\.tmp-.*", "/_manifest.json", path))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    trial.commit(name)
    paths = [*(f"{name}/{path}" for path in FILES), f"{name}/_manifest.json", name, f"{name}/optimizer", "."]
    assert sorted(synced) == sorted(paths)
    assert synced[3] == f"{name}/_manifest.json"
    assert synced[-1] == "."


class FailingSync:
    """``os.fsync`` that fails once for one file, and remembers every inode it was asked for."""

    def __init__(self, path: str, code: int) -> None:
        self._real = os.fsync
        self._path = re.compile(f".*/{path}")
        self._code = code
        self._failed = False
        self.inodes: list[int] = []

    def __call__(self, fd: int) -> None:
        self.inodes.append(os.fstat(fd).st_ino)
        if not self._failed and self._path.fullmatch(os.readlink(f"/proc/self/fd/{fd}")):
            self._failed = True
            raise OSError(self._code, os.strerror(self._code))
        self._real(fd)


MANIFEST_BEFORE_ITS_RENAME = r"\.tmp-[^/]+"


@pytest.mark.parametrize("path", ["weights.bin", MANIFEST_BEFORE_ITS_RENAME, "optimizer"])
@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EIO, StorageError), (errno.ENOSPC, StorageFullError), (errno.EDQUOT, StorageFullError)]
)
def test_a_file_is_never_synced_again_after_a_failed_sync(
    trial: Trial, path: str, code: int, kind: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = trial.sealed().name
    before = (trial.dir / name / "weights.bin").stat().st_ino
    failing = FailingSync(path, code)
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(kind, match=errno.errorcode[code]):
        trial.commit(name)
    assert not (trial.dir / "checkpoint_000000").exists()
    sweep(trial.dir, {name}, up_to=1)
    failing.inodes.clear()
    trial.commit(name)
    verify(trial.dir / "checkpoint_000000")
    assert trial.names() == ["checkpoint_000000"]
    if path != MANIFEST_BEFORE_ITS_RENAME:
        assert before not in failing.inodes


def test_a_stage_that_failed_to_sync_on_a_full_disk_is_committed_once_there_is_space(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(small_disk / "trial")
    name = trial.sealed().name
    ballast = fill_disk(small_disk)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", FailingSync("weights.bin", errno.ENOSPC))
        for _ in range(2):
            with pytest.raises(StorageFullError):
                trial.commit(name)
    ballast.unlink()
    trial.commit(name)
    verify(trial.dir / "checkpoint_000000")
    assert read_tree(trial.dir / "checkpoint_000000") == FILES


def test_a_copy_made_after_a_failed_sync_must_be_what_was_staged(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    name = trial.sealed().name
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", FailingSync("weights.bin", errno.EIO))
        with pytest.raises(StorageError):
            trial.commit(name)
    (trial.dir / f"{name}.resync" / "weights.bin").write_bytes(b"v" * 300_000)  # the disk kept the old block
    with pytest.raises(CheckpointDamagedError, match=r"weights\.bin is not what was staged"):
        trial.commit(name)
    assert trial.names() == [f"{name}.resync"]


def test_a_disk_too_full_for_the_manifest_keeps_the_stage(small_disk: Path) -> None:
    trial = Trial(small_disk / "trial")
    name = trial.sealed({f"{k:04d}": b"" for k in range(200)}).name
    ballast = fill_disk(small_disk)
    with pytest.raises(StorageFullError, match="ENOSPC"):
        trial.commit(name)
    assert trial.names() == [name]
    ballast.unlink()
    assert trial.commit(name).files == 200
    verify(trial.dir / "checkpoint_000000")


STEPS = [
    "_find_stage",
    "_read_seal",
    "_compare",
    "_hash",
    "_sync_files",
    "_write_manifest",
    "_sync_directories",
    "_rename",
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_stage_that_another_driver_commits_meanwhile_is_a_success(
    trial: Trial, step: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint thread of a driver that was taken over still runs; its rename comes between two steps of ours."""
    name = trial.sealed().name
    real, other = getattr(commit_module._Commit, step), []

    def overtaken(self: object, *args: object) -> object:
        if when == "before" and not other:
            other.append(None)
            other[0] = trial.commit(name)
        result = real(self, *args)
        if not other:
            other.append(None)
            other[0] = trial.commit(name)
        return result

    monkeypatch.setattr(commit_module._Commit, step, overtaken)
    assert trial.commit(name) == other[0]
    assert trial.names() == ["checkpoint_000000"]
    verify(trial.dir / "checkpoint_000000")
    assert read_tree(trial.dir / "checkpoint_000000") == FILES


@pytest.mark.parametrize("old_system", [False, True])
def test_two_drivers_that_commit_one_stage_at_the_same_time_agree(
    tmp_path: Path, old_system: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if old_system:
        monkeypatch.setattr(syscalls, "_function", lambda name: None)
    for k in range(20):
        trial = Trial(tmp_path / f"trial{k}")
        name = trial.sealed({f"{file:02d}": os.urandom(100) for file in range(20)}).name
        together, outcomes = threading.Barrier(2), []

        def work(trial: Trial = trial, name: str = name, together: threading.Barrier = together) -> None:
            together.wait(20)
            try:
                outcomes.append(trial.commit(name))  # noqa: B023
            except StorageError:  # tried again later
                outcomes.append(None)  # noqa: B023

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(outcomes) == 2
        assert {trial.commit(name)} == set(outcomes) - {None}
        assert trial.names() == ["checkpoint_000000"]
        verify(trial.dir / "checkpoint_000000")


def test_a_stage_that_another_driver_sets_aside_meanwhile_is_no_damage(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = trial.sealed().name
    real = commit_module._Commit._compare

    def compare(self: Any, seal: Any) -> Any:
        listing = real(self, seal)
        (trial.dir / name).rename(trial.dir / f"{name}.resync")
        return listing

    with monkeypatch.context() as patch:
        patch.setattr(commit_module._Commit, "_compare", compare)
        with pytest.raises(StorageError, match=r"set .* aside"):
            trial.commit(name)
    trial.commit(name)
    verify(trial.dir / "checkpoint_000000")


def test_a_stage_that_another_driver_replaces_by_a_copy_meanwhile_is_no_damage(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sync failed: it set the stage aside while we read it, and by now a copy has the stage's name."""
    name = trial.sealed().name
    sealed, aside = trial.dir / name, trial.dir / f"{name}.resync"
    real = commit_module._Commit._hash

    def hash_what_is_being_replaced(self: Any, seal: Any) -> Any:
        sealed.rename(aside)
        try:
            return real(self, seal)
        finally:
            shutil.copytree(aside, sealed)

    with monkeypatch.context() as patch:
        patch.setattr(commit_module._Commit, "_hash", hash_what_is_being_replaced)
        with pytest.raises(StorageError, match=r"set .* aside"):
            trial.commit(name)
    trial.commit(name)
    assert trial.names() == ["checkpoint_000000"]
    verify(trial.dir / "checkpoint_000000")


@pytest.mark.parametrize("set_aside", [False, True])
@pytest.mark.parametrize("look", range(4))
def test_a_stage_that_gets_its_final_name_between_two_looks_is_no_damage(
    trial: Trial, look: int, set_aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of a previous driver's life commits the stage while we look for it, first here, then there."""
    name = trial.sealed().name
    if set_aside:
        (trial.dir / name).rename(trial.dir / f"{name}.resync")
    looks: list[str] = []

    def looking(real: Any) -> Any:
        def at(path: Any, *args: Any, **options: Any) -> Any:
            if name in os.fspath(path):
                looks.append(os.fspath(path))
                if len(looks) == look + 1:
                    trial.commit(name)
            return real(path, *args, **options)

        return at

    monkeypatch.setattr(os.path, "isdir", looking(os.path.isdir))
    monkeypatch.setattr(os, "lstat", looking(os.lstat))
    assert trial.commit(name).files == len(FILES)
    assert "checkpoint_000000" in trial.names()
    verify(trial.dir / "checkpoint_000000")


def test_a_trial_directory_that_was_removed_is_damage_and_a_missing_root_is_not(tmp_path: Path) -> None:
    root = tmp_path / "exp"
    trial = Trial(root / "trial")
    name = trial.sealed().name
    shutil.rmtree(trial.dir)
    (root / ".holdfast").mkdir()
    with pytest.raises(CheckpointDamagedError, match="the trial's directory is gone"):
        trial.commit(name)
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="ENOENT"):
        trial.commit(name)


def test_sweep_removes_only_what_we_made_and_do_not_need(trial: Trial, tmp_path: Path) -> None:
    saved = trial.saved(3)
    kept, dropped = trial.sealed().name, trial.sealed().name
    stage = trial.stage.new_directory().name
    write_tree(trial.dir, {".trash-00c0ffee/a": b"", f"{kept}.resync/a": b"", f"{dropped}.resync/a": b""})
    foreign = [".stage-mine", ".sealed", ".trash-", ".stage-1-00c0ffeee", "checkpoint_000009", ".sealed-1-0.x", "log"]
    for name in foreign:
        (trial.dir / name).mkdir()
    (trial.dir / ".trash-aaaaaaaa").touch()
    (trial.dir / ".trash-bbbbbbbb").symlink_to(tmp_path)
    assert sweep(trial.dir, {kept}, up_to=1).removed == sorted([stage, dropped, f"{dropped}.resync", ".trash-00c0ffee"])
    left = [saved.name, kept, f"{kept}.resync", ".trash-aaaaaaaa", ".trash-bbbbbbbb", *foreign]
    assert trial.names() == sorted(left)
    assert tmp_path.exists()


def test_sweep_spares_what_an_attempt_of_a_later_driver_stages(trial: Trial) -> None:
    """A driver that was suspended wakes and tidies up before it notices that another one has taken over."""
    old = trial.stage.new_directory().name
    successor = Stage(trial.dir, trial.id, 12)
    writing = successor.new_directory().name
    sealed = successor.seal(write_tree(successor.new_directory(), FILES)).name
    aside = successor.seal(write_tree(successor.new_directory(), FILES)).name
    (trial.dir / aside).rename(trial.dir / f"{aside}.resync")
    swept = sweep(trial.dir, set(), up_to=11)
    assert swept == ([old], sorted([writing, sealed, f"{aside}.resync"]))
    assert trial.names() == sorted([writing, sealed, f"{aside}.resync"])


def test_sweep_of_a_missing_directory_finds_nothing(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none", set(), up_to=1).removed == []


def test_a_late_worker_cannot_reach_a_committed_checkpoint_by_path(trial: Trial) -> None:
    """The driver gave attempt 1 up and started attempt 2; the process of attempt 1 is still writing."""
    late = write_tree(trial.stage.new_directory(), FILES)
    second = Stage(trial.dir, trial.id, 2)
    new = second.seal(write_tree(second.new_directory(), {"a": b"new"}))
    commit(trial.dir, new.name, 0, trial_id="t1", attempt=2)
    trial.stage.seal(late)
    assert read_tree(trial.dir / "checkpoint_000000") == {"a": b"new"}
    verify(trial.dir / "checkpoint_000000")
