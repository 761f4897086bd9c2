"""``holdfast rm``: removes an experiment and nothing else."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, small_experiment

import holdfast as tune
from holdfast.checkpoints.tree import remove_tree
from holdfast.cli import rm
from holdfast.storage.remote_root import Remote, remote_of

Run = Callable[..., Any]


def save(config: dict[str, Any]) -> None:
    tune.report({"loss": 1}, checkpoint=tune.Checkpoint.from_dict({"x": config["x"]}))


def run_experiment(place: str | Path) -> None:
    tune.Tuner(
        save,
        param_space={"x": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(name="exp", storage_path=str(place), verbose=0),
    ).fit()


def test_an_experiment_is_removed_with_all_that_is_its_own(tmp_path: Path, holdfast: Run) -> None:
    run_experiment(tmp_path)
    answer = holdfast("rm", tmp_path / "exp", "--yes")
    assert answer.code == 0
    assert "2 trials (2 done), 2 checkpoints" in answer.out
    assert not (tmp_path / "exp").exists()
    assert tmp_path.exists()


def test_what_is_not_the_experiments_stays(tmp_path: Path, holdfast: Run) -> None:
    run_experiment(tmp_path)
    (tmp_path / "exp" / "notes.txt").write_text("mine")
    (tmp_path / "outside").mkdir()
    (tmp_path / "exp" / "link").symlink_to(tmp_path / "outside")
    answer = holdfast("rm", tmp_path / "exp", "--yes", "--json")
    assert json.loads(answer.out)["stays"] == ["link", "notes.txt"]
    assert sorted(path.name for path in (tmp_path / "exp").iterdir()) == ["link", "notes.txt"]
    assert not tune.Tuner.can_restore(tmp_path / "exp")


@pytest.mark.parametrize(("said", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_it_asks_first(said: str, code: int, tmp_path: Path, holdfast: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_experiment(tmp_path / "exp").finish().path
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: said.strip())
    assert holdfast("rm", path).code == code
    assert path.exists() is (code == 1)


def test_without_anybody_to_ask_nothing_is_removed(tmp_path: Path, holdfast: Run) -> None:
    path = small_experiment(tmp_path / "exp").finish().path
    answer = holdfast("rm", path)
    assert answer.code == 2
    assert "--yes" in answer.err
    assert tune.Tuner.can_restore(path)


def test_a_live_experiment_is_not_removed(tmp_path: Path, holdfast: Run) -> None:
    root = RootWriter(tmp_path / "exp").open()
    answer = holdfast("rm", root.path, "--yes")
    assert answer.code == 1
    assert "cannot be removed now" in answer.err
    assert tune.Tuner.can_restore(root.path)
    root.finish()


def test_a_damaged_journal_removes_nothing(tmp_path: Path, holdfast: Run) -> None:
    path = small_experiment(tmp_path / "exp").finish().path
    segment = next((path / ".holdfast" / "journal").iterdir())
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    answer = holdfast("rm", path, "--yes")
    assert answer.code == 1
    assert segment.exists()
    assert f"If nothing in it is needed, remove the directory itself: rm -r {path}\n" in answer.err


def test_a_damaged_journal_in_a_store_removes_nothing_and_says_what_to_do(
    bucket: str, cache: Path, holdfast: Run
) -> None:
    run_experiment(bucket)
    remote = remote_of(f"{bucket}/exp")
    assert isinstance(remote, Remote)
    remote.store.delete([stat.key for stat in remote.store.list(".holdfast/parts/")][:1])
    shutil.rmtree(cache)
    before = [stat.key for stat in remote.store.list("")]
    answer = holdfast("rm", f"{bucket}/exp", "--yes")
    assert answer.code == 1
    assert f"delete all objects below {bucket}/exp with the tools of the store" in answer.err
    assert [stat.key for stat in remote.store.list("")] == before


def test_an_experiment_in_a_store_is_removed_with_its_mirror(bucket: str, cache: Path, holdfast: Run) -> None:
    run_experiment(bucket)
    remote = remote_of(f"{bucket}/exp")
    assert isinstance(remote, Remote)
    remote.store.put("notes.txt", b"mine")
    answer = holdfast("rm", f"{bucket}/exp", "--yes", "--json")
    assert (answer.code, json.loads(answer.out)["stays"]) == (0, ["notes.txt"])
    assert [stat.key for stat in remote.store.list("")] == ["notes.txt"]
    assert not list(cache.glob("*/exp"))


def test_a_removal_that_was_cut_short_is_finished_by_the_next(
    tmp_path: Path, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_experiment(tmp_path / "exp").finish().path

    def cut_short(directory: str) -> None:
        if ".removed-" in directory:
            raise KeyboardInterrupt
        remove_tree(directory)

    with monkeypatch.context() as patched:
        patched.setattr(rm, "remove_tree", cut_short)
        assert holdfast("rm", path, "--yes").code == 130
    assert not tune.Tuner.can_restore(path)
    assert holdfast("rm", path, "--yes").code == 0
    assert not path.exists()


def test_a_removal_from_a_store_that_was_cut_short_is_finished_by_the_next(
    bucket: str, cache: Path, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_experiment(bucket)

    def cut_short(remote: Remote) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rm, "_delete_private", cut_short)
        assert holdfast("rm", f"{bucket}/exp", "--yes").code == 130
    assert not tune.Tuner.can_restore(f"{bucket}/exp")
    assert holdfast("rm", f"{bucket}/exp", "--yes").code == 0
    remote = remote_of(f"{bucket}/exp")
    assert isinstance(remote, Remote)
    assert remote.store.list("") == []
