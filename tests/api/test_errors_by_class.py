"""A trial's error can be caught as what the trainable raised; reading results still executes nothing stored."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.errors import TrialError

Make = Callable[..., tune.Tuner]


class Diverged(ArithmeticError):
    """With a constructor of its own, as such classes have."""

    def __init__(self, loss: float, step: int) -> None:
        super().__init__(loss, step)
        self.loss, self.step = loss, step

    def __str__(self) -> str:
        return f"loss {self.loss} at step {self.step}"


class Unloadable(ValueError):
    def __init__(self, *, detail: str) -> None:
        super().__init__(f"detail {detail}")


def train(config: dict[str, Any]) -> None:
    match config["kind"]:
        case "value":
            raise ValueError("a bad value")
        case "own":
            raise Diverged(3.5, step=7)
        case "file":
            raise FileNotFoundError(2, "No such file", "/nowhere")
        case "unloadable":
            raise Unloadable(detail="x")
        case "group":
            raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])
        case "exit":
            sys.exit(3)


def error_of(make_tuner: Make, kind: str) -> TrialError:
    grid = make_tuner(train, {"kind": kind}).fit()
    (error,) = grid.errors
    assert type(grid[0].error) is type(error)
    return error


def test_it_is_caught_as_what_was_raised_and_as_a_trial_error(make_tuner: Make) -> None:
    error = error_of(make_tuner, "value")
    with pytest.raises(ValueError, match="a bad value"):
        raise error
    assert isinstance(error, TrialError)
    assert type(error.__cause__) is ValueError
    assert error.__cause__.args == ("a bad value",)
    assert error.error_type == "ValueError"


def test_a_class_of_the_users_own_with_its_attributes(make_tuner: Make) -> None:
    error = error_of(make_tuner, "own")
    assert isinstance(error, Diverged)
    assert (error.loss, error.step) == (3.5, 7)
    assert "loss 3.5 at step 7" in str(error)
    assert isinstance(error.__cause__, Diverged)


def test_an_error_of_the_system_keeps_its_number(make_tuner: Make) -> None:
    error = error_of(make_tuner, "file")
    assert isinstance(error, FileNotFoundError)
    assert (error.errno, error.filename) == (2, "/nowhere")


def test_one_that_does_not_unpickle_has_its_class_and_no_cause(make_tuner: Make) -> None:
    error = error_of(make_tuner, "unloadable")
    assert isinstance(error, Unloadable)
    assert error.__cause__ is None


@pytest.mark.parametrize(("kind", "name"), [("group", "ExceptionGroup"), ("exit", "SystemExit")])
def test_what_no_class_can_be_made_of_is_a_plain_trial_error(make_tuner: Make, kind: str, name: str) -> None:
    error = error_of(make_tuner, kind)
    assert type(error) is TrialError
    assert error.error_type == name


def test_it_survives_pickling(make_tuner: Make) -> None:
    error = error_of(make_tuner, "own")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.trial_id, again.loss) == (str(error), error.trial_id, 3.5)


READER = """
import sys
import holdfast as tune
from holdfast.errors import TrialError
(error,) = tune.ResultGrid.from_path(sys.argv[1]).errors
assert isinstance(error, ArithmeticError) and isinstance(error, TrialError), type(error).__mro__
assert error.__cause__ is None
assert "test_errors_by_class" not in sys.modules
"""


def test_a_reader_without_the_class_knows_its_base_and_loads_no_pickle(make_tuner: Make, root: Path) -> None:
    error_of(make_tuner, "own")
    subprocess.run([sys.executable, "-c", READER, str(root)], check=True, timeout=60)
    (error,) = tune.ResultGrid.from_path(root).errors
    assert isinstance(error, Diverged), "imported here already"
    assert error.__cause__ is None
    (restored,) = tune.Tuner.restore(root, train).get_results().errors
    assert isinstance(restored.__cause__, Diverged)
