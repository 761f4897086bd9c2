"""progress.csv."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from callback_world import Loggers, World, csv_rows
from hypothesis import given, settings
from hypothesis import strategies as st


def logged(root: Path, *reports: dict[str, Any]) -> list[dict[str, str]]:
    world = World(root)
    loggers = Loggers(world)
    world.create()
    loggers.start()
    for metrics in reports:
        loggers.report(**metrics)
    loggers.close()
    return csv_rows(world.trials[0].path)


def test_rows_are_flat_and_have_no_config(tmp_path: Path) -> None:
    (row,) = logged(tmp_path, {"loss": 0.1, "inner": {"a": 1, "b": {"c": 2}}, "items": [1, 2]})
    assert (row["loss"], row["inner/a"], row["inner/b/c"], row["items"]) == ("0.1", "1", "2", "[1, 2]")
    assert row["training_iteration"] == "1"
    assert not [key for key in row if key.startswith("config")]


def test_numbers_come_back_exactly(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 1e-300, -0.0, 2**70, math.inf]
    rows = logged(tmp_path, *({"x": value} for value in values))
    assert [float(row["x"]) for row in rows] == [float(value) for value in values]
    assert logged(tmp_path / "nan", {"x": math.nan})[0]["x"] == "nan"


def test_a_key_that_appears_later_gets_a_column_and_no_value_is_dropped(tmp_path: Path) -> None:
    rows = logged(tmp_path, {"a": 1}, {"a": 2}, {"a": 3, "b": 30}, {"b": 40, "c/d": "x,y"}, {"a": 5})
    assert [row["a"] for row in rows] == ["1", "2", "3", "", "5"]
    assert [row["b"] for row in rows] == ["", "", "30", "40", ""]
    assert [row["c/d"] for row in rows] == ["", "", "", "x,y", ""]
    assert [row["training_iteration"] for row in rows] == ["1", "2", "3", "4", "5"]


def test_a_key_may_become_nested_and_plain_again(tmp_path: Path) -> None:
    rows = logged(tmp_path, {"a": 1}, {"a": {"b": 2}}, {"a": 3}, {"a": {}})
    assert [row["a"] for row in rows] == ["1", "", "3", ""]
    assert [row["a/b"] for row in rows] == ["", "2", "", ""]


def test_a_new_key_is_seen_when_another_one_has_gone(tmp_path: Path) -> None:
    rows = logged(tmp_path, {"a": 1}, {"b": 2})
    assert [(row["a"], row["b"]) for row in rows] == [("1", ""), ("", "2")]


def test_the_header_grows_in_a_file_that_has_been_written_already(tmp_path: Path) -> None:
    world = World(tmp_path)
    loggers = Loggers(world)
    world.create()
    loggers.start()
    loggers.report(text='two\nlines, "quoted"', a=1)
    assert loggers.writer.flush()
    assert len(csv_rows(world.trials[0].path)) == 1
    loggers.report(text="x", a=2, b=3)
    loggers.close()
    rows = csv_rows(world.trials[0].path)
    assert [(row["text"], row["a"], row["b"]) for row in rows] == [('two\nlines, "quoted"', "1", ""), ("x", "2", "3")]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a", "b", 'q"', "c,d", "nl\n"]),
            st.text(alphabet='ab,"\n\r ;', max_size=6),
            max_size=4,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_text_comes_back_whatever_is_in_it(tmp_path_factory: Any, reports: list[dict[str, str]]) -> None:
    rows = logged(tmp_path_factory.mktemp("csv"), *reports)
    keys = {key for report in reports for key in report}
    assert [{key: row[key] for key in keys} for row in rows] == [
        {key: report.get(key, "") for key in keys} for report in reports
    ]


def test_pandas_reads_it(tmp_path: Path) -> None:
    import pandas

    world = World(tmp_path)
    loggers = Loggers(world)
    world.create()
    loggers.start()
    loggers.report(a=1)
    loggers.report(a=2, b=0.5)
    loggers.close()
    frame = pandas.read_csv(Path(world.trials[0].path, "progress.csv"))
    assert frame["a"].tolist() == [1, 2]
    assert frame["b"].tolist()[1] == 0.5
    assert frame["done"].tolist() == [False, False]
