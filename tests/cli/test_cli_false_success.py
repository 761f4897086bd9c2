"""Commands that must not end as if all were well: listings of damaged experiments, repairs of what they cannot mend."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roots import small_experiment

import holdfast as tune

Run = Callable[..., Any]


def train(config: dict[str, Any]) -> None:
    tune.report({"loss": config["x"]})


def damage_journal(path: Path) -> None:
    (segment,) = (path / ".holdfast" / "journal").glob("*.hfj")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 255
    segment.write_bytes(data)
    shutil.rmtree(path / ".holdfast" / "snapshots", ignore_errors=True)


def test_the_older_listing_names_damaged_experiments_and_fails(tmp_path: Path, holdfast: Run) -> None:
    small_experiment(tmp_path / "whole").finish()
    damage_journal(small_experiment(tmp_path / "torn").finish().path)
    broken = small_experiment(tmp_path / "broken").finish().path
    (broken / ".holdfast" / "spec.json").write_text("{")
    answer = holdfast("list-experiments", tmp_path)
    assert answer.code == holdfast("list", tmp_path).code == 1
    assert "DAMAGED, " in answer.out
    assert "unreadable" in answer.out
    assert "torn: " in answer.err
    assert "broken: " in answer.err
    assert "whole" not in answer.err
    shutil.rmtree(tmp_path / "torn")
    shutil.rmtree(broken)
    assert holdfast("list-experiments", tmp_path).code == 0


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    config = tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0)
    tune.Tuner(train, param_space={"x": tune.grid_search([1, 2])}, run_config=config).fit()
    return tmp_path / "exp"


def test_a_repair_does_not_call_an_experiment_without_its_objects_whole(finished: Path, holdfast: Run) -> None:
    shutil.rmtree(finished / ".holdfast" / "objects")
    assert holdfast("verify", finished).code == 1
    answer = holdfast("repair", finished, "--yes")
    assert answer.code == 1
    for name, remedy in (("trainable.pkl", "trainable=..."), ("settings.pkl", "run_config=...")):
        assert f".holdfast/objects/{name}: " in answer.out
        assert remedy in answer.out
    assert "nothing to repair" not in answer.out
    assert "holdfast resume" not in answer.out
    assert not (finished / ".holdfast" / "damaged-1").exists()


def test_after_a_repair_without_objects_no_plain_resume_is_advised(finished: Path, holdfast: Run) -> None:
    damage_journal(finished)
    shutil.rmtree(finished / ".holdfast" / "objects")
    answer = holdfast("repair", finished, "--yes")
    assert "Repaired: " in answer.out
    assert answer.code == 1
    assert ".holdfast/objects/trainable.pkl: " in answer.out
    assert "holdfast resume" not in answer.out
    assert f'Tuner.restore("{finished}", ...)' in answer.out
