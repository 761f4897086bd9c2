"""``Tuner.restore``: what each kind of trial does, wherever the root is now and however the last driver ended."""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from pathlib import Path

import pytest
from api_trainables import Counter, Crash, Crashed, count, five, noop, note, scores
from experiment_tools import checkpoints, csv_rows, history, json_rows, lines, statuses

import holdfast as tune
from holdfast.errors import (
    DamageError,
    ExperimentLockedError,
    ExperimentNotFoundError,
    InvalidInputError,
    NewerFormatError,
)
from holdfast.stopper import ExperimentPlateauStopper, MaximumIterationStopper, TimeoutStopper

restore = tune.Tuner.restore


@pytest.fixture
def root(storage):
    return storage / "exp"


@pytest.fixture
def crashed(make_tuner, tmp_path):
    """Runs an experiment whose driver ends by an exception after some results."""

    def run(trainable, space, after, **fields):
        callbacks = [*fields.pop("callbacks", ()), Crash(tmp_path, after)]
        with pytest.raises(Crashed):
            make_tuner(trainable, {"dir": str(tmp_path), **space}, callbacks=callbacks, **fields).fit()

    return run


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


def test_plain_values_of_a_space_given_again_change_nothing(crashed, root, monkeypatch):
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")
    crashed(noop, {"x": tune.grid_search([1, 2, 3, 4, 5, 6]), "u": tune.uniform(0, 1), "c": 7}, after=1)
    space = {"dir": "elsewhere", "x": tune.grid_search([10] * 9), "u": tune.uniform(5, 6), "c": 8}
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


# --- where the root is now


@pytest.mark.parametrize("how", ["moved", "renamed", "copied", "zipped"])
def test_an_experiment_continues_wherever_its_root_is_now(crashed, root, storage, tmp_path, how):
    crashed(count, {"steps": 5, "x": tune.grid_search([1, 2])}, after=4)
    place = tmp_path / "elsewhere" / "exp"
    place.parent.mkdir()
    if how == "moved":
        shutil.move(root, place)
    elif how == "renamed":
        place = storage / "other name"
        root.rename(place)
    elif how == "copied":
        shutil.copytree(root, place)
    else:
        shutil.make_archive(str(tmp_path / "archive"), "zip", root)
        with zipfile.ZipFile(tmp_path / "archive.zip") as archive:
            archive.extractall(place)
        shutil.rmtree(root)
    before = sorted(path.name for path in root.rglob("*")) if how == "copied" else None
    grid = restore(place).fit()
    assert grid.experiment_path == str(place)
    assert [history(result, "step") for result in grid] == [[1, 2, 3, 4, 5]] * 2
    assert all(Path(result.path).parent == place for result in grid)
    assert all(Path(result.checkpoint.path).is_relative_to(place) for result in grid)
    assert [[row["step"] for row in json_rows(result)] for result in grid] == [[1, 2, 3, 4, 5]] * 2
    if how == "copied":
        assert sorted(path.name for path in root.rglob("*")) == before
    else:
        assert not root.exists()


def test_no_step_is_trained_twice_after_a_move(crashed, root, tmp_path):
    crashed(count, {"steps": 5}, after=3)
    done = lines(tmp_path / "diary")
    shutil.move(root, tmp_path / "moved")
    restore(tmp_path / "moved").fit()
    diary = lines(tmp_path / "diary")
    assert diary[: len(done)] == done
    assert len(diary) == len(set(diary))
    assert not any(line.endswith(" 1") for line in diary[len(done) :])


def test_a_root_may_be_named_in_many_ways(make_tuner, root, monkeypatch, storage):
    make_tuner(noop).fit()
    monkeypatch.chdir(storage)
    monkeypatch.setenv("HOME", str(storage))
    for path in ("exp", "./exp/", "~/exp", root, str(root) + "/", f"file://{root}"):
        assert tune.Tuner.can_restore(path)
        assert restore(path).get_results().experiment_path == str(root)


def test_trials_are_found_again_in_another_time_zone(crashed, root, tmp_path, monkeypatch):
    crashed(count, {"steps": 4}, after=2)
    (before,) = restore(root).get_results()
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        (result,) = restore(root).fit()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert result.path == before.path
    assert history(result, "step") == [1, 2, 3, 4]
    assert len(lines(tmp_path / "diary")) == len(set(lines(tmp_path / "diary")))


