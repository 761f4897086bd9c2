"""Small things that scripts written for Ray Tune rely on."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.messages.warn import ExperimentWarning

Make = Callable[..., tune.Tuner]


def train(config: dict[str, Any]) -> None:
    for loss in (3, 1, 2):
        tune.report({"loss": loss})


def test_a_frame_by_metric_without_a_mode_has_the_last_rows(make_tuner: Make) -> None:
    pytest.importorskip("pandas")
    grid = make_tuner(train).fit()
    assert grid.get_dataframe(filter_metric="loss")["loss"].tolist() == [2]
    assert grid.get_dataframe(filter_metric="loss", filter_mode="min")["loss"].tolist() == [1]


def test_a_mode_alone_compares_numbers_that_trainables_return(make_tuner: Make) -> None:
    with pytest.warns(ExperimentWarning, match="takes '_metric'"):
        tuner = make_tuner(lambda config: config["x"], {"x": tune.grid_search([3, 1, 2])}, mode="min")
    grid = tuner.fit()
    assert grid.get_best_result().config == {"x": 1}
    assert tune.ExperimentAnalysis(grid.experiment_path).best_config == {"x": 1}


def test_a_mode_alone_still_needs_a_metric_where_none_was_returned(make_tuner: Make) -> None:
    with pytest.warns(ExperimentWarning):
        tuner = make_tuner(train, {"x": tune.grid_search([1, 2])}, mode="min")
    with pytest.raises(ValueError, match="No metric is provided"):
        tuner.fit().get_best_result()


def test_a_local_checkpoint_is_in_a_file_system_of_pyarrow(tmp_path: Any) -> None:
    fs = pytest.importorskip("pyarrow.fs")
    (tmp_path / "weights").write_text("1")
    checkpoint = tune.Checkpoint.from_directory(tmp_path)
    assert isinstance(checkpoint.filesystem, fs.LocalFileSystem)
    (info,) = checkpoint.filesystem.get_file_info([f"{checkpoint.path}/weights"])
    assert info.size == 1
    assert repr(checkpoint) == f"Checkpoint(filesystem=local, path={tmp_path})"


SAMPLES = """
import sys
import holdfast as tune
{seeding}
def train(config):
    return {{"x": config["x"]}}
config = tune.RunConfig(storage_path=sys.argv[1], verbose=0, engine=tune.LocalEngine(cpus=1))
space = {{"x": tune.uniform(0, 1)}}
print([tune.Tuner(train, param_space=space, run_config=config).fit()[0].config["x"] for _ in range(2)])
"""


@pytest.mark.parametrize(
    ("seeding", "repeats"),
    [
        ("import random; random.seed(3)", True),
        ("import numpy; numpy.random.seed(3)", True),
        ("import random, numpy; numpy.random.seed(3); random.random()", True),
        ("import numpy; numpy.random.rand()", False),
        ("", False),
    ],
)
def test_samples_repeat_if_a_global_generator_was_seeded(tmp_path: Path, seeding: str, repeats: bool) -> None:
    pytest.importorskip("numpy")
    runs = [
        subprocess.run(
            [sys.executable, "-c", SAMPLES.format(seeding=seeding), str(tmp_path / name)],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout.splitlines()[-1]
        for name in ("one", "two")
    ]
    assert (runs[0] == runs[1]) is repeats
    first, second = ast.literal_eval(runs[0])
    assert first != second, "the next experiment of a script draws other samples"


class LooksAtTheEnd(tune.Callback):
    def __init__(self) -> None:
        self.last: dict[str, Any] = {}

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.last = trial.last_result


def test_a_trial_that_never_reported_is_done_at_its_end(make_tuner: Make) -> None:
    looks = LooksAtTheEnd()
    with pytest.warns(ExperimentWarning):
        make_tuner(lambda config: None, callbacks=[looks]).fit()
    assert looks.last["done"] is True
    assert looks.last["hostname"] == socket.gethostname()
    assert looks.last["pid"] not in (0, os.getpid())


def fails_before_its_first_report(config: dict[str, Any]) -> None:
    raise RuntimeError(os.getpid())


def dies_before_its_first_report(config: dict[str, Any]) -> None:
    Path(config["pids"]).write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_process_of_a_trial_that_failed_before_its_first_report_is_known(make_tuner: Make, tmp_path: Path) -> None:
    (failed,) = make_tuner(fails_before_its_first_report).fit()
    assert failed.metrics["hostname"] == socket.gethostname()
    assert str(failed.metrics["pid"]) in str(failed.error)
    (died,) = make_tuner(dies_before_its_first_report, {"pids": str(tmp_path / "pid")}, name="died").fit()
    assert died.metrics["pid"] == int((tmp_path / "pid").read_text())
