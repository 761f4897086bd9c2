"""Experiments as Optuna studies."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, small_experiment

import holdfast as tune
from holdfast.cli.main import main as holdfast
from holdfast.core import events as ev
from holdfast.errors import InvalidInputError
from holdfast.results import ResultGrid

optuna = pytest.importorskip("optuna", reason="optuna is not installed: make test installs it")
State = optuna.trial.TrialState


@pytest.fixture(autouse=True)
def quiet() -> Any:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def writer(folder: Path) -> RootWriter:
    return RootWriter(folder / "exp").open()


def grid_of(root: RootWriter) -> ResultGrid:
    return ResultGrid.from_path(root.path)


def test_trials_keep_values_states_intermediate_values_and_times(tmp_path):
    root = writer(tmp_path)
    for n, lr in enumerate((0.001, 0.5, 0.02)):
        root.create({"lr": lr, "net": {"kind": "ab"[n % 2]}}, params=("lr", "net/kind"))
        root.start(n)
    for loss in (3.0, 2.0):
        root.report(0, {"loss": loss})
    root.end(0)
    root.report(1, {"loss": 9.0}, "stop", "AsyncHyperBandScheduler: behind at rung 1")
    root.end(1, "AsyncHyperBandScheduler: behind at rung 1")
    root.report(2, {"loss": 5.0})
    root.error(2, type="ValueError", message="too large")
    root.finish()
    study = grid_of(root).to_optuna_study()
    assert study.direction == optuna.study.StudyDirection.MINIMIZE
    done, pruned, failed = study.trials
    assert [trial.state for trial in study.trials] == [State.COMPLETE, State.PRUNED, State.FAIL]
    assert (done.value, pruned.value) == (2.0, 9.0)
    assert done.intermediate_values == {1: 3.0, 2: 2.0}
    assert done.params == {"lr": 0.001, "net/kind": "a"}
    assert done.distributions["lr"] == optuna.distributions.FloatDistribution(0.001, 0.5, log=True)
    assert done.distributions["net/kind"].choices == ("a", "b")
    record = root.trial(0)
    assert done.datetime_start == datetime.fromtimestamp(record.started_at)
    assert done.datetime_complete == datetime.fromtimestamp(record.ended_at)
    assert failed.user_attrs["error"] == "ValueError: too large"
    assert study.best_trial.user_attrs["trial_id"] == record.id


def test_a_trial_that_used_its_whole_budget_is_complete(tmp_path):
    root = writer(tmp_path)
    reasons = ["AsyncHyperBandScheduler: reached max_t", "stop criterion", "done", "MedianStoppingRule: worse"]
    for n, reason in enumerate(reasons):
        root.create({"lr": n}, params=("lr",))
        root.start(n)
        root.report(n, {"loss": 1.0}, "stop", reason)
        root.end(n, reason)
    root.finish()
    states = [trial.state for trial in grid_of(root).to_optuna_study().trials]
    assert states == [State.COMPLETE] * 3 + [State.PRUNED]


def test_rows_that_were_rewound_are_no_intermediate_values(tmp_path):
    study = grid_of(small_experiment(tmp_path / "exp").die()).to_optuna_study()
    assert study.trials[2].intermediate_values == {1: 5.0, 2: 4.0}
    assert [trial.state for trial in study.trials] == [State.COMPLETE, State.FAIL, State.COMPLETE, State.RUNNING]


def test_odd_values_fit_into_a_study(tmp_path):
    root = writer(tmp_path)
    values: list[Any] = [1, True, "1", None, [1, 2], float("inf")]
    for n, value in enumerate(values):
        root.create({"x": value}, params=("x",))
        root.start(n)
        root.report(n, {"loss": float("nan") if n == 0 else float(n)})
        root.end(n)
    root.create({"x": 3}, params=("x",))
    root.finish()
    study = grid_of(root).to_optuna_study()
    assert study.trials[0].state == State.FAIL  # NaN is no objective
    assert [trial.params["x"] for trial in study.trials[:6]] == [1, True, "1", None, "[1, 2]", "inf"]
    assert study.trials[6].state == State.WAITING
    assert study.trials[6].system_attrs["fixed_params"] == {"x": 3}


def test_integers_have_an_integer_distribution(tmp_path):
    root = writer(tmp_path)
    for n, layers in enumerate((2, 5)):
        root.create({"layers": layers}, params=("layers",))
        root.start(n)
        root.report(n, {"loss": 1.0})
        root.end(n)
    root.finish()
    study = grid_of(root).to_optuna_study(metric="loss", mode="max", study_name="mine")
    assert study.trials[0].distributions["layers"] == optuna.distributions.IntDistribution(2, 5)
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    assert study.study_name == "mine"


def test_a_study_without_an_objective_is_refused(tmp_path):
    root = RootWriter(tmp_path / "exp", metric=None, mode=None).open().finish()
    with pytest.raises(InvalidInputError, match="pass metric="):
        grid_of(root).to_optuna_study()
    assert holdfast(["export", str(root.path), str(tmp_path / "x.log"), "--format", "optuna"]) == 2
    assert not (tmp_path / "x.log").exists()


def test_the_exported_journal_opens_in_optuna(tmp_path, capsys):
    root = small_experiment(tmp_path / "exp").die()
    out = tmp_path / "study.log"
    for _ in range(2):  # the second replaces the first
        assert holdfast(["export", str(root.path), str(out), "--format", "optuna"]) == 0
    assert "4 trials" in capsys.readouterr().out
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(out)))
    study = optuna.load_study(study_name="exp", storage=storage)
    assert [trial.value for trial in study.trials] == [1.0, None, 4.0, None]
    assert study.trials[0].datetime_start == datetime.fromtimestamp(root.trial(0).started_at)
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert left == []


def test_the_objective_can_be_named_on_the_command_line(tmp_path):
    root = RootWriter(tmp_path / "exp", metric=None, mode=None).open()
    n = root.create({"lr": 1.0}, params=("lr",))
    root.start(n)
    root.report(n, {"eval": {"loss": 4.0}})
    root.end(n)
    root.finish()
    words = ["export", str(root.path), str(tmp_path / "x.log"), "--format", "optuna"]
    assert holdfast([*words, "--metric", "eval/loss", "--mode", "min"]) == 0
    assert (tmp_path / "x.log").exists()


def test_a_directory_that_does_not_exist_is_said(tmp_path, capsys):
    root = small_experiment(tmp_path / "exp").die()
    assert holdfast(["export", str(root.path), str(tmp_path / "no" / "x.log"), "--format", "optuna"]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_retries_do_not_change_numbers(tmp_path):
    root = writer(tmp_path)
    n = root.create({"lr": 1.0}, params=("lr",))
    root.start(n)
    root.retry(n, ev.Cause.EXCEPTION)
    root.start(n, scratch=True)
    root.report(n, {"loss": 1.0})
    root.end(n)
    root.finish()
    assert grid_of(root).to_optuna_study().trials[0].number == 0


def tried(folder: Path, space: dict[str, Any], samples: int) -> Any:
    """The study of a real experiment that has searched a space."""
    grid = tune.Tuner(
        lambda config: {"loss": 1.0},
        param_space=space,
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=samples),
        run_config=tune.RunConfig(name="exp", storage_path=str(folder), verbose=0),
    ).fit()
    return grid.to_optuna_study()


def known(study: Any) -> dict[str, Any]:
    """The distributions of all parameters."""
    return {name: kind for trial in study.trials for name, kind in trial.distributions.items()}


def test_distributions_are_those_of_the_space(tmp_path):
    kinds = optuna.distributions
    space = {
        "x": tune.uniform(-1, 3),
        "lr": tune.loguniform(1e-5, 1e-1),
        "q": tune.quniform(0.2, 0.8, 0.2),
        "n": tune.randint(1, 9),
        "m": tune.lograndint(1, 100),
        "k": tune.qrandint(8, 64, 8),
        "g": tune.randn(10.0, 1.0),
        "net": {"act": tune.choice(["relu", None, 3]), "deep": {"width": tune.grid_search([16, 32])}},
        "f": tune.sample_from(lambda config: 7),
    }
    study = tried(tmp_path, space, 2)
    found = known(study)
    assert found["x"] == kinds.FloatDistribution(-1.0, 3.0)
    assert found["lr"] == kinds.FloatDistribution(1e-5, 1e-1, log=True)
    assert found["q"] == kinds.FloatDistribution(0.2, 0.8, step=0.2)
    assert found["n"] == kinds.IntDistribution(1, 8)
    assert found["m"] == kinds.IntDistribution(1, 99, log=True)
    assert found["k"] == kinds.IntDistribution(8, 64, step=8)
    assert found["net/act"] == kinds.CategoricalDistribution(("relu", None, 3))
    assert found["net/deep/width"] == kinds.CategoricalDistribution((16, 32))
    tried_g = [trial.params["g"] for trial in study.trials]
    assert found["g"] == kinds.FloatDistribution(min(tried_g), max(tried_g))
    assert found["f"] == kinds.IntDistribution(7, 7)
    # Optuna goes on with the study: its samplers compare what is asked with what was tried.
    study.sampler = optuna.samplers.TPESampler(n_startup_trials=1, seed=0)
    assert study.ask(found).params.keys() == found.keys()


def test_conditional_parameters_have_their_distributions(tmp_path):
    kinds = optuna.distributions
    options = [
        {"name": "sgd", "momentum": tune.uniform(0, 0.9), "lr": tune.loguniform(1e-4, 1e-1)},
        {"name": "adam", "beta": {"first": tune.uniform(0.8, 0.99)}, "lr": tune.loguniform(1e-4, 1e-1)},
        {"name": "none", "beta": {"first": tune.choice([0.5])}},
    ]
    study = tried(tmp_path, {"opt": tune.choice(options)}, 24)
    found = known(study)
    assert found["opt/name"] == kinds.CategoricalDistribution(("sgd", "adam", "none"))
    assert found["opt/momentum"] == kinds.FloatDistribution(0.0, 0.9)
    assert found["opt/lr"] == kinds.FloatDistribution(1e-4, 1e-1, log=True)
    first = [trial.params["opt/beta/first"] for trial in study.trials if "opt/beta/first" in trial.params]
    assert found["opt/beta/first"] == kinds.FloatDistribution(min(first), max(first))  # the options differ
    for trial in study.trials:
        assert ("opt/momentum" in trial.params) == (trial.params["opt/name"] == "sgd")
        assert trial.distributions.keys() == trial.params.keys()


def test_what_lies_outside_the_space_widens_it(tmp_path):
    """A scheduler may move a parameter over its bounds."""
    kinds = optuna.distributions
    space = {
        "x": {"kind": "float", "lower": 0.1, "upper": 1.0, "log": True},
        "q": {"kind": "int", "lower": 8, "upper": 64, "log": False, "step": 8},
        "opt": {"kind": "choice", "options": ["a", "b"]},
    }
    root = RootWriter(tmp_path / "exp", space=space).open()
    for n, (x, q, opt) in enumerate([(0.5, 16, "a"), (1.2, 19, "c")]):
        root.create({"x": x, "q": q, "opt": opt}, params=("x", "q", "opt"))
        root.start(n)
        root.report(n, {"loss": 1.0})
        root.end(n)
    root.finish()
    found = known(grid_of(root).to_optuna_study())
    assert found["x"] == kinds.FloatDistribution(0.1, 1.2, log=True)
    assert found["q"] == kinds.IntDistribution(8, 64)
    assert found["opt"] == kinds.CategoricalDistribution(("a", "c"))
