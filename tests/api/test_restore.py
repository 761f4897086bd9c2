"""``Tuner.restore``: what each kind of trial does, wherever the root is now and however the last driver ended."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from api_trainables import Counter, Crashed, count, five, noop, note
from experiment_tools import checkpoints, csv_rows, history, json_rows, lines, statuses

import holdfast as tune
from holdfast.stopper import ExperimentPlateauStopper, MaximumIterationStopper, TimeoutStopper

restore = tune.Tuner.restore


# --- the table: what was stored, what is asked for, what happens


def test_finished_trials_are_kept_and_never_run_again(make_tuner, root, tmp_path):
    first = make_tuner(count, {"dir": str(tmp_path), "x": tune.grid_search([1, 2])}).fit()
    second = restore(root).fit()
    assert [(r.trial_id, r.status, r.metrics) for r in second] == [(r.trial_id, r.status, r.metrics) for r in first]
    assert len(lines(tmp_path / "diary")) == 6


def test_unfinished_trials_continue_from_their_latest_checkpoint(crashed, root, tmp_path):
    crashed(count, {"steps": 6, "hold_at": 3, "x": tune.grid_search([1, 2])}, after=4)
    found = restore(root).get_results()
    (tmp_path / "go").touch()
    grid = restore(root).fit()
    assert [r.trial_id for r in grid] == [r.trial_id for r in found]
    assert statuses(grid) == ["TERMINATED"] * 2
    assert [history(result, "step") for result in grid] == [[1, 2, 3, 4, 5, 6]] * 2
    assert [history(result) for result in grid] == [[1, 2, 3, 4, 5, 6]] * 2


def test_unfinished_trials_without_a_checkpoint_start_from_scratch(crashed, root):
    def train(config):
        for step in range(1, 4):
            tune.report({"step": step, "fresh": tune.get_checkpoint() is None})

    crashed(train, {}, after=2)
    (result,) = restore(root).fit()
    assert history(result, "step") == [1, 2, 3]
    assert result.metrics["fresh"] is True
    assert result.metrics["iterations_since_restore"] == 3


def test_trials_that_never_started_run(crashed, root):
    crashed(noop, {"x": tune.grid_search(list(range(6)))}, after=1, max_concurrent_trials=1)
    grid = restore(root).fit()
    assert [result.config["x"] for result in grid] == list(range(6))
    assert statuses(grid) == ["TERMINATED"] * 6


def test_unfinished_trials_can_be_ended_as_they_are(crashed, root, tmp_path):
    crashed(count, {"steps": 9, "x": tune.grid_search([1, 2, 3, 4])}, after=3)
    before = len(lines(tmp_path / "diary"))
    grid = restore(root, resume_unfinished=False).fit()
    assert statuses(grid) == ["TERMINATED"] * 4
    assert len(lines(tmp_path / "diary")) == before
    assert sum(len(result.metrics_history) for result in grid) >= 3


def test_ending_unfinished_trials_does_not_end_the_search(crashed, root, monkeypatch):
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")
    crashed(noop, {"x": tune.grid_search(list(range(8)))}, after=1)
    before = len(restore(root).get_results())
    assert before < 8
    grid = restore(root, resume_unfinished=False).fit()
    assert [result.config["x"] for result in grid] == list(range(8))
    assert all("score" in result.metrics for result in grid[before:])


def failing(make_tuner, tmp_path, **fields):
    """Four trials of which the second fails at its second step."""
    space = {"dir": str(tmp_path), "x": tune.grid_search([1, 2]), "steps": 4}
    space["fail_at"] = tune.sample_from(lambda config: 2 if config["x"] == 2 else None)
    grid = make_tuner(count, space, **fields).fit()
    assert statuses(grid) == ["TERMINATED", "ERROR"]
    return grid


def test_errored_trials_stay_errored_by_default(make_tuner, root, tmp_path):
    before = failing(make_tuner, tmp_path)
    grid = restore(root).fit()
    assert statuses(grid) == ["TERMINATED", "ERROR"]
    assert str(grid[1].error) == str(before[1].error)


def test_errored_trials_can_be_resumed_from_their_latest_checkpoint(make_tuner, root, tmp_path):
    before = failing(make_tuner, tmp_path)
    (tmp_path / "mended").touch()
    grid = restore(root, resume_errored=True).fit()
    assert statuses(grid) == ["TERMINATED"] * 2
    assert (grid[1].trial_id, grid[1].path) == (before[1].trial_id, before[1].path)
    assert grid[1].error is None
    assert history(grid[1], "step") == [1, 2, 3, 4]
    assert lines(tmp_path / "diary").count(f"{grid[1].trial_id} 1") == 1


def test_errored_trials_can_be_restarted_from_scratch(make_tuner, root, tmp_path):
    before = failing(make_tuner, tmp_path)
    (tmp_path / "mended").touch()
    grid = restore(root, restart_errored=True).fit()
    assert statuses(grid) == ["TERMINATED"] * 2
    assert len(grid) == 2
    assert (grid[1].trial_id, grid[1].path) == (before[1].trial_id, before[1].path)
    assert history(grid[1], "step") == [1, 2, 3, 4]
    assert lines(tmp_path / "diary").count(f"{grid[1].trial_id} 1") == 2
    assert [row["step"] for row in json_rows(grid[1])] == [1, 2, 3, 4]


def test_resume_errored_wins_over_restart_errored(make_tuner, root, tmp_path):
    failing(make_tuner, tmp_path)
    (tmp_path / "mended").touch()
    grid = restore(root, resume_errored=True, restart_errored=True).fit()
    assert lines(tmp_path / "diary").count(f"{grid[1].trial_id} 1") == 1


def test_a_second_fit_does_not_resume_errored_trials_once_more(make_tuner, root, tmp_path):
    failing(make_tuner, tmp_path)
    tuner = restore(root, restart_errored=True)
    tuner.fit()
    attempts = len(lines(tmp_path / "diary"))
    assert statuses(tuner.fit()) == ["TERMINATED", "ERROR"]
    assert len(lines(tmp_path / "diary")) == attempts


@pytest.mark.parametrize(("finished", "starts"), [("resume", 1), ("restart", 2), ("skip", 1)])
def test_finished_trials_can_be_run_again_on_request(make_tuner, root, tmp_path, finished, starts):
    make_tuner(count, {"dir": str(tmp_path)}).fit()
    (result,) = restore(root, _resume_config=tune.ResumeConfig(finished=finished)).fit()
    assert result.status == "TERMINATED"
    assert history(result, "step") == [1, 2, 3]
    assert lines(tmp_path / "diary").count(f"{result.trial_id} 1") == starts


def test_unfinished_trials_can_be_restarted_from_scratch_on_request(crashed, root, tmp_path):
    crashed(count, {"steps": 4}, after=3)
    (result,) = restore(root, _resume_config=tune.ResumeConfig(unfinished="restart")).fit()
    assert history(result, "step") == [1, 2, 3, 4]
    assert lines(tmp_path / "diary").count(f"{result.trial_id} 1") == 2


def test_the_number_of_trials_of_a_finished_experiment_never_changes(make_tuner, root):
    make_tuner(noop, {"x": tune.grid_search([1, 2, 3])}, num_samples=2).fit()
    for _ in range(3):
        assert len(restore(root).fit()) == 6


def test_a_resumed_trial_gets_its_retries_back(make_tuner, root, tmp_path):
    config = tune.FailureConfig(max_failures=1)
    space = {"dir": str(tmp_path), "attempts": 4}

    def train(config):
        note(config, "attempts", "x")
        if len(Path(config["dir"], "attempts").read_text().splitlines()) < config["attempts"]:
            raise RuntimeError("again")

    assert statuses(make_tuner(train, space, failure_config=config).fit()) == ["ERROR"]
    assert statuses(restore(root, resume_errored=True).fit()) == ["TERMINATED"]
    assert len(lines(tmp_path / "attempts")) == 4


def test_trials_at_work_most_recently_continue_first(crashed, root, tmp_path):
    def train(config):
        note(config, "order", config["x"])
        tune.report({"score": 1})
        tune.report({"score": 2})
        while not Path(config["dir"], "crashed").exists():
            tune.report({"score": 3})

    crashed(train, {"x": tune.grid_search([1, 2, 3])}, after=2, max_concurrent_trials=1)
    restore(root).fit()
    assert lines(tmp_path / "order") == ["1", "1", "2", "3"]


# --- what is given again


def test_the_trainable_need_not_be_given_again(crashed, root):
    crashed(five, {}, after=2)
    assert statuses(restore(root).fit()) == ["TERMINATED"]


def test_changed_code_under_the_same_name_is_used(crashed, root):
    def train(config):
        tune.report({"version": 1})
        tune.report({"version": 1})

    crashed(train, {}, after=1)

    def newer(config):
        tune.report({"version": 2})

    newer.__name__ = "train"
    (result,) = restore(root, newer).fit()
    assert result.metrics["version"] == 2


def test_changed_code_is_kept_for_later_restores(crashed, root, tmp_path):
    def train(config):
        tune.report({"version": 1})

    crashed(train, {"x": tune.grid_search([1, 2, 3])}, after=1, max_concurrent_trials=1)

    def newer(config):
        tune.report({"version": 2})

    newer.__name__ = "train"
    (tmp_path / "crashed").unlink()
    with pytest.raises(Crashed):
        restore(root, newer).fit()
    assert restore(root).fit()[-1].metrics["version"] == 2


def test_another_trainable_is_refused(make_tuner, root):
    make_tuner(noop).fit()
    with pytest.raises(ValueError, match="trainable") as caught:
        restore(root, five)
    assert "'five'" in str(caught.value)
    assert "'noop'" in str(caught.value)


def test_a_class_in_place_of_a_function_of_the_same_name_is_refused(make_tuner, root):
    make_tuner(noop).fit()
    other = type("noop", (Counter,), {})
    with pytest.raises(ValueError, match="was a function"):
        restore(root, other)


def test_the_older_spelling_of_the_trainable_works_with_a_warning(make_tuner, root):
    make_tuner(noop).fit()
    with pytest.warns(DeprecationWarning, match="trainable="):
        tuner = restore(root, overwrite_trainable=noop)
    assert len(tuner.fit()) == 1


def test_another_space_is_refused_with_both_lists_of_keys(make_tuner, root):
    make_tuner(noop, {"a": 1, "b": {"c": tune.uniform(0, 1)}}).fit()
    with pytest.raises(ValueError, match="param_space") as caught:
        restore(root, param_space={"a": 1, "b": {"d": tune.uniform(0, 1)}})
    assert "Got: ['a', 'b/d']" in str(caught.value)
    assert "Expected: ['a', 'b/c']" in str(caught.value)


def test_other_constants_of_a_space_given_again_change_nothing_and_other_domains_are_refused(
    crashed, root, monkeypatch
):
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")
    crashed(noop, {"x": tune.grid_search([1, 2, 3, 4, 5, 6]), "u": tune.uniform(0, 1), "c": 7}, after=1)
    space = {"dir": "elsewhere", "x": tune.grid_search([1, 2, 3, 4, 5, 6]), "u": tune.uniform(0, 1), "c": 8}
    for other in ({"x": tune.grid_search([10] * 9)}, {"u": tune.uniform(5, 6)}):
        with pytest.raises(ValueError, match=r"param_space.*start another experiment"):
            restore(root, param_space={**space, **other})
    grid = restore(root, param_space=space).fit()
    assert [result.config["x"] for result in grid] == [1, 2, 3, 4, 5, 6]
    assert all(result.config["c"] == 7 and result.config["u"] < 1 for result in grid)


class Dataset:
    def __init__(self, name):
        self.name = name


def uses_data(config):
    tune.report({"name": config["data"].name, "option": config["option"].name})


def test_objects_of_a_space_given_again_reach_existing_and_future_trials(crashed, root, monkeypatch):
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")

    def space(version):
        options = [Dataset(f"a{version}"), Dataset(f"b{version}")]
        return {
            "data": Dataset(f"data{version}"),
            "option": tune.grid_search(options),
            "x": tune.grid_search([1, 2, 3, 4]),
        }

    crashed(uses_data, space(1), after=1, max_concurrent_trials=1)
    grid = restore(root, param_space={"dir": "", **space(2)}).fit()
    seen = [(result.metrics["name"], result.metrics["option"]) for result in grid]
    assert len(seen) == 8
    assert seen[0] in (("data1", "a1"), ("data2", "a2"))
    assert seen[1:] == [("data2", name) for _, name in zip(range(7), ["b2", "a2"] * 4, strict=False)]


def test_a_sample_from_function_given_again_is_used_for_future_trials(crashed, root, monkeypatch):
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")
    grid = tune.grid_search(list(range(6)))
    crashed(noop, {"x": grid, "s": tune.sample_from(lambda config: "old")}, after=1, max_concurrent_trials=1)
    space = {"dir": "", "x": grid, "s": tune.sample_from(lambda config: "new")}
    assert restore(root, param_space=space).fit()[-1].config["s"] == "new"


def test_objects_that_functions_made_survive_a_restore_with_a_new_space(crashed, root):
    def train(config):
        tune.report({"name": config["data"].name})

    def space():
        return {"x": tune.grid_search([1, 2, 3]), "data": tune.sample_from(lambda config: Dataset(f"d{config['x']}"))}

    trainable = tune.with_resources(train, {"cpu": 2})
    crashed(trainable, space(), after=1, max_concurrent_trials=1)
    grid = restore(root, trainable, param_space={"dir": "", **space()}).fit()
    assert [result.metrics["name"] for result in grid] == ["d1", "d2", "d3"]


def test_everything_else_comes_from_the_record(crashed, root, tmp_path):
    config = tune.CheckpointConfig(num_to_keep=1)
    crashed(count, {"steps": 9}, after=2, stop={"training_iteration": 5}, checkpoint_config=config)
    (result,) = restore(root).fit()
    assert history(result) == [1, 2, 3, 4, 5]
    assert checkpoints(result) == ["checkpoint_000004"]


# --- what stop rules remember


def test_a_counting_stopper_counts_on_after_a_restore(crashed, root):
    def train(config):
        from api_trainables import save, start_step

        for step in range(start_step() + 1, 100):
            save(step)

    crashed(train, {}, after=3, stop=MaximumIterationStopper(5))
    (result,) = restore(root).fit()
    assert history(result) == [1, 2, 3, 4, 5]


def test_a_stopper_that_cannot_be_stored_is_told_its_past_again(crashed, root):
    class Best(tune.Stopper):
        """Stops all once six results were seen, over all drivers."""

        def __init__(self):
            self.seen = []

        def __call__(self, trial_id, result):
            self.seen.append(result["score"])
            return False

        def stop_all(self):
            return len(self.seen) >= 6

    def train(config):
        for score in range(1, 4):
            tune.report({"score": score})

    crashed(train, {"x": tune.grid_search(list(range(9)))}, after=4, stop=Best(), max_concurrent_trials=1)
    grid = restore(root).fit()
    assert sum(len(result.metrics_history) for result in grid) == 6


def test_a_stop_function_with_memory_remembers(crashed, root):
    class Memory:
        def __init__(self):
            self.scores = []

        def check(self, trial_id, result):
            self.scores.append(result["step"])
            return sum(self.scores) >= 15

    crashed(count, {"steps": 99}, after=2, stop=Memory().check)
    (result,) = restore(root).fit()
    assert history(result, "step") == [1, 2, 3, 4, 5]


def test_a_plateau_is_seen_across_a_restore(crashed, root):
    stop = ExperimentPlateauStopper("score", std=0.001, top=4, mode="min")
    crashed(noop, {"x": tune.grid_search(list(range(50)))}, after=3, stop=stop, max_concurrent_trials=1)
    grid = restore(root).fit()
    assert 4 <= sum("score" in result.metrics for result in grid) <= 6


class CrashSoon(tune.Callback):
    """Ends every driver at the first result after a third of a second."""

    def setup(self, **info):
        self.began = time.monotonic()

    def on_trial_result(self, **info):
        if time.monotonic() - self.began > 0.3:
            raise Crashed


@pytest.mark.parametrize("budget", ["time_budget_s", "stopper"])
def test_a_time_budget_counts_over_all_drivers(make_tuner, root, tmp_path, time_begins, budget):
    """No driver lives long enough to use the budget up; all of them together do."""

    def train(config):
        while True:
            Path(config["dir"], "here").touch()
            tune.report({"score": 1})
            time.sleep(0.005)

    fields = {"time_budget_s": 1.0} if budget == "time_budget_s" else {"stop": TimeoutStopper(1.0)}
    make_tuner(train, {"dir": str(tmp_path)}, callbacks=[CrashSoon()], **fields)
    time_begins((tmp_path / "here").exists)
    for _ in range(20):
        try:
            (result,) = restore(root).fit()
        except Crashed:
            continue
        break
    else:
        pytest.fail("twenty drivers did not use up one second")
    assert result.status == "TERMINATED"
    assert [again.metrics for again in restore(root).fit()] == [result.metrics]


# --- files


def test_result_files_have_each_step_once_after_a_crash(crashed, root, tmp_path):
    crashed(count, {"steps": 6, "x": tune.grid_search([1, 2, 3])}, after=7)
    grid = restore(root).fit()
    for result in grid:
        assert [row["training_iteration"] for row in json_rows(result)] == [1, 2, 3, 4, 5, 6]
        assert [row["training_iteration"] for row in csv_rows(result)] == list("123456")
        assert json.loads(Path(result.path, "params.json").read_text())["x"] == result.config["x"]


def test_rows_after_the_last_checkpoint_are_replaced(crashed, root):
    def train(config):
        from api_trainables import save, start_step

        start = start_step()
        for step in range(start + 1, 7):
            if step == 2:
                save(step, since=start)
            else:
                tune.report({"step": step, "since": start})

    crashed(train, {}, after=5)
    (result,) = restore(root).fit()
    expected = [(1, 0), (2, 0), (3, 2), (4, 2), (5, 2), (6, 2)]
    assert list(zip(history(result, "step"), history(result, "since"), strict=True)) == expected
    assert [(row["step"], row["since"]) for row in json_rows(result)] == expected
    assert [(int(row["step"]), int(row["since"])) for row in csv_rows(result)] == expected


# --- classes


def test_a_class_trainable_is_restored_from_its_checkpoints(crashed, root, tmp_path):
    config = tune.CheckpointConfig(checkpoint_frequency=2)
    crashed(Counter, {"steps": 6}, after=5, checkpoint_config=config)
    (result,) = restore(root).fit()
    assert history(result, "step") == [1, 2, 3, 4, 5, 6]
    assert history(result) == [1, 2, 3, 4, 5, 6]
    assert result.metrics["iterations_since_restore"] <= 4
