"""Trials as callbacks see them."""

from __future__ import annotations

import gc
import math
from pathlib import Path

import pytest
from callback_world import World

from holdfast.core import events as ev
from holdfast.views.results import date_text
from holdfast.views.trials import TrialPreview, TrialView, analyse, trial_dirname


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create(params=("lr", "net/width"))
    return world


def test_a_view_follows_its_trial(world: World) -> None:
    view = world.trials[0]
    assert (view.status, view.start_time) == ("PENDING", None)
    world.start()
    world.report(loss=1)
    assert (view.status, view.last_result["loss"]) == ("RUNNING", 1)
    assert view.start_time is not None
    world.end()
    assert view.is_finished()


def test_a_view_tells_who_the_trial_is(world: World, tmp_path: Path) -> None:
    view = world.trials[0]
    assert str(view) == view.trial_name == "train_abcde_00000"
    assert view.experiment_tag == "0_lr=0.5"
    assert view.evaluated_params == {"lr": 0.5, "net/width": 8}
    date = date_text(world.trial().created_at)
    assert view.path == view.local_path == str(tmp_path / f"train_abcde_00000_0_lr=0.5_{date}")
    assert view.trainable_name == "train"
    assert (view.custom_trial_name, view.custom_dirname) == (None, None)
    assert view.placement_group_factory.required_resources == {"CPU": 1.0}


def test_names_that_the_user_chose_are_used_as_they_are(tmp_path: Path) -> None:
    world = World(tmp_path)
    view = world.create(name="mine", dirname="here", request={"CPU": 2.0})
    assert str(view) == "mine"
    assert view.path == str(tmp_path / "here")
    assert view.placement_group_factory.required_resources == {"CPU": 2.0}


def test_the_tag_in_a_directorys_name_is_cut(tmp_path: Path) -> None:
    world = World(tmp_path, max_identifier_len=3)
    world.create()
    date = date_text(world.trial().created_at)
    assert trial_dirname(world.info, world.trial()) == f"train_abcde_00000_0_l_{date}"


def test_chosen_params_are_found_in_lists_and_under_keys_with_slashes(tmp_path: Path) -> None:
    world = World(tmp_path)
    view = world.create({"a/b": 1, "c": [{"d": 2}, 3]}, params=("a/b", "c/0/d", "c/1", "gone"))
    assert view.evaluated_params == {"a/b": 1, "c/0/d": 2, "c/1": 3, "gone": None}


def test_views_of_one_trial_are_equal_and_hash_alike(world: World) -> None:
    one, two = world.trials[0], TrialView(world.state, world.trial(), world.info)
    world.create()
    assert one == two
    assert len({one, two, world.trials[1]}) == 2
    assert one != "train_abcde_00000"


def test_changing_a_views_config_changes_nothing(world: World) -> None:
    world.trials[0].config["lr"] = 9
    assert world.trial().config["lr"] == 0.5


def test_the_checkpoint_is_the_latest_committed_one(world: World) -> None:
    world.start()
    view = world.trials[0]
    assert view.checkpoint is None
    world.report(loss=1)
    world.save()
    world.report(loss=1)
    world.save()
    assert view.checkpoint is not None
    assert view.checkpoint.path == f"{view.path}/checkpoint_000001"


def test_failures_are_counted_and_their_files_named(world: World) -> None:
    world.start()
    view = world.trials[0]
    assert (view.num_failures, view.error_file) == (0, None)
    world.add(ev.AttemptFailed, 0, 1, "exception", ev.ErrorFacts("ValueError", "no"))
    assert (view.num_failures, view.error_file) == (1, f"{view.path}/error.txt")
    assert view.pickled_error_file == f"{view.path}/error.pkl"


def test_metric_analysis_summarises_the_surviving_rows(world: World) -> None:
    world.start()
    for value in range(1, 7):
        world.report(x=value, inner={"y": -value}, name="text", flag=True)
    analysis = world.trials[0].metric_analysis
    expected = {"max": 6, "min": 1, "avg": 3.5, "last": 6, "last-5-avg": 4.0, "last-10-avg": 3.5}
    assert analysis["x"] == expected
    assert analysis["inner/y"]["max"] == -1
    assert "training_iteration" in analysis
    assert not {"name", "flag", "config/lr"} & analysis.keys()


def test_metric_analysis_is_read_again_only_after_a_report(world: World) -> None:
    world.start()
    world.report(x=1)
    view = world.trials[0]
    assert view.metric_analysis["x"]["last"] == 1
    assert view.metric_analysis["x"]["last"] == 1
    assert world.loads == 1
    world.report(x=2)
    assert view.metric_analysis["x"]["last"] == 2


def test_nan_is_neither_best_nor_worst() -> None:
    summary = analyse([{"x": math.nan}, {"x": 2.0}, {"x": math.nan}])["x"]
    assert (summary["max"], summary["min"]) == (2.0, 2.0)
    assert math.isnan(summary["last"])


def test_the_list_makes_views_when_they_are_looked_at_and_keeps_none(world: World) -> None:
    for _ in range(3):
        world.create()
    assert len(world.trials) == 4
    held = world.trials[1]
    assert world.trials[1] is held
    assert [view.trial_id for view in world.trials] == [trial.id for trial in world.state.trials]
    assert [view.trial_id for view in world.trials[1:3]] == ["abcde_00001", "abcde_00002"]
    assert world.trials[-1].trial_id == "abcde_00003"
    assert held in world.trials
    gc.collect()
    assert len(world.trials._views) == 1
    with pytest.raises(IndexError):
        world.trials[4]


def test_a_preview_shows_a_trial_that_does_not_exist_yet(world: World) -> None:
    preview = TrialPreview(world.info, 1, "abcde_00001", "1_lr=1", {"lr": 1})
    assert (str(preview), preview.trial_id, preview.config) == ("train_abcde_00001", "abcde_00001", {"lr": 1})
