"""``Tuner``: making an experiment, its names, its search, its resources, and how it ends; real workers throughout."""

from __future__ import annotations

import functools
import json
import logging
import re
import threading
from pathlib import Path

import pytest
from api_trainables import Counter, Crash, Crashed, all_at_once, count, five, noop, one_after_another
from experiment_tools import checkpoints, history, lines, statuses

import holdfast as tune
from holdfast.cli.main import main
from holdfast.errors import (
    ExperimentExistsError,
    InvalidInputError,
    NotRunError,
)


def most_at_once(diary: Path) -> int:
    now = most = 0
    for line in lines(diary):
        now += int(line)
        most = max(most, now)
    return most


def experiment_spec(root) -> dict:
    return json.loads(Path(root, ".holdfast", "spec.json").read_text())


# --- names and places


def test_the_constructor_makes_an_experiment_that_can_be_restored(make_tuner, storage):
    make_tuner(noop)
    root = storage / "exp"
    assert tune.Tuner.can_restore(root)
    assert tune.Tuner.can_restore(str(root))
    assert tune.Tuner.can_restore(f"file://{root}")


def test_only_the_experiments_own_directory_can_be_restored(make_tuner, storage):
    make_tuner(noop).fit()
    trial = next(path for path in storage.joinpath("exp").iterdir() if path.name.startswith("noop_"))
    assert not tune.Tuner.can_restore(storage)
    assert not tune.Tuner.can_restore(trial)
    assert not tune.Tuner.can_restore(storage / "exp" / ".holdfast")
    assert not tune.Tuner.can_restore(storage / "nothing")


def test_an_experiment_without_a_name_is_named_after_its_trainable_and_the_date(run_config, storage):
    tune.Tuner(noop, run_config=run_config(name=None))
    (root,) = storage.iterdir()
    assert re.fullmatch(r"noop_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", root.name)


def test_two_experiments_without_a_name_in_the_same_second_do_not_collide(run_config, storage):
    for _ in range(3):
        tune.Tuner(noop, run_config=run_config(name=None)).fit()
    assert len(list(storage.iterdir())) == 3


def test_the_date_can_be_left_out_of_the_name(run_config, storage, monkeypatch):
    monkeypatch.setenv("TUNE_DISABLE_DATED_SUBDIR", "1")
    tune.Tuner(noop, run_config=run_config(name=None))
    assert [root.name for root in storage.iterdir()] == ["noop"]


def named(config):
    return {"score": 1}


named._name = "chosen"


@pytest.mark.parametrize(
    ("trainable", "name"),
    [
        (noop, "noop"),
        (lambda config: None, "lambda"),
        (functools.partial(noop), "noop"),
        (named, "chosen"),
        (Counter, "Counter"),
        (tune.with_resources(noop, {"cpu": 1}), "noop"),
    ],
)
def test_a_trainable_has_a_name(run_config, storage, monkeypatch, trainable, name):
    monkeypatch.setenv("TUNE_DISABLE_DATED_SUBDIR", "1")
    tune.Tuner(trainable, run_config=run_config(name=None))
    assert [root.name for root in storage.iterdir()] == [name]


def test_a_registered_trainable_runs_under_its_registered_name(make_tuner):
    tune.register_trainable("my_model", noop, warn=False)
    (result,) = make_tuner("my_model").fit()
    assert Path(result.path).name.startswith("my_model_")
    assert result.metrics["score"] == 1


def test_a_relative_storage_path_means_the_directory_at_construction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tuner = tune.Tuner(noop, run_config=tune.RunConfig(name="exp", storage_path="here", verbose=0))
    monkeypatch.chdir("/")
    assert tuner.fit().experiment_path == str(tmp_path / "here" / "exp")


def test_a_name_may_have_parts(run_config, storage):
    grid = tune.Tuner(noop, run_config=run_config(name="team/exp")).fit()
    assert grid.experiment_path == str(storage / "team" / "exp")
    assert tune.Tuner.can_restore(storage / "team" / "exp")


def test_a_file_uri_is_a_directory(run_config, tmp_path):
    grid = tune.Tuner(noop, run_config=run_config(storage_path=f"file://{tmp_path}/uri")).fit()
    assert grid.experiment_path == f"{tmp_path}/uri/exp"