def test_directories_of_finished_trials_may_be_removed(make_tuner, root, tmp_path):
    first, _ = make_tuner(count, {"dir": str(tmp_path), "x": tune.grid_search([1, 2])}).fit()
    shutil.rmtree(first.path)
    grid = restore(root).fit()
    assert [history(result, "step") for result in grid] == [[1, 2, 3]] * 2


def test_any_name_will_do(make_tuner, tmp_path):
    name = "it's \"quoted\" über 50% {x} $HOME"
    callbacks = [Crash(tmp_path, 2)]
    tuner = make_tuner(count, {"dir": str(tmp_path)}, name=name, callbacks=callbacks)
    with pytest.raises(Crashed):
        tuner.fit()
    (result,) = restore(tmp_path / "storage" / name).fit()
    assert history(result, "step") == [1, 2, 3]


def test_results_of_a_restored_tuner_come_from_storage(crashed, root):
    crashed(count, {"steps": 4, "x": tune.grid_search([1, 2])}, after=3)
    grid = restore(root).get_results()
    assert statuses(grid) == ["PENDING"] * 2
    assert sum(len(result.metrics_history) for result in grid) >= 3
    assert not list(root.glob(".holdfast/epochs/*2"))


def test_restoring_again_and_again_loses_nothing(make_tuner, root, tmp_path):
    with pytest.raises(Crashed):
        make_tuner(count, {"dir": str(tmp_path), "steps": 8}, callbacks=[Crash(tmp_path, 1)]).fit()
    for _ in range(4):
        (tmp_path / "crashed").unlink()
        with pytest.raises(Crashed):
            restore(root).fit()
    (result,) = restore(root).fit()
    assert history(result, "step") == list(range(1, 9))
    assert [row["training_iteration"] for row in json_rows(result)] == list(range(1, 9))
    diary = lines(tmp_path / "diary")
    assert len(diary) == len(set(diary))


def test_a_restored_search_goes_on_exactly_as_it_would_have(run_config, tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")

    def draw(name, *callbacks):
        space = {"u": tune.uniform(0, 1), "g": tune.grid_search([1, 2]), "s": tune.sample_from(lambda c: -c["u"])}
        return tune.Tuner(
            noop,
            param_space=space,
            tune_config=tune.TuneConfig(num_samples=5, seed=11),
            run_config=run_config(name=name, callbacks=list(callbacks)),
        )

    whole = [result.config for result in draw("whole").fit()]
    tuner = draw("cut", Crash(tmp_path, 3))
    with pytest.raises(Crashed):
        tuner.fit()
    assert [result.config for result in restore(run_config().storage_path + "/cut").fit()] == whole


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


@pytest.mark.parametrize("budget", ["time_budget_s", "stopper"])
def test_a_time_budget_counts_over_all_drivers_but_not_between_them(crashed, root, budget):
    def train(config):
        from api_trainables import save, start_step

        for step in range(start_step() + 1, 10**6):
            save(step)

    fields = {"time_budget_s": 1.5} if budget == "time_budget_s" else {"stop": TimeoutStopper(1.5)}
    crashed(train, {}, after=3, **fields)
    (result,) = restore(root).fit()
    assert result.status == "TERMINATED"
    assert result.metrics["training_iteration"] >= 3
    assert result.metrics["time_total_s"] < 2.0
    (again,) = restore(root).fit()
    assert again.metrics == result.metrics


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


# --- paths that are no experiment, or cannot be opened


def test_a_path_that_does_not_exist_is_not_found(storage):
    with pytest.raises(ExperimentNotFoundError, match="does not exist") as caught:
        restore(storage / "nothing")
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ValueError)
    assert not tune.Tuner.can_restore(storage / "nothing")


def test_the_parent_of_an_experiment_is_not_one_but_the_message_knows_it(make_tuner, storage, root):
    make_tuner(noop)
    with pytest.raises(ExperimentNotFoundError, match="no experiment state file") as caught:
        restore(storage)
    assert f"Did you mean {root}" in str(caught.value)


