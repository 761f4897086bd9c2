"""A real experiment loses records or its whole journal: readers say so, no restore begins anew, a repair rebuilds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from experiments import Plan
from lab import Lab, driver_crash, surviving_rows
from test_crash_points import REPAIR_POINTS

import holdfast as tune
from holdfast.cli.main import main as holdfast
from holdfast.core import events as ev
from holdfast.core.state import Status
from holdfast.errors import JournalDamagedError
from holdfast.results import ExperimentAnalysis

PLAN = Plan(trials=3, steps=10, every=2, keep=None, pause_s=0.0)


def run_here(root: Path, *, train: Callable[[dict[str, Any]], None] | None = None) -> tune.ResultGrid:
    """Three trials of four reports each, a checkpoint with each."""
    tuner = tune.Tuner(
        train or count_to_four,
        param_space={"x": tune.grid_search([1, 2, 3])},
        run_config=tune.RunConfig(name=root.name, storage_path=str(root.parent), verbose=0),
    )
    return tuner.fit()


def count_to_four(config: dict[str, Any]) -> None:
    before = tune.get_checkpoint()
    start = before.to_dict()["step"] if before is not None else 0
    for step in range(start + 1, 5):
        checkpoint = tune.Checkpoint.from_dict({"step": step})
        tune.report({"step": step, "from": start, "score": config["x"] * step}, checkpoint=checkpoint)


def segment(root: Path) -> Path:
    return max((root / ".holdfast" / "journal").iterdir())


def forget_marks(root: Path) -> None:
    """As if neither the driver's word on its syncs nor a snapshot had reached the disk."""
    for file in (root / ".holdfast" / "epochs").iterdir():
        if file.suffix in (".synced", ".released"):
            file.unlink()
    shutil.rmtree(root / ".holdfast" / "snapshots", ignore_errors=True)


def release_all(root: Path) -> None:
    """As older drivers did: this process, which made the experiment, is alive."""
    for file in (root / ".holdfast" / "epochs").iterdir():
        if file.name.isdigit():
            file.with_name(f"{file.name}.released").touch()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished") / "exp"
    assert run_here(root).num_errors == 0
    return root