def test_the_users_run_config_is_left_as_it_was(run_config, storage):
    config = run_config(name=None)
    tune.Tuner(noop, run_config=config)
    assert config.name is None
    config.name = "other"
    tune.Tuner(noop, run_config=config)
    assert tune.Tuner.can_restore(storage / "other")


# --- an experiment of this name exists


def test_an_experiment_that_has_run_is_not_overwritten(make_tuner, storage):
    make_tuner(noop).fit()
    before = sorted(path.name for path in storage.rglob("*"))
    with pytest.raises(ExperimentExistsError, match=r"Tuner\.restore") as caught:
        make_tuner(noop)
    assert str(storage / "exp") in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert sorted(path.name for path in storage.rglob("*")) == before


def test_constructing_the_same_tuner_again_before_it_has_run_starts_afresh(make_tuner):
    """A cell of a notebook is run, changed and run again."""
    make_tuner(noop, {"x": 1})
    make_tuner(noop, {"x": tune.grid_search([1, 2])})
    grid = make_tuner(noop, {"x": tune.grid_search([7, 8, 9])}).fit()
    assert [result.config["x"] for result in grid] == [7, 8, 9]


def test_a_tuner_whose_root_was_given_to_a_later_one_is_refused(make_tuner):
    """Two cells of a notebook use the same name; the older Tuner would run the newer one's code."""
    older = make_tuner(noop, {"x": 1})
    newer = make_tuner(five, {"x": 2})
    with pytest.raises(ExperimentExistsError, match="Another Tuner was created"):
        older.fit()
    assert [result.config["x"] for result in newer.fit()] == [2]


def test_if_exists_resume_continues_and_does_not_train_again(make_tuner, tmp_path):
    space = {"dir": str(tmp_path), "x": tune.grid_search([1, 2])}
    first = make_tuner(count, space, if_exists="resume").fit()
    second = make_tuner(count, space, if_exists="resume").fit()
    assert [result.trial_id for result in second] == [result.trial_id for result in first]
    assert len(lines(tmp_path / "diary")) == 6


def test_if_exists_resume_begins_where_there_is_nothing(make_tuner):
    assert statuses(make_tuner(noop, if_exists="resume").fit()) == ["TERMINATED"]


def test_if_exists_new_numbers_the_name(make_tuner, storage):
    roots = [make_tuner(noop, if_exists="new").fit().experiment_path for _ in range(3)]
    assert roots == [str(storage / name) for name in ("exp", "exp_2", "exp_3")]


def test_a_directory_that_is_not_an_experiment_is_no_obstacle(make_tuner, storage):
    storage.joinpath("exp").mkdir(parents=True)
    storage.joinpath("exp", "notes.txt").write_text("mine")
    assert statuses(make_tuner(noop).fit()) == ["TERMINATED"]
    assert storage.joinpath("exp", "notes.txt").read_text() == "mine"


# --- results of a Tuner


def test_results_before_the_first_run_are_refused(make_tuner):
    with pytest.raises(NotRunError, match="has not been run"):
        make_tuner(noop).get_results()


def test_results_can_be_had_again_after_the_run(make_tuner):
    tuner = make_tuner(noop, num_samples=2)
    grid = tuner.fit()
    again = tuner.get_results()
    assert [result.metrics for result in again] == [result.metrics for result in grid]


def test_a_second_fit_returns_the_same_trials_without_training(make_tuner, tmp_path):
    tuner = make_tuner(count, {"dir": str(tmp_path)})
    first, second = tuner.fit(), tuner.fit()
    assert [result.trial_id for result in second] == [result.trial_id for result in first]
    assert len(lines(tmp_path / "diary")) == 3


def test_a_tuner_whose_run_failed_has_results_and_can_run_on(make_tuner, tmp_path):
    tuner = make_tuner(count, {"dir": str(tmp_path)}, callbacks=[Crash(tmp_path, 2)])
    with pytest.raises(Crashed):
        tuner.fit()
    (before,) = tuner.get_results()
    assert before.metrics["step"] >= 2
    (result,) = tuner.fit()
    assert history(result, "step") == [1, 2, 3]
    assert tuner.get_results()[0].metrics == result.metrics


def test_restore_on_an_instance_says_that_it_is_a_classmethod(make_tuner, storage):
    tuner = make_tuner(noop)
    with pytest.raises(AttributeError, match="classmethod"):
        tuner.restore(storage / "exp")


def test_repr_names_trainable_and_root(make_tuner, storage):
    assert repr(make_tuner(noop)) == f"Tuner('noop', root='{storage / 'exp'}')"


