"""Keys that are no strings: in spaces they work as they are, in metrics they are refused at once."""

from __future__ import annotations

import subprocess
import sys

import pytest
from exact_kinds import Color, same

import holdfast as tune
from holdfast.core import events as ev
from holdfast.errors import InvalidInputError


def see(config):
    tune.report({"loss": 1.0, "seen": repr(config)})


def holdfast(*arguments):
    command = [sys.executable, "-m", "holdfast", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


SPACES = [
    {1: tune.uniform(0, 1)},
    {1: tune.uniform(0, 1), "a": {2: tune.choice([(1, 1)]), None: 3, 2.5: {True: tune.randint(0, 9)}}},
    {(1, 2): tune.uniform(0, 1), Color.RED: {Color.BLUE: tune.uniform(0, 1)}},
    {"": tune.uniform(0, 1), "a": {"": tune.uniform(0, 1), "b/c": 1}},
    {"x": tune.choice([{1: tune.uniform(0, 1)}])},
]


def keys(node):
    return {key: keys(value) for key, value in node.items()} if isinstance(node, dict) else None


@pytest.mark.parametrize("search", [None, "optuna"])
@pytest.mark.parametrize("space", SPACES, ids=map(repr, range(len(SPACES))))
def test_keys_of_any_kind_work_in_a_space(make_tuner, space, search):
    grid = make_tuner(see, space, num_samples=2, search_alg=search, metric="loss", mode="min").fit()
    expected = {"x": {1: None}} if "x" in space else keys(space)
    for result in grid:
        assert result.error is None
        assert same(keys(result.config), expected)
        assert result.metrics["seen"] == repr(result.config)


def test_an_experiment_with_odd_keys_can_be_read_and_restored(make_tuner, root, tmp_path):
    make_tuner(see, {1: tune.uniform(0, 1), "a": {2: 3}}, metric="loss", mode="min", num_samples=2).fit()
    for command in ("status", "show", "verify", "list-trials"):
        answer = holdfast(command, root)
        assert answer.returncode == 0, answer.stderr
        assert "Traceback" not in answer.stderr
    out = tmp_path / "out.csv"
    assert holdfast("export", root, out).returncode == 0
    assert "config/1" in out.read_text()
    assert [list(result.config) for result in tune.ResultGrid.from_path(root)] == [[1, "a"]] * 2
    assert [list(result.config) for result in tune.Tuner.restore(root).fit()] == [[1, "a"]] * 2


def test_records_with_odd_keys_of_an_older_version_are_readable():
    event = ev.TrialCreated(0.0, 0, "id", {1: 0.5}, "tag")
    assert ev.decode(ev.encode(event)) == event


@pytest.mark.parametrize(
    "space",
    [
        {"a/b": tune.uniform(0, 1), "a": {"b": tune.uniform(0, 1)}},
        {"a/b": 1, "a": {"b": tune.grid_search([1])}},
        {1: tune.uniform(0, 1), "1": 2},
        {"x/0": tune.uniform(0, 1), "x": (tune.uniform(0, 1),)},
    ],
    ids=map(repr, range(4)),
)
def test_two_values_of_one_name_are_refused_before_anything_is_written(make_tuner, root, space):
    with pytest.raises(InvalidInputError, match=r"param_space has two values named '(a/b|1|x/0)': .* Rename one"):
        make_tuner(see, space).fit()
    assert not root.exists()


def test_constants_of_one_name_are_data_like_any_other(make_tuner):
    space = {"data": {1: "a", "1": "b"}, "a/b": 1, "a": {"b": 2}}
    (result,) = make_tuner(see, space).fit()
    assert same(result.config, space)


def test_a_damaged_experiment_does_not_hide_the_others_from_list(make_tuner, root, monkeypatch, capsys):
    make_tuner(see, {}).fit()
    make_tuner(see, {}, name="other").fit()
    from holdfast.cli import listing, main

    opened = listing.open_history

    def open_or_break(place, **more):
        if place.endswith("other"):
            raise ZeroDivisionError("no such thing")
        return opened(place, **more)

    monkeypatch.setattr(listing, "open_history", open_or_break)
    assert main.main(["list", str(root.parent)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("exp ") and "finished" in line for line in lines)
    assert any(line.startswith("other ") and "unreadable" in line and "ZeroDivisionError" in line for line in lines)


def test_metric_names_that_are_no_strings_are_refused_by_name(make_tuner):
    def train(config):
        tune.report({1: 0.5})

    (result,) = make_tuner(train).fit()
    assert "metric names must be strings, got 1 (int)" in str(result.error)


def test_keys_of_nested_metrics_become_strings_unless_two_would_be_one(make_tuner):
    def train(config):
        tune.report({"per_class": {0: 0.5, 1: 0.25}})
        tune.report({"per_class": {1: 0.5, "1": 0.25}})

    (result,) = make_tuner(train).fit()
    assert result.metrics["per_class"] == {"0": 0.5, "1": 0.25}
    assert "the metric 'per_class/1' is there twice" in str(result.error)