@pytest.fixture(params=["cut", "cut, no snapshots", "gone", "gone, no marks"])
def damaged(request: pytest.FixtureRequest, finished: Path, tmp_path: Path) -> Path:
    """The finished experiment with some or all of its records gone."""
    root = tmp_path / "exp"
    shutil.copytree(finished, root)
    if request.param == "gone, no marks":
        forget_marks(root)
        release_all(root)
    elif request.param == "cut, no snapshots":
        shutil.rmtree(root / ".holdfast" / "snapshots")
    if request.param.startswith("gone"):
        segment(root).unlink()
    else:
        os.truncate(segment(root), segment(root).stat().st_size * 55 // 100)
    return root


def readers(root: Path) -> dict[str, Callable[[], object]]:
    return {
        "ResultGrid": lambda: tune.ResultGrid.from_path(str(root)),
        "ExperimentAnalysis": lambda: ExperimentAnalysis(str(root)).trials,
        "get_results": lambda: tune.Tuner.restore(str(root)).get_results(),
        "fit": lambda: tune.Tuner.restore(str(root)).fit(),
    }


def test_no_reader_takes_what_is_left_for_all(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in (damaged / ".holdfast" / "journal").iterdir())
    for name, read in readers(damaged).items():
        with pytest.raises(JournalDamagedError, match="holdfast repair"):
            print(name, read())
    commands = {
        "status": [],
        "verify": [],
        "show": [],
        "export": [str(tmp_path / "out.csv")],
        "copy": [str(tmp_path / "copy")],
        "gc": [],
    }
    for command, more in commands.items():
        capsys.readouterr()
        assert holdfast([command, str(damaged), *more]) == 1, command
        told = capsys.readouterr()
        assert "Traceback" not in told.err, command
        assert "repair" in told.out + told.err, command
    # What a restore that refused has left behind vouches for nothing.
    assert holdfast(["status", str(damaged)]) == 1
    assert sorted(path.name for path in (damaged / ".holdfast" / "journal").iterdir())[: len(before)] == before


def test_status_and_list_show_what_is_left_and_the_other_experiments(
    damaged: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, damaged.parent / "other")
    assert holdfast(["status", str(damaged), "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["journal_damage"]["message"]
    assert holdfast(["list", str(damaged.parent), "--json"]) == 1
    found = {facts["name"]: facts for facts in json.loads(capsys.readouterr().out)}
    assert found["other"]["state"] == "finished"
    assert found["other"]["journal_damage"] is None
    exp = found["exp"]
    assert exp["state"] == "unreadable" or exp["journal_damage"]


def test_a_repair_rebuilds_every_row_and_no_trial_begins_anew(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert holdfast(["repair", str(damaged), "--yes"]) == 0
    told = capsys.readouterr().out
    assert "Rebuilt from files" in told
    assert list((damaged / ".holdfast").glob("damaged-1/*"))
    assert holdfast(["verify", str(damaged)]) == 0, capsys.readouterr().out
    assert holdfast(["repair", str(damaged), "--yes"]) == 0
    assert "nothing to repair" in capsys.readouterr().out
    for grid in (tune.ResultGrid.from_path(str(damaged)), tune.Tuner.restore(str(damaged), count_to_four).fit()):
        assert len(grid) == 3
        assert grid.num_errors == 0
        for result in grid:
            rows = result.metrics_dataframe
            assert rows is not None
            assert list(rows["step"]) == [1, 2, 3, 4]
            assert list(rows["training_iteration"]) == [1, 2, 3, 4]
            assert set(rows["from"]) == {0}, "a trial that had ended was trained again"
            assert list(rows["score"]) == [result.config["x"] * step for step in (1, 2, 3, 4)]
    assert sorted(result.config["x"] for result in grid) == [1, 2, 3]
    assert holdfast(["verify", str(damaged)]) == 0


def test_a_repair_of_a_whole_experiment_changes_nothing(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    assert holdfast(["repair", str(finished), "--yes"]) == 0
    assert "nothing to repair" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("point", REPAIR_POINTS)
def test_a_repair_that_is_killed_is_not_taken_for_a_whole_one(finished: Path, tmp_path: Path, point: str) -> None:
    root = tmp_path / "exp"
    shutil.copytree(finished, root)
    shutil.rmtree(root / ".holdfast" / "snapshots")
    os.truncate(segment(root), segment(root).stat().st_size // 3)
    command = [sys.executable, "-m", "holdfast", "repair", str(root), "--yes"]
    ended = subprocess.run(command, env={**os.environ, "HOLDFAST_CRASH": point}, capture_output=True, check=False)
    assert ended.returncode == -9, ended.stderr
    if point != "repair.complete":
        with pytest.raises(JournalDamagedError):
            tune.ResultGrid.from_path(str(root))
        assert holdfast(["verify", str(root)]) == 1
        assert holdfast(["repair", str(root), "--yes"]) == 0
    assert holdfast(["verify", str(root)]) == 0
    grid = tune.ResultGrid.from_path(str(root))
    assert [len(result.metrics_dataframe) for result in grid] == [4, 4, 4]  # type: ignore[arg-type]


@pytest.mark.parametrize("marks", [True, False], ids=["marks", "no marks"])
def test_trials_of_a_killed_driver_whose_journal_is_gone_go_on_from_their_checkpoints(
    tmp_path: Path, marks: bool
) -> None:
    lab = Lab(tmp_path)
    try:
        lab.run(PLAN, **driver_crash("L5.after:10"))
        lab.check_no_process_left()
        before = lab.state()
        saved = {trial.id: len(trial.checkpoints) for trial in before.trials}
        segment(lab.root).unlink()
        if not marks:
            forget_marks(lab.root)
        refused = lab.run(PLAN)
        assert refused.process.returncode == 1
        assert "JournalDamagedError" in refused.output
        assert holdfast(["repair", str(lab.root), "--yes"]) == 0
        assert holdfast(["verify", str(lab.root)]) == 0
        lab.run(PLAN).must_finish()
        state = lab.state()
        assert state.counts[Status.TERMINATED] == PLAN.trials
        starts = [event for event in lab.history() if isinstance(event, ev.TrialStarted)]
        for trial in state.trials:
            if saved.get(trial.id, 0) >= 2:
                last = [event for event in starts if event.n == trial.n][-1]
                assert last.source is not None, "it began at step 0 beside committed checkpoints"
            steps = [row["step"] for row in surviving_rows(lab.history())[trial.n]]
            assert steps == sorted(set(steps)), "a row is there twice"
            assert steps[-1] == PLAN.steps
    finally:
        lab.close()


# --- an older segment is damaged, and a snapshot knows what was in it


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both of two drivers have left before the end: one trial has still to go on from its checkpoint."""
    root = tmp_path_factory.mktemp("resumed") / "exp"
    run_two_drivers(root)
    return root


@pytest.fixture(params=["gone", "cut", "cut in its header"])
def older_damaged(request: pytest.FixtureRequest, resumed: Path, tmp_path: Path) -> Path:
    root = tmp_path / "exp"
    shutil.copytree(resumed, root)
    oldest, *newer = sorted((root / ".holdfast" / "journal").iterdir())
    snapshot = max((root / ".holdfast" / "snapshots").glob("*.hfs"))
    assert newer[-1].name.encode() in snapshot.read_bytes(), "the snapshot must be of a newer segment"
    if request.param == "gone":
        oldest.unlink()
    else:
        os.truncate(oldest, 20 if "header" in request.param else oldest.stat().st_size // 2)
    return root


def test_an_older_segment_is_missed_by_every_reader_though_a_snapshot_knows_what_was_in_it(
    older_damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test_no_reader_takes_what_is_left_for_all(older_damaged, tmp_path, capsys)
    with pytest.raises(JournalDamagedError, match="a snapshot of record") as caught:
        tune.ResultGrid.from_path(str(older_damaged))
    oldest = ".holdfast/journal/00000001-000000000001.hfj"
    assert caught.value.file == oldest
    assert (caught.value.missing or 0) > 0
    capsys.readouterr()
    assert holdfast(["status", str(older_damaged), "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["journal_damage"]["file"] == oldest
    assert holdfast(["resume", str(older_damaged)]) == 1


def test_a_repair_rebuilds_what_an_older_segment_told(older_damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert holdfast(["repair", str(older_damaged), "--yes"]) == 0
    told = capsys.readouterr().out
    assert "Rebuilt from files" in told
    assert holdfast(["verify", str(older_damaged)]) == 0, capsys.readouterr().out
    grid = tune.ResultGrid.from_path(str(older_damaged))
    assert [len(result.metrics_dataframe) for result in grid][:2] == [4, 4]  # type: ignore[arg-type]
    grid = tune.Tuner.restore(str(older_damaged), count_to_four).fit()
    assert grid.num_terminated == 3
    for result in grid:
        rows = result.metrics_dataframe
        assert rows is not None
        assert list(rows["step"]) == [1, 2, 3, 4]
    assert holdfast(["verify", str(older_damaged)]) == 0


# --- the last driver is gone without a trace


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment whose ``.holdfast`` is as it was before its last driver; everything else is as that driver left it.

    The first driver ran one trial in full and left the others; the second has finished them.
    """
    root = tmp_path_factory.mktemp("rolled-back") / "exp"
    before = root.parent / "before"
    run_two_drivers(root, between=lambda: shutil.copytree(root / ".holdfast", before))
    shutil.rmtree(root / ".holdfast")
    shutil.move(before, root / ".holdfast")
    return root


def run_two_drivers(root: Path, *, between: Callable[[], object] = lambda: None) -> None:
    tune.Tuner(
        count_to_four,
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(name=root.name, storage_path=str(root.parent), verbose=0, callbacks=[LeaveEarly()]),
    ).fit()
    between()
    assert tune.Tuner.restore(str(root)).fit().num_errors == 0


class LeaveEarly(tune.Callback):
    """Ends the first driver, as Ctrl+C does, after the first report of its second trial."""

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        if len(trials) > 1 and result["training_iteration"] == 1 and result["step"] == 1:
            os.kill(os.getpid(), signal.SIGINT)


def test_every_reader_notices_that_the_last_driver_is_gone_with_all_its_records(
    rolled_back: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, read in readers(rolled_back).items():
        if name != "fit":
            with pytest.raises(JournalDamagedError, match="holdfast repair"):
                print(name, read())
    commands = {"status": [], "show": [], "export": [str(tmp_path / "out.csv")], "logs": [], "verify": []}
    for command, more in commands.items():
        capsys.readouterr()
        assert holdfast([command, str(rolled_back), *more]) == 1, command
        told = capsys.readouterr()
        assert "repair" in told.out + told.err, command
    assert holdfast(["list", str(rolled_back.parent), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["journal_damage"]
    assert not (tmp_path / "out.csv").exists()