def test_fit_works_in_a_thread(make_tuner):
    grids = []
    tuner = make_tuner(noop, num_samples=2)
    thread = threading.Thread(target=lambda: grids.append(tuner.fit()))
    thread.start()
    thread.join(60)
    assert statuses(grids[0]) == ["TERMINATED", "TERMINATED"]


def test_two_experiments_run_in_one_process_at_the_same_time(run_config):
    grids = {}

    def run(name):
        grids[name] = tune.Tuner(five, run_config=run_config(name=name)).fit()

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {name: statuses(grid) for name, grid in grids.items()} == {"one": ["TERMINATED"], "two": ["TERMINATED"]}


# --- the search


def test_grids_are_walked_with_the_first_variable_fastest(make_tuner):
    space = {
        "a": tune.grid_search([1, 2]),
        "b": {"c": tune.grid_search([10, 20])},
        "l": [tune.grid_search(["x", "y"]), 3],
    }
    grid = make_tuner(noop, space).fit()
    assert [(r.config["a"], r.config["b"]["c"], r.config["l"][0]) for r in grid] == [
        (1, 10, "x"),
        (2, 10, "x"),
        (1, 20, "x"),
        (2, 20, "x"),
        (1, 10, "y"),
        (2, 10, "y"),
        (1, 20, "y"),
        (2, 20, "y"),
    ]


def test_num_samples_repeats_the_whole_grid_and_draws_anew(make_tuner):
    grid = make_tuner(noop, {"g": tune.grid_search([1, 2]), "u": tune.uniform(0, 1)}, num_samples=2).fit()
    assert [result.config["g"] for result in grid] == [1, 2, 1, 2]
    assert len({result.config["u"] for result in grid}) == 4


def test_constant_grid_search_draws_once_per_sample(make_tuner):
    searcher = tune.BasicVariantGenerator(constant_grid_search=True)
    space = {"g": tune.grid_search([1, 2]), "u": tune.uniform(0, 1)}
    grid = make_tuner(noop, space, num_samples=2, search_alg=searcher).fit()
    drawn = [result.config["u"] for result in grid]
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]


def test_points_to_evaluate_come_first(make_tuner):
    searcher = tune.BasicVariantGenerator(points_to_evaluate=[{"x": 0.25}, {"x": 0.75}])
    grid = make_tuner(noop, {"x": tune.uniform(0, 1)}, num_samples=3, search_alg=searcher).fit()
    assert [result.config["x"] for result in grid][:2] == [0.25, 0.75]


def drawn_values(run_config, name, **tune_config):
    space = {"u": tune.uniform(0, 1), "c": tune.choice("abcdef"), "s": tune.sample_from(lambda config: 2 * config["u"])}
    config = tune.TuneConfig(num_samples=4, **tune_config)
    grid = tune.Tuner(noop, param_space=space, tune_config=config, run_config=run_config(name=name)).fit()
    return [result.config for result in grid]


def test_the_same_seed_gives_the_same_configurations(run_config):
    first, second = drawn_values(run_config, "one", seed=5), drawn_values(run_config, "two", seed=5)
    assert first == second
    assert drawn_values(run_config, "three", seed=6) != first


def test_a_seed_that_was_drawn_is_stored_and_repeats_the_search(run_config, storage):
    first = drawn_values(run_config, "one")
    seed = experiment_spec(storage / "one")["seed"]
    assert drawn_values(run_config, "two", seed=seed) == first
    assert drawn_values(run_config, "three") != first


def test_a_sample_from_function_sees_what_was_drawn(run_config):
    assert all(config["s"] == 2 * config["u"] for config in drawn_values(run_config, "one"))


def test_an_unbounded_search_goes_on_until_something_stops_it(make_tuner):
    class AfterTen(tune.Stopper):
        def __init__(self):
            self.seen = 0

        def __call__(self, trial_id, result):
            self.seen += 1
            return False

        def stop_all(self):
            return self.seen >= 10

    grid = make_tuner(noop, {"x": tune.uniform(0, 1)}, num_samples=-1, stop=AfterTen()).fit()
    assert len([result for result in grid if "score" in result.metrics]) >= 10
    assert set(statuses(grid)) == {"TERMINATED"}


