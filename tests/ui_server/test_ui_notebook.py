"""The page in a notebook's cell."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from roots import many_trials, small_experiment

import holdfast as tune
from holdfast.errors import NotRunError
from holdfast.ui import notebook


def page_in(cell: str) -> str:
    (escaped,) = re.findall(r'srcdoc="([^"]*)"', cell)
    return html.unescape(escaped)


def test_results_have_the_page_below_their_table(tmp_path: Path) -> None:
    writer = small_experiment(tmp_path / "exp").die()
    cell = tune.ResultGrid.from_path(writer.path)._repr_html_()
    assert cell.index("<table") < cell.index("<details>") < cell.index("<iframe")
    assert 'sandbox="allow-scripts allow-popups"' in cell
    assert "window.HOLDFAST_REPORT" in page_in(cell)
    assert "<script" not in cell


def test_results_of_a_run_have_the_page_too(tmp_path: Path) -> None:
    grid = tune.Tuner(
        lambda config: {"loss": 1.0}, run_config=tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0)
    ).fit()
    assert '"state":"finished"' in page_in(grid._repr_html_())


def test_results_that_are_gone_are_still_a_table(tmp_path: Path) -> None:
    writer = many_trials(tmp_path / "exp", 3)
    grid = tune.ResultGrid.from_path(writer.path)
    writer.path.rename(tmp_path / "elsewhere")
    cell = grid._repr_html_()
    assert "<table" in cell
    assert "<iframe" not in cell


def test_many_results_are_a_table_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MAX_CELL_TRIALS", 2)
    assert "<iframe" not in tune.ResultGrid.from_path(many_trials(tmp_path / "exp", 3).path)._repr_html_()


def test_show_is_for_notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = tune.ResultGrid.from_path(many_trials(tmp_path / "exp", 3).path)
    with pytest.raises(NotRunError, match="holdfast report"):
        grid.show()
    ipython = pytest.importorskip("IPython", reason="IPython is not installed: pip install ipython")
    shown: list[Any] = []
    monkeypatch.setattr(ipython.core.getipython, "get_ipython", lambda: object())
    monkeypatch.setattr(ipython.display, "display", shown.append)
    grid.show()
    (cell,) = shown
    assert "window.HOLDFAST_REPORT" in page_in(cell.data)
