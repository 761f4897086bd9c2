"""``holdfast export``, ``list`` and the older listings."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, small_experiment

from holdfast.cli.export import columns_of, write_rows
from holdfast.cli.printing import to_json


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return small_experiment(tmp_path / "all" / "exp").finish().path


def read_csv(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_csv_has_one_row_for_each_trial(path: Path, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    out = tmp_path / "out.csv"
    answer = holdfast("export", path, out)
    assert (answer.code, answer.out) == (0, f"4 rows written to {out}\n")
    rows = read_csv(out)
    assert [(row["trial_id"], row["status"], row["loss"]) for row in rows] == [
        ("abcde_00000", "TERMINATED", "1.0"),
        ("abcde_00001", "ERROR", "9.0"),
        ("abcde_00002", "TERMINATED", "4.0"),
        ("abcde_00003", "PENDING", "2.0"),
    ]
    assert (rows[0]["nested/deep"], rows[1]["nested/deep"]) == ("2", "")
    assert (rows[1]["error_type"], rows[1]["error_message"]) == ("ValueError", "lr is too large")
    assert rows[0]["config/lr"] == "0.1"


def test_rows_are_those_that_survive(path: Path, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    out = tmp_path / "rows.json"
    assert holdfast("export", path, out, "--rows").code == 0
    rows = json.loads(out.read_text())
    assert [(row["trial_id"][-1], row["training_iteration"], row["loss"]) for row in rows] == [
        ("0", 1, 3.0),
        ("0", 2, 2.0),
        ("0", 3, 1.0),
        ("1", 1, 9.0),
        ("2", 1, 5.0),
        ("2", 2, 4.0),
        ("3", 1, 2.5),
        ("3", 2, 2.0),
    ]


def test_export_works_without_pandas(
    path: Path, tmp_path: Path, holdfast: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert holdfast("export", path, tmp_path / "out.json").code == 0
    assert holdfast("export", path, tmp_path / "out.csv", "--rows").code == 0
    answer = holdfast("export", path, tmp_path / "out.pkl")
    assert answer.code == 2
    assert "pip install 'holdfast[dataframe]'" in answer.err
    assert "choose .csv or .json" in answer.err
    assert not (tmp_path / "out.pkl").exists()


def test_parquet_without_pyarrow_says_what_to_install(
    path: Path, tmp_path: Path, holdfast: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = holdfast("export", path, tmp_path / "out.parquet")
    assert answer.code == 2
    assert "pip install pyarrow. Or choose .csv or .json" in answer.err
    assert [each.name for each in tmp_path.iterdir()] == ["all"]


def test_parquet_has_the_rows_of_csv(path: Path, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "out.parquet"
    assert holdfast("export", path, out).code == 0
    table = parquet.read_table(out)
    assert table.column("loss").to_pylist() == [1.0, 9.0, 4.0, 2.0]
    assert table.column("nested/deep").to_pylist() == [2, None, None, None]


def test_columns_of_parquet_have_one_type_each() -> None:
    first = {"a": 1, "whole": 1, "mixed": 1, "deep": [1, {"x": 2}], "large": 2**64, "flag": True, "text": "x"}
    second = {"a": 1.5, "whole": None, "mixed": "one", "deep": None, "large": 1, "flag": False, "late": 7}
    assert columns_of([first, second]) == {
        "a": [1.0, 1.5],
        "whole": [1, None],
        "mixed": ["1", "one"],
        "deep": ['[1,{"x":2}]', None],
        "large": ["18446744073709551616", "1"],
        "flag": [True, False],
        "text": ["x", None],
        "late": [None, 7],
    }


def test_pickled_rows_are_a_data_frame(path: Path, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    pandas = pytest.importorskip("pandas")
    out = tmp_path / "out.pkl"
    assert holdfast("export", path, out).code == 0
    assert pandas.read_pickle(out)["loss"].tolist() == [1.0, 9.0, 4.0, 2.0]


def test_json_has_one_object_for_each_trial(path: Path, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    out = tmp_path / "out.json"
    assert holdfast("export", path, out).code == 0
    rows = json.loads(out.read_text())
    assert [row["status"] for row in rows] == ["TERMINATED", "ERROR", "TERMINATED", "PENDING"]
    assert [row["config/lr"] for row in rows] == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_an_export_replaces_an_older_file(path: Path, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    out = tmp_path / "out.csv"
    out.write_text("old")
    assert holdfast("export", path, out).code == 0
    assert len(read_csv(out)) == 4


def test_an_unknown_format_is_refused_before_anything_is_read(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    answer = holdfast("export", tmp_path / "nothing", tmp_path / "out.xlsx")
    assert answer.code == 2
    assert ".csv, .json" in answer.err


def test_a_directory_that_does_not_exist_fails_without_leftovers(
    path: Path, tmp_path: Path, holdfast: Callable[..., Any]
) -> None:
    answer = holdfast("export", path, tmp_path / "missing" / "out.csv")
    assert answer.code == 1
    assert answer.err.startswith(f"holdfast: {tmp_path / 'missing' / 'out.csv'} cannot be written: ")
    assert f"mkdir -p {tmp_path / 'missing'}" in answer.err
    (tmp_path / "dir.csv").mkdir()
    answer = holdfast("export", path, tmp_path / "dir.csv")
    assert answer.code == 1
    assert "Is a directory" in answer.err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["all", "dir.csv"]


def test_odd_values_stay_readable(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({"layers": [1, 2], "name": 'a,"b"\nc'})
    root.start(0)
    root.report(0, {"loss": math.nan})
    out = tmp_path / "out.csv"
    holdfast("export", root.finish().path, out)
    row = read_csv(out)[0]
    assert (row["config/layers"], row["config/name"], row["loss"]) == ("[1,2]", 'a,"b"\nc', "nan")


def test_list_shows_every_experiment_below_a_directory(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    small_experiment(tmp_path / "a" / "b" / "deep").die()
    RootWriter(tmp_path / "fresh")
    bad = RootWriter(tmp_path / "zbroken").path
    (bad / ".holdfast" / "spec.json").write_text("{")
    (tmp_path / "no experiment").mkdir()
    answer = holdfast("list", tmp_path)
    assert answer.code == 1  # there is damage
    lines = answer.out.splitlines()
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["a/b/deep", "interrupted"],
        ["fresh", "new"],
        ["zbroken", "unreadable"],
    ]
    assert "1 pending, 2 done, 1 failed" in lines[2]
    assert "loss=1" in lines[2]
    assert lines[-1] == "3 experiments"
    listed = json.loads(holdfast("list", tmp_path, "--json").out)
    assert [each["state"] for each in listed] == ["interrupted", "new", "unreadable"]


def test_list_of_nothing_says_so(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    assert "There is no experiment" in holdfast("list", tmp_path).out
    answer = holdfast("list", tmp_path / "nothing")
    assert answer.code == 2
    assert "There is no directory" in answer.err
    (tmp_path / "file").touch()
    assert "is not a directory" in holdfast("list", tmp_path / "file").err


def test_list_trials_sorts_filters_and_limits(path: Path, holdfast: Callable[..., Any]) -> None:
    arguments = ("--columns", "trial_id,loss", "--sort", "loss", "--desc", "--filter", "loss < 9", "--limit", "2")
    lines = holdfast("list-trials", path, *arguments).out.splitlines()
    assert lines[0].split() == ["trial_id", "loss"]
    assert [line.split() for line in lines[2:]] == [["abcde_00002", "4"], ["abcde_00003", "2"]]
    only = holdfast("list-trials", path, "--filter", "status == ERROR", "--columns", "trial_id").out.splitlines()
    assert only[2:] == ["abcde_00001"]
    twice = holdfast("list-trials", path, "--columns", "trial_id,loss", "--result-columns", "loss").out.splitlines()[0]
    assert twice.split() == ["trial_id", "loss"]
    default = holdfast("list-trials", path, "--result-columns", "loss").out.splitlines()[0]
    assert default.split() == ["trial_id", "status", "training_iteration", "time_total_s", "experiment_tag"] + [
        "config/lr",
        "loss",
    ]


def test_a_filter_that_leaves_trials_without_reports_is_no_error(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    """The columns are those of all trials: the failed ones never reported."""
    writer = RootWriter(tmp_path / "exp").open()
    for n in range(2):
        writer.create({"lr": n})
        writer.start(n)
    writer.report(0, {"loss": 1.0})
    writer.end(0)
    writer.error(1, type="ValueError", message="at once")
    path = writer.finish().path
    for more in ((), ("--sort", "loss"), ("--columns", "trial_id,loss")):
        answer = holdfast("list-trials", path, "--filter", "status == ERROR", *more)
        assert answer.code == 0, answer.err
        assert [line.split()[0] for line in answer.out.splitlines()[2:]] == ["abcde_00001"]


def test_list_trials_writes_to_a_file(path: Path, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    out = tmp_path / "trials.csv"
    assert holdfast("list-trials", path, "--columns", "trial_id", "--output", out).code == 0
    assert [row["trial_id"] for row in read_csv(out)][-1] == "abcde_00003"
    pickled = tmp_path / "trials.pkl"
    assert holdfast("list-trials", path, "--output", pickled).code == 0
    assert pickled.exists()


@pytest.mark.parametrize("option", [("--filter", "loss"), ("--filter", "loss ~ 3"), ("--sort", "los")])
def test_list_trials_explains_what_it_cannot_do(
    path: Path, holdfast: Callable[..., Any], option: tuple[str, str]
) -> None:
    answer = holdfast("list-trials", path, *option)
    assert answer.code == 2
    assert "loss" in answer.err


def test_list_experiments_lists_counts(path: Path, holdfast: Callable[..., Any]) -> None:
    lines = holdfast("list-experiments", path.parent, "--columns", "name,total_trials,error_trials").out.splitlines()
    assert lines[2].split() == ["exp", "4", "1"]
    empty = holdfast("list-experiments", path.parent, "--filter", "total_trials > 9", "--columns", "name").out
    assert empty.splitlines()[2:] == []


def test_rows_with_other_columns_than_the_first_are_written_whole(tmp_path: Path) -> None:
    rows = [{"b": 1}, {"a": "x,y", "b": 2}, {"c": [1]}]
    assert write_rows(tmp_path / "out.csv", rows) == 3
    assert (tmp_path / "out.csv").read_bytes() == b'b,a,c\r\n1,,\r\n2,"x,y",\r\n,,[1]\r\n'
    assert write_rows(tmp_path / "none.csv", []) == 0
    assert (tmp_path / "none.csv").read_bytes() == b"\r\n"


@pytest.mark.parametrize("rows", [[], [{"a": 1}], [{"a": {"b": [1, "x\n"]}}, {}, {"c": float("nan"), "d": "é"}]])
def test_json_is_written_row_by_row_as_it_would_be_at_once(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    assert write_rows(tmp_path / "out.json", rows) == len(rows)
    assert (tmp_path / "out.json").read_bytes() == to_json(rows) + b"\n"