def test_objects_in_the_space_reach_the_trial_and_the_result(make_tuner):
    class Dataset:
        def __init__(self, size):
            self.size = size

    def train(config):
        return {"size": config["data"].size, "inner": config["nested"][0].size}

    space = {"data": tune.grid_search([Dataset(3), Dataset(4)]), "nested": [Dataset(5)]}
    grid = make_tuner(train, space).fit()
    assert [(r.metrics["size"], r.metrics["inner"]) for r in grid] == [(3, 5), (4, 5)]
    assert [r.config["data"].size for r in grid] == [3, 4]


def test_objects_made_by_sample_from_reach_the_trial(make_tuner):
    class Dataset:
        def __init__(self, size):
            self.size = size

    def train(config):
        return {"size": config["data"].size}

    space = {"n": tune.grid_search([3, 4]), "data": tune.sample_from(lambda config: Dataset(config["n"]))}
    grid = make_tuner(train, space).fit()
    assert statuses(grid) == ["TERMINATED"] * 2
    assert [result.metrics["size"] for result in grid] == [3, 4]


# --- names of trials


def test_trials_have_ids_tags_and_directories_of_a_known_form(make_tuner):
    space = {
        "lr": 0.12345678,
        "w": tune.grid_search(["a b/c"]),
        "k": tune.grid_search([True]),
        "f": tune.grid_search([0.12345678]),
    }
    (result,) = make_tuner(noop, space).fit()
    assert re.fullmatch(r"[0-9a-f]{5}_00000", result.trial_id)
    assert result.metrics["experiment_tag"] == "0_f=0.1235,k=True,w=a_b_c"
    expected = rf"noop_{result.trial_id}_0_f=0\.1235,k=True,w=a_b_c_\d{{4}}-\d\d-\d\d_\d\d-\d\d-\d\d"
    assert re.fullmatch(expected, Path(result.path).name)


def test_long_tags_are_cut_in_directory_names(make_tuner, monkeypatch):
    monkeypatch.setenv("TUNE_MAX_LEN_IDENTIFIER", "20")
    (result,) = make_tuner(noop, {"x": tune.grid_search(["y" * 300])}).fit()
    name = Path(result.path).name
    assert name.startswith(f"noop_{result.trial_id}_0_x={'y' * 16}_20")


def test_the_user_can_name_trials_and_their_directories(make_tuner):
    grid = make_tuner(
        noop,
        {"x": tune.grid_search([1, 2])},
        trial_name_creator=lambda trial: f"trial-{trial.config['x']}",
        trial_dirname_creator=lambda trial: f"dir-{trial.config['x']}-{trial.trial_id[-1]}",
    ).fit()
    assert [Path(result.path).name for result in grid] == ["dir-1-0", "dir-2-1"]
    assert all(Path(result.path, "result.json").exists() for result in grid)


def test_two_trials_never_share_a_directory_even_if_the_user_names_them_alike(make_tuner, tmp_path):
    space = {"dir": str(tmp_path), "x": tune.grid_search([1, 2, 3])}
    grid = make_tuner(count, space, trial_dirname_creator=lambda trial: "same").fit()
    assert len({result.path for result in grid}) == 3
    assert Path(grid[0].path).name == "same"
    assert [history(result, "x") for result in grid] == [[1] * 3, [2] * 3, [3] * 3]
    assert all(len(checkpoints(result)) == 3 for result in grid)


@pytest.mark.parametrize("name", ["a/b", "..", "", ".holdfast"])
def test_a_directory_name_that_is_none_is_refused(make_tuner, name):
    with pytest.raises(ValueError, match="must not contain '/'"):
        make_tuner(noop, trial_dirname_creator=lambda trial: name).fit()


def test_a_creator_of_names_that_returns_nothing_is_refused_with_the_way_out(make_tuner, storage, capsys):
    def nameless(trial):
        print(f"trial-{trial.trial_id}")

    def named(trial):
        return f"trial-{trial.trial_id}"

    named.__name__, named.__qualname__ = nameless.__name__, nameless.__qualname__
    with pytest.raises(ValueError, match="trial_dirname_creator returned None"):
        make_tuner(noop, trial_dirname_creator=nameless, verbose=1).fit()
    path = storage / "exp"
    restore = f'Tuner.restore("{path}", tune_config=TuneConfig(trial_dirname_creator=...)).fit()'
    last = capsys.readouterr().out.splitlines()[-1]
    again = 'correct the function and run the script again, with if_exists="resume" or another name'
    assert last == f"Resume with: {restore}; or {again}"
    assert not list(path.glob("None*"))
    main(["status", str(path)])
    assert f"resume: {restore}" in capsys.readouterr().out
    config = tune.TuneConfig(trial_dirname_creator=named)
    (result,) = tune.Tuner.restore(path, tune_config=config).fit()
    assert Path(result.path).name.startswith("trial-")


