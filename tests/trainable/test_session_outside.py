"""The public functions where no trial runs, and signatures checked up front."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.config.resources import with_parameters
from holdfast.trainable import context
from holdfast.trainable.api import (
    checkpoint_dir,
    get_checkpoint,
    get_context,
    report,
    should_checkpoint,
)
from holdfast.trainable.function_runner import check_signature


@pytest.fixture(autouse=True)
def _nobody_was_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_warned", set())


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: report({"a": 1}), "report"),
        (get_checkpoint, "get_checkpoint"),
        (lambda: get_context().get_trial_id(), "get_trial_id"),
        (lambda: get_context().get_trial_dir(), "get_trial_dir"),
        (lambda: get_context().get_trial_name(), "get_trial_name"),
        (lambda: get_context().get_trial_resources(), "get_trial_resources"),
        (lambda: get_context().get_experiment_name(), "get_experiment_name"),
        (lambda: get_context().get_storage(), "get_storage"),
    ],
)
def test_outside_of_a_trial_functions_warn_once_and_return_none(call: Callable[[], Any], name: str) -> None:
    with pytest.warns(UserWarning, match=f"`{name}` was called outside of a trial"):
        assert call() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call() is None


def test_outside_of_a_trial_should_checkpoint_is_false() -> None:
    with pytest.warns(UserWarning, match="should_checkpoint"):
        assert should_checkpoint() is False


def test_outside_of_a_trial_checkpoint_dir_is_a_temporary_directory() -> None:
    with pytest.warns(UserWarning, match="checkpoint_dir"), checkpoint_dir(step=1) as path:
        Path(path, "w").write_text("x")
    assert not os.path.exists(path)


def one(config: Any) -> None: ...


def any_name(space: Any, extra: int = 1) -> None: ...


def variadic(*args: Any, **kwargs: Any) -> None: ...


def reporter(config: Any, reporter: Any) -> None: ...


def checkpoint(config: Any, checkpoint_dir: Any = None) -> None: ...


def two(config: Any, data: Any) -> None: ...


def none() -> None: ...


def keyword_only(*, config: Any) -> None: ...


class CallableObject:
    def __call__(self, config: Any) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        one,
        any_name,
        variadic,
        reporter,
        checkpoint,
        CallableObject(),
        functools.partial(two, data=1),
        print,
        dict.fromkeys,
    ]
    + [with_parameters(two, data=1), with_parameters(functools.partial(two), data=1)],
)
def test_signatures_that_take_one_config_are_accepted(function: Any) -> None:
    check_signature(function)


@pytest.mark.parametrize("function", [two, none, keyword_only])
def test_other_signatures_are_refused(function: Any) -> None:
    with pytest.raises(ValueError, match="Unknown argument found in the Trainable function"):
        check_signature(function)
