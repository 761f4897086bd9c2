"""Before a checkpoint is used, every byte is compared: what a user reads is right, or the damaged file is named."""

from __future__ import annotations

import logging
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from experiment_tools import wait_until

import holdfast as tune
from holdfast.checkpoints import verified
from holdfast.errors import CheckpointDamagedError, InvalidInputError

STATE = {"step": 2, "weights": [0.25] * 20, "name": "résumé"}
BIG = bytes(range(256)) * 8


def save_twice(config: dict[str, Any]) -> None:
    for step in (1, 2):
        with tune.checkpoint_dir() as path:
            Path(path, "sub").mkdir()
            Path(path, "sub", "weights.bin").write_bytes(BIG + bytes([step]))
            held = tune.Checkpoint.from_dict({**STATE, "step": step})
            shutil.copy(Path(held.path, "_dict_checkpoint.pkl"), path)
            tune.Checkpoint(path).set_metadata({"reviewed": "yes", "epoch": step})
        tune.report({"step": step})


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tune.Result:
    storage = tmp_path_factory.mktemp("verified")
    run_config = tune.RunConfig(name="exp", storage_path=str(storage), verbose=0, engine=tune.LocalEngine(cpus=1))
    (found,) = tune.Tuner(save_twice, run_config=run_config).fit()
    assert found.error is None
    return found


@pytest.fixture
def own(result: tune.Result, tmp_path: Path) -> tune.Result:
    """The same result in a copy of the experiment that a test may damage."""
    shutil.copytree(Path(result.path).parent, tmp_path / "exp")
    return tune.ResultGrid.from_path(tmp_path / "exp")[0]


def checkpoint_of(result: tune.Result) -> tune.Checkpoint:
    checkpoint = result.checkpoint
    assert checkpoint is not None
    return checkpoint


def files_of(checkpoint: tune.Checkpoint) -> list[Path]:
    return sorted(path for path in Path(checkpoint.path).rglob("*") if path.is_file())


def read_files(checkpoint: tune.Checkpoint) -> bytes:
    with checkpoint.as_directory() as path:
        return Path(path, "sub", "weights.bin").read_bytes()


def copy_files(checkpoint: tune.Checkpoint) -> bytes:
    target = Path(checkpoint.path).parents[1] / "copy"
    shutil.rmtree(target, ignore_errors=True)
    return Path(checkpoint.to_directory(target), "sub", "weights.bin").read_bytes()


READERS: dict[str, tuple[Callable[[tune.Checkpoint], Any], Any]] = {
    "to_dict": (lambda checkpoint: checkpoint.to_dict(), STATE),
    "as_directory": (read_files, BIG + b"\x02"),
    "to_directory": (copy_files, BIG + b"\x02"),
    "get_metadata": (lambda checkpoint: checkpoint.get_metadata(), {"reviewed": "yes", "epoch": 2}),
}


def test_the_experiment_has_every_kind_of_file(result: tune.Result) -> None:
    names = [path.name for path in files_of(checkpoint_of(result))]
    assert names == [".metadata.json", "_dict_checkpoint.pkl", "_manifest.json", "weights.bin"]
    for read, expected in READERS.values():
        assert read(checkpoint_of(result)) == expected


@pytest.mark.parametrize("by", ["result", "path"])
@pytest.mark.parametrize("how", READERS)
def test_of_flipped_bits_every_one_is_named_or_changes_nothing(own: tune.Result, how: str, by: str) -> None:
    """A bit anywhere: in the user's files, in the manifest, in the metadata."""
    read, expected = READERS[how]
    chosen = random.Random(f"{how}/{by}")
    named = 0
    for file in files_of(checkpoint_of(own)) * 16:
        data = file.read_bytes()
        place, bit = chosen.randrange(len(data)), 1 << chosen.randrange(8)
        file.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        checkpoint = checkpoint_of(own) if by == "result" else tune.Checkpoint(checkpoint_of(own).path)
        damage = None
        try:
            assert read(checkpoint) == expected, (file, place, bit)
        except CheckpointDamagedError as error:
            damage = error
        file.write_bytes(data)
        if damage is not None:
            named += 1
            assert file.name in damage.reason
            assert file.name in str(damage)
    assert named == {"get_metadata": 16}.get(how, 48)
    assert read(checkpoint_of(own)) == expected