def test_what_fail_fast_ended_is_retried_with_the_code_as_it_is_now(make_tuner, storage, capsys):
    def train(config):
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        make_tuner(train, failure_config=tune.FailureConfig(fail_fast="raise"), verbose=1).fit()
    path = storage / "exp"
    call = f'Tuner.restore("{path}", trainable=train, resume_errored=True).fit()'
    assert capsys.readouterr().out.splitlines()[-1] == f"Retry what failed with: {call}"
    main(["status", str(path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == f"retry the failed trials: {call}"
    assert lines[-1].strip().startswith(f"holdfast resume {path} --resume-errored   (with the stored code")


# --- how many at once


def test_max_concurrent_trials_limits_live_trials(make_tuner, tmp_path):
    make_tuner(one_after_another, {"dir": str(tmp_path)}, num_samples=4, max_concurrent_trials=1).fit()
    assert most_at_once(tmp_path / "diary") == 1
    assert len(lines(tmp_path / "diary")) == 8


def test_the_searchers_own_limit_counts_too(make_tuner, tmp_path):
    searcher = tune.BasicVariantGenerator(max_concurrent=1)
    make_tuner(one_after_another, {"dir": str(tmp_path)}, num_samples=3, search_alg=searcher).fit()
    assert most_at_once(tmp_path / "diary") == 1


def test_as_many_trials_run_at_once_as_there_are_cpus(make_tuner, tmp_path):
    space = {"dir": str(tmp_path), "together": 2}
    assert statuses(make_tuner(all_at_once, space, num_samples=2).fit()) == ["TERMINATED"] * 2


def test_fractions_of_a_cpu_are_counted_exactly(make_tuner, tmp_path):
    space = {"dir": str(tmp_path), "together": 10}
    trainable = tune.with_resources(all_at_once, {"cpu": 0.1})
    grid = make_tuner(trainable, space, num_samples=10, engine=tune.LocalEngine(cpus=1)).fit()
    assert statuses(grid) == ["TERMINATED"] * 10


def test_a_trial_that_needs_all_cpus_runs_alone(make_tuner, tmp_path):
    trainable = tune.with_resources(one_after_another, {"cpu": 2})
    make_tuner(trainable, {"dir": str(tmp_path)}, num_samples=3).fit()
    assert most_at_once(tmp_path / "diary") == 1


def test_resources_of_the_users_own_are_shared_out(make_tuner, tmp_path):
    trainable = tune.with_resources(one_after_another, {"cpu": 0.5, "licence": 1})
    engine = tune.LocalEngine(cpus=2, resources={"licence": 1})
    make_tuner(trainable, {"dir": str(tmp_path)}, num_samples=3, engine=engine).fit()
    assert most_at_once(tmp_path / "diary") == 1


def test_resources_may_depend_on_the_config(make_tuner):
    def train(config):
        return tune.get_context().get_trial_resources().required_resources

    trainable = tune.with_resources(train, lambda config: tune.PlacementGroupFactory([{"CPU": config["n"]}]))
    grid = make_tuner(trainable, {"n": tune.grid_search([1, 2])}).fit()
    assert [result.metrics["CPU"] for result in grid] == [1, 2]


def test_a_resource_that_nobody_declared_is_refused_before_anything_starts(make_tuner, storage):
    tuner = make_tuner(tune.with_resources(noop, {"cpu": 1, "licence": 1}))
    with pytest.raises(InvalidInputError, match=r"'licence'.*LocalEngine\(resources"):
        tuner.fit()
    assert not list(storage.glob("exp/noop_*"))


def test_a_trial_that_can_never_start_is_named_in_a_warning(make_tuner, caplog, time_begins):
    time_begins(lambda: "can never start" in caplog.text)
    trainable = tune.with_resources(noop, {"cpu": 64})
    with caplog.at_level(logging.WARNING, "holdfast"):
        grid = make_tuner(trainable, time_budget_s=0.5).fit()
    assert "can never start" in caplog.text
    assert "CPU 64" in caplog.text
    assert statuses(grid) == ["TERMINATED"]
