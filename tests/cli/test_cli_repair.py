"""What ``holdfast repair`` makes of checkpoints and configurations whose records are lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.controller.spec import read_spec, write_spec
from holdfast.core import events as ev
from holdfast.journal.frames import decode_header, encode_frames, scan
from holdfast.storage.layout import Root

Run = Callable[..., Any]
STEPS = 6

RULES = {
    "newest": tune.CheckpointConfig(num_to_keep=2),
    "best": tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score", checkpoint_score_order="max"),
    "overall": tune.CheckpointConfig(
        num_to_keep_overall=3, checkpoint_score_attribute="score", checkpoint_score_order="max"
    ),
    "all": tune.CheckpointConfig(),
}


def train(config: dict[str, Any]) -> None:
    for step in range(STEPS):
        score = config["x"] * 10 + (step * 3 + config["x"]) % 7
        tune.report({"score": score}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


@pytest.fixture(scope="module", params=RULES)
def kept_by_rule(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished experiment with one segment and no snapshot; its checkpoints are those that the rule keeps."""
    root = tmp_path_factory.mktemp(request.param) / "exp"
    config = tune.RunConfig(
        name="exp", storage_path=str(root.parent), verbose=0, checkpoint_config=RULES[request.param]
    )
    tune.Tuner(train, param_space={"x": tune.grid_search([1, 2, 3])}, run_config=config).fit()
    shutil.rmtree(root / ".holdfast" / "snapshots")
    return root


def cut(root: Path, copy: Path, percent: int) -> None:
    """Copy an experiment, and cut that much off the end of the copy's journal."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    (segment,) = (copy / ".holdfast" / "journal").iterdir()
    data = segment.read_bytes()
    segment.write_bytes(data[: len(data) * (100 - percent) // 100])


def test_after_a_repair_no_deleted_checkpoint_is_called_missing(
    kept_by_rule: Path, tmp_path: Path, holdfast: Run
) -> None:
    """Wherever the journal was cut: the records by which checkpoints were dropped may be lost, and their files are."""
    there = len(list(kept_by_rule.glob("*/checkpoint_*")))
    for percent in range(3, 96, 4):
        cut(kept_by_rule, tmp_path / "exp", percent)
        answer = holdfast("repair", tmp_path / "exp", "--yes")
        assert answer.code == 0
        assert "should be there" not in answer.out
        said = holdfast("verify", tmp_path / "exp")
        assert said.code == 0, f"{percent} % cut off\n{said.out}"
        assert f"and {there} checkpoints" in said.out


def test_after_a_repair_a_checkpoint_that_should_be_there_is_named(
    kept_by_rule: Path, tmp_path: Path, holdfast: Run
) -> None:
    """The newest one of the last trial, which every rule keeps; the journal ends with the record of its commit."""
    cut(kept_by_rule, tmp_path / "exp", 0)
    (segment,) = (tmp_path / "exp" / ".holdfast" / "journal").iterdir()
    data = segment.read_bytes()
    header = decode_header(data)
    assert header is not None
    records = scan(data, 1, header.end).payloads
    commits = [n for n, record in enumerate(records) if is_newest_of_last(ev.decode(record))]
    segment.write_bytes(data[: header.end] + encode_frames(1, records[: commits[0] + 1]))
    (removed,) = (tmp_path / "exp").glob(f"*_00002_*/checkpoint_{STEPS - 1:06d}")
    shutil.rmtree(removed)
    answer = holdfast("repair", tmp_path / "exp", "--yes")
    assert f"1 checkpoint of trial {removed.parent.name[6:17]} that should be there ({removed.name})" in answer.out
    said = holdfast("verify", tmp_path / "exp")
    assert said.code == 1
    assert f"{removed.parent.name}/{removed.name}: the directory is missing" in said.out


def is_newest_of_last(event: ev.AnyEvent) -> bool:
    return isinstance(event, ev.CheckpointCommitted) and (event.n, event.index) == (2, STEPS - 1)


# --- configurations


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished experiment whose parameters JSON cannot tell from others."""
    root = tmp_path_factory.mktemp("typed") / "exp"
    space = {
        "x": tune.grid_search([1, 2]),
        "size": tune.choice([(1, 1), (1, 2)]),
        "layers": {"fixed": (3, 4)},
        "made": tune.sample_from(lambda _: (5, 6)),
    }
    tune.Tuner(
        train, param_space=space, run_config=tune.RunConfig(name="exp", storage_path=str(root.parent), verbose=0)
    ).fit()
    return root


def lose_journal(root: Path, copy: Path) -> None:
    shutil.copytree(root, copy)
    shutil.rmtree(copy / ".holdfast" / "snapshots")
    for segment in (copy / ".holdfast" / "journal").iterdir():
        segment.unlink()


def test_after_a_repair_configurations_have_the_types_of_the_space(typed: Path, tmp_path: Path, holdfast: Run) -> None:
    before = [result.config for result in tune.ResultGrid.from_path(str(typed))]
    lose_journal(typed, tmp_path / "exp")
    answer = holdfast("repair", tmp_path / "exp", "--yes")
    assert "the types of some parameters of 2 trials (made): " in answer.out
    after = [result.config for result in tune.ResultGrid.from_path(str(tmp_path / "exp"))]
    assert after == [{**config, "made": [5, 6]} for config in before]
    assert isinstance(after[0]["size"], tuple)


def test_a_repair_of_an_older_experiment_says_that_types_may_differ(typed: Path, tmp_path: Path, holdfast: Run) -> None:
    """Its facts do not tell of what type the options of its space are."""
    lose_journal(typed, tmp_path / "exp")
    root = Root(tmp_path / "exp")
    spec = read_spec(root)
    spec.template = None
    write_spec(root, spec)
    answer = holdfast("repair", tmp_path / "exp", "--yes")
    assert "the types of some parameters of 2 trials (layers, made, size): " in answer.out
    assert tune.ResultGrid.from_path(str(root.path))[0].config["size"] in ([1, 1], [1, 2])
