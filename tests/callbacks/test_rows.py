"""Full result dicts and the fold into surviving rows."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from callback_world import RETENTION, World
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import events as ev
from holdfast.core.state import State
from holdfast.core.transitions import apply
from holdfast.views.results import ResultBuilder, flatten_result, last_result, rows_from_events


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create()
    world.start()
    return world


def test_a_row_has_the_users_keys_first_and_then_all_auto_keys(world: World) -> None:
    row = world.report(loss=0.5)
    assert list(row) == [
        "loss",
        "training_iteration",
        "time_this_iter_s",
        "time_total_s",
        "timestamp",
        "date",
        "trial_id",
        "hostname",
        "node_ip",
        "pid",
        "config",
        "done",
        "time_since_restore",
        "iterations_since_restore",
        "experiment_tag",
        "checkpoint_dir_name",
    ]
    assert row["training_iteration"] == 1
    assert row["time_this_iter_s"] == row["time_total_s"] == row["time_since_restore"] == 0.125
    assert row["timestamp"] == int(world.at)
    assert row["date"] == time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(world.at))
    assert (row["hostname"], row["node_ip"], row["pid"]) == ("node", "10.0.0.7", 700)
    assert row["config"] == {"lr": 0.5, "net": {"width": 8}}
    assert row["done"] is False
    assert row["checkpoint_dir_name"] is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training_iteration", 40),
        ("timesteps_total", 1000),
        ("episodes_total", 30),
        ("done", True),
        ("timestamp", 5),
        ("time_this_iter_s", 9.0),
    ],
)
def test_the_users_value_wins_where_users_may_count_for_themselves(world: World, key: str, value: Any) -> None:
    assert world.report(**{key: value})[key] == value


@pytest.mark.parametrize("key", ["trial_id", "config", "time_total_s", "pid", "hostname", "date", "experiment_tag"])
def test_our_value_wins_for_facts_about_the_trial(world: World, key: str) -> None:
    plain = world.report()[key]
    row = world.report(**{key: {"not": "this"}})
    assert row[key] == plain if key != "time_total_s" else row[key] == 0.25
    assert last_result(world.state, world.trial())[key] == row[key]


def test_steps_and_episodes_are_counted_and_shown_once_reported(world: World) -> None:
    assert "timesteps_total" not in world.report(loss=1)
    row = world.report(timesteps_this_iter=10, episodes_this_iter=2)
    assert (row["timesteps_total"], row["timesteps_since_restore"], row["episodes_total"]) == (10, 10, 2)
    row = world.report(timesteps_this_iter=5)
    assert (row["timesteps_total"], row["episodes_total"]) == (15, 2)


def test_counters_continue_from_the_checkpoint_and_since_restore_begins_anew(world: World) -> None:
    world.report(timesteps_this_iter=10)
    world.report(timesteps_this_iter=10)
    index = world.save()
    world.report(timesteps_this_iter=10)
    world.cut()
    world.start(index=index)
    row = world.report(timesteps_this_iter=1, dt=0.5)
    assert (row["training_iteration"], row["iterations_since_restore"]) == (3, 1)
    assert (row["time_total_s"], row["time_since_restore"]) == (0.75, 0.5)
    assert (row["timesteps_total"], row["timesteps_since_restore"]) == (21, 1)


def test_a_verdict_to_stop_makes_the_row_done(world: World) -> None:
    assert world.report(verdict="stop")["done"] is True
    assert world.trials[0].last_result["done"] is True


def test_the_last_result_of_a_terminated_trial_is_done(world: World) -> None:
    world.report(loss=1)
    assert last_result(world.state, world.trial())["done"] is False
    world.end()
    assert last_result(world.state, world.trial())["done"] is True


def test_a_function_names_the_checkpoint_and_a_class_does_not(world: World, tmp_path: Path) -> None:
    world.report(loss=1)
    world.save()
    row = world.trials[0].last_result
    assert (row["checkpoint_dir_name"], row["should_checkpoint"]) == ("checkpoint_000000", True)
    (folded,) = world.load_rows(0)
    assert (folded["checkpoint_dir_name"], folded["should_checkpoint"]) == ("checkpoint_000000", True)

    world = World(tmp_path, is_class=True)
    world.create()
    world.start()
    assert "checkpoint_dir_name" not in world.report(loss=1)
    world.save()
    assert "should_checkpoint" not in world.trials[0].last_result


def test_before_the_first_row_what_is_known_about_the_trial_is_there(world: World) -> None:
    row = last_result(world.state, world.trial())
    assert {"trial_id", "date", "timestamp", "pid", "hostname", "node_ip", "config"} <= row.keys()
    assert "training_iteration" not in row


def test_after_a_restart_the_last_result_is_the_checkpoints(world: World) -> None:
    world.report(loss=3)
    index = world.save()
    world.report(loss=2)
    world.cut()
    world.start(index=index)
    row = last_result(world.state, world.trial())
    assert (row["loss"], row["training_iteration"], row["time_total_s"]) == (3, 1, 0.125)
    assert row["checkpoint_dir_name"] == "checkpoint_000000"
    assert "time_this_iter_s" not in row


def test_changing_a_result_changes_nothing_that_the_state_holds(world: World) -> None:
    row = world.report(eval={"acc": [1, 2]})
    row["eval"]["acc"].append(3)
    row["config"]["net"]["width"] = 0
    assert world.trial().metrics == {"eval": {"acc": [1, 2]}}
    assert world.trial().config == {"lr": 0.5, "net": {"width": 8}}


def test_objects_are_put_back_into_the_config_of_results(tmp_path: Path) -> None:
    marker = {"__object__": "data", "type": "builtins.object"}
    thing = object()
    world = World(tmp_path, objects={"data": thing})
    world.create({"data": marker})
    world.start()
    assert world.report()["config"]["data"] is thing
    assert world.trial().config["data"] == marker


def test_a_config_whose_objects_are_lost_shows_markers(tmp_path: Path) -> None:
    marker = {"__object__": "data", "type": "builtins.object"}
    world = World(tmp_path, objects={"other": 1})
    world.create({"data": marker})
    world.start()
    assert world.report()["config"] == {"data": marker}


metrics_strategy = st.dictionaries(
    st.sampled_from(
        [
            "loss",
            "training_iteration",
            "timesteps_this_iter",
            "timesteps_total",
            "episodes_this_iter",
            "episodes_total",
            "time_this_iter_s",
            "timestamp",
        ]
    ),
    st.one_of(st.integers(0, 50), st.floats(0, 50), st.none(), st.just("x")),
)


@given(st.lists(st.tuples(metrics_strategy, st.floats(0.001, 10), st.booleans()), min_size=1, max_size=8))
def test_the_row_before_a_report_is_applied_equals_the_one_from_the_state_after(
    reports: list[tuple[dict[str, Any], float, bool]],
) -> None:
    world = World(Path("/nowhere"))
    world.create()
    world.start()
    for metrics, dt, save in reports:
        row = world.report(dt=dt, **metrics)
        if save:
            world.builder.add_checkpoint(row, world.save())
        assert world.builder.last(world.state, world.trial()) == row


def test_flattening_joins_keys_drops_empty_dicts_and_keeps_lists() -> None:
    assert flatten_result({"a": {"b": 1, "c": {}}, "d": [1], 3: {4: 5}}) == {"a/b": 1, "d": [1], "3/4": 5}


def test_the_fold_keeps_each_step_once_however_often_the_trial_was_cut(world: World) -> None:
    world.report(loss=10)
    world.report(loss=20)
    index = world.save()
    world.report(loss=30)
    world.cut()
    world.start(index=index)
    world.report(loss=31)
    world.report(loss=41)
    world.cut()
    world.start(index=index)
    world.report(loss=32)
    rows = rows_from_events(world.events, None, world.builder, RETENTION)
    assert [(row["training_iteration"], row["loss"]) for row in rows[0]] == [(1, 10), (2, 20), (3, 32)]
    assert len(rows[0]) == world.trial().rows


def test_a_restart_from_scratch_gives_up_all_rows_at_once(world: World) -> None:
    world.report(loss=1)
    world.save()
    world.end()
    world.add(ev.TrialRequeued, 0, "restart")
    assert list(world.load_rows(0)) == []
    world.start()
    world.report(loss=2)
    assert [row["loss"] for row in world.load_rows(0)] == [2]


def test_only_wanted_trials_are_folded(world: World) -> None:
    world.create()
    world.start(1)
    world.report(0, loss=1)
    world.report(1, loss=2)
    assert rows_from_events(world.events, {1}, world.builder, RETENTION).keys() == {1}


def test_folded_rows_equal_the_rows_that_callbacks_got(world: World) -> None:
    rows = [world.report(loss=i, nan=math.inf) for i in range(3)]
    assert world.load_rows(0) == rows


def test_a_builder_is_a_policys_result_function(world: World) -> None:
    state = State()
    for event in world.events:
        apply(state, event, RETENTION)
    row = ResultBuilder(world.info)(state, state.trials[0], {"loss": 1}, 0.5, world.at)
    assert row["time_total_s"] == 0.5
    assert row["pid"] == 0  # nobody has reported yet, and nobody was named
