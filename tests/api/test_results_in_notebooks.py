"""A ResultGrid at the end of a notebook's cell is a table."""

from __future__ import annotations

from typing import Any

import holdfast as tune


def measure(config: dict[str, Any]) -> dict[str, float]:
    return {"loss": config["x"]}


def test_results_are_a_table_with_the_best_first(make_tuner):
    grid = make_tuner(measure, {"x": tune.grid_search([3, 1, 2])}, metric="loss", mode="min").fit()
    html, _, page = grid._repr_html_().partition("<details>")
    assert "<iframe" in page
    assert html.count("<tr>") == 4
    rows = html.split("<tr>")[2:]
    assert [row.count("TERMINATED") for row in rows] == [1, 1, 1]
    assert html.index("<td>1</td>") < html.index("<td>2</td>") < html.index("<td>3</td>")


def test_what_users_wrote_is_only_text(make_tuner):
    grid = make_tuner(measure, {"x": 1, "<b>": tune.choice(["<script>alert(1)</script>"])}).fit()
    html = grid._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_many_trials_are_shown_in_part(make_tuner):
    grid = make_tuner(measure, {"x": 1}, num_samples=25).fit()
    assert "and 5 more trials" in grid._repr_html_()
