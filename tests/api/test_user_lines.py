"""Warnings point to the user's own line, not into holdfast: that is where something can be done."""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.trainable import context


@pytest.fixture(autouse=True)
def _nobody_was_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_warned", set())


def uses_checkpoint_dir() -> None:
    with tune.checkpoint_dir():
        pass


def uses_an_exit_stack() -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(tune.checkpoint_dir())


def trains_outside() -> Iterator[None]:
    yield tune.report({"loss": 1})


OUTSIDE: dict[str, Callable[[], Any]] = {
    "report": lambda: tune.report({"loss": 1}),
    "report in a generator": lambda: list(trains_outside()),
    "get_checkpoint": lambda: tune.get_checkpoint(),
    "should_checkpoint": lambda: tune.should_checkpoint(),
    "checkpoint_dir": uses_checkpoint_dir,
    "checkpoint_dir in an exit stack": uses_an_exit_stack,
    "get_trial_id": lambda: tune.get_context().get_trial_id(),
    "get_trial_dir": lambda: tune.get_context().get_trial_dir(),
    "get_world_size": lambda: tune.get_context().get_world_size(),
}
OLDER: dict[str, Callable[[], Any]] = {
    "a constructor": lambda: tune.RunConfig(local_dir="results"),
    "dataclasses.replace": lambda: dataclasses.replace(tune.RunConfig(), local_dir="results", storage_path=None),
    "a sampler": lambda: tune.loguniform(1, 2, base=10),
    "a point outside of the space": lambda: tune.Tuner(
        lambda config: None,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(search_alg=tune.BasicVariantGenerator(points_to_evaluate=[{"x": 5}])),
    ),
}


def places(call: Callable[[], Any]) -> list[tuple[str, str]]:
    """Each warning's file and the source text of its line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [(warning.filename, linecache.getline(warning.filename, warning.lineno)) for warning in caught]


@pytest.mark.parametrize("call", OUTSIDE.values(), ids=OUTSIDE)
def test_outside_of_a_trial_the_warning_shows_the_line_that_called(call: Callable[[], Any]) -> None:
    ((file, line),) = places(call)
    assert file == __file__
    assert "tune." in line


@pytest.mark.parametrize("call", OLDER.values(), ids=OLDER)
def test_other_warnings_show_the_line_that_wrote_it(
    call: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path))
    ((file, line),) = places(call)
    assert file == __file__
    assert "tune." in line or "lambda:" in line


def test_a_warning_says_what_the_function_does_instead() -> None:
    with pytest.warns(UserWarning, match=r"`checkpoint_dir` .* a temporary directory that is not kept"):
        uses_checkpoint_dir()
    with pytest.warns(UserWarning, match=r"`should_checkpoint` .* is always False"):
        tune.should_checkpoint()
