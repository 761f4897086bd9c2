"""ResultGrid and Result over real roots: a fold of the journal, whatever became of the driver."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.errors import (
    ExperimentNotFoundError,
    InvalidInputError,
    JournalDamagedError,
    NoResultError,
    TrialError,
)
from holdfast.results import Result, ResultGrid

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))

from roots import RootWriter, small_experiment


@pytest.fixture
def root(tmp_path: Path) -> RootWriter:
    return RootWriter(tmp_path / "exp").open()


def one_trial(root: RootWriter, values: list[Any], key: str = "loss") -> int:
    """A finished trial that reported these values."""
    n = root.create({"lr": 0.1})
    root.start(n)
    for value in values:
        root.report(n, {key: value})
    root.end(n)
    return n


def grid_of(root: RootWriter) -> ResultGrid:
    return ResultGrid.from_path(root.finish().path)


# --- rows


def test_rows_hold_each_step_once_after_a_restart(tmp_path: Path) -> None:
    grid = ResultGrid.from_path(small_experiment(tmp_path / "exp").finish().path)
    history = grid[2].metrics_history
    assert [(row["training_iteration"], row["loss"]) for row in history] == [(1, 5.0), (2, 4.0)]
    assert grid[2].metrics["loss"] == 4.0
    assert grid[2].metrics["training_iteration"] == 2


def test_rows_of_a_restart_from_scratch_forget_the_life_before(root: RootWriter) -> None:
    n = one_trial(root, [9.0, 8.0])
    root.add(ev.TrialRequeued(root.tick(), n, "restart"))
    root.start(n, scratch=True)
    root.report(n, {"loss": 1.0})
    root.end(n)
    assert [row["loss"] for row in grid_of(root)[n].metrics_history] == [1.0]


def test_rows_are_read_with_a_snapshot_in_between(root: RootWriter) -> None:
    one_trial(root, [3.0, 2.0])
    root.snapshot()
    one_trial(root, [1.0])
    grid = grid_of(root)
    assert [[row["loss"] for row in result.metrics_history] for result in grid] == [[3.0, 2.0], [1.0]]


def test_a_grid_shows_its_own_moment_when_the_experiment_goes_on(root: RootWriter) -> None:
    n = root.create({"lr": 0.1})
    root.start(n)
    root.report(n, {"loss": 2.0})
    grid = ResultGrid.from_path(root.path)
    root.report(n, {"loss": 1.0})
    assert [row["loss"] for row in grid[n].metrics_history] == [2.0]
    assert [row["loss"] for row in ResultGrid.from_path(root.path)[n].metrics_history] == [2.0, 1.0]
    root.finish()


def test_the_grid_of_a_driver_ends_with_that_driver(root: RootWriter) -> None:
    n = one_trial(root, [2.0])
    root.finish()
    grid = ResultGrid(root.state, root.info)
    later = RootWriter(root.path)
    later.state = ResultGrid.from_path(root.path)._history.state
    later.at = root.at
    later.open()
    later.add(ev.TrialRequeued(later.tick(), n, "resume"))
    later.start(n)
    later.report(n, {"loss": 1.0})
    later.end(n)
    later.finish()
    assert [row["loss"] for row in grid[n].metrics_history] == [2.0]
    assert [row["loss"] for row in ResultGrid.from_path(root.path)[n].metrics_history] == [1.0]


def test_a_history_may_be_changed_without_changing_the_grid(root: RootWriter) -> None:
    one_trial(root, [2.0])
    grid = grid_of(root)
    grid[0].metrics_history.clear()
    assert len(grid[0].metrics_history) == 1


# --- one result


def test_a_trial_that_never_reported_has_its_config_and_no_metrics(root: RootWriter) -> None:
    root.create({"lr": 0.5, "net": {"width": 3}})
    result = grid_of(root)[0]
    assert result.config == {"lr": 0.5, "net": {"width": 3}}
    assert result.metrics["config"] == result.config
    assert result.metrics["trial_id"] == result.trial_id == "abcde_00000"
    assert "training_iteration" not in result.metrics
    assert result.metrics_history == []
    assert (result.status, result.error, result.checkpoint) == ("PENDING", None, None)


def test_an_error_shows_the_users_own_line_and_carries_the_rest(tmp_path: Path) -> None:
    grid = ResultGrid.from_path(small_experiment(tmp_path / "exp").finish().path)
    error = grid[1].error
    assert isinstance(error, TrialError)
    assert "ValueError: lr is too large" in str(error)
    assert "train.py:17" in str(error)
    assert (error.trial_id, error.cause, error.error_type) == ("abcde_00001", "exception", "ValueError")
    assert error.location.endswith("train.py:17")
    assert error.traceback.startswith("Traceback")
    assert error.traceback in error.__notes__[0]
    assert [str(each) for each in grid.errors] == [str(error)]
    assert (grid.num_errors, grid.num_terminated) == (1, 2)


def test_a_trial_that_failed_and_then_finished_has_no_error(tmp_path: Path) -> None:
    grid = ResultGrid.from_path(small_experiment(tmp_path / "exp").finish().path)
    assert (grid[2].status, grid[2].error) == ("TERMINATED", None)


def test_a_process_that_died_is_named_by_what_killed_it(root: RootWriter) -> None:
    n = root.create({})
    root.start(n)
    root.error(n, ev.Cause.OUT_OF_MEMORY, message="probably out of memory: killed by SIGKILL", output="epoch 3")
    error = grid_of(root)[n].error
    assert error is not None
    assert "probably out of memory" in str(error)
    assert "epoch 3" in error.__notes__[0]


def test_repr_is_short_and_says_what_matters(tmp_path: Path) -> None:
    grid = ResultGrid.from_path(small_experiment(tmp_path / "exp").finish().path)
    assert "1 PENDING, 2 TERMINATED, 1 ERROR" in repr(grid)
    shown = repr(grid[1])
    assert "abcde_00001" in shown
    assert "ERROR" in shown
    assert "'loss': 9.0" in shown
    assert "hostname" not in shown
    assert all(len(repr(result)) < 500 for result in grid)


def test_indexes_slices_and_iteration_agree(tmp_path: Path) -> None:
    grid = ResultGrid.from_path(small_experiment(tmp_path / "exp").finish().path)
    assert len(grid) == 4
    assert [result.trial_id for result in grid] == [grid[i].trial_id for i in range(4)]
    assert grid[-1] is grid[3]
    assert grid[1:3] == [grid[1], grid[2]]
    with pytest.raises(IndexError):
        grid[4]


# --- the best


@pytest.mark.parametrize(
    ("scope", "best"),
    [("last", 1), ("all", 0), ("avg", 1), ("last-5-avg", 1), ("last-10-avg", 1)],
)
def test_scopes_compare_last_best_and_mean_values(root: RootWriter, scope: str, best: int) -> None:
    one_trial(root, [0.0, 9.0, 9.0])
    one_trial(root, [3.0, 3.0, 3.0])
    assert grid_of(root).get_best_result("loss", "min", scope=scope).trial_id == f"abcde_{best:05d}"


def test_averages_take_the_last_five_and_ten_values(root: RootWriter) -> None:
    one_trial(root, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    one_trial(root, [3.9])
    one_trial(root, [3.6])
    grid = grid_of(root)
    found = {scope: grid.get_best_result("loss", "max", scope=scope).trial_id for scope in ("last-5-avg", "avg")}
    assert found == {"last-5-avg": "abcde_00000", "avg": "abcde_00001"}
    assert grid.get_best_result("loss", "max", scope="last-10-avg").trial_id == "abcde_00001"


def test_metric_and_mode_default_to_those_of_the_experiment(root: RootWriter) -> None:
    one_trial(root, [2.0])
    one_trial(root, [1.0])
    assert grid_of(root).get_best_result().metrics["loss"] == 1.0


def test_nested_and_filled_in_metrics_can_be_compared(root: RootWriter) -> None:
    for n, depth in enumerate((1, 5)):
        root.create({"lr": n})
        root.start(n)
        for _ in range(2 - n):
            root.report(n, {"net": {"depth": depth}})
        root.end(n)
    grid = grid_of(root)
    assert grid.get_best_result("net/depth", "max").trial_id == "abcde_00001"
    assert grid.get_best_result("training_iteration", "max").trial_id == "abcde_00000"
    assert grid.get_best_result("config/lr", "max").trial_id == "abcde_00001"


def test_a_metric_that_the_last_row_lacks_is_looked_up_in_earlier_rows(root: RootWriter) -> None:
    n = root.create({})
    root.start(n)
    root.report(n, {"loss": 0.5})
    root.report(n, {"other": 1.0})
    root.end(n)
    one_trial(root, [0.7])
    assert grid_of(root).get_best_result().trial_id == "abcde_00000"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_not_the_best(root: RootWriter, bad: float) -> None:
    one_trial(root, [0.0, bad])
    one_trial(root, [5.0])
    grid = grid_of(root)
    assert grid.get_best_result("loss", "min").trial_id == "abcde_00001"
    assert grid.get_best_result("loss", "max").trial_id == "abcde_00001"
    assert grid.get_best_result("loss", "min", scope="all").trial_id == "abcde_00000"
    assert grid.get_best_result("loss", "min", scope="avg").trial_id == "abcde_00001"


def test_unfiltered_infinity_counts_and_nan_still_never_beats_a_number(root: RootWriter) -> None:
    one_trial(root, [math.nan])
    one_trial(root, [5.0])
    one_trial(root, [math.inf])
    grid = grid_of(root)
    assert grid.get_best_result("loss", "max", filter_nan_and_inf=False).trial_id == "abcde_00002"
    assert grid.get_best_result("loss", "min", filter_nan_and_inf=False).trial_id == "abcde_00001"


def test_without_any_value_there_is_no_best_trial(root: RootWriter) -> None:
    one_trial(root, [math.nan])
    one_trial(root, [math.nan])
    grid = grid_of(root)
    with pytest.raises(RuntimeError, match=r"No best trial found for the given metric: loss.*NaN"):
        grid.get_best_result()
    with pytest.raises(RuntimeError, match=r"no trial has reported this metric.*Reported were: 'loss'"):
        grid.get_best_result("accuracy", "max")
    assert grid.get_best_result(filter_nan_and_inf=False).trial_id == "abcde_00000"


def test_text_is_no_value_to_compare(root: RootWriter) -> None:
    one_trial(root, ["low"])
    one_trial(root, [5.0])
    assert grid_of(root).get_best_result().trial_id == "abcde_00001"


def test_the_only_trial_is_the_best_whatever_is_asked(tmp_path: Path) -> None:
    root = RootWriter(tmp_path / "exp", metric=None, mode=None).open()
    one_trial(root, [1.0])
    assert grid_of(root).get_best_result().trial_id == "abcde_00000"


def test_missing_or_wrong_metric_mode_and_scope_are_refused(tmp_path: Path) -> None:
    root = RootWriter(tmp_path / "exp", metric=None, mode=None).open()
    one_trial(root, [1.0])
    one_trial(root, [2.0])
    grid = grid_of(root)
    with pytest.raises(ValueError, match="No metric is provided"):
        grid.get_best_result()
    with pytest.raises(ValueError, match="No mode is provided"):
        grid.get_best_result("loss")
    with pytest.raises(ValueError, match=r"one of \['min', 'max'\], got 'up'"):
        grid.get_best_result("loss", "up")
    with pytest.raises(ValueError, match="`scope` must be one of"):
        grid.get_best_result("loss", "min", scope="best")


# --- checkpoints


def saved_trial(root: RootWriter, scores: list[Any], key: str = "score") -> int:
    n = root.create({"lr": 0.1})
    root.start(n)
    for score in scores:
        root.report(n, {key: score})
        root.save(n, {"model.txt": f"{score}"})
        root.drop(n)
    root.end(n)
    return n


def names(result: Result) -> list[str]:
    return [Path(checkpoint.path).name for checkpoint, _ in result.best_checkpoints]


def test_best_checkpoints_go_from_worst_to_best_and_latest_is_kept_too(tmp_path: Path) -> None:
    rule = Retention(num_to_keep=2, score_attribute="score")
    root = RootWriter(tmp_path / "exp", retention=rule).open()
    saved_trial(root, [5, 1, 4, 2, 3])
    result = grid_of(root)[0]
    assert names(result) == ["checkpoint_000002", "checkpoint_000000"]
    assert [metrics["score"] for _, metrics in result.best_checkpoints] == [4, 5]
    assert [metrics["training_iteration"] for _, metrics in result.best_checkpoints] == [3, 1]
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path).name == "checkpoint_000004"
    with result.checkpoint.as_directory() as directory:
        assert (Path(directory) / "model.txt").read_text() == "3"


def test_get_best_checkpoint_takes_any_metric_and_never_a_nan(root: RootWriter) -> None:
    saved_trial(root, [1.0, math.nan, 3.0, math.inf])
    result = grid_of(root)[0]
    assert Path(result.get_best_checkpoint("score", "max").path).name == "checkpoint_000002"
    assert Path(result.get_best_checkpoint("score", "min").path).name == "checkpoint_000000"
    assert Path(result.get_best_checkpoint("training_iteration", "max").path).name == "checkpoint_000003"


def test_get_best_checkpoint_says_what_is_missing(root: RootWriter) -> None:
    saved_trial(root, [1.0])
    one_trial(root, [1.0])
    grid = grid_of(root)
    with pytest.raises(RuntimeError, match=r"'accurcy'.*Reported with its checkpoints: 'score'"):
        grid[0].get_best_checkpoint("accurcy", "max")
    with pytest.raises(RuntimeError, match="No checkpoint exists"):
        grid[1].get_best_checkpoint("score", "max")
    with pytest.raises(ValueError, match="min"):
        grid[0].get_best_checkpoint("score", "biggest")


def test_a_rejected_checkpoint_is_not_offered(root: RootWriter) -> None:
    n = saved_trial(root, [1.0, 2.0])
    root.reject(n, 1, "model.txt is missing")
    result = grid_of(root)[n]
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path).name == "checkpoint_000000"
    assert names(result) == ["checkpoint_000000"]


# --- truth about interrupted and moved experiments


def test_trials_of_a_live_driver_are_running(root: RootWriter) -> None:
    n = root.create({})
    root.start(n)
    assert ResultGrid.from_path(root.path)[n].status == "RUNNING"
    root.finish()


def test_trials_of_a_dead_driver_are_not_running(tmp_path: Path) -> None:
    grid = ResultGrid.from_path(small_experiment(tmp_path / "exp").die().path)
    assert [result.status for result in grid] == ["TERMINATED", "ERROR", "TERMINATED", "PENDING"]
    assert grid[3].metrics["loss"] == 2.0


def test_a_dead_drivers_verdicts_are_shown_as_a_restore_carries_them_out(root: RootWriter) -> None:
    for n, verdict in enumerate(("stop", "pause", "")):
        root.create({})
        root.start(n)
        root.report(n, {"loss": 1.0}, verdict=verdict, why="rule")
    grid = ResultGrid.from_path(root.die().path)
    assert [result.status for result in grid] == ["TERMINATED", "PAUSED", "PENDING"]


def test_trials_interrupted_in_order_keep_their_true_status(tmp_path: Path) -> None:
    grid = ResultGrid.from_path(small_experiment(tmp_path / "exp").finish("SIGINT").path)
    assert grid[3].status == "PENDING"
    assert grid.num_terminated == 2


def test_a_moved_experiment_has_its_paths_where_it_is_now(tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "old" / "exp").finish()
    moved = tmp_path / "new" / "renamed"
    moved.parent.mkdir()
    shutil.move(root.path, moved)
    grid = ResultGrid.from_path(moved)
    assert grid.experiment_path == str(moved)
    result = grid[0]
    assert result.path.startswith(str(moved))
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as directory:
        assert (Path(directory) / "model.txt").read_text() == "weights 2"


def tree_of(path: Path) -> dict[str, tuple[int, int]]:
    return {str(each): (each.stat().st_mtime_ns, each.stat().st_size) for each in sorted(path.rglob("*"))}


def test_looking_changes_nothing(tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "exp").die()
    before = tree_of(root.path)
    grid = ResultGrid.from_path(root.path)
    grid.get_best_result(scope="all")
    assert [result.best_checkpoints for result in grid]
    assert grid.get_dataframe() is not None
    assert tree_of(root.path) == before


def test_an_experiment_that_never_ran_has_no_results(tmp_path: Path) -> None:
    grid = ResultGrid.from_path(RootWriter(tmp_path / "exp").path)
    assert len(grid) == 0
    assert grid.errors == []
    with pytest.raises(RuntimeError, match="No trial has reported anything yet"):
        grid.get_best_result()


def test_no_experiment_and_a_damaged_one_say_so(tmp_path: Path) -> None:
    with pytest.raises(ExperimentNotFoundError, match="does not exist"):
        ResultGrid.from_path(tmp_path / "nothing")
    root = RootWriter(tmp_path / "exp").open()
    one_trial(root, [1.0, 2.0, 3.0])
    root.finish()
    segment = next((root.path / ".holdfast" / "journal").glob("*"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(JournalDamagedError, match="holdfast repair"):
        ResultGrid.from_path(root.path)


def test_objects_in_configs_stay_markers_without_the_users_code(root: RootWriter) -> None:
    marker = {"__object__": "data", "type": "pandas.DataFrame"}
    root.create({"data": marker})
    assert grid_of(root)[0].config == {"data": marker}


# --- frames


def test_get_dataframe_has_the_last_row_of_every_trial_that_reported(tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "exp")
    root.create({"lr": 9.0})
    frame = ResultGrid.from_path(root.finish().path).get_dataframe()
    assert list(frame["logdir"]) == ["abcde_00000", "abcde_00001", "abcde_00002", "abcde_00003"]
    assert list(frame["loss"]) == [1.0, 9.0, 4.0, 2.0]
    assert list(frame["config/lr"]) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert "nested/deep" in frame
    assert "config" not in frame


def test_a_metric_and_a_mode_are_checked_for_a_single_trial_too(root: RootWriter) -> None:
    one_trial(root, [3.0, 1.0])
    grid = grid_of(root)
    with pytest.raises(NoResultError, match=r"metric: los\..*Reported were: 'loss'"):
        grid.get_best_result("los", "min")
    with pytest.raises(InvalidInputError, match=r"`mode` must be one of .*got 'mn'"):
        grid.get_best_result("loss", "mn")
    assert grid.get_best_result() is grid.get_best_result("loss") is grid.get_best_result("loss", "min") is grid[0]


def test_a_result_that_is_not_there_names_the_last(root: RootWriter) -> None:
    one_trial(root, [3.0])
    grid = grid_of(root)
    with pytest.raises(IndexError, match=r"no result 1: there is one trial, grid\[0\]"):
        grid[1]
    assert [result.metrics["loss"] for result in grid] == [grid[-1].metrics["loss"]] == [3.0]


def test_get_dataframe_can_take_the_best_row_instead(root: RootWriter) -> None:
    one_trial(root, [math.nan, 4.0, 1.0, 3.0])
    one_trial(root, [7.0], key="other")
    frame = grid_of(root).get_dataframe(filter_metric="loss", filter_mode="min")
    assert list(frame["training_iteration"]) == [3, 1]
    with pytest.raises(ValueError, match="without a metric"):
        ResultGrid.from_path(root.path).get_dataframe(filter_mode="min")


def test_metrics_dataframe_has_all_rows(tmp_path: Path) -> None:
    grid = ResultGrid.from_path(small_experiment(tmp_path / "exp").finish().path)
    frame = grid[0].metrics_dataframe
    assert list(frame["loss"]) == [3.0, 2.0, 1.0]
    assert list(frame["nested/deep"]) == [0, 1, 2]
    assert set(frame["config/lr"]) == {0.1}


def test_without_pandas_frames_say_how_to_get_it(root: RootWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    one_trial(root, [1.0])
    grid = grid_of(root)
    monkeypatch.setitem(sys.modules, "pandas", None)
    for ask in (grid.get_dataframe, lambda: grid[0].metrics_dataframe):
        with pytest.raises(ImportError, match=r"holdfast\[dataframe\]"):
            ask()
    assert grid[0].metrics_history[0]["loss"] == 1.0


def test_filesystem_is_none_without_pyarrow(root: RootWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    one_trial(root, [1.0])
    grid = grid_of(root)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert grid.filesystem is None
    assert grid[0].filesystem is None
