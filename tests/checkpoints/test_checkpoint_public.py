from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_trial import FILES, Trial, read_tree, write_tree

from holdfast.checkpoints import copy_out
from holdfast.checkpoints.checkpoint import Checkpoint
from holdfast.checkpoints.checkpoint_reader import verify
from holdfast.errors import (
    CheckpointDamagedError,
    InvalidInputError,
    InvalidTypeError,
    NotSerializableError,
    StorageFullError,
)


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """So that a test can see what is left behind."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.fixture
def temporary(own_temporary_directory: Path) -> Path:
    return own_temporary_directory


def test_a_local_checkpoint_is_read_where_it_is(source: Path) -> None:
    with Checkpoint.from_directory(source).as_directory() as path:
        assert path == str(source)


def test_a_relative_path_means_the_directory_it_meant_when_given(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source.parent)
    checkpoint = Checkpoint("source")
    monkeypatch.chdir("/")
    assert checkpoint.path == str(source)


def test_file_uris_are_paths(source: Path) -> None:
    spaced = source.rename(source.parent / "with space")
    for uri in (f"file://{spaced}", f"file://localhost{spaced}", f"file://{spaced}".replace(" ", "%20")):
        assert Checkpoint.from_uri(uri).path == str(spaced)
        assert Checkpoint(uri) == Checkpoint(spaced)


@pytest.mark.parametrize("uri", ["swift://bucket/x", "file://host/x", "s3://bucket"])
def test_other_uris_are_refused_with_advice(uri: str) -> None:
    with pytest.raises(InvalidInputError, match=r"local|Known are s3://|needs a name"):
        Checkpoint(uri)


def test_a_file_system_must_be_one(source: Path) -> None:
    class Remote:
        type_name = "s3"

    class Local:
        type_name = "local"

    with pytest.raises(InvalidInputError, match="neither a pyarrow"):
        Checkpoint(source, filesystem=Remote())
    assert Checkpoint(source, filesystem=Local()) == Checkpoint(source)
    assert Checkpoint(source).filesystem.type_name == "local"


def test_it_is_not_a_path(source: Path) -> None:
    with pytest.raises(TypeError, match="as_directory"):
        os.fspath(Checkpoint(source))


def test_equality_hash_and_repr_go_by_path(source: Path, tmp_path: Path) -> None:
    assert repr(Checkpoint(source)) == f"Checkpoint(filesystem=local, path={source})"
    assert {Checkpoint(source), Checkpoint(str(source))} == {Checkpoint(source)}
    assert Checkpoint(source) != Checkpoint(tmp_path)
    assert Checkpoint(source) != str(source)


def test_it_can_be_pickled_and_copied(source: Path) -> None:
    checkpoint = Checkpoint(source)
    assert pickle.loads(pickle.dumps(checkpoint)) == checkpoint == copy.deepcopy(checkpoint)


def test_a_subclass_stays_one(source: Path) -> None:
    class Mine(Checkpoint):
        pass

    assert type(Mine.from_directory(source)) is Mine
    assert type(Mine.from_dict({})) is Mine
    assert type(copy.copy(Mine.from_dict({}))) is Mine


@pytest.mark.parametrize(
    "use",
    [
        lambda checkpoint: checkpoint.to_directory(),
        lambda checkpoint: checkpoint.as_directory().__enter__(),
        lambda checkpoint: checkpoint.set_metadata({}),
    ],
)
def test_a_missing_checkpoint_is_named(tmp_path: Path, use: Callable[[Checkpoint], object]) -> None:
    with pytest.raises(InvalidInputError, match=r"gone.* does not exist"):
        use(Checkpoint(tmp_path / "gone"))


def test_a_dict_comes_back(temporary: Path) -> None:
    data = {"weights": [1, 2], "name": lambda: "any object"}
    checkpoint = Checkpoint.from_dict(data)
    data["weights"].append(3)  # type: ignore[attr-defined]
    assert checkpoint.to_dict()["weights"] == [1, 2]
    assert checkpoint.to_dict()["name"]() == "any object"
    assert os.listdir(checkpoint.path) == ["_dict_checkpoint.pkl"]


def test_the_directory_of_a_dict_goes_with_the_object(temporary: Path) -> None:
    checkpoint = Checkpoint.from_dict({"a": 1})
    assert len(list(temporary.iterdir())) == 1
    del checkpoint
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_a_forked_child_does_not_remove_the_directory_of_a_dict(
    temporary: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = """
import os, sys
from holdfast.checkpoints.checkpoint import Checkpoint
checkpoint = Checkpoint.from_dict({"a": 1})
if os.fork() == 0:
    sys.exit(0)
os.wait()
print(checkpoint.to_dict())
"""
    result = run_python(code)
    assert result.stdout == "{'a': 1}\n"
    assert list(temporary.iterdir()) == []


def test_a_pickled_dict_checkpoint_carries_its_data() -> None:
    data = pickle.dumps(Checkpoint.from_dict({"a": 1}))
    gc.collect()
    assert pickle.loads(data).to_dict() == {"a": 1}


def test_a_reported_dict_can_be_read_from_the_saved_checkpoint(trial: Trial) -> None:
    checkpoint = Checkpoint.from_dict({"a": 1})
    trial.commit(trial.stage.seal(checkpoint.path).name)
    assert Checkpoint(trial.dir / "checkpoint_000000").to_dict() == {"a": 1}


def test_from_dict_refuses_what_it_cannot_keep() -> None:
    with pytest.raises(InvalidTypeError, match="takes a dict, not list"):
        Checkpoint.from_dict([])  # type: ignore[arg-type]
    with pytest.raises(NotSerializableError, match="cannot be pickled"):
        Checkpoint.from_dict({"lock": threading.Lock()})


def test_to_dict_of_a_directory_says_what_to_use(source: Path) -> None:
    with pytest.raises(InvalidInputError, match="as_directory"):
        Checkpoint(source).to_dict()


def test_metadata_is_set_updated_and_read(source: Path) -> None:
    checkpoint = Checkpoint(source)
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"a": 1, "b": 2})
    checkpoint.update_metadata({"b": 3})
    assert checkpoint.get_metadata() == {"a": 1, "b": 3}
    assert (source / ".metadata.json").read_text() == '{"a": 1, "b": 3}'
    checkpoint.set_metadata({})
    assert checkpoint.get_metadata() == {}


def test_metadata_travels_with_a_report_and_may_change_after_the_commit(trial: Trial, source: Path) -> None:
    Checkpoint(source).set_metadata({"epoch": 1})
    trial.commit(trial.stage.seal(source).name)
    saved = Checkpoint(trial.dir / "checkpoint_000000")
    assert saved.get_metadata() == {"epoch": 1}
    saved.set_metadata({"epoch": 2})
    verify(saved.path)
    assert saved.get_metadata() == {"epoch": 2}


def test_bad_metadata_is_refused(source: Path) -> None:
    checkpoint = Checkpoint(source)
    with pytest.raises(InvalidTypeError, match="JSON"):
        checkpoint.set_metadata({"a": object()})
    with pytest.raises(InvalidTypeError, match="dict, not list"):
        checkpoint.set_metadata([])  # type: ignore[arg-type]
    (source / ".metadata.json").write_text("[")
    with pytest.raises(CheckpointDamagedError, match=r"\.metadata\.json is not a JSON object"):
        checkpoint.get_metadata()


def test_to_directory_copies_the_users_files_only(trial: Trial, tmp_path: Path, temporary: Path) -> None:
    checkpoint = Checkpoint(trial.saved())
    checkpoint.set_metadata({"a": 1})
    target = checkpoint.to_directory(tmp_path / "new" / "copy")
    assert target == str(tmp_path / "new" / "copy")
    assert sorted(os.listdir(target)) == [".metadata.json", "note.txt", "optimizer", "weights.bin"]
    assert os.listdir(tmp_path / "new") == ["copy"]
    assert list(temporary.iterdir()) == []


def test_to_directory_without_a_path_gives_every_copy_of_the_object_the_same_directory(
    trial: Trial, temporary: Path
) -> None:
    checkpoint = Checkpoint(trial.saved())
    target = checkpoint.to_directory()
    assert Path(target).parent == temporary
    assert read_tree(Path(target)) == FILES
    assert pickle.loads(pickle.dumps(checkpoint)).to_directory() == target
    assert Checkpoint(checkpoint.path).to_directory() != target


def test_to_directory_replaces_files_of_the_same_name_and_keeps_others(trial: Trial, tmp_path: Path) -> None:
    target = write_tree(tmp_path / "target", {"note.txt": b"old", "optimizer/other": b"kept", "mine": b"kept"})
    Checkpoint(trial.saved()).to_directory(target)
    assert read_tree(target) == {**FILES, "optimizer/other": b"kept", "mine": b"kept"}


def test_to_directory_refuses_impossible_targets(trial: Trial, source: Path) -> None:
    checkpoint = Checkpoint(trial.saved())
    with pytest.raises(InvalidInputError, match="is not a directory"):
        checkpoint.to_directory(source / "note.txt")
    with pytest.raises(InvalidInputError, match="inside the checkpoint"):
        checkpoint.to_directory(Path(checkpoint.path) / "copy")
    assert checkpoint.to_directory(checkpoint.path) == checkpoint.path
    verify(checkpoint.path)


@pytest.mark.parametrize("exists", [False, True])
def test_a_copy_of_a_damaged_checkpoint_leaves_nothing(trial: Trial, tmp_path: Path, exists: bool) -> None:
    saved = trial.saved()
    (saved / "weights.bin").write_bytes(b"x" * 300_000)
    target = tmp_path / "target"
    if exists:
        write_tree(target, {"mine": b"kept"})
    with pytest.raises(CheckpointDamagedError, match=r"weights\.bin is not what was saved"):
        Checkpoint(saved).to_directory(target)
    assert read_tree(target) == ({"mine": b"kept"} if exists else {})
    assert not list(tmp_path.glob("target.part*"))


def test_a_copy_to_a_full_disk_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", {"a": bytes(1000), "big": bytes(9_000_000)})
    with pytest.raises(StorageFullError):
        Checkpoint(source).to_directory(small_disk / "copy")
    assert os.listdir(small_disk) == []


def test_concurrent_callers_share_one_copy(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first copy waits until the others queue for the lock; then all must end with that one copy."""
    checkpoint = Checkpoint(source)
    copies: list[str] = []
    queued = threading.Semaphore(0)
    real_copy, real_flock = copy_out._copy_into, copy_out.fcntl.flock

    def flock(fd: int, flags: int) -> None:
        if flags == copy_out.fcntl.LOCK_EX:
            queued.release()
        real_flock(fd, flags)

    def copy_into(source: str, target: str) -> None:
        for _ in range(4):
            assert queued.acquire(timeout=20)
        copies.append(target)
        real_copy(source, target)

    monkeypatch.setattr(copy_out.fcntl, "flock", flock)
    monkeypatch.setattr(copy_out, "_copy_into", copy_into)
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda: results.append(checkpoint.to_directory(tmp_path / "shared"))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [str(tmp_path / "shared")] * 5
    assert len(copies) == 1
    assert read_tree(tmp_path / "shared") == FILES


