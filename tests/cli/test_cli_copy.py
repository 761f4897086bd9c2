"""``holdfast copy``: between directories and stores, cut short, refused, and continued with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import store_trials
from roots import RootWriter, small_experiment

import holdfast as tune
from holdfast.cli import copy_target
from holdfast.results import ResultGrid

Run = Callable[..., Any]


def killed(path: Path) -> RootWriter:
    return small_experiment(path).die()


def files_below(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


def test_a_copy_between_directories_has_all_that_is_the_experiments(holdfast: Run, tmp_path: Path) -> None:
    root = killed(tmp_path / "exp")
    folder = root.trial_dir(0).name
    (root.trial_dir(0) / "result.json").write_text("{}\n")
    (root.trial_dir(0) / "plots").mkdir()
    (root.trial_dir(0) / "plots" / "loss.png").write_text("png")
    (root.trial_dir(0) / ".stage-1-0123abcd").mkdir()
    (root.trial_dir(0) / ".stage-1-0123abcd" / "half").write_text("half")
    (root.path / "notes.txt").write_text("mine")
    (root.path / "pbt_global.txt").write_text("[]\n")
    (root.path / ".holdfast" / "shipped.json").write_text("{}")
    before = files_below(root.path)
    answer = holdfast("copy", root.path, tmp_path / "new" / "copy", "--json")
    assert answer.code == 0, answer.err
    facts = json.loads(answer.out)
    assert (facts["checkpoints"], facts["files"], facts["left"], facts["whole"]) == (5, 3, ["notes.txt"], True)
    assert files_below(root.path) == before
    there = files_below(tmp_path / "new" / "copy")
    assert there.pop(".holdfast/epochs/00000001.released") == b""  # nobody has to wait for a driver of the original
    absent = {"notes.txt", ".holdfast/shipped.json", f"{folder}/.stage-1-0123abcd/half"}
    assert there == {path: data for path, data in before.items() if path not in absent}
    assert holdfast("verify", tmp_path / "new" / "copy").code == 0
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "copy"]


def test_a_staged_checkpoint_is_copied_committed(holdfast: Run, tmp_path: Path) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({"lr": 1})
    root.start(0)
    root.report(0, {"loss": 1.0})
    index = root.stage(0, {"model.txt": "weights"})
    root.die()
    assert holdfast("copy", root.path, tmp_path / "copy").code == 0
    copied = tmp_path / "copy" / root.trial_dir(0).name / f"checkpoint_{index:06d}"
    assert (copied / "model.txt").read_text() == "weights"
    assert (copied / "_manifest.json").exists()
    assert not root.checkpoint_dir(0, index).exists()


def test_what_is_there_is_never_copied_over(holdfast: Run, tmp_path: Path) -> None:
    root, other = killed(tmp_path / "exp"), killed(tmp_path / "other")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for target, why in (
        (other.path, "There is already an experiment at"),
        (tmp_path / "full", "is not empty"),
        (tmp_path / "full" / "mine.txt", "is not empty"),
        (root.path / "inside", "is inside"),
        (root.path, "is inside"),
    ):
        answer = holdfast("copy", root.path, target)
        assert answer.code == 2
        assert why in answer.err
    assert files_below(tmp_path / "full") == {"mine.txt": b"mine"}
    assert holdfast("copy", tmp_path / "nothing", tmp_path / "copy").code == 2
    assert not (tmp_path / "copy").exists()


def test_a_live_experiment_is_not_copied(holdfast: Run, tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "exp")
    answer = holdfast("copy", root.path, tmp_path / "copy")
    assert answer.code == 1
    assert "is being written by pid" in answer.err
    assert not (tmp_path / "copy").exists()
    root.finish()


def test_a_damaged_checkpoint_is_left_out_and_named(holdfast: Run, tmp_path: Path) -> None:
    root = killed(tmp_path / "exp")
    (root.checkpoint_dir(0, 1) / "model.txt").write_text("weights ?")
    answer = holdfast("copy", root.path, tmp_path / "copy")
    assert answer.code == 1
    where = f"{root.trial_dir(0).name}/checkpoint_000001"
    assert f"damage: {where}: not copied: the content of model.txt is not what was saved" in answer.out
    assert "INCOMPLETE" in answer.out
    assert len(ResultGrid.from_path(tmp_path / "copy")) == 4


def test_a_copy_that_was_cut_short_is_no_experiment_and_is_finished_later(
    holdfast: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, other = killed(tmp_path / "exp"), small_experiment(tmp_path / "other").die()
    with monkeypatch.context() as broken:
        broken.setattr(copy_target.LocalTarget, "put_private", _fail)
        assert holdfast("copy", root.path, tmp_path / "copy").code == 1
    assert not tune.Tuner.can_restore(tmp_path / "copy")
    # The power went as well: a file is not what it was.
    rotten = tmp_path / "copy" / root.trial_dir(0).name / "checkpoint_000000" / "model.txt"
    rotten.write_text("weights ?")
    changed = with_uid(other.path, "another")
    assert "copy of another experiment" in holdfast("copy", changed, tmp_path / "copy").err
    facts = json.loads(holdfast("copy", root.path, tmp_path / "copy", "--json").out)
    assert (facts["checkpoints"], facts["present"], facts["whole"]) == (5, 4, True)
    assert rotten.read_text() == "weights 0"
    assert not (tmp_path / "copy" / copy_target.MARK).exists()
    assert "There is already an experiment at" in holdfast("copy", root.path, tmp_path / "copy").err


def _fail(*_: object) -> None:
    raise OSError(28, "No space left on device")


def with_uid(path: Path, uid: str) -> Path:
    """The same experiment under another identity."""
    from holdfast.controller.spec import read_spec, write_spec
    from holdfast.storage.layout import Root

    spec = read_spec(Root(path))
    spec.uid = uid
    write_spec(Root(path), spec)
    return path


def test_an_experiment_goes_on_in_a_store_and_back_on_a_disk(
    holdfast: Run, bucket: str, tmp_path: Path, cache: Path
) -> None:
    path = store_trials.interrupted(str(tmp_path / "local"), tmp_path)
    url = f"{bucket}/runs/moved"
    answer = holdfast("copy", path, url)
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"copied {path} to {url}:")
    assert answer.out.endswith("; verified\n")
    store = store_trials.store_of(url)
    assert not store_trials.keys(store, ".hfp")
    assert holdfast("verify", url).code == 0
    assert json.loads(holdfast("status", url, "--json").out)["state"] == "interrupted"
    shutil.rmtree(path)

    remote_grid = tune.Tuner.restore(url).fit()
    assert [result.metrics["step"] for result in remote_grid] == [3, 3, 3]
    assert store_trials.keys(store, ".hfp")
    assert holdfast("verify", url).code == 0

    for source, target in ((url, f"{bucket}/runs/again"), (f"{bucket}/runs/again", str(tmp_path / "back"))):
        answer = holdfast("copy", source, target, "--json")
        assert answer.code == 0, answer.err
        assert json.loads(answer.out)["whole"]
        assert holdfast("verify", target).code == 0
    assert not list(cache.glob("*/.scratch-*"))
    back = ResultGrid.from_path(tmp_path / "back")
    assert [result.metrics for result in back] == [result.metrics for result in remote_grid]
    for result in back:
        assert result.checkpoint is not None
        with result.checkpoint.as_directory() as directory:
            assert json.loads(Path(directory, "state.json").read_text()) == {"step": 4}
    assert "There is already an experiment at" in holdfast("copy", url, f"{bucket}/runs/again").err


def test_an_interrupted_experiment_comes_back_from_a_store(
    holdfast: Run, bucket: str, tmp_path: Path, cache: Path
) -> None:
    url = store_trials.interrupted(f"{bucket}/runs", tmp_path)
    assert holdfast("copy", url, tmp_path / "back").code == 0
    grid = tune.Tuner.restore(tmp_path / "back").fit()
    assert [result.metrics["step"] for result in grid] == [3, 3, 3]
    assert json.loads(holdfast("status", url, "--json").out)["state"] == "interrupted"


def test_a_half_copy_in_a_store_is_finished_later(
    holdfast: Run, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = killed(tmp_path / "exp")
    url = f"{bucket}/copy"
    with monkeypatch.context() as broken:
        broken.setattr(copy_target.StoreTarget, "put_private", _fail)
        assert holdfast("copy", root.path, url).code == 1
    assert not tune.Tuner.can_restore(url)
    assert json.loads(holdfast("list", bucket, "--json").out) == []
    facts = json.loads(holdfast("copy", root.path, url, "--json").out)
    assert (facts["checkpoints"], facts["present"], facts["whole"]) == (5, 5, True)
    assert copy_target.MARK not in store_trials.keys(store_trials.store_of(url), ".json")
