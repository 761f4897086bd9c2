"""Hints that trials give reach the driver: once per experiment, with the user's own line."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.air import session


def by_session(config: dict[str, Any]) -> None:
    session.report({"loss": 1})


def by_keywords(config: dict[str, Any]) -> None:
    for _ in range(3):
        tune.report(loss=1)


def by_number(config: dict[str, Any]) -> None:
    tune.report(0.5)


def by_reporter(config: dict[str, Any], reporter: Any) -> None:
    reporter(loss=1)


def by_directory(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
    tune.report({"loss": 1})


class Odd:
    """No plain data."""


def by_objects(config: dict[str, Any]) -> None:
    for step in range(3):
        tune.report({"odd": Odd(), "large": 2**80, "step": step})


class ByObjects(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"odd": Odd(), "large": 2**80, "done": True}


@pytest.mark.parametrize("trainable", [by_objects, ByObjects])
def test_a_metric_that_is_not_kept_as_it_is_is_named_once(
    trainable: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_config = tune.RunConfig(storage_path=tmp_path, verbose=0, engine=tune.LocalEngine(cpus=2))
    with caplog.at_level(logging.WARNING):
        grid = tune.Tuner(trainable, tune_config=tune.TuneConfig(num_samples=2), run_config=run_config).fit()
    metrics = grid[0].metrics
    assert ("Odd object" in metrics["odd"], metrics["large"]) == (True, float(2**80))
    shown = [record.getMessage() for record in caplog.records if "The metric" in record.getMessage()]
    code = trainable.step if isinstance(trainable, type) else trainable
    first = inspect.getsourcelines(code)[1]
    line = first if isinstance(trainable, type) else first + 2
    assert [text.partition(" Report")[0] for text in shown] == [
        f"{__file__}:{line}: The metric 'odd' is a Odd, which is stored as text (its repr).",
        f"{__file__}:{line}: The metric 'large' is an int of more than 64 bits, which is stored as a float.",
    ]


def hints(trainable: Any, storage: Path, caplog: pytest.LogCaptureFixture, **space: Any) -> list[str]:
    run_config = tune.RunConfig(storage_path=storage, verbose=0, engine=tune.LocalEngine(cpus=2))
    tune_config = tune.TuneConfig(num_samples=4)
    with caplog.at_level(logging.WARNING):
        grid = tune.Tuner(trainable, param_space=space, tune_config=tune_config, run_config=run_config).fit()
    assert grid.num_terminated == 4
    return [record.getMessage() for record in caplog.records if "still works" in record.getMessage()]


@pytest.mark.parametrize(
    ("trainable", "line", "today"),
    [
        (by_session, 1, "session.report() still works, but is now written tune.report(...)"),
        (by_keywords, 2, 'tune.report(loss=...) still works, but is now written tune.report({"loss": ...})'),
        (by_number, 1, 'tune.report(number) still works, but is now written tune.report({"loss": ...})'),
        (by_reporter, 0, "tune.report({...}) inside it instead of reporter(...)"),
        (by_directory, 0, "tune.get_checkpoint() inside it instead of checkpoint_dir"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_hint_is_shown_once_with_the_users_line(
    trainable: Any, line: int, today: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shown = hints(trainable, tmp_path, caplog)
    first = inspect.getsourcelines(trainable)[1]
    assert len(shown) == 1
    assert shown[0].startswith(f"{__file__}:{first + line}: ")
    assert today in shown[0]


def test_parameters_and_partials_do_not_hide_the_users_function(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(config: dict[str, Any], reporter: Any, data: Any = None) -> None:
        reporter(loss=len(data))

    shown = hints(tune.with_parameters(train, data=[1]), tmp_path, caplog)
    assert len(shown) == 1
    assert shown[0].startswith(f"{__file__}:{inspect.getsourcelines(train)[1]}: train(config, reporter)")


def test_modern_spellings_give_no_hint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert hints(lambda config: tune.report({"loss": 1}), tmp_path, caplog) == []


def test_a_trial_that_ends_without_a_report_gives_its_hint_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(config: dict[str, Any], reporter: Any) -> None:
        return None

    assert len(hints(train, tmp_path, caplog)) == 1
