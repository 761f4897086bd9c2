"""ExperimentAnalysis, and Result.from_path: results by their older names, and of a lone trial directory."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from holdfast.results import ExperimentAnalysis, Result, ResultGrid

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))

from roots import RootWriter, small_experiment


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return small_experiment(tmp_path / "exp").finish().path


@pytest.fixture
def analysis(path: Path) -> ExperimentAnalysis:
    return ExperimentAnalysis(path)


# --- ExperimentAnalysis


def test_the_best_of_everything_follows_the_experiments_metric(analysis: ExperimentAnalysis) -> None:
    assert analysis.best_trial.trial_id == "abcde_00000"
    assert analysis.best_config == {"lr": 0.1}
    assert analysis.best_result["loss"] == 1.0
    assert analysis.best_logdir == analysis.best_trial.path
    assert analysis.best_checkpoint is not None
    assert Path(analysis.best_checkpoint.path).name == "checkpoint_000002"
    assert list(analysis.best_dataframe["loss"]) == [3.0, 2.0, 1.0]
    assert list(analysis.best_result_df.index) == ["abcde_00000"]


def test_without_a_default_metric_the_best_is_refused(tmp_path: Path) -> None:
    root = RootWriter(tmp_path / "exp", metric=None, mode=None).open()
    for _ in range(2):
        root.create({})
    analysis = ExperimentAnalysis(root.finish().path)
    for name in ("trial", "config", "checkpoint", "dataframe", "result", "result_df"):
        with pytest.raises(ValueError, match=f"best_{name}.*no metric is provided"):
            getattr(analysis, f"best_{name}")


def test_defaults_can_be_given(path: Path) -> None:
    analysis = ExperimentAnalysis(path, default_metric="loss", default_mode="max")
    assert analysis.best_trial.trial_id == "abcde_00001"
    with pytest.raises(ValueError, match=r"\['min', 'max'\]"):
        ExperimentAnalysis(path, default_mode="most")


def test_results_configs_and_frames_are_keyed_by_trial(analysis: ExperimentAnalysis) -> None:
    ids = ["abcde_00000", "abcde_00001", "abcde_00002", "abcde_00003"]
    assert [trial.trial_id for trial in analysis.trials] == ids
    assert list(analysis.results) == ids
    assert list(analysis.results_df.index) == ids
    assert analysis.get_all_configs()["abcde_00001"] == {"lr": 0.2}
    assert analysis.get_all_configs(prefix=True)["abcde_00001"] == {"config/lr": 0.2}
    assert list(analysis.trial_dataframes["abcde_00002"]["loss"]) == [5.0, 4.0]
    assert analysis.fetch_trial_dataframes().keys() == analysis.trial_dataframes.keys()
    assert list(analysis.dataframe()["loss"]) == [1.0, 9.0, 4.0, 2.0]
    assert list(analysis.dataframe("loss", "max")["loss"]) == [3.0, 9.0, 5.0, 2.5]


def test_trials_know_their_metric_analysis(tmp_path: Path) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({})
    root.start(0)
    for value in range(1, 7):
        root.report(0, {"m": value})
    root.end(0)
    trial = ExperimentAnalysis(root.finish().path).trials[0]
    expected = {"max": 6, "min": 1, "avg": 3.5, "last": 6, "last-5-avg": 4.0, "last-10-avg": 3.5}
    assert trial.metric_analysis["m"] == expected


def test_best_and_last_checkpoints_of_any_trial(analysis: ExperimentAnalysis) -> None:
    trial = analysis.trials[0]
    for given in (trial, trial.trial_id, trial.path):
        best = analysis.get_best_checkpoint(given, "loss", "max")
        assert best is not None
        assert Path(best.path).name == "checkpoint_000000"
    last = analysis.get_last_checkpoint()
    assert last is not None
    assert Path(last.path).name == "checkpoint_000002"
    assert analysis.get_last_checkpoint(analysis.trials[1]) is None
    assert analysis.get_best_checkpoint(analysis.trials[1]) is None
    paths = analysis.get_trial_checkpoints_paths(trial, "loss")
    assert [(Path(found).name, value) for found, value in paths] == [
        ("checkpoint_000000", 3.0),
        ("checkpoint_000001", 2.0),
        ("checkpoint_000002", 1.0),
    ]
    with pytest.raises(ValueError, match="neither the id nor the directory"):
        analysis.get_last_checkpoint("nobody")


def test_no_best_trial_is_none_and_a_warning(analysis: ExperimentAnalysis, caplog: pytest.LogCaptureFixture) -> None:
    assert analysis.get_best_trial("accuracy", "max") is None
    assert "no trial has reported a number for 'accuracy'" in caplog.text
    assert analysis.get_best_config("accuracy", "max") is None
    assert analysis.get_best_logdir("accuracy", "max") is None


def test_chosen_trials_are_the_only_ones_looked_at(path: Path, analysis: ExperimentAnalysis) -> None:
    some = ExperimentAnalysis(path, trials=analysis.trials[1:3])
    assert [trial.trial_id for trial in some.trials] == ["abcde_00001", "abcde_00002"]
    assert some.best_trial.trial_id == "abcde_00002"


def test_the_state_file_names_the_experiment_too(path: Path) -> None:
    assert ExperimentAnalysis(path / ".holdfast" / "spec.json").experiment_path == str(path)
    assert ExperimentAnalysis(f"file://{path}").experiment_path == str(path)


def test_no_experiment_is_a_value_error_that_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No experiment snapshot file was found") as caught:
        ExperimentAnalysis(tmp_path)
    assert str(tmp_path) in str(caught.value)


# --- Result.from_path


def test_from_path_reads_the_experiment_above_the_directory(path: Path) -> None:
    expected = ResultGrid.from_path(path)[2]
    result = Result.from_path(expected.path)
    assert result.metrics_history == expected.metrics_history
    assert result.status == "TERMINATED"


def test_from_path_finds_a_trial_that_wrote_no_file(path: Path) -> None:
    expected = ResultGrid.from_path(path)[1]
    assert not Path(expected.path).exists()
    assert Result.from_path(expected.path).trial_id == "abcde_00001"


def lone_trial(tmp_path: Path) -> Path:
    """A trial directory as loggers leave it, taken out of its experiment, with a line that a crash cut short."""
    root = small_experiment(tmp_path / "exp").finish()
    grid = ResultGrid.from_path(root.path)
    directory = Path(grid[0].path)
    lines = [json.dumps(row) for row in grid[0].metrics_history]
    (directory / "result.json").write_text("\n".join(lines) + '\n{"loss": 0.')
    return Path(shutil.move(directory, tmp_path / "alone"))


def test_from_path_reads_result_json_of_a_lone_directory(tmp_path: Path) -> None:
    result = Result.from_path(lone_trial(tmp_path))
    assert [row["loss"] for row in result.metrics_history] == [3.0, 2.0, 1.0]
    assert result.metrics["loss"] == 1.0
    assert result.config == {"lr": 0.1}
    assert (result.trial_id, result.error) == ("abcde_00000", None)
    assert result.checkpoint is not None
    assert result.checkpoint.path == str(tmp_path / "alone" / "checkpoint_000002")
    best = result.get_best_checkpoint("loss", "max")
    assert Path(best.path).name == "checkpoint_000000"
    assert list(result.metrics_dataframe["loss"]) == [3.0, 2.0, 1.0]


def test_from_path_reads_progress_csv_if_there_is_no_result_json(tmp_path: Path) -> None:
    (tmp_path / "progress.csv").write_text("loss,done,name,nested/deep\n1.5,False,first,1\n0.5,True,,2\n")
    (tmp_path / "params.json").write_text('{"lr": 3}')
    result = Result.from_path(tmp_path)
    assert result.metrics == {"loss": 0.5, "done": True, "nested/deep": 2}
    assert result.metrics_history[0]["name"] == "first"
    assert (result.config, result.status) == ({"lr": 3}, "TERMINATED")


def test_from_path_shows_the_error_file_of_a_lone_directory(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"loss": 1.0, "trial_id": "x"}\n')
    (tmp_path / "error.txt").write_text("Failure # 1\nValueError: no\n")
    result = Result.from_path(tmp_path)
    assert result.status == "ERROR"
    assert "ValueError: no" in str(result.error)


def test_from_path_refuses_what_is_no_trial(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="does not exist"):
        Result.from_path(tmp_path / "nothing")
    with pytest.raises(RuntimeError, match=r"neither result\.json nor progress\.csv"):
        Result.from_path(tmp_path)
