"""How trials end: stop criteria, budgets, failures and retries, missing metrics; and which checkpoints stay."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from api_trainables import five, noop, note, scores
from experiment_tools import checkpoints, history, lines, statuses

import holdfast as tune
from holdfast.cli.main import main
from holdfast.errors import (
    MetricMissingError,
    TrialError,
)
from holdfast.schedulers import FIFOScheduler
from holdfast.search import Searcher
from holdfast.stopper import CombinedStopper, MaximumIterationStopper, TimeoutStopper

# --- when trials end


@pytest.mark.parametrize(
    ("stop", "rows"),
    [
        ({"training_iteration": 2}, 2),
        ({"score": 3}, 3),
        ({"deep/er": 20}, 2),
        ({"score": 100, "training_iteration": 4}, 4),
        (lambda trial_id, result: result["score"] == 2, 2),
        (MaximumIterationStopper(3), 3),
        ([MaximumIterationStopper(3), MaximumIterationStopper(2)], 2),
        (CombinedStopper(TimeoutStopper(100), MaximumIterationStopper(1)), 1),
        (None, 5),
    ],
    ids=["iteration", "metric", "nested", "any-key", "function", "stopper", "list", "combined", "none"],
)
def test_a_stop_criterion_ends_a_trial_with_the_result_that_meets_it(make_tuner, stop, rows):
    (result,) = make_tuner(five, stop=stop).fit()
    assert history(result) == list(range(1, rows + 1))
    assert result.status == "TERMINATED"
    assert result.metrics["done"] is True
    assert result.error is None


def test_a_stopper_that_stops_all_ends_running_waiting_and_future_trials(make_tuner):
    class Enough(tune.Stopper):
        def __init__(self):
            self.enough = False

        def __call__(self, trial_id, result):
            self.enough = self.enough or result["score"] >= 3
            return False

        def stop_all(self):
            return self.enough

    def for_ever(config):
        score = 0
        while True:
            score += 1
            tune.report({"score": score})

    grid = make_tuner(for_ever, num_samples=100, stop=Enough()).fit()
    assert set(statuses(grid)) == {"TERMINATED"}
    assert len(grid) < 100 or any("score" not in result.metrics for result in grid)


def test_a_time_budget_ends_the_experiment(make_tuner, tmp_path, time_begins):
    def for_ever(config):
        while True:
            tune.report({"score": 1})
            Path(config["dir"], "here").touch()

    time_begins((tmp_path / "here").exists)
    grid = make_tuner(for_ever, {"dir": str(tmp_path)}, num_samples=4, time_budget_s=0.3).fit()
    assert statuses(grid) == ["TERMINATED"] * 4


def test_a_trial_that_does_not_report_is_ended_when_its_time_for_that_is_over(
    make_tuner, tmp_path, time_begins, monkeypatch
):
    def silent(config):
        Path(config["dir"], "here").touch()
        threading.Event().wait()

    monkeypatch.setenv("TUNE_FORCE_TRIAL_CLEANUP_S", "0.2")
    time_begins((tmp_path / "here").exists)
    grid = make_tuner(silent, {"dir": str(tmp_path)}, num_samples=2, time_budget_s=0.3).fit()
    assert statuses(grid) == ["TERMINATED"] * 2


def test_every_report_can_be_on_disk_before_it_returns(make_tuner):
    (result,) = make_tuner(five, durability="sync").fit()
    assert history(result, "score") == [1, 2, 3, 4, 5]


def test_a_stopped_trial_runs_its_finally_blocks(make_tuner, tmp_path):
    def train(config):
        try:
            while True:
                tune.report({"score": 1})
        finally:
            Path(config["dir"], "cleaned").touch()

    make_tuner(train, {"dir": str(tmp_path)}, stop={"training_iteration": 2}).fit()
    assert (tmp_path / "cleaned").exists()


# --- failures


def test_a_trials_exception_is_in_the_grid_and_ends_nothing_else(make_tuner):
    def train(config):
        tune.report({"score": 1})
        if config["x"] == 2:
            raise KeyError("no such thing")

    grid = make_tuner(train, {"x": tune.grid_search([1, 2, 3])}).fit()
    assert statuses(grid) == ["TERMINATED", "ERROR", "TERMINATED"]
    assert grid.num_errors == 1
    (error,) = grid.errors
    assert isinstance(error, TrialError)
    assert (error.error_type, error.trial_id, error.cause) == ("KeyError", grid[1].trial_id, "exception")
    assert "no such thing" in str(error)
    assert os.path.basename(__file__) in error.location
    assert grid[1].metrics["score"] == 1
    assert "Failure # 1" in Path(grid[1].path, "error.txt").read_text()


def test_a_failed_trial_is_retried_from_its_latest_checkpoint(make_tuner, tmp_path):
    def train(config):
        from api_trainables import start_step

        for step in range(start_step() + 1, 5):
            with tune.checkpoint_dir() as directory:
                Path(directory, "step").write_text(str(step))
                tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(directory))
            note(config, "diary", step)
            if step == 2 and len(lines(Path(config["dir"], "diary"))) == 2:
                raise RuntimeError("once")

    config = tune.FailureConfig(max_failures=1)
    (result,) = make_tuner(train, {"dir": str(tmp_path)}, failure_config=config).fit()
    assert lines(tmp_path / "diary") == ["1", "2", "3", "4"]
    assert history(result, "step") == [1, 2, 3, 4]
    assert (result.status, result.error) == ("TERMINATED", None)
    assert Path(result.path, "error.txt").read_text().count("Failure #") == 1


@pytest.mark.parametrize(
    ("max_failures", "attempts", "status"), [(0, 1, "ERROR"), (2, 3, "ERROR"), (-1, 5, "TERMINATED")]
)
def test_max_failures_is_the_number_of_retries(make_tuner, tmp_path, max_failures, attempts, status):
    def train(config):
        note(config, "diary", "x")
        if len(lines(Path(config["dir"], "diary"))) < 5:
            raise RuntimeError("again")

    config = tune.FailureConfig(max_failures=max_failures)
    (result,) = make_tuner(train, {"dir": str(tmp_path)}, failure_config=config).fit()
    assert len(lines(tmp_path / "diary")) == attempts
    assert result.status == status
    errors = Path(result.path, "error.txt").read_text()
    assert errors.count("Failure #") == (attempts if status == "ERROR" else attempts - 1)


@pytest.mark.parametrize(("death", "cause"), [("os._exit(3)", "exit"), ("os.kill(os.getpid(), 11)", "signal")])
def test_the_death_of_a_trials_process_counts_as_a_failure(make_tuner, tmp_path, death, cause):
    def train(config):
        import os

        note(config, "diary", "x")
        print("last words", flush=True)
        tune.report({"score": 1})
        exec(death, {"os": os})

    config = tune.FailureConfig(max_failures=1)
    (result,) = make_tuner(train, {"dir": str(tmp_path)}, failure_config=config).fit()
    assert len(lines(tmp_path / "diary")) == 2
    assert result.error.cause == cause
    assert history(result) == [1]


def test_fail_fast_ends_the_experiment_at_the_first_failure(make_tuner):
    def train(config):
        if config["x"] == 0:
            raise RuntimeError("first")
        while True:
            tune.report({"score": 1})

    space = {"x": tune.grid_search(list(range(6)))}
    grid = make_tuner(train, space, failure_config=tune.FailureConfig(fail_fast=True)).fit()
    assert grid[0].status == "ERROR"
    assert grid.num_errors == 1
    assert "TERMINATED" not in statuses(grid)


def test_fail_fast_raise_raises_the_trials_own_exception(make_tuner):
    def train(config):
        raise ZeroDivisionError("from the trial")

    tuner = make_tuner(train, failure_config=tune.FailureConfig(fail_fast="raise"))
    with pytest.raises(ZeroDivisionError, match="from the trial"):
        tuner.fit()


@pytest.mark.parametrize("how", ["an exception that cannot be pickled", "a death"])
def test_fail_fast_raise_raises_something_even_if_there_is_no_exception_to_raise(make_tuner, how):
    def unpicklable(config):
        error = RuntimeError("holds a lock")
        error.lock = threading.Lock()
        raise error

    def dies(config):
        os._exit(9)

    trainable = unpicklable if how.startswith("an") else dies
    tuner = make_tuner(trainable, failure_config=tune.FailureConfig(fail_fast="raise"))
    with pytest.raises(TrialError) as caught:
        tuner.fit()
    assert ("holds a lock" if how.startswith("an") else "9") in str(caught.value)


def test_a_trial_that_stalls_is_killed_and_retried_from_its_checkpoint(make_tuner, tmp_path):
    def train(config):
        from api_trainables import save, start_step

        first = start_step() == 0
        for step in range(start_step() + 1, 4):
            save(step)
            if first and step == 2:
                threading.Event().wait()

    config = tune.FailureConfig(max_failures=-1, stall_timeout_s=0.5)
    (result,) = make_tuner(train, {"dir": str(tmp_path)}, failure_config=config).fit()
    assert result.status == "TERMINATED"
    assert history(result, "step") == [1, 2, 3]
    assert "stall_timeout_s" in Path(result.path, "error.txt").read_text()


def test_a_trial_that_stalls_too_often_ends_in_error(make_tuner):
    def train(config):
        tune.report({"score": 1})
        threading.Event().wait()

    config = tune.FailureConfig(stall_timeout_s=0.3)
    (result,) = make_tuner(train, failure_config=config).fit()
    assert result.error.cause == "stalled"


# --- metrics that must be there


def test_a_result_without_the_metric_ends_the_run_and_says_how_to_go_on(make_tuner):
    def train(config):
        tune.report({"accuracy": 1})

    with pytest.raises(MetricMissingError, match="`loss`") as caught:
        make_tuner(train, metric="loss", mode="min").fit()
    text = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert "tune.TuneConfig()" in text
    assert "'accuracy'" in text
    assert "TUNE_DISABLE_STRICT_METRIC_CHECKING" in text


def test_after_a_missing_metric_the_experiment_goes_on_with_mended_code(make_tuner, storage):
    def train(config):
        tune.report({"accuracy": 1})

    with pytest.raises(MetricMissingError):
        make_tuner(train, metric="loss", mode="min").fit()

    def mended(config):
        tune.report({"accuracy": 1, "loss": 2})

    mended.__name__ = "train"
    (result,) = tune.Tuner.restore(storage / "exp", mended).fit()
    assert (result.status, result.metrics["loss"]) == ("TERMINATED", 2)


def test_why_a_wrong_metric_ended_the_run_is_known_later(make_tuner, storage, capsys):
    def train(config):
        tune.report({"los": 1.0})

    with pytest.raises(MetricMissingError):
        make_tuner(train, {"x": tune.grid_search([1, 2])}, metric="loss", mode="min", verbose=1).fit()
    assert "0/2 trials ended (2 pending)" in capsys.readouterr().out
    path = storage / "exp"
    main(["status", str(path)])
    said = capsys.readouterr().out
    assert "MetricMissingError: Trial" in said
    assert "It reported: 'los'" in said
    restore = f'Tuner.restore("{path}", tune_config=TuneConfig(metric="los", mode="min")).fit()'
    assert f"resume: {restore}" in said
    assert "holdfast resume" not in said
    assert "exited without shutting down" not in said
    assert "all their reports are recorded" not in said
    main(["show", str(path), "--story"])
    assert "The driver stopped: MetricMissingError: Trial" in capsys.readouterr().out
    grid = tune.Tuner.restore(path, tune_config=tune.TuneConfig(metric="los", mode="min")).fit()
    assert [result.status for result in grid] == ["TERMINATED", "TERMINATED"]
    main(["status", str(path)])
    assert "MetricMissing" not in capsys.readouterr().out


class _FailingCallback(tune.Callback):
    def on_trial_result(self, **info):
        raise RuntimeError("the callback broke")


class _FailingStopper(tune.Stopper):
    def __call__(self, trial_id, result):
        raise RuntimeError("the stopper broke")

    def stop_all(self):
        return False


class _FailingScheduler(FIFOScheduler):
    def on_trial_result(self, *arguments):
        raise RuntimeError("the scheduler broke")


class _FailingSearcher(Searcher):
    def set_search_properties(self, *arguments, **more):
        return True

    def suggest(self, trial_id):
        raise RuntimeError("the searcher broke")

    def on_trial_complete(self, *arguments, **more): ...

    def save(self, checkpoint_path): ...

    def restore(self, checkpoint_path): ...


@pytest.mark.parametrize(
    ("who", "settings"),
    [
        ("callback", {"callbacks": [_FailingCallback()]}),
        ("stopper", {"stop": _FailingStopper()}),
        ("scheduler", {"scheduler": _FailingScheduler()}),
        ("searcher", {"search_alg": _FailingSearcher("loss", "min")}),
    ],
)
def test_what_else_ended_the_driver_is_known_later(make_tuner, storage, capsys, who, settings):
    def train(config):
        tune.report({"loss": 1.0})

    with pytest.raises(Exception, match=f"the {who} broke"):
        make_tuner(train, {"x": tune.uniform(0, 1)}, metric="loss", mode="min", **settings).fit()
    for command in (["status"], ["show", "--story"]):
        main([command[0], str(storage / "exp"), *command[1:]])
        said = capsys.readouterr().out
        assert f"the {who} broke" in said
        assert "exited without shutting down" not in said


def test_strict_metrics_can_be_turned_off(make_tuner, monkeypatch):
    monkeypatch.setenv("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    grid = make_tuner(noop, {"x": tune.grid_search([1, 2])}, metric="loss", mode="min").fit()
    assert statuses(grid) == ["TERMINATED"] * 2
    with pytest.raises(RuntimeError, match="No best trial found for the given metric"):
        grid.get_best_result()


def test_the_required_metric_may_be_nested_and_may_be_none_of_the_numbers(make_tuner):
    assert statuses(make_tuner(five, metric="deep/er", mode="max").fit()) == ["TERMINATED"]


def test_a_trial_that_reports_nothing_lacks_no_metric(make_tuner):
    grid = make_tuner(lambda config: None, metric="loss", mode="min").fit()
    assert statuses(grid) == ["TERMINATED"]
    assert grid.get_best_result().metrics["trial_id"] == grid[0].trial_id


# --- which checkpoints stay


@pytest.mark.parametrize(
    ("given", "keep", "attribute", "order", "kept"),
    [
        ([5, 1, 4, 2, 3], 2, "score", "max", [0, 2, 4]),
        ([5, 1, 4, 2, 3], 1, "score", "max", [0, 4]),
        ([5, 1, 4, 2, 3], 2, "score", "min", [1, 3, 4]),
        ([5, 1, 4, 2, 3], 2, "m/a", "max", [0, 2, 4]),
        ([5, 1, 4, 2, 3], 2, None, "max", [3, 4]),
        ([5, None, 4, None, 3], 2, "score", "max", [0, 2, 4]),
        ([5, float("nan"), 4, float("nan")], 2, "score", "max", [0, 2, 3]),
        ([1, 1, 1], 1, "score", "max", [2]),
        ([5, 1, 4, 2, 3], 2, "min-score", "max", [1, 3, 4]),
        ([5, 1, 4, 2, 3], None, None, "max", [0, 1, 2, 3, 4]),
    ],
)
def test_the_best_checkpoints_and_the_latest_stay_and_no_others(make_tuner, given, keep, attribute, order, kept):
    config = tune.CheckpointConfig(num_to_keep=keep, checkpoint_score_attribute=attribute, checkpoint_score_order=order)
    (result,) = make_tuner(scores, {"scores": given}, checkpoint_config=config).fit()
    assert checkpoints(result) == [f"checkpoint_{index:06d}" for index in kept]
    assert Path(result.checkpoint.path).name == f"checkpoint_{kept[-1]:06d}"
    best = result.best_checkpoints
    assert len(best) == (len(given) if keep is None else min(keep, len(given)))
    assert all(Path(checkpoint.path).is_dir() for checkpoint, _ in best)


def test_best_checkpoints_are_ordered_worst_to_best(make_tuner):
    config = tune.CheckpointConfig(num_to_keep=3, checkpoint_score_attribute="score")
    (result,) = make_tuner(scores, {"scores": [5, 1, 4, 2, 3]}, checkpoint_config=config).fit()
    assert [metrics["score"] for _, metrics in result.best_checkpoints] == [3, 4, 5]


def test_a_limit_for_the_whole_experiment_keeps_its_best_checkpoints(make_tuner):
    config = tune.CheckpointConfig(num_to_keep_overall=2, checkpoint_score_attribute="score")
    space = {"scores": tune.grid_search([[1, 9, 2], [3, 8, 4], [5, 6, 7]])}
    grid = make_tuner(scores, space, checkpoint_config=config).fit()
    assert [checkpoints(result) for result in grid] == [["checkpoint_000001"], ["checkpoint_000001"], []]