def test_a_trials_directory_is_not_an_experiment_but_the_message_knows_it(make_tuner, root):
    (result,) = make_tuner(noop).fit()
    with pytest.raises(ExperimentNotFoundError, match="not a holdfast experiment") as caught:
        restore(result.path)
    assert f"Did you mean {root}" in str(caught.value)


def test_a_file_is_not_an_experiment(tmp_path):
    (tmp_path / "file").write_text("x")
    assert not tune.Tuner.can_restore(tmp_path / "file")
    with pytest.raises(ExperimentNotFoundError):
        restore(tmp_path / "file")


def test_a_newer_format_is_refused_and_left_alone(make_tuner, root):
    make_tuner(noop).fit()
    spec = root / ".holdfast" / "spec.json"
    facts = json.loads(spec.read_text())
    spec.write_text(json.dumps({**facts, "format": 99, "version": "9.9"}))
    with pytest.raises(NewerFormatError, match=r"newer holdfast .*9\.9.*Upgrade"):
        restore(root)
    assert json.loads(spec.read_text())["format"] == 99


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b"\xff\xfe"])
def test_a_damaged_record_is_refused_and_left_alone(make_tuner, root, content):
    make_tuner(noop).fit()
    spec = root / ".holdfast" / "spec.json"
    spec.write_bytes(content)
    with pytest.raises(DamageError, match=r"spec\.json is damaged"):
        restore(root)
    assert spec.read_bytes() == content


def test_a_trainable_that_cannot_be_loaded_is_asked_for(make_tuner, root):
    make_tuner(noop).fit()
    (root / ".holdfast" / "objects" / "trainable.pkl").write_bytes(b"no pickle")
    with pytest.raises(InvalidInputError, match=r"Tuner\.restore\(path, trainable="):
        restore(root)
    assert len(restore(root, noop).fit()) == 1


def test_an_object_store_is_refused_for_now(make_tuner):
    with pytest.raises(InvalidInputError, match="object stores"):
        restore("s3://bucket/exp")


# --- one driver at a time


def test_a_second_driver_is_refused_and_changes_nothing(drivers, root, tmp_path):
    driver = drivers.start(
        'tune.Tuner(count, param_space={"dir": str(DIR), "hold_at": 1}, run_config=config()).fit()\n'
    )
    driver.wait_for(tmp_path / "diary")
    before = {path: path.stat().st_mtime_ns for path in root.glob(".holdfast/objects/*")}
    with pytest.raises(ExperimentLockedError, match="takeover=True") as caught:
        restore(root, count, param_space={"dir": "other", "hold_at": 2}).fit()
    assert caught.value.pid == driver.process.pid
    assert str(driver.process.pid) in str(caught.value)
    assert caught.value.host in str(caught.value)
    assert {path: path.stat().st_mtime_ns for path in root.glob(".holdfast/objects/*")} == before
    (tmp_path / "go").touch()
    assert driver.end()[0] == 0
    assert statuses(restore(root).fit()) == ["TERMINATED"]


def test_a_live_experiment_can_be_taken_over(drivers, root, tmp_path):
    driver = drivers.start(
        'tune.Tuner(count, param_space={"dir": str(DIR), "hold_at": 2, "steps": 5}, run_config=config()).fit()\n'
    )
    driver.wait_for(tmp_path / "diary")
    while len(lines(tmp_path / "diary")) < 2:
        driver.wait_for(tmp_path / "diary")
    (result,) = restore(root, takeover=True).fit()
    assert history(result, "step") == [1, 2, 3, 4, 5]
    (tmp_path / "go").touch()  # the old driver's trial reports once more
    code, output = driver.end()
    assert code != 0
    assert "FencedError" in output
    assert "taken over" in output
    (again,) = restore(root).get_results()
    assert again.metrics_history == result.metrics_history
    assert [row["step"] for row in json_rows(again)] == [1, 2, 3, 4, 5]


def test_results_can_be_read_while_another_driver_runs(drivers, root, tmp_path):
    driver = drivers.start(
        'tune.Tuner(count, param_space={"dir": str(DIR), "hold_at": 2}, run_config=config()).fit()\n'
    )
    driver.wait_for(tmp_path / "diary")
    (result,) = restore(root).get_results()
    assert result.metrics["step"] in (1, 2)
    (tmp_path / "go").touch()
    assert driver.end()[0] == 0