@pytest.mark.parametrize("how", ["to_dict", "as_directory", "to_directory"])
def test_files_that_are_cut_added_or_missing_are_named(own: tune.Result, how: str) -> None:
    read, _ = READERS[how]
    directory = Path(checkpoint_of(own).path)
    weights = directory / "sub" / "weights.bin"
    weights.write_bytes(BIG)
    with pytest.raises(CheckpointDamagedError, match=r"sub/weights\.bin"):
        read(checkpoint_of(own))
    weights.unlink()
    with pytest.raises(CheckpointDamagedError, match=r"sub/weights\.bin is missing"):
        read(checkpoint_of(own))
    weights.write_bytes(BIG + b"\x02")
    (directory / "extra.bin").touch()
    with pytest.raises(CheckpointDamagedError, match=r"extra\.bin is not one of the files"):
        read(checkpoint_of(own))
    (directory / "extra.bin").unlink()
    (directory / "_manifest.json").unlink()
    with pytest.raises(CheckpointDamagedError, match="no manifest"):
        read(checkpoint_of(own))
    with pytest.raises(CheckpointDamagedError, match="no manifest"):
        read(tune.Checkpoint(directory))


def test_a_whole_checkpoint_in_the_place_of_another_is_noticed(own: tune.Result) -> None:
    """As a careless person would do, to make an error go away; the journal knows the right one's digest."""
    newest = Path(checkpoint_of(own).path)
    shutil.rmtree(newest)
    shutil.copytree(newest.with_name("checkpoint_000000"), newest)
    with pytest.raises(CheckpointDamagedError, match="manifest belongs to checkpoint 0"):
        checkpoint_of(own).to_dict()


def test_the_best_checkpoints_are_verified_too(own: tune.Result) -> None:
    (older, _), (newer, _) = own.best_checkpoints
    (Path(older.path) / "sub" / "weights.bin").write_bytes(BIG + b"\x07")
    with pytest.raises(CheckpointDamagedError, match=r"sub/weights\.bin"):
        older.to_dict()
    assert newer.to_dict() == STATE


