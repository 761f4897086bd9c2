"""Roots written by earlier formats: they open, add up to what they did then, and resume. Never changed, only added."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import golden_train
import pytest
from write_golden import NAME, summary

import holdfast as tune
from holdfast._moved import MOVED
from holdfast.checkpoints.checkpoint_reader import verify
from holdfast.controller.opening import open_state
from holdfast.controller.spec import FORMAT, read_spec
from holdfast.journal.epoch import SILENCE_S
from holdfast.journal.reader import read_journal
from holdfast.journal.recovery import verify_journal
from holdfast.storage.layout import Root

HERE = Path(__file__).parent
RESUME = "import sys, holdfast as tune; print(tune.Tuner.restore(sys.argv[1]).fit().num_errors)"


@pytest.fixture(params=sorted(path.name for path in HERE.glob("format-*")))
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one golden root, some time after its driver died."""
    root = tmp_path / "place" / NAME
    shutil.copytree(HERE / request.param / NAME, root)
    shutil.copy(HERE / request.param / "view.json", tmp_path)
    for path in (root / ".holdfast" / "epochs").iterdir():
        # A copy is as young as a heartbeat, and its driver was on another machine.
        os.utime(path, times=(path.stat().st_mtime - 2 * SILENCE_S,) * 2)
    return root


def view(golden: Path) -> Any:
    return json.loads((golden.parent.parent / "view.json").read_text())


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_there_is_a_golden_root_of_the_present_format() -> None:
    assert FORMAT in {read_spec(Root(path / NAME)).format for path in HERE.glob("format-*")}


def test_it_adds_up_to_what_it_did_when_it_was_written(golden: Path) -> None:
    before = tree(golden)
    assert as_json(summary(golden)) == view(golden)
    shutil.rmtree(golden / ".holdfast" / "snapshots")
    assert as_json(summary(golden)) == view(golden)
    assert [finding for finding in verify_journal(golden) if finding.level == "damage"] == []
    assert tree(golden).items() <= before.items(), "looking at it has changed it"


def test_its_snapshot_is_still_of_use(golden: Path) -> None:
    assert open_state(golden, read_spec(Root(golden)).retention).snapshot_seq > 0


def test_its_checkpoints_are_whole(golden: Path) -> None:
    found = 0
    for trial in view(golden)["trials"]:
        (folder,) = golden.glob(f"train_{trial['id']}_*") if trial["attempt"] else (None,)
        for index, stored, _, digest, _ in trial["checkpoints"]:
            if stored == "committed":
                verify(folder / f"checkpoint_{index:06d}", expect_digest=digest, trial_id=trial["id"])
                found += 1
    assert found > 3


def test_its_results_can_be_read(golden: Path) -> None:
    grid = tune.Tuner.restore(golden).get_results()
    trials = view(golden)["trials"]
    assert len(grid) == len(trials)
    for result, trial in zip(grid, trials, strict=True):
        assert result.config["x"] == trial["config"]["x"]
        assert isinstance(result.config["note"], golden_train.Note)
        assert (result.error is None) == (trial["status"] != "ERROR")
        if trial["rows"]:
            assert result.metrics["sum"] == trial["metrics"]["sum"]
            assert list(result.metrics_dataframe["sum"]) == trial["surviving"]


def test_it_goes_on(golden: Path) -> None:
    """Where it was left, with the same configurations; what had ended stays ended."""
    past = list(read_journal(golden))
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", RESUME, str(golden)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(read_journal(golden))[: len(past)] == past
    before, after = view(golden), as_json(summary(golden))
    assert done.stdout.splitlines()[-1] == str(sum(trial["status"] == "ERROR" for trial in after["trials"]))
    for old, new in zip(before["trials"], after["trials"], strict=True):
        assert (new["id"], new["config"], new["tag"]) == (old["id"], old["config"], old["tag"])
        if old["status"] in ("TERMINATED", "ERROR"):
            assert (new["status"], new["attempt"], new["surviving"]) == (
                old["status"],
                old["attempt"],
                old["surviving"],
            )
        failing = new["config"]["kind"] == "failing"
        assert new["status"] == ("ERROR" if failing else "TERMINATED")
        steps = 3 if failing else golden_train.STEPS
        assert new["surviving"] == pytest.approx([new["config"]["x"] * step for step in range(1, steps + 1)])


@pytest.mark.parametrize("name", sorted(MOVED))
def test_a_module_that_stored_objects_name_is_found_where_it_is_now(name: str) -> None:
    old, new = import_module(name), import_module(MOVED[name])
    public = [key for key in vars(new) if not key.startswith("_")]
    assert [vars(old)[key] for key in public] == [vars(new)[key] for key in public]


def test_a_stored_trainable_calls_report_by_its_former_place() -> None:
    """``from holdfast import report`` in a script is stored as the name of the module that it was defined in."""
    stored = pickle.dumps(tune.report, protocol=0)
    assert pickle.loads(stored.replace(b"trainable.api", b"trainable.inside")) is tune.report
