"""result.json, params.json and params.pkl."""

from __future__ import annotations

import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from callback_world import Loggers, World, json_rows

from holdfast.callbacks import CallbackList, JsonLoggerCallback
from holdfast.callbacks.json_logger import encode_json


def logged(world: World, *reports: dict[str, Any]) -> list[dict[str, Any]]:
    """What result.json shows after these reports."""
    loggers = Loggers(world)
    world.create()
    loggers.start()
    for metrics in reports:
        loggers.report(**metrics)
    loggers.close()
    return json_rows(world.trials[0].path)


def test_each_line_is_one_full_result(tmp_path: Path) -> None:
    world = World(tmp_path)
    rows = logged(world, {"loss": 0.1, "inner": {"a": [1, None]}}, {"loss": 1e-300, "text": 'é"\n'})
    assert rows == world.load_rows(0)
    assert rows[0]["config"] == {"lr": 0.5, "net": {"width": 8}}


def test_nothing_is_created_for_a_trial_that_has_not_started(tmp_path: Path) -> None:
    world = World(tmp_path)
    loggers = Loggers(world)
    world.create()
    loggers.close()
    assert os.listdir(tmp_path) == []


def test_numbers_that_json_does_not_know_are_written_as_the_json_module_does(tmp_path: Path) -> None:
    reports = [{"x": math.nan, "null": None}, {"x": 1.0, "deep": {"y": [math.inf, -math.inf]}}, {"x": 2.0}]
    rows = logged(World(tmp_path), *reports)
    assert math.isnan(rows[0]["x"])
    assert rows[0]["null"] is None
    assert rows[1]["deep"] == {"y": [math.inf, -math.inf]}
    assert rows[2]["x"] == 2.0
    assert all(row["config"]["lr"] == 0.5 for row in rows)
    text = Path(World(tmp_path).info.root, os.listdir(tmp_path)[0], "result.json").read_text()
    assert '"x":NaN' in text
    assert "Infinity" in text


@pytest.mark.parametrize("value", [None, "null", "nullify", 2**70, -(2**63), True, b"\x00\xff", [], {}, "\ud800"])
def test_every_plain_value_makes_one_valid_line(tmp_path: Path, value: Any) -> None:
    rows = logged(World(tmp_path), {"x": value}, {"x": value, "y": math.nan})
    assert len(rows) == 2
    assert rows[0]["x"] == rows[1]["x"]
    assert rows[0]["x"] == ("AP8=" if value == b"\x00\xff" else value)


def test_values_of_libraries_that_get_into_a_result_are_written_as_numbers(tmp_path: Path) -> None:
    import numpy

    world = World(tmp_path)
    world.create()
    trial = world.start()
    callbacks = CallbackList([JsonLoggerCallback()])
    row = {**world.report(), "a": numpy.float32(0.5), "b": numpy.arange(2), "c": Path("/x")}
    callbacks.on_trial_result(1, world.trials, trial, row)
    callbacks.call("on_experiment_end", trials=world.trials)
    (shown,) = json_rows(trial.path)
    assert (shown["a"], shown["b"]) == (0.5, [0, 1])
    assert shown["c"] == repr(Path("/x"))


def test_params_are_the_config_readable_and_pickled(tmp_path: Path) -> None:
    world = World(tmp_path)
    config = {"lr": math.inf, "name": "ü", "list": [1, {"a": None}]}
    world.create(config)
    loggers = Loggers(world)
    loggers.start()
    loggers.close()
    directory = Path(world.trials[0].path)
    assert json.loads((directory / "params.json").read_text()) == config
    assert (directory / "params.json").read_text().count("\n") > 3
    assert pickle.loads((directory / "params.pkl").read_bytes()) == config
    assert sorted(os.listdir(directory)) == ["params.json", "params.pkl"]


class Thing:
    """An object in a config."""

    def __init__(self, size: int) -> None:
        self.data = b"x" * size

    def __repr__(self) -> str:
        return "Thing()"


