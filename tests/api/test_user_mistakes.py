"""A user's mistake shows a line of theirs and one sentence of ours; the sentence names what was meant."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.compat.older_names import _TODAY
from holdfast.errors import InternalError, InvalidInputError, InvalidTypeError, TuneError
from holdfast.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining
from holdfast.search.optuna import OptunaSearch
from holdfast.stopper import MaximumIterationStopper
from holdfast.trainable import tracebacks

SETTINGS = [
    tune.CheckpointConfig,
    tune.FailureConfig,
    tune.LocalEngine,
    tune.ResumeConfig,
    tune.RunConfig,
    tune.SyncConfig,
    tune.TuneConfig,
]

MISTAKES = {
    "a bad value": 'tune.TuneConfig(metric="loss", mode="smallest")',
    "an unknown argument": "tune.Tuner(train, metric='loss')",
    "no experiment": 'tune.Tuner.restore("nowhere")',
    "an unknown trainable": 'tune.Tuner("never_registered")',
    "a bad space": "tune.Tuner(train, param_space=[1, 2])",
    "a bad bound": "tune.loguniform(-1, 1)",
    "results of nothing": 'tune.ResultGrid.from_path("nowhere")',
}


def run_script(tmp_path: Path, line: str, **environment: str) -> str:
    script = tmp_path / "script.py"
    script.write_text(
        f"import holdfast as tune\n\ndef train(config):\n    pass\n\ndef start():\n    {line}\n\nstart()\n"
    )
    variables = {**os.environ, "HOLDFAST_STORAGE": str(tmp_path / "results"), **environment}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=variables, cwd=tmp_path)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize("line", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_shows_the_users_lines_and_a_sentence(tmp_path: Path, line: str) -> None:
    shown = run_script(tmp_path, line)
    files = {text.split('"')[1] for text in shown.splitlines() if text.startswith("  File ")}
    assert files == {str(tmp_path / "script.py")}
    assert shown.count("  File ") == 2
    assert line in shown
    assert shown.splitlines()[-1].startswith("holdfast.errors.")
    assert shown.count("Traceback") == 1


def test_all_frames_are_shown_on_request(tmp_path: Path) -> None:
    shown = run_script(tmp_path, MISTAKES["a bad value"], HOLDFAST_FULL_TRACEBACKS="1")
    assert os.path.join("holdfast", "config", "settings.py") in shown


def test_what_the_users_own_code_has_raised_is_shown_as_the_cause(tmp_path: Path) -> None:
    space = '{"x": tune.sample_from(lambda config: 1 / 0)}'
    shown = run_script(tmp_path, f"tune.Tuner(train, param_space={space}, run_config=tune.RunConfig(verbose=0)).fit()")
    assert "ZeroDivisionError" in shown


def test_errors_of_others_are_printed_as_python_prints_them(tmp_path: Path) -> None:
    shown = run_script(tmp_path, "tune.Tuner.restore.__get__(1, 2, 3, 4)")
    assert "TypeError" in shown


def test_a_hook_of_somebody_else_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(*error: Any) -> None: ...

    monkeypatch.setattr(sys, "excepthook", theirs)
    tracebacks.install()
    assert sys.excepthook is theirs


def test_a_bug_of_ours_is_shown_in_full() -> None:
    with pytest.raises(InternalError) as caught:
        raise InternalError("ours")
    assert tracebacks.brief(caught.value) is None


# --- unknown arguments


@pytest.mark.parametrize(
    ("make", "wrong", "meant"),
    [
        (ASHAScheduler, "max_tt", "max_t"),
        (ASHAScheduler, "max_T", "max_t"),
        (ASHAScheduler, "grace", "grace_period"),
        (ASHAScheduler, "time_attribute", "time_attr"),
        (partial(tune.create_scheduler, "asha"), "max_T", "max_t"),
        (partial(tune.create_scheduler, "asha"), "grace", "grace_period"),
        (partial(tune.create_searcher, "optuna"), "sed", "seed"),
        (PopulationBasedTraining, "perturbation_intervall", "perturbation_interval"),
        (OptunaSearch, "metrik", "metric"),
        (tune.BasicVariantGenerator, "points_to_evaluat", "points_to_evaluate"),
        (MaximumIterationStopper, "max_iters", "max_iter"),
        (tune.Tuner, "param_spaces", "param_space"),
        (tune.RunConfig, "storage_pth", "storage_path"),
    ],
)
def test_an_unknown_argument_names_the_nearest_known_one(make: Any, wrong: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"{wrong!r}.*Did you mean {meant!r}") as caught:
        make(**{wrong: 1})
    assert isinstance(caught.value, InvalidTypeError)


@pytest.mark.parametrize("name", ["fifo", "asha", "hyperband", "medianstopping"])
def test_arguments_of_other_schedulers_are_left_out_by_name(name: str) -> None:
    """One dict of arguments serves whichever scheduler is named."""
    tune.create_scheduler(name, metric="loss", mode="min", max_t=9, quantile_fraction=0.25, log_config=True)


@pytest.mark.parametrize("name", ["random", "optuna", "bayesopt", "hyperopt"])
def test_arguments_of_other_searchers_are_left_out_by_name(name: str) -> None:
    tune.create_searcher(name, metric="loss", mode="min", algo="asracos", dim_dict=None, optimizer_kwargs={})


def test_an_argument_that_none_of_its_kind_has_is_left_out_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"create_scheduler\('asha'\) leaves out 'unknown'.* It has: .*max_t"):
        tune.create_scheduler("asha", unknown=1)
    with pytest.warns(UserWarning, match=r"create_searcher\('optuna'\) leaves out 'unknown'.* It has: .*seed"):
        tune.create_searcher("optuna", unknown=1)
    with pytest.warns(UserWarning, match=r"create_scheduler\('fifo'\) leaves out 'unknown'.* It has none"):
        tune.create_scheduler("fifo", unknown=1)


def test_arguments_of_a_class_that_has_none_are_refused() -> None:
    with pytest.raises(TypeError, match="'foo'"):
        FIFOScheduler(foo=1)
    with pytest.raises(TypeError, match="takes no arguments"):
        FIFOScheduler(1)


def test_arguments_that_need_a_name_say_so() -> None:
    words = r"Tuner\(\) takes 1 argument without a name, got 2. Name the others: param_space=..."
    with pytest.raises(InvalidTypeError, match=words):
        tune.Tuner(print, {"x": 1})  # type: ignore[misc]
    with pytest.raises(TypeError):
        tune.Tuner(print, {"x": 1}, 2)  # type: ignore[misc]


def test_a_users_own_subclass_may_take_what_it_likes() -> None:
    class Mine(ASHAScheduler):
        def __init__(self, patience: int, **others: Any) -> None:
            super().__init__(**others)
            self.patience = patience

    assert Mine(patience=3, max_t=9).patience == 3


def test_an_argument_that_belongs_elsewhere_says_where() -> None:
    with pytest.raises(TypeError, match=r"Write tune_config=tune.TuneConfig\(num_samples=...\)"):
        tune.Tuner(lambda config: None, num_samples=3)  # type: ignore[call-arg]


# --- names that are not there


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("track", "tune.report"),
        ("train", "tune.report"),
        ("get_trial_dir", "tune.get_context().get_trial_dir()"),
        ("ASHAScheduler", "tune.schedulers.ASHAScheduler"),
        ("OptunaSearch", "tune.search.OptunaSearch"),
        ("JsonLoggerCallback", "tune.callbacks.JsonLoggerCallback"),
        ("reprot", "Did you mean 'report'"),
    ],
)
def test_a_missing_name_tells_where_it_is(name: str, answer: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(tune, name)
    assert answer in str(caught.value)


def test_what_is_named_as_the_way_out_exists() -> None:
    for text in _TODAY.values():
        for word in text.replace("(", " ").replace(",", " ").split():
            if word.startswith("tune."):
                value: Any = tune
                for part in word.rstrip(".:;)").split(".")[1:]:
                    value = getattr(value, part)


# --- help


@pytest.mark.parametrize("kind", SETTINGS)
def test_help_explains_every_field_of_a_config(kind: type) -> None:
    text = inspect.getdoc(kind)
    assert text is not None
    explained = text.partition("Args:")[2]
    for name in inspect.signature(kind).parameters:
        assert f"\n    {name}: " in explained, name


def test_the_tuner_tells_its_arguments() -> None:
    assert list(inspect.signature(tune.Tuner).parameters) == ["trainable", "param_space", "tune_config", "run_config"]


def test_errors_stay_what_they_were() -> None:
    with pytest.raises(InvalidInputError, match="min") as caught:
        tune.TuneConfig(mode="x")
    assert isinstance(caught.value, TuneError)
    assert caught.value.__traceback__ is not None
