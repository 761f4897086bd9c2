"""The TensorBoard event file, read back by a reader that shares no code with the writer."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest
from callback_world import Loggers, World, event_file, slow_crc32c, tensorboard_rows
from hypothesis import given
from hypothesis import strategies as st

from holdfast.callbacks import tensorboard
from holdfast.callbacks.tensorboard import crc32c


def single(value: float) -> float:
    number: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return number


def logged(root: Path, *reports: dict[str, Any]) -> tuple[World, list[tuple[int, dict[str, float]]]]:
    world = World(root)
    loggers = Loggers(world)
    world.create()
    loggers.start()
    for metrics in reports:
        loggers.report(**metrics)
    loggers.close()
    return world, tensorboard_rows(world.trials[0].path)


@given(st.binary(max_size=200))
def test_checksums_are_those_of_the_definition(data: bytes) -> None:
    assert crc32c(data) == tensorboard._table_crc32c(data) == slow_crc32c(data)


def test_there_is_one_record_per_row_with_every_number_and_nothing_else(tmp_path: Path) -> None:
    report = {"loss": 0.1, "inner": {"a": 3}, "text": "x", "flag": True, "none": None, "items": [1]}
    _, rows = logged(tmp_path, report, report)
    assert [step for step, _ in rows] == [1, 2]
    values = rows[0][1]
    assert values["ray/tune/loss"] == single(0.1)
    assert values["ray/tune/inner/a"] == 3
    assert {"ray/tune/training_iteration", "ray/tune/time_total_s"} <= values.keys()
    left_out = {"text", "flag", "none", "items", "pid", "timestamp", "config/lr", "done", "inner"}
    assert not values.keys() & {f"ray/tune/{key}" for key in left_out}


def test_many_rows_of_one_shape_have_right_checksums(tmp_path: Path) -> None:
    """After some rows the checksum is computed in another way; the step grows from one byte to two on the way."""
    reports = [{"loss": 1 / (i + 1), "acc": i * 0.37} for i in range(200)]
    _, rows = logged(tmp_path, *reports)
    assert [step for step, _ in rows] == list(range(1, 201))
    assert [values["ray/tune/loss"] for _, values in rows] == [single(report["loss"]) for report in reports]


def test_the_step_is_timesteps_total_if_it_is_reported(tmp_path: Path) -> None:
    _, rows = logged(tmp_path, {"timesteps_total": 1000}, {"timesteps_total": 100_000})
    assert [step for step, _ in rows] == [1000, 100_000]


def test_a_step_that_is_no_count_is_replaced_by_the_rows_number(tmp_path: Path) -> None:
    _, rows = logged(tmp_path, {"training_iteration": "first"}, {"training_iteration": -4})
    assert [step for step, _ in rows] == [1, 2]


def test_numbers_appear_change_kind_and_vanish_row_by_row(tmp_path: Path) -> None:
    reports: list[dict[str, Any]] = [
        {"a": None, "b": 1},
        {"a": 2.5, "b": 1},
        {"a": "text", "b": True},
        {"c": 7, "b": 1},
        {"a": {"b": 1}, "b": {}},
        {"a": 1, "b": {}},
        {"a": 1, "b": 5},
    ]
    _, rows = logged(tmp_path, *reports)
    shown = [{key: values.get(f"ray/tune/{key}") for key in ("a", "b", "c", "a/b")} for _, values in rows]
    none = dict.fromkeys(("a", "b", "c", "a/b"))
    assert shown == [
        {**none, "b": 1},
        {**none, "a": 2.5, "b": 1},
        none,
        {**none, "b": 1, "c": 7},
        {**none, "a/b": 1},
        {**none, "a": 1},
        {**none, "a": 1, "b": 5},
    ]


def test_extreme_numbers_are_shown_as_well_as_single_precision_can(tmp_path: Path) -> None:
    _, rows = logged(tmp_path, {"x": 1e300, "y": -(10**400), "z": math.nan, "w": -math.inf})
    values = rows[0][1]
    assert (values["ray/tune/x"], values["ray/tune/y"], values["ray/tune/w"]) == (math.inf, -math.inf, -math.inf)
    assert math.isnan(values["ray/tune/z"])


def test_long_and_foreign_names_are_kept(tmp_path: Path) -> None:
    name = "größe" * 60
    _, rows = logged(tmp_path, {name: 1})
    assert rows[0][1][f"ray/tune/{name}"] == 1


def test_tensorboard_itself_reads_the_file(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    world, rows = logged(tmp_path, *({"loss": i * 0.1, "deep": {"x": i}} for i in range(40)))
    events = list(loader.LegacyEventFileLoader(str(event_file(world.trials[0].path))).Load())
    assert events[0].file_version == "brain.Event:2"
    shown = [(e.step, {v.tag: v.simple_value for v in e.summary.value}) for e in events[1:]]
    assert shown == rows
    assert events[1].wall_time == world.load_rows(0)[0]["timestamp"]
