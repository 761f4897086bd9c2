"""The filter language, by the examples that the page runs as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.ui.filters import BadFilter, Filter, compare

CASES = json.loads((Path(__file__).parents[1] / "ui" / "filter_cases.json").read_text())
NAMES = {name for row in CASES["rows"] for name in row}


def resolve(name: str) -> str | None:
    return next((each for each in (name, f"metric/{name}", f"config/{name}") if each in NAMES), None)


@pytest.mark.parametrize("case", CASES["matches"], ids=lambda case: case["filter"])
def test_a_filter_finds_what_the_page_finds(case: dict[str, Any]) -> None:
    wanted = Filter(case["filter"], resolve)
    assert [row["trial_id"] for row in CASES["rows"] if wanted.accepts(row.get)] == case["trials"]


@pytest.mark.parametrize("case", CASES["errors"], ids=lambda case: case["filter"])
def test_a_bad_filter_is_refused_where_the_page_refuses_it(case: dict[str, Any]) -> None:
    with pytest.raises(BadFilter) as caught:
        Filter(case["filter"], resolve)
    assert caught.value.place == case["place"]
    assert case["says"] in str(caught.value)


@pytest.mark.parametrize(
    ("value", "operation", "wanted", "result"),
    [
        (float("nan"), "==", None, True),
        (float("nan"), "<", 1.0, False),
        (float("inf"), ">", 1.0, True),
        (None, "!=", "x", True),
        (None, "contains", "x", False),
        (True, "==", True, True),
        (True, "==", 1.0, False),
        (3, "contains", "3", True),
        ([1, "two"], "contains", "two", True),
        ("10", "<", "9", True),
        ("10", "<", 9.0, False),
    ],
)
def test_values_of_all_kinds_are_compared(value: Any, operation: str, wanted: Any, result: bool) -> None:
    assert compare(value, operation, wanted) is result


def test_names_and_texts_may_hold_anything() -> None:
    odd = "a b/c'd\""
    wanted = Filter(f'`{odd}` == \'it\\\'s\' or `{odd}` == "say \\"x\\""', lambda name: name if name == odd else None)
    assert [wanted.accepts(lambda _, value=value: value) for value in ("it's", 'say "x"', "no")] == [True, True, False]


def test_digits_of_other_scripts_are_no_numbers() -> None:
    assert not Filter("x == ٣", lambda name: name).accepts({"x": 3.0}.get)
    assert Filter("x == ٣", lambda name: name).accepts({"x": "٣"}.get)


@pytest.mark.parametrize(
    ("text", "trials"),
    [
        ("status == done", ["a_0"]),
        ("status == Error", ["a_1"]),
        ("status != failed", ["a_0", "a_2"]),
        ('`status` == "running"', ["a_2"]),
        ("status == null", []),
    ],
)
def test_a_status_may_be_written_as_it_is_shown(text: str, trials: list[str]) -> None:
    wanted = Filter(text, resolve)
    assert [row["trial_id"] for row in CASES["rows"] if wanted.accepts(row.get)] == trials


def test_a_status_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(BadFilter) as caught:
        Filter("loss < 1 and status == finished", resolve)
    assert caught.value.place == 23
    assert str(caught.value) == (
        "No status is called 'finished' (character 24). There are: "
        "PENDING, RUNNING, PAUSED, TERMINATED, ERROR, done, failed."
    )
