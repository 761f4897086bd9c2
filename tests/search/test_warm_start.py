"""Warm starts: what other experiments have evaluated, wherever they are and whatever became of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.errors import ExperimentNotFoundError, InvalidInputError
from holdfast.search.optuna import OptunaSearch
from holdfast.search.warm_start import EvaluatedPoint, evaluated_points
from holdfast.testing.searcher_contract import SearcherHarness


def make_train() -> Callable[[dict[str, Any]], None]:
    """A function that travels to workers by value, because tests cannot be imported there."""

    def train(config: dict[str, Any]) -> None:
        flag = os.path.join(config["dir"], str(config["x"]))
        for step in range(3):
            tune.report({"loss": config["x"] - step, "deep": {"size": step}, "note": "text"})
            if config["x"] == 20 and step == 1 and not os.path.exists(flag):
                open(flag, "w").close()
                raise ValueError("once")
            if config["x"] == 30 and step == 1:
                raise ValueError("always")
        if config["x"] == 40:
            tune.report({"loss": math.nan})

    return train


def run(storage: str | Path, directory: Path, name: str = "exp") -> tune.ResultGrid:
    space = {"x": tune.grid_search([10, 20, 30, 40]), "opt": {"lr": 0.1}, "dir": str(directory)}
    config = tune.RunConfig(
        name=name,
        storage_path=str(storage),
        verbose=0,
        engine=tune.LocalEngine(cpus=2),
        failure_config=tune.FailureConfig(max_failures=1),
    )
    return tune.Tuner(make_train(), param_space=space, run_config=config).fit()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of an experiment: a trial in order, one that was tried twice, one that failed, one that ends in NaN."""
    folder = tmp_path_factory.mktemp("finished")
    run(folder, folder)
    return folder / "exp"


def summary(points: list[EvaluatedPoint]) -> list[tuple[Any, ...]]:
    return [(point.parameters["x"], str(point.value), point.error, point.intermediate_values[:3]) for point in points]


EXPECTED = [
    (10, "8.0", False, [10.0, 9.0, 8.0]),
    (20, "18.0", False, [20.0, 19.0, 18.0]),
    (30, "29.0", True, [30.0, 29.0]),
    (40, "nan", False, [40.0, 39.0, 38.0]),
]


def test_a_path_is_enough(finished: Path) -> None:
    """Rows that a retry has superseded do not count."""
    for place in (finished, str(finished), f"file://{finished}"):
        points = list(evaluated_points(place, "loss"))
        assert summary(points) == EXPECTED
        assert points[0].parameters["opt"] == {"lr": 0.1}
        assert not any(point.pruned for point in points)


def test_metrics_may_be_nested_or_filled_in_by_us(finished: Path) -> None:
    assert [point.value for point in evaluated_points(finished, "deep/size")] == [2, 2, 1, 2]
    assert [point.value for point in evaluated_points(finished, "training_iteration")] == [3, 3, 2, 4]
    assert all(point.value >= 0 for point in evaluated_points(finished, "time_total_s"))
    assert list(evaluated_points(finished, "note")) == []
    assert list(evaluated_points(finished, "unknown")) == []


def test_several_metrics_are_taken_from_trials_that_have_all_of_them(finished: Path) -> None:
    points = list(evaluated_points(finished, ["loss", "deep/size"]))
    assert [point.value for point in points[:3]] == [[8.0, 2.0], [18.0, 2.0], [29.0, 1.0]]
    assert list(evaluated_points(finished, ["loss", "unknown"])) == []


def test_a_searcher_with_several_objectives_learns_from_a_path(finished: Path) -> None:
    search = OptunaSearch(metric=["loss", "deep/size"], mode=["min", "max"])
    search.add_evaluated_trials(finished, ["loss", "deep/size"])
    adapter = SearcherHarness(search, {"x": tune.randint(0, 100), "opt": {"lr": tune.uniform(0, 1)}}, None, None)
    assert [trial.values for trial in adapter.searcher._study.trials[:2]] == [[8.0, 2.0], [18.0, 2.0]]


def test_a_metric_that_nobody_has_reported_is_told(finished: Path) -> None:
    with pytest.warns(UserWarning, match="OptunaSearch learns nothing from .*: none of its trials .* 'unknown'"):
        OptunaSearch().add_evaluated_trials(str(finished), "unknown")


def test_reading_changes_nothing(finished: Path) -> None:
    def content() -> dict[str, tuple[int, int]]:
        paths = [path for path in finished.rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}

    before = content()
    list(evaluated_points(finished, "loss"))
    assert content() == before


def test_results_that_are_open_already_can_be_used(finished: Path) -> None:
    analysis = tune.ExperimentAnalysis(str(finished))
    grid = tune.Tuner.restore(str(finished)).get_results()
    for source in (analysis, grid, list(grid)):
        points = list(evaluated_points(source, "loss"))
        assert [(point.parameters["x"], point.error) for point in points] == [
            (10, False),
            (20, False),
            (30, True),
            (40, False),
        ]
        assert [point.value for point in points[:3]] == [8.0, 18.0, 29.0]


def test_one_result_can_be_used(finished: Path) -> None:
    grid = tune.Tuner.restore(str(finished)).get_results()
    assert [point.value for point in evaluated_points(grid[1], "loss")] == [18.0]


@pytest.mark.parametrize("source", [3, None])
def test_anything_else_is_refused(source: Any) -> None:
    with pytest.raises(InvalidInputError, match="path or URL of an experiment"):
        list(evaluated_points(source, "loss"))


def test_a_path_without_an_experiment_is_refused(finished: Path, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing", finished.parent):
        with pytest.raises(ExperimentNotFoundError, match="no experiment state file"):
            list(evaluated_points(place, "loss"))


def test_a_searcher_learns_from_a_path(finished: Path) -> None:
    search = OptunaSearch()
    search.add_evaluated_trials(finished, "loss")
    adapter = SearcherHarness(search, {"x": tune.randint(0, 100), "opt": {"lr": tune.uniform(0, 1)}})
    trials = adapter.searcher._study.trials
    assert [(trial.params["x"], trial.params["opt/lr"], trial.value) for trial in trials] == [
        (10, 0.1, 8.0),
        (20, 0.1, 18.0),
        (30, 0.1, None),
        (40, 0.1, None),
    ]
    assert list(trials[0].intermediate_values.values()) == [10.0, 9.0, 8.0]


@pytest.mark.slow
def test_an_experiment_in_a_store_can_be_used(bucket: str, tmp_path: Path) -> None:
    run(f"{bucket}/runs", tmp_path)
    assert summary(list(evaluated_points(f"{bucket}/runs/exp", "loss"))) == EXPECTED
    with pytest.raises(ExperimentNotFoundError, match="no experiment state file"):
        list(evaluated_points(f"{bucket}/runs", "loss"))
