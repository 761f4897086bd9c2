"""``status`` and ``show`` say what a resume will really do if checkpoints are gone; they and ``verify`` agree."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter

from holdfast.controller.remote_experiment import MIRROR_OF
from holdfast.core import events as ev
from holdfast.display.closing import resume_lines

Command = Callable[..., Any]


@pytest.fixture
def root(tmp_path: Path) -> RootWriter:
    """Two trials that run, with two committed checkpoints each."""
    root = RootWriter(tmp_path / "exp").open()
    for n in range(2):
        root.create({})
        root.start(n)
        for text in "ab":
            root.report(n, {"loss": 1.0})
            root.save(n, {"a": text})
    return root


def said(holdfast: Command, root: RootWriter) -> list[str]:
    lines = holdfast("status", root.path).out.splitlines()
    return [line.strip() for line in lines if line.strip().startswith("On resume")]


def each(holdfast: Command, root: RootWriter) -> list[str]:
    return [trial["on_resume"] for trial in json.loads(holdfast("status", root.path, "--json").out)["trials"]]


def verified(holdfast: Command, root: RootWriter) -> list[str]:
    return [fact["then"] for fact in json.loads(holdfast("verify", root.path, "--json").out)["resume"]]


def remove(root: RootWriter, n: int, *indexes: int) -> None:
    for index in indexes:
        shutil.rmtree(root.checkpoint_dir(n, index))


def test_checkpoints_that_are_there_are_continued_from(root: RootWriter, holdfast: Command) -> None:
    root.die()
    assert said(holdfast, root) == ["On resume, 2 trials will continue from their latest checkpoint."]
    assert each(holdfast, root) == ["continues from checkpoint_000001 (iteration 2)"] * 2


def test_a_missing_checkpoint_is_told_with_the_one_that_takes_its_place(root: RootWriter, holdfast: Command) -> None:
    root.die()
    remove(root, 0, 1)
    (line,) = said(holdfast, root)
    assert "1 trial will continue from its latest checkpoint" in line
    assert "1 trial will fall back to checkpoint_000000, because a newer one is missing" in line
    older = "continues from checkpoint_000000 (iteration 1); a newer one is missing"
    assert each(holdfast, root)[0] == older
    assert f"on resume   {older}" in holdfast("show", root.path, "0").out
    assert verified(holdfast, root) == ["continues", "continues"]


def test_no_trial_is_promised_to_continue_when_all_its_checkpoints_are_gone(
    root: RootWriter, holdfast: Command
) -> None:
    root.die()
    remove(root, 0, 0, 1)
    remove(root, 1, 0, 1)
    (line,) = said(holdfast, root)
    assert line.startswith("On resume, 2 trials will end in ERROR, because no good checkpoint is left")
    assert "holdfast verify" in line
    assert each(holdfast, root) == ["ends in ERROR: all its checkpoints are damaged or missing"] * 2
    assert verified(holdfast, root) == ["error", "error"]


def test_a_checkpoint_without_its_manifest_is_not_there(root: RootWriter, holdfast: Command) -> None:
    root.die()
    (root.checkpoint_dir(1, 1) / "_manifest.json").unlink()
    assert "checkpoint_000000 (iteration 1); a newer one is missing" in each(holdfast, root)[1]


def test_a_stage_that_is_gone_is_not_counted_on(root: RootWriter, holdfast: Command) -> None:
    root.report(0, {"loss": 1.0})
    root.stage(0, {"a": "c"})
    root.die()
    assert each(holdfast, root)[0] == "continues from checkpoint_000002 (iteration 3), once it is committed"
    for stage in root.path.glob("*/.sealed-*"):
        shutil.rmtree(stage)
    assert each(holdfast, root)[0] == "continues from checkpoint_000001 (iteration 2); a newer one is missing"


def test_a_trial_whose_only_stage_is_gone_starts_again(tmp_path: Path, holdfast: Command) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({})
    root.start(0)
    root.report(0, {"loss": 1.0})
    root.stage(0, {"a": "x"})
    root.die()
    for stage in root.path.glob("*/.sealed-*"):
        shutil.rmtree(stage)
    (line,) = said(holdfast, root)
    assert line.endswith(
        "1 trial will start again from the beginning, because the checkpoint to continue from is missing."
    )
    assert verified(holdfast, root) == ["restarts"]


def test_a_copy_whose_donor_is_gone_starts_again(root: RootWriter, holdfast: Command) -> None:
    root.create({})
    root.start(2)
    root.cut(2, ev.Cause.DRIVER_STOPPED)
    root.add(ev.TrialReconfigured(root.tick(), 2, {"lr": 2}, "", (0, 1), 0, ()))
    root.die()
    assert each(holdfast, root)[2].startswith("continues from checkpoint_000001 of trial ")
    remove(root, 0, 1)
    assert each(holdfast, root)[2] == "starts from the beginning, because its checkpoint is missing"
    assert verified(holdfast, root)[2] == "restarts"


def test_a_trial_that_the_user_has_stopped_is_not_promised_to_continue(root: RootWriter, holdfast: Command) -> None:
    root.add(ev.UserRequested(root.tick(), 0, "r1", ev.Action.STOP))
    root.die()
    assert said(holdfast, root) == ["On resume, 1 trial will continue from its latest checkpoint."]
    root.state.trials[1].user_stop = True  # as a driver that is about to leave has it
    (line,) = resume_lines(root.state)
    assert line == "On resume, 2 trials will end, as the user has asked."


def test_the_journal_is_believed_while_a_driver_is_alive_and_in_a_store(root: RootWriter, holdfast: Command) -> None:
    remove(root, 0, 1)
    assert each(holdfast, root)[0] == "continues from checkpoint_000001 (iteration 2)"
    root.die()
    (root.path / MIRROR_OF).write_text("s3://bucket/exp")
    assert each(holdfast, root)[0] == "continues from checkpoint_000001 (iteration 2)"
