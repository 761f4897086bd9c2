"""Every plot draws, from a path, a grid or a follower, and says what is missing."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, small_experiment

import holdfast as tune
from holdfast.core import events as ev
from holdfast.errors import InvalidInputError
from holdfast.results.follow import Follower

matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install 'holdfast[plots]'")


@pytest.fixture(autouse=True)
def headless() -> Iterator[None]:
    matplotlib.use("Agg")
    yield
    matplotlib.pyplot.close("all")


@pytest.fixture
def root(tmp_path: Path) -> RootWriter:
    """An experiment with all kinds of trials, a copy, a kill and a storage outage."""
    root = small_experiment(tmp_path / "exp")
    root.retry(3, ev.Cause.SIGNAL, message="killed")
    root.start(3)
    root.report(3, {"loss": 1.5, "nested": {"deep": 3}})
    root.add(ev.TrialReconfigured(root.tick(), 3, {"lr": 0.25}, "", (0, 2), 0))
    root.add(ev.StorageLagged(root.tick(10), root.at - 6, "unreachable"))
    root.add(ev.StorageCaughtUp(root.tick(), root.at - 7))
    root.die()
    root.at += 50
    root.open()
    root.cut(3, ev.Cause.DRIVER_LOST)
    root.add(ev.TrialStarted(root.tick(), 3, 3, 2, (0, 2)))
    root.report(3, {"loss": 0.5, "nested": {"deep": 1}})
    root.end(3, "stopped by the scheduler")
    return root.finish()


def draw(ax: Any) -> Any:
    """Draw for real."""
    ax.figure.savefig(io.BytesIO(), format="png")
    return ax


PLOTS: list[tuple[str, tuple[Any, ...]]] = [
    ("plot_history", ()),
    ("plot_curves", ()),
    ("plot_importance", ()),
    ("plot_edf", ()),
    ("plot_slice", ("lr",)),
    ("plot_contour", ("lr", "lr")),
    ("plot_pareto", (["loss", "nested/deep"],)),
    ("plot_parallel", ()),
    ("plot_workers", ()),
    ("plot_lineage", ()),
    ("plot_recovery", ()),
]


@pytest.mark.parametrize(("name", "arguments"), PLOTS)
def test_every_plot_draws_from_a_path_a_grid_and_a_follower(root: RootWriter, name: str, arguments: Any) -> None:
    from holdfast import plots

    for experiment in (root.path, Follower.open(root.path)):
        assert draw(getattr(plots, name)(experiment, *arguments)).has_data()
    figure = matplotlib.pyplot.figure()
    ax = figure.add_subplot()
    assert draw(getattr(tune.ResultGrid.from_path(root.path), name)(*arguments, ax=ax)) is ax
    assert ax.has_data()


def test_what_is_drawn_is_what_was_reported(root: RootWriter) -> None:
    grid = tune.ResultGrid.from_path(root.path)
    ax = grid.plot_history()
    assert list(ax.lines[0].get_ydata())[-1] == 0.5
    assert ax.get_ylabel() == "loss"
    curves = grid.plot_curves()
    crosses = [line for line in curves.lines if line.get_marker() == "x"]
    assert [list(line.get_ydata()) for line in crosses] == [[0.5]]  # only that one was stopped early
    assert [list(line.get_ydata()) for line in curves.lines if len(line.get_ydata()) == 3][-1] == [2.5, 1.5, 0.5]
    assert [text.get_text() for text in curves.get_legend().get_texts()] == ["stopped early"]
    (arrow,) = [text for text in grid.plot_lineage().texts if text.arrow_patch is not None]
    assert [round(float(y), 3) for _, y in (arrow.xyann, arrow.xy)] == [0.1, 0.25], "from the donor's value to the new"
    assert "s of waiting" in grid.plot_recovery().get_title()


def test_none_has_its_place_on_an_axis(tmp_path: Path) -> None:
    root = RootWriter(tmp_path / "exp").open()
    for n, act in enumerate(["relu", None, "gelu"]):
        root.create({"act": act})
        root.start(n)
        root.report(n, {"loss": float(n)})
        root.end(n)
    follower = Follower.open(root.finish().path)
    ticks = draw(tune.plots.plot_slice(follower, "act")).get_xticklabels()
    assert [text.get_text() for text in ticks] == ["relu", "None", "gelu"]
    parallel = draw(tune.plots.plot_parallel(follower))
    assert len(parallel.lines) == 3
    assert {"relu", "None", "gelu", "0", "2"} <= {text.get_text() for text in parallel.texts}
    assert [ax.get_ylabel() for ax in parallel.figure.axes] == ["", "loss"], "a colour bar"


def test_a_trial_that_reached_max_t_is_no_early_stop(tmp_path: Path) -> None:
    root = RootWriter(tmp_path / "exp").open()
    reasons = ["returned", "ASHA: reached max_t=3", "stop criterion: loss", "ASHA: rank 3 of 4"]
    for n, reason in enumerate(reasons):
        root.create({"lr": 0.1})
        root.start(n)
        root.report(n, {"loss": float(n)})
        root.end(n, reason)
    root.finish()
    follower = Follower.open(root.path)
    assert list(follower.columns.column("early_stopped").data) == [0, 0, 0, 1]
    curves = draw(tune.plots.plot_curves(follower))
    assert [list(line.get_ydata()) for line in curves.lines if line.get_marker() == "x"] == [[3.0]]


def test_results_of_a_run_can_be_drawn_at_once(tmp_path: Path) -> None:
    grid = tune.Tuner(
        lambda config: {"loss": config["x"]},
        param_space={"x": tune.loguniform(0.1, 1), "kind": tune.choice(["a", "b"])},
        tune_config=tune.TuneConfig(num_samples=6, metric="loss", mode="min"),
        run_config=tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert draw(grid.plot_slice("x")).get_xscale() == "log"
    assert draw(grid.plot_slice("kind")).has_data()
    assert len(draw(grid.plot_parallel()).lines) == 6
    assert draw(grid.plot_contour("x", "kind")).has_data()
    with pytest.raises(InvalidInputError, match="No trial of this experiment was given another config"):
        grid.plot_lineage()
    with pytest.raises(InvalidInputError, match="No trial has reported 'accuracy'"):
        grid.plot_history("accuracy")


def test_without_matplotlib_the_error_says_what_to_install(root: RootWriter) -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None; sys.modules['matplotlib.pyplot'] = None\n"
        "import holdfast as tune\n"
        "try:\n    tune.plots.plot_history(sys.argv[1])\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(root.path)], capture_output=True, text=True, check=True)
    assert "pip install 'holdfast[plots]'" in done.stdout
