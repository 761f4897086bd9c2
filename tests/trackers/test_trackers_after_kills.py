"""Each tracker with its real library: a driver that is killed with kill -9 and restored, a trial that rewinds.

After all of it every trial has one run, and in it every surviving step once, with the value that survived.
"""

from __future__ import annotations

import os
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
import readers
import tracked
from file_tracker import read_files

from holdfast.cli.main import main as holdfast

# What the libraries deprecate in one another is nothing that could be changed here.
pytestmark = pytest.mark.filterwarnings("ignore")

TRACKERS = {
    "file": ("json", lambda folder: read_files(folder / "file")),
    "wandb": ("wandb", readers.read_wandb),
    "mlflow": ("mlflow", readers.read_mlflow),
    "comet": ("comet_ml", readers.read_comet),
    "aim": ("aim", readers.read_aim),
}
OPTIONS = {
    "wandb": lambda folder: [str(folder), "--set", "project=p", "--set", "mode=offline"],
    "mlflow": lambda folder: [f"sqlite:///{folder}/mlflow.db"],
    "comet": lambda folder: [str(folder / "comet")],
    "aim": lambda folder: [str(folder / "aim")],
}


@pytest.fixture
def folder(tracker: str, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Where one tracker keeps its runs."""
    if find_spec(TRACKERS[tracker][0]) is None:
        pytest.skip(f"{tracker} is not installed: make test-trackers")
    if tracker == "mlflow":
        shutil.copy(request.getfixturevalue("mlflow_database"), tmp_path / "mlflow.db")
    return tmp_path


def kill_and_restore(folder: Path, tracker: str) -> None:
    driver = tracked.start(folder, tracker)
    try:
        tracked.until(lambda: (folder / "waits").exists() and (folder / "bare").exists(), driver)
        tracked.until(lambda: (folder / "failed").exists(), driver)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    again = tracked.start(folder, tracker)
    code = again.wait(tracked.DEADLINE_S)
    assert code == 0, (folder / "output").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("tracker", TRACKERS)
def test_each_surviving_step_is_logged_once(tracker, folder, capsys):
    kill_and_restore(folder, tracker)
    expected = tracked.surviving(folder)
    assert all([step for step, _ in rows] == list(range(1, tracked.STEPS + 1)) for rows in expected.values())

    read = TRACKERS[tracker][1]
    assert read(folder) == {trial: [rows] for trial, rows in expected.items()}, (folder / "output").read_text()

    if tracker in OPTIONS:
        words = ["export", str(folder / "store" / tracked.NAME), "--to", tracker, *OPTIONS[tracker](folder)]
        for _ in range(2):
            assert holdfast(words) == 0
            assert "0 rows logged, 32 were there already" in capsys.readouterr().out
        assert read(folder) == {trial: [rows] for trial, rows in expected.items()}


@pytest.mark.slow
@pytest.mark.parametrize("tracker", OPTIONS)
def test_a_dead_experiment_is_exported_and_what_a_resume_repeats_is_held_back(tracker, folder, capsys):
    """The driver had no callback at all, was killed, and nobody has restored it; later somebody does."""
    driver = tracked.start(folder, "file")
    try:
        tracked.until(lambda: (folder / "waits").exists() and (folder / "bare").exists(), driver)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    words = ["export", str(folder / "store" / tracked.NAME), "--to", tracker, *OPTIONS[tracker](folder)]
    assert holdfast(words) == 0
    said = capsys.readouterr().out
    assert "left out: resuming the experiment computes them again" in said
    waits = next(trial for trial in tracked.surviving(folder) if trial.endswith("_00002"))
    assert [step for step, _ in TRACKERS[tracker][1](folder)[waits][0]] == [1, 2, 3]  # it has saved at step 3

    assert tracked.start(folder, "file").wait(tracked.DEADLINE_S) == 0
    assert holdfast(words) == 0
    expected = tracked.surviving(folder)
    assert TRACKERS[tracker][1](folder) == {trial: [rows] for trial, rows in expected.items()}
    assert holdfast(words) == 0
    assert "0 rows logged, 32 were there already" in capsys.readouterr().out.splitlines()[-1]