def test_a_caller_that_waited_for_a_failed_copy_makes_its_own(
    source: Path, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(source)
    calls: list[str] = []
    waiting = threading.Event()
    real_copy, real_flock = copy_out._copy_into, copy_out.fcntl.flock

    def flock(fd: int, flags: int) -> None:
        if flags == copy_out.fcntl.LOCK_EX:
            waiting.set()
        real_flock(fd, flags)

    def copy_into(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) == 1:
            assert waiting.wait(20)
            raise InvalidInputError("the first copy fails")
        real_copy(source, target)

    monkeypatch.setattr(copy_out.fcntl, "flock", flock)
    monkeypatch.setattr(copy_out, "_copy_into", copy_into)
    outcomes: list[Any] = []

    def call() -> None:
        try:
            outcomes.append(checkpoint.to_directory(tmp_path / "target"))
        except InvalidInputError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["InvalidInputError", "str"]
    assert read_tree(tmp_path / "target") == FILES
    assert list(temporary.iterdir()) == []


def test_a_copier_that_was_killed_holds_nobody_up(
    source: Path, tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = """
import sys
from holdfast.checkpoints.checkpoint import Checkpoint
Checkpoint(sys.argv[1]).to_directory(sys.argv[2])
"""
    assert run_python(code, source, tmp_path / "target", crash="L1.mid").returncode == -signal.SIGKILL
    assert not (tmp_path / "target").exists()
    assert read_tree(Path(Checkpoint(source).to_directory(tmp_path / "target"))) == FILES
