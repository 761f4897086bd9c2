"""Trials that the end of an experiment left unstarted are TERMINATED, and whoever looks at them sees why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.cli.main import main


class AfterOne(tune.Stopper):
    """Ends the experiment with its first report."""

    def __init__(self) -> None:
        self.told = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.told = True
        return False

    def stop_all(self) -> bool:
        return self.told


def train(config: dict[str, Any]) -> None:
    while True:
        tune.report({"loss": config["x"]})


@pytest.fixture
def grid(make_tuner: Callable[..., tune.Tuner]) -> tune.ResultGrid:
    one = tune.LocalEngine(cpus=1)
    return make_tuner(train, {"x": tune.grid_search([1, 2, 3])}, stop=AfterOne(), engine=one).fit()


def test_results_say_how_many_never_started(grid: tune.ResultGrid, root: Path) -> None:
    assert [result.status for result in grid] == ["TERMINATED"] * 3
    for shown in (grid, tune.ResultGrid.from_path(root)):
        assert "1 TERMINATED, 2 not started;" in repr(shown)
    assert [", TERMINATED, not started, " in repr(result) for result in grid] == [False, True, True]
    assert "1 done, 2 not started" in grid._repr_html_()
    assert grid._repr_html_().count("not started: stop criterion") == 2


@pytest.mark.usefixtures("grid")
def test_the_command_line_says_so_too(root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["show", str(root)]) == 0
    assert ["not started" in line for line in capsys.readouterr().out.splitlines()[2:]] == [False, True, True]
    assert main(["show", str(root), "1"]) == 0
    assert "TERMINATED (not started: stop criterion for the whole experiment)" in capsys.readouterr().out
    assert main(["list-trials", str(root)]) == 0
    assert capsys.readouterr().out.count("not started: stop criterion") == 2


def test_the_best_of_trials_that_all_failed_is_an_error_that_says_so(make_tuner: Callable[..., tune.Tuner]) -> None:
    def fail(config: dict[str, Any]) -> None:
        raise RuntimeError("no")

    grid = make_tuner(fail, {}, num_samples=2, metric="loss", mode="min").fit()
    with pytest.raises(RuntimeError, match=r"all 2 trials failed before they reported anything.*ResultGrid\.errors"):
        grid.get_best_result()