# --- kill -9


def test_nothing_acknowledged_is_lost_when_everything_is_killed(drivers, root, tmp_path):
    driver = drivers.start(
        """
tune.Tuner(
    count,
    param_space={"dir": str(DIR), "hold_at": 3, "steps": 5, "x": tune.grid_search([1, 2, 3])},
    run_config=config(checkpoint_config=tune.CheckpointConfig(num_to_keep=2)),
).fit()
"""
    )
    found = tune.Tuner.can_restore(root)
    driver.wait_for(tmp_path / "diary")
    while len(lines(tmp_path / "diary")) < 6:
        driver.wait_for(tmp_path / "diary")
    driver.kill()
    acknowledged = lines(tmp_path / "diary")
    grid = restore(root).get_results()
    recorded = {f"{row['trial_id']} {row['step']}" for result in grid for row in result.metrics_history}
    assert set(acknowledged) <= recorded
    (tmp_path / "go").touch()
    grid = restore(root).fit()
    assert found is False or len(grid) == 3
    assert [history(result, "step") for result in grid] == [[1, 2, 3, 4, 5]] * 3
    assert len(lines(tmp_path / "diary")) == len(set(lines(tmp_path / "diary"))) == 15
    for result in grid:
        assert [row["training_iteration"] for row in json_rows(result)] == [1, 2, 3, 4, 5]
        assert [row["training_iteration"] for row in csv_rows(result)] == list("12345")
        assert checkpoints(result) == ["checkpoint_000003", "checkpoint_000004"]


def test_the_files_of_a_finished_trial_are_complete_after_kill_9(drivers, root, tmp_path):
    """A snapshot that knows the trial as settled may be on disk before its last rows are in the files."""
    driver = drivers.start(
        """
class Kill(tune.Callback):
    def on_step_end(self, iteration, trials, **info):
        if sum(trial.is_finished() for trial in trials) >= 3 and list(Path(STORAGE).glob("exp/.holdfast/snapshots/*")):
            os.kill(os.getpid(), 9)

tune.Tuner(
    count,
    param_space={"dir": str(DIR), "x": tune.grid_search(list(range(40)))},
    run_config=config(callbacks=[Kill()]),
).fit()
""",
        TUNE_GLOBAL_CHECKPOINT_S="0",
    )
    assert driver.end()[0] == -9
    settled = [result for result in restore(root).get_results() if result.status == "TERMINATED"]
    assert settled
    tuner = restore(root)
    tuner._experiment.settings.run_config.callbacks = []
    for result in tuner.fit():
        assert [row["training_iteration"] for row in json_rows(result)] == [1, 2, 3]
        assert [row["training_iteration"] for row in csv_rows(result)] == list("123")
        assert Path(result.path, "params.json").exists()


def test_checkpoints_survive_kill_9_and_retention_goes_on_exactly(drivers, root, tmp_path):
    driver = drivers.start(
        """
def train(config):
    from api_trainables import save, start_step
    scores = [5, 1, 4, 2, 3]
    for step in range(start_step() + 1, 6):
        save(step, score=scores[step - 1])
        DIR.joinpath(f"at.{step}").touch()
        if step == 3:
            wait_for(DIR / "go")

tune.Tuner(
    train,
    run_config=config(checkpoint_config=tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score")),
).fit()
"""
    )
    driver.wait_for(tmp_path / "at.3")
    driver.kill()
    (tmp_path / "go").touch()
    (result,) = restore(root).fit()
    assert checkpoints(result) == ["checkpoint_000000", "checkpoint_000002", "checkpoint_000004"]
    assert [metrics["score"] for _, metrics in result.best_checkpoints] == [4, 5]


def test_scores_of_a_moved_experiment_are_still_ranked(make_tuner, root, tmp_path):
    config = tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score")
    make_tuner(scores, {"scores": [5, 1, 4, 2, 3]}, checkpoint_config=config).fit()
    shutil.move(root, tmp_path / "moved")
    (result,) = restore(tmp_path / "moved").get_results()
    assert [metrics["score"] for _, metrics in result.best_checkpoints] == [4, 5]
    assert Path(result.get_best_checkpoint("score", "max").path, "step").read_text() == "1"
