"""Values that are not plain data are shown by name, also by readers that load none of them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest

import holdfast as tune
from holdfast.cli.main import main
from holdfast.display.tracker import make_row
from holdfast.results.history import open_history
from holdfast.results.html import display_facts

Make = Callable[..., tune.Tuner]


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Data:
    pass


def train(config: dict[str, Any]) -> None:
    tune.report({"loss": config["color"].value})


SPACE = {"color": tune.grid_search([Color.RED, Color.BLUE]), "pair": (Color.RED, 1), "data": Data()}


@pytest.fixture
def path(make_tuner: Make) -> str:
    return make_tuner(train, SPACE, metric="loss", mode="min").fit().experiment_path


def test_the_live_table_shows_names(path: str) -> None:
    history = open_history(path)
    rows = [make_row(history.state, trial, display_facts(history), 0.0) for trial in history.state.trials]
    assert [row.config["color"] for row in rows] == ["Color.RED", "Color.BLUE"]


@pytest.mark.parametrize(
    "command", [["show"], ["show", "--best", "2"], ["list-trials"], ["status"]], ids=lambda command: command[0]
)
def test_the_command_line_shows_names(path: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command[0], path, *command[1:]]) == 0
    out = capsys.readouterr().out
    assert "Color.RED" in out
    assert "<Color>" not in out
    assert "__object__" not in out


def test_a_trial_and_its_story_show_names(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", path, "1"]) == 0
    out = capsys.readouterr().out
    assert "color = Color.BLUE" in out
    assert "pair = (Color.RED, 1)" in out
    assert "data = <Data>" in out
    assert main(["show", path, "1", "--story"]) == 0
    assert "color=Color.BLUE" in capsys.readouterr().out
