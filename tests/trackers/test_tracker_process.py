"""A tracker that raises, hangs or crashes, beside real drivers: training goes on, and nothing is lost."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tracked
from file_tracker import FileTrackerCallback, read_files

import holdfast as tune
from holdfast.cli.export_to import log
from holdfast.integration.trackers import process
from holdfast.results.history import open_history
from holdfast.views.trials import ExperimentInfo


def train(config: dict[str, Any]) -> None:
    for step in range(1, 4):
        if step == 3:
            for name in config["remove"]:
                Path(name).unlink(missing_ok=True)
        tune.report({"loss": float(step)})


def fit(folder: Path, callback: FileTrackerCallback, remove: list[str] | None = None) -> tune.ResultGrid:
    return tune.Tuner(
        train,
        param_space={"remove": remove or [], "x": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(name="exp", storage_path=str(folder / "store"), verbose=0, callbacks=[callback]),
    ).fit()


def losses(folder: Path) -> list[list[list[tuple[int, float]]]]:
    return list(read_files(folder / "file").values())


WHOLE = [[[(1, 1.0), (2, 2.0), (3, 3.0)]]] * 2


@pytest.fixture
def obstacle(tmp_path):
    (tmp_path / "file").mkdir()

    def put(name: str) -> str:
        path = tmp_path / "file" / name
        path.touch()
        return str(path)

    return put


def test_a_tracker_that_works_has_everything_when_fit_returns(tmp_path):
    grid = fit(tmp_path, FileTrackerCallback(str(tmp_path / "file")))
    assert not grid.errors
    assert losses(tmp_path) == WHOLE


@pytest.mark.parametrize("how", ["down", "hang"])
def test_a_tracker_that_never_answers_costs_a_bounded_wait_and_an_export_repairs_it(how, tmp_path, obstacle, caplog):
    there = obstacle(how)
    callback = FileTrackerCallback(str(tmp_path / "file"), upload_timeout=10.0)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        grid = fit(tmp_path, callback)
    assert not grid.errors
    assert [len(result.metrics_dataframe) for result in grid] == [3, 3]
    said = [message for message in caplog.messages if message.startswith("file: ")]
    assert f"holdfast export {tmp_path / 'store' / 'exp'} --to file --set directory={tmp_path / 'file'}" in said[-1]
    why = "ConnectionError: the tracker is down" if how == "down" else "the tracker has not answered"
    assert said[-1].startswith(f"file: 6 rows of 2 trials not logged ({why}"), said
    assert len(said) <= 2  # one when it began, one at the end
    pid = int((tmp_path / "file" / "pid").read_text())
    tracked.until(lambda: not Path(f"/proc/{pid}").exists())

    Path(there).unlink()
    exporter, held_back = log(callback, open_history(tmp_path / "store" / "exp"))
    assert (exporter.logged, exporter.found, held_back) == (6, 0, 0)
    assert losses(tmp_path) == WHOLE
    exporter, _ = log(callback, open_history(tmp_path / "store" / "exp"))
    assert (exporter.logged, exporter.found) == (0, 6)


def test_a_tracker_that_comes_back_catches_up(tmp_path, obstacle):
    there = obstacle("down")
    fit(tmp_path, FileTrackerCallback(str(tmp_path / "file")), remove=[there])
    assert losses(tmp_path) == WHOLE


def test_a_library_that_crashes_its_process_is_started_again(tmp_path, obstacle):
    obstacle("crash")
    fit(tmp_path, FileTrackerCallback(str(tmp_path / "file")))
    assert losses(tmp_path) == WHOLE


def test_a_library_that_hangs_is_ended_and_started_again(tmp_path, obstacle, monkeypatch):
    monkeypatch.setattr(process, "STALL_S", 0.5)
    there = obstacle("hang")
    fit(tmp_path, FileTrackerCallback(str(tmp_path / "file")), remove=[there])
    assert losses(tmp_path) == WHOLE


@pytest.mark.parametrize("how", ["works", "hang"])
def test_the_process_of_a_killed_driver_ends_with_it(how, tmp_path, obstacle):
    obstacle(how)
    driver = tracked.start(tmp_path, "file")
    pid_file = tmp_path / "file" / "pid"
    try:
        tracked.until(lambda: (tmp_path / "waits").exists() and pid_file.exists() and pid_file.read_text(), driver)
        pid = int(pid_file.read_text())
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    tracked.until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_second_exporter_is_refused_in_words(tmp_path):
    from holdfast.errors import OwnershipError
    from holdfast.integration.trackers.exporter import sole_exporter

    callback = FileTrackerCallback(str(tmp_path / "file"))
    fit(tmp_path, callback)
    history = open_history(tmp_path / "store" / "exp")
    with (
        sole_exporter(history.spec.uid, callback.target(history.info)),
        pytest.raises(OwnershipError, match="Wait until it has ended"),
    ):
        log(callback, history)


def test_exporters_leave_no_lock_behind_and_never_share_one(tmp_path, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    from holdfast.errors import OwnershipError
    from holdfast.integration.trackers.exporter import sole_exporter

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    target = FileTrackerCallback("x").target(ExperimentInfo(root=tmp_path, name="exp", trainable_name="train"))
    inside = []

    def export(_):
        try:
            with sole_exporter("uid", target):
                inside.append(1)
                assert len(inside) == 1
                inside.pop()
                return True
        except OwnershipError:
            return False

    with ThreadPoolExecutor(4) as threads:
        assert any(threads.map(export, range(400)))
    assert list(tmp_path.iterdir()) == []


def test_callbacks_of_trackers_do_not_make_trials_wait_for_answers(monkeypatch):
    from holdfast.controller.callback_edge import _only_writes
    from holdfast.integration import mlflow

    monkeypatch.setattr(mlflow, "require_library", lambda *_: None)
    assert _only_writes(mlflow.MLflowLoggerCallback("sqlite:///x.db"))
    assert not _only_writes(FileTrackerCallback("x"))  # one of the user's own


def test_several_trackers_are_waited_for_together(tmp_path, obstacle):
    """Each is told that the journal is complete before one of them is waited for."""
    obstacle("hang")
    told = []

    class Watched(FileTrackerCallback):
        def complete(self) -> None:
            told.append(("complete", self.directory))
            super().complete()

        def leave(self, is_hurried: Any) -> str:
            told.append(("leave", self.directory))
            return super().leave(is_hurried)

    names = [str(tmp_path / "file"), str(tmp_path / "other")]
    run = tune.RunConfig(
        name="exp",
        storage_path=str(tmp_path / "store"),
        verbose=0,
        callbacks=[Watched(name, upload_timeout=30.0 if "other" in name else 0.5) for name in names],
    )
    tune.Tuner(train, param_space={"remove": [], "x": tune.grid_search([1, 2])}, run_config=run).fit()
    assert told == [("complete", names[0]), ("complete", names[1]), ("leave", names[0]), ("leave", names[1])]
    assert list(read_files(tmp_path / "other").values()) == WHOLE