def test_what_has_not_changed_is_read_through_once(own: tune.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = verified.verify

    def counted(directory: str, **more: Any) -> Any:
        read.append(str(directory))
        return real(directory, **more)

    monkeypatch.setattr(verified, "verify", counted)
    path = checkpoint_of(own).path
    settle(path)
    for _ in range(3):
        assert checkpoint_of(own).to_dict() == STATE
        assert read_files(tune.Checkpoint(path)) == BIG + b"\x02"
    assert read == [path]
    checkpoint_of(own).set_metadata({"reviewed": "again"})  # may change at any time
    assert checkpoint_of(own).to_dict() == STATE
    assert read == [path]


def settle(path: str) -> None:
    """Wait until the files are older than a tick of the file system's clock can tell."""
    newest = max(file.stat().st_ctime_ns for file in Path(path).rglob("*"))
    wait_until(lambda: time.time_ns() - newest > verified.FRESH_NS, "files that are not fresh")


def test_damage_after_the_first_use_is_noticed_even_if_size_and_time_are_as_before(own: tune.Result) -> None:
    path = checkpoint_of(own).path
    settle(path)
    assert checkpoint_of(own).to_dict() == STATE
    weights = Path(path, "sub", "weights.bin")
    facts = weights.stat()
    with open(weights, "r+b") as file:
        file.write(b"\xff")
    os.utime(weights, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with pytest.raises(CheckpointDamagedError, match=r"sub/weights\.bin"):
        checkpoint_of(own).to_dict()


def test_who_knows_better_reads_without_verifying(own: tune.Result, tmp_path: Path) -> None:
    path = checkpoint_of(own).path
    changed = b"\xff" + BIG[1:] + b"\x02"
    Path(path, "sub", "weights.bin").write_bytes(changed)
    with pytest.raises(CheckpointDamagedError, match="verify=False"):
        checkpoint_of(own).to_dict()
    assert checkpoint_of(own).to_dict(verify=False) == STATE
    with checkpoint_of(own).as_directory(verify=False) as directory:
        assert Path(directory, "sub", "weights.bin").read_bytes() == changed
    copied = checkpoint_of(own).to_directory(tmp_path / "copied", verify=False)
    assert Path(copied, "sub", "weights.bin").read_bytes() == changed
    assert not Path(copied, "_manifest.json").exists()
    for trusting in (tune.Checkpoint(path, verify=False), tune.Checkpoint.from_directory(path, verify=False)):
        assert trusting.to_dict() == STATE
        with pytest.raises(CheckpointDamagedError):
            trusting.to_dict(verify=True)


def test_a_directory_of_the_users_own_needs_no_manifest(
    own: tune.Result, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = Path(checkpoint_of(own).to_directory(tmp_path / "mine"))
    (mine / "sub" / "weights.bin").write_bytes(b"fine-tuned")
    with tune.Checkpoint.from_directory(mine).as_directory() as directory:
        assert Path(directory, "sub", "weights.bin").read_bytes() == b"fine-tuned"
    (mine / "_manifest.json").write_text('{"name": "of another program"}')
    assert tune.Checkpoint.from_directory(mine).to_dict() == STATE
    assert caplog.text == ""


def test_a_checkpoint_from_elsewhere_without_a_manifest_can_be_used_and_says_so_once(
    own: tune.Result, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that another tuner has written, or that was taken out of its experiment without the manifest."""
    foreign = Path(checkpoint_of(own).to_directory(tmp_path / "elsewhere" / "checkpoint_000003"))
    with caplog.at_level(logging.WARNING, "holdfast.checkpoints"):
        assert tune.Checkpoint(foreign).to_dict() == STATE
        assert tune.Checkpoint(foreign).to_dict() == STATE
    assert [record.getMessage() for record in caplog.records] == [
        f"{foreign} has no manifest (_manifest.json), so damage to its files cannot be detected."
    ]
    (foreign / "_dict_checkpoint.pkl").write_bytes(b"\x80\x05rotten")
    with pytest.raises(CheckpointDamagedError, match=r"_dict_checkpoint\.pkl cannot be unpickled"):
        tune.Checkpoint(foreign).to_dict()


def test_a_checkpoint_that_is_being_deleted_is_gone_not_damaged(own: tune.Result) -> None:
    path = Path(checkpoint_of(own).path)
    (path / "_manifest.json").rename(path / ".holdfast-trash")
    with pytest.raises(InvalidInputError, match="does not exist"):
        checkpoint_of(own).to_dict()


def test_a_class_restored_by_path_is_told_of_damage(tmp_path: Path) -> None:
    run_config = tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0, engine=tune.LocalEngine(cpus=1))
    (result,) = tune.Tuner(Keeps, run_config=run_config).fit()
    path = checkpoint_of(result).path
    instance = Keeps()
    instance.restore(path)
    assert instance.state == {"loaded": "x" * 100}
    file = Path(path, "_dict_checkpoint.pkl")
    file.write_bytes(file.read_bytes().replace(b"xxxx", b"xxyx", 1))
    with pytest.raises(CheckpointDamagedError, match=r"_dict_checkpoint\.pkl"):
        instance.restore(path)


class Keeps(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.state: Any = None

    def step(self) -> dict[str, Any]:
        return {"done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"loaded": "x" * 100}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.state = {key: value for key, value in checkpoint.items() if key == "loaded"}


# --- inside a trial


def uses_its_checkpoint(config: dict[str, Any]) -> None:
    """Save and fail; then continue, and tell how often this process has read the checkpoint through."""
    from holdfast.checkpoints import verified

    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        tune.report({"step": 1}, checkpoint=tune.Checkpoint.from_dict(STATE))
        raise RuntimeError("interrupted")
    read: list[str] = []
    real = verified.verify
    verified.verify = lambda directory, **more: (read.append(str(directory)), real(directory, **more))[1]
    try:
        state = checkpoint.to_dict()
        if config.get("damage"):
            Path(checkpoint.path, "_dict_checkpoint.pkl").write_bytes(b"rotten")
            state = tune.get_checkpoint().to_dict()  # type: ignore[union-attr]
    finally:
        verified.verify = real
    tune.report({"step": state["step"], "read": len(read)})


def run_and_resume(storage: Path, **param_space: Any) -> tune.Result:
    run_config = tune.RunConfig(name="exp", storage_path=str(storage), verbose=0, engine=tune.LocalEngine(cpus=1))
    (failed,) = tune.Tuner(uses_its_checkpoint, param_space=param_space, run_config=run_config).fit()
    settle(checkpoint_of(failed).path)
    (result,) = tune.Tuner.restore(str(storage / "exp"), resume_errored=True).fit()
    return result


def test_a_checkpoint_without_metadata_has_none(tmp_path: Path) -> None:
    result = run_and_resume(tmp_path)
    assert checkpoint_of(result).get_metadata() == {}


def test_a_trial_does_not_read_again_what_the_driver_has_just_verified(tmp_path: Path) -> None:
    result = run_and_resume(tmp_path)
    assert result.error is None
    assert (result.metrics["step"], result.metrics["read"]) == (2, 0)


def test_a_trial_is_told_of_damage_since_the_driver_has_verified(tmp_path: Path) -> None:
    result = run_and_resume(tmp_path, damage=True)
    assert "CheckpointDamagedError" in str(result.error)
    assert "_dict_checkpoint.pkl" in str(result.error)


def saves_what_it_was_given(config: dict[str, Any]) -> None:
    tune.report({"step": 1}, checkpoint=tune.Checkpoint(config["path"]))


def test_damage_is_not_saved_again_as_a_new_checkpoint(own: tune.Result, tmp_path: Path) -> None:
    path = checkpoint_of(own).path
    Path(path, "sub", "weights.bin").write_bytes(BIG + b"\x07")
    run_config = tune.RunConfig(name="new", storage_path=str(tmp_path), verbose=0, engine=tune.LocalEngine(cpus=1))
    (result,) = tune.Tuner(saves_what_it_was_given, param_space={"path": path}, run_config=run_config).fit()
    assert "sub/weights.bin" in str(result.error)
    assert result.checkpoint is None