def params_of(tmp_path: Path, thing: Any) -> tuple[Any, Any]:
    marker = {"__object__": "data", "type": "test.Thing"}
    world = World(tmp_path, objects={"data": thing})
    world.create({"data": marker, "lr": 1})
    loggers = Loggers(world)
    loggers.start()
    loggers.report(loss=1)
    loggers.close()
    directory = Path(world.trials[0].path)
    (row,) = json_rows(str(directory))
    shown = json.loads((directory / "params.json").read_text())
    assert row["config"] == shown
    return shown, pickle.loads((directory / "params.pkl").read_bytes())


def test_an_object_is_shown_by_its_repr_and_pickled(tmp_path: Path) -> None:
    shown, pickled = params_of(tmp_path, Thing(10))
    assert shown == {"data": "Thing()", "lr": 1}
    assert pickled["data"].data == b"x" * 10


@pytest.mark.parametrize("thing", [Thing(2 << 20), (i for i in ())], ids=["large", "unpicklable"])
def test_an_object_that_is_large_or_cannot_be_pickled_stays_a_marker(tmp_path: Path, thing: Any) -> None:
    shown, pickled = params_of(tmp_path, thing)
    assert pickled == {"data": {"__object__": "data", "type": "test.Thing"}, "lr": 1}
    assert isinstance(shown["data"], str)


def test_a_long_repr_is_cut_and_a_broken_one_replaced() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert json.loads(encode_json({"a": Broken(), (1, 2): bytes(10_000)}))["a"] == "<Broken object>"
    assert len(encode_json({(1, 2): bytes(10_000)})) < 3_000


def test_a_changed_config_shows_in_the_rows_after_the_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    loggers = Loggers(world)
    world.create()
    loggers.start()
    loggers.report(loss=1)
    world.trial().config = {"lr": 0.25}
    loggers.report(loss=2)
    loggers.close()
    assert [row["config"]["lr"] for row in json_rows(world.trials[0].path)] == [0.5, 0.25]


def test_a_logger_without_a_shared_writer_writes_by_itself(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create()
    trial = world.start()
    callbacks = CallbackList([JsonLoggerCallback()])
    callbacks.on_trial_result(1, world.trials, trial, world.report(loss=1))
    callbacks.call("on_experiment_end", trials=world.trials)
    assert [row["loss"] for row in json_rows(trial.path)] == [1]


def test_what_is_known_about_a_trial_is_forgotten_when_it_ends(tmp_path: Path) -> None:
    world = World(tmp_path)
    loggers = Loggers(world)
    world.create()
    loggers.start()
    loggers.report(loss=1)
    loggers.end()
    assert all(not callback._logs for callback in loggers.callbacks)
    loggers.close()


def test_loggers_can_be_pickled_after_a_run_and_used_again(tmp_path: Path) -> None:
    world = World(tmp_path / "first")
    loggers = Loggers(world)
    world.create()
    loggers.start()
    loggers.report(loss=1)
    loggers.close()
    again = Loggers(World(tmp_path / "second"))
    again.callbacks = pickle.loads(pickle.dumps(loggers.callbacks))
    again.list = CallbackList(again.callbacks, again.writer)
    again.world.create()
    again.start()
    again.report(loss=2)
    again.close()
    assert [row["loss"] for row in json_rows(again.world.trials[0].path)] == [2]


def test_a_subclass_need_not_call_our_constructor(tmp_path: Path) -> None:
    class Mine(JsonLoggerCallback):
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
            super().log_trial_result(iteration, trial, {**result, "loss": result["loss"] * self.factor})

    world = World(tmp_path)
    world.create()
    trial = world.start()
    callbacks = CallbackList([Mine(10)])
    callbacks.call("setup", stop=None, num_samples=1, total_num_samples=1)
    callbacks.on_trial_result(1, world.trials, trial, world.report(loss=1))
    callbacks.call("on_experiment_end", trials=world.trials)
    assert [row["loss"] for row in json_rows(trial.path)] == [10]
