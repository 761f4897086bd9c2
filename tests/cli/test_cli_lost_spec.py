"""An experiment whose ``.holdfast/spec.json`` is gone, or is not a regular file any more, is damaged, not missing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import store_trials
from roots import small_experiment

import holdfast as tune
from holdfast.errors import DamageError, ExperimentExistsError, ExperimentNotFoundError, JournalDamagedError

Run = Callable[..., Any]

LOST = ["gone", "link", "dangling link", "directory"]


@pytest.fixture(params=LOST)
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Beside a whole experiment."""
    small_experiment(tmp_path / "whole").finish()
    path = small_experiment(tmp_path / "exp").finish().path
    spec = path / ".holdfast" / "spec.json"
    data = spec.read_bytes()
    spec.unlink()
    if request.param == "link":
        (tmp_path / "spec.json").write_bytes(data)
        spec.symlink_to(tmp_path / "spec.json")
    elif request.param == "dangling link":
        spec.symlink_to("nowhere")
    elif request.param == "directory":
        spec.mkdir()
    return path


def files(path: Path) -> list[str]:
    return sorted(str(each) for each in path.rglob("*"))


def test_every_command_names_the_file(damaged: Path, holdfast: Run, tmp_path: Path) -> None:
    before = files(damaged)
    commands = ("status", "show", "verify", "repair", "gc", "logs", "rm", "resume", "export", "copy")
    more = {"export": [tmp_path / "out.csv"], "copy": [tmp_path / "copy"], "repair": ["--yes"], "rm": ["--yes"]}
    for command in commands:
        answer = holdfast(command, damaged, *more.get(command, []))
        assert answer.code == 1, (command, answer)
        assert "spec.json" in answer.out + answer.err, command
        assert "is not a holdfast experiment" not in answer.err, command
    assert files(damaged) == before


def test_list_shows_it_as_damaged_beside_the_others(damaged: Path, holdfast: Run) -> None:
    answer = holdfast("list", damaged.parent, "--json")
    assert answer.code == 1
    found = {facts["name"]: facts for facts in json.loads(answer.out)}
    assert found["whole"]["state"] == "interrupted"
    assert found["exp"]["state"] == "unreadable"
    assert "spec.json" in found["exp"]["why"]
    assert "spec.json" in holdfast("list", damaged.parent).out


def test_a_name_leads_to_it(damaged: Path, holdfast: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", str(damaged.parent))
    answer = holdfast("status", "exp")
    assert answer.code == 1
    assert "spec.json" in answer.err


def test_nothing_restores_or_replaces_it(damaged: Path) -> None:
    def tuner(if_exists: Any) -> tune.Tuner:
        place = {"name": "exp", "storage_path": str(damaged.parent)}
        return tune.Tuner(print, run_config=tune.RunConfig(**place, if_exists=if_exists, verbose=0))

    before = files(damaged)
    with pytest.raises(DamageError, match=r"spec\.json"):
        tune.Tuner.restore(str(damaged))
    with pytest.raises(DamageError, match=r"spec\.json"):
        tune.ResultGrid.from_path(str(damaged))
    with pytest.raises(DamageError, match=r"spec\.json"):
        tuner("resume")
    with pytest.raises(ExperimentExistsError):
        tuner("error")
    assert files(damaged) == before
    tuner("new")
    assert files(damaged) == before


def test_what_can_be_done_is_said(tmp_path: Path, holdfast: Run) -> None:
    path = small_experiment(tmp_path / "exp").finish().path
    spec = path / ".holdfast" / "spec.json"
    spec.rename(tmp_path / "spec.json")
    said = holdfast("repair", path).err
    assert "still exist" in said
    assert "Put the file back from a backup or from any copy" in said
    assert "cannot rebuild it" in said
    shutil.copy(tmp_path / "spec.json", spec)
    assert holdfast("verify", path).code == 0


def test_a_directory_that_never_was_an_experiment_is_none(tmp_path: Path, holdfast: Run) -> None:
    """One that was killed while it was made has no history."""
    objects = tmp_path / "exp" / ".holdfast" / "objects"
    objects.mkdir(parents=True)
    (objects / "trainable.pkl").write_bytes(b"")
    with pytest.raises(ExperimentNotFoundError):
        tune.Tuner.restore(str(tmp_path / "exp"))
    assert json.loads(holdfast("list", tmp_path, "--json").out) == []
    assert not tune.Tuner.can_restore(str(tmp_path / "exp"))


def test_a_history_that_is_gone_as_a_whole_is_not_begun_anew(tmp_path: Path) -> None:
    """The file is there, and nothing else but checkpoints."""
    path = Path(store_trials.tuner(str(tmp_path)).fit().experiment_path)
    for folder in ("epochs", "journal", "snapshots"):
        shutil.rmtree(path / ".holdfast" / folder, ignore_errors=True)
    spec = (path / ".holdfast" / "spec.json").read_bytes()
    with pytest.raises(ExperimentExistsError):
        store_trials.tuner(str(tmp_path))
    again = tune.RunConfig(name="exp", storage_path=str(tmp_path), if_exists="resume", verbose=0)
    with pytest.raises(JournalDamagedError, match="has lost records"):
        tune.Tuner(store_trials.train, param_space={"x": tune.grid_search([1, 2])}, run_config=again).fit()
    assert (path / ".holdfast" / "spec.json").read_bytes() == spec


def test_in_a_store_the_missing_file_is_named_by_its_address(bucket: str, cache: Path, holdfast: Run) -> None:
    url = store_trials.tuner(f"{bucket}/runs").fit().experiment_path
    store = store_trials.store_of(url)
    store.delete([".holdfast/spec.json"])
    with pytest.raises(DamageError, match=r"spec\.json of s3://.* is missing in the store.*upload"):
        tune.Tuner.restore(url, store_trials.train).fit()
    shutil.rmtree(cache)
    for command in ("status", "verify", "show", "gc", "rm"):
        answer = holdfast(command, url, *(["--yes"] if command == "rm" else []))
        assert answer.code == 1, (command, answer)
        assert ".holdfast/spec.json" in answer.out + answer.err, command
    answer = holdfast("list", f"{bucket}/runs", "--json")
    assert (answer.code, json.loads(answer.out)[0]["state"]) == (1, "unreadable")
    with pytest.raises(DamageError, match=r"spec\.json of s3://.* is missing"):
        tune.Tuner.restore(url)
    assert os.path.basename(url) == "exp"
    with pytest.raises(ExperimentExistsError):
        store_trials.tuner(f"{bucket}/runs")
