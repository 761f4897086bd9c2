"""The journal is cut, and what says how far it reached is gone, too: result files still tell that records are lost."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_lost_journal import readers, release_all, segment

import holdfast as tune
from holdfast.cli.main import main as holdfast
from holdfast.errors import JournalDamagedError
from holdfast.storage.layout import SYNC_SEAL

STEPS = 6


def only_report(config: dict[str, Any]) -> None:
    """No checkpoints: nothing but the journal and the result files knows of a report."""
    for step in range(1, STEPS + 1):
        # Minutes apart, as they were in a longer run. Rows of the last second before a power cut prove nothing.
        tune.report({"step": step, "score": config["x"] * step, "timestamp": int(time.time()) + 60 * step})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished") / "exp"
    tuner = tune.Tuner(
        only_report,
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(name=root.name, storage_path=str(root.parent), verbose=0),
    )
    assert tuner.fit().num_errors == 0
    return root


def marks(root: Path) -> list[Path]:
    return sorted((root / ".holdfast" / "epochs").glob("*.synced"))


def remove_marks(root: Path) -> None:
    for mark in marks(root):
        mark.unlink()


def flip_marks(root: Path) -> None:
    for mark in marks(root):
        data = bytearray(mark.read_bytes())
        data[len(data) // 2] ^= 0x10
        mark.write_bytes(data)


def blank_marks(root: Path) -> None:
    """As a power cut leaves a new file."""
    for mark in marks(root):
        mark.write_bytes(b"")


def remove_epochs(root: Path) -> None:
    """An hour ago: a driver of which nothing is known might still run."""
    shutil.rmtree(root / ".holdfast" / "epochs")
    os.utime(segment(root), (time.time() - 3600,) * 2)


LOSSES: dict[str, Callable[[Path], None]] = {
    "mark removed": remove_marks,
    "mark flipped": flip_marks,
    "mark blank": blank_marks,
    "epochs removed": remove_epochs,
}


def cut(root: Path) -> None:
    os.truncate(segment(root), segment(root).stat().st_size * 55 // 100)


def rows_of(root: Path) -> dict[str, int]:
    return {path.parent.name: path.read_bytes().count(b"\n") for path in root.glob("*/result.json")}


@pytest.fixture(params=[*LOSSES, "history removed"])
def damaged(request: pytest.FixtureRequest, finished: Path, tmp_path: Path) -> Path:
    root = tmp_path / "exp"
    shutil.copytree(finished, root)
    release_all(root)
    shutil.rmtree(root / ".holdfast" / "snapshots", ignore_errors=True)
    if request.param == "history removed":
        for name in ("journal", "epochs"):
            shutil.rmtree(root / ".holdfast" / name)
    else:
        cut(root)
        LOSSES[request.param](root)
    return root


def test_reports_that_only_result_files_know_are_missed_by_every_reader(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = rows_of(damaged)
    assert sum(before.values()) == 3 * STEPS
    for name, read in readers(damaged).items():
        with pytest.raises(JournalDamagedError, match="holdfast repair"):
            print(name, read())
    commands = {"status": [], "verify": [], "show": [], "export": [str(tmp_path / "out.csv")], "copy": ["copy"]}
    for command, more in commands.items():
        capsys.readouterr()
        assert holdfast([command, str(damaged), *more]) == 1, command
        told = capsys.readouterr()
        assert "repair" in told.out + told.err, command
    with pytest.raises(JournalDamagedError):  # what a restore that was refused has left behind vouches for nothing
        tune.Tuner.restore(str(damaged)).fit()
    assert rows_of(damaged) == before, "a file was shortened that knows more than the journal"


def test_a_repair_takes_the_reports_from_the_result_files(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert holdfast(["repair", str(damaged), "--yes"]) == 0
    assert "Rebuilt from files" in capsys.readouterr().out
    assert holdfast(["verify", str(damaged)]) == 0, capsys.readouterr().out
    grid = tune.ResultGrid.from_path(str(damaged))
    assert [list(result.metrics_dataframe["step"]) for result in grid] == [list(range(1, STEPS + 1))] * 3  # type: ignore[index]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_mark_alone_is_no_loss_of_records(finished: Path, tmp_path: Path, loss: str) -> None:
    root = tmp_path / "exp"
    shutil.copytree(finished, root)
    release_all(root)
    LOSSES[loss](root)
    assert [result.metrics["step"] for result in tune.ResultGrid.from_path(str(root))] == [STEPS] * 3
    assert len(tune.Tuner.restore(str(root), run_config=tune.RunConfig(verbose=0)).fit()) == 3


def test_rows_of_the_moment_of_a_power_cut_prove_nothing(finished: Path, tmp_path: Path) -> None:
    """A row may reach the disk before its record does: then the report is lost with the power, as documented."""
    root = tmp_path / "exp"
    shutil.copytree(finished, root)
    release_all(root)
    shutil.rmtree(root / ".holdfast" / "snapshots", ignore_errors=True)
    cut(root)
    blank_marks(root)
    for file in root.glob("*/result.json"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps({**row, "timestamp": int(time.time()) - 60}) + "\n" for row in rows))
    assert len(tune.ResultGrid.from_path(str(root))) > 0


def test_a_syncers_copy_may_have_rows_that_its_journal_does_not_have_yet(finished: Path, tmp_path: Path) -> None:
    """A round brings the journal as it was at one moment, and everything else as it is later."""
    root = tmp_path / "exp"
    shutil.copytree(finished, root)
    release_all(root)
    shutil.rmtree(root / ".holdfast" / "snapshots", ignore_errors=True)
    cut(root)
    remove_marks(root)
    (root / ".holdfast" / SYNC_SEAL).touch()
    assert len(tune.ResultGrid.from_path(str(root))) > 0
