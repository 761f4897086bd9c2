"""Names of trainables and environments."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest

from holdfast.config import registry
from holdfast.config.registry import get_env, get_trainable, register_env, register_trainable, trainable_name
from holdfast.errors import TuneError


class FakeTrainable:
    """Stands for the public Trainable class, which is known by this attribute."""

    _holdfast_trainable = True


class Model(FakeTrainable):
    pass


def train(config: dict[str, Any]) -> None:
    pass


def other(config: dict[str, Any]) -> None:
    pass


@pytest.fixture(autouse=True)
def empty_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_trainables", {})
    monkeypatch.setattr(registry, "_environments", {})


@pytest.mark.parametrize("trainable", [train, Model, functools.partial(train), lambda config: None])
def test_registered_trainable_is_found_by_its_name(trainable: Any) -> None:
    register_trainable("mine", trainable)
    assert get_trainable("mine") is trainable


def test_unknown_name_lists_the_known_ones_and_the_way_out() -> None:
    register_trainable("b", train)
    register_trainable("a", train)
    with pytest.raises(ValueError, match=r"Unknown trainable: 'c'.*'a', 'b'.*register_trainable\('c'") as caught:
        get_trainable("c")
    assert isinstance(caught.value, TuneError)


def test_unknown_name_in_an_empty_table_says_none() -> None:
    with pytest.raises(TuneError, match="Registered in this process: none"):
        get_trainable("c")


@pytest.mark.parametrize("trainable", [3, None, "train", {"run": train}])
def test_trainable_that_is_neither_class_nor_callable_is_a_type_error(trainable: Any) -> None:
    with pytest.raises(TypeError, match="needs a class or a callable"):
        register_trainable("x", trainable)


def test_class_that_is_no_trainable_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"dict, which does not inherit from tune\.Trainable"):
        register_trainable("x", dict)


@pytest.mark.parametrize("name", ["", None, 3])
def test_name_must_be_a_non_empty_string(name: Any) -> None:
    with pytest.raises(TypeError, match="non-empty str"):
        register_trainable(name, train)
    with pytest.raises(TypeError, match="non-empty str"):
        register_env(name, train)


def test_replacing_a_different_trainable_is_warned_about() -> None:
    register_trainable("x", train)
    with pytest.warns(UserWarning, match="The trainable 'x' was"):
        register_trainable("x", other)
    assert get_trainable("x") is other


def test_replacing_is_silent_when_asked_or_when_it_is_the_same_code_again() -> None:
    def cell() -> Any:
        def model(config: dict[str, Any]) -> None:
            pass

        return model

    register_trainable("x", cell())
    register_trainable("x", cell())
    register_trainable("x", other, warn=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_trainable("x", functools.partial(other))


def test_environment_is_found_by_its_name() -> None:
    def make(env_config: dict[str, Any]) -> str:
        return "game"

    register_env("game", make)
    assert get_env("game") is make
    with pytest.raises(TypeError, match="needs a callable"):
        register_env("game", "Game")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Unknown environment: 'chess'.*'game'"):
        get_env("chess")


class Named:
    _name = "chosen"

    def __call__(self, config: dict[str, Any]) -> None: ...


class Anonymous:
    def __call__(self, config: dict[str, Any]) -> None: ...


def odd(config: dict[str, Any]) -> None: ...


odd.__name__ = "<generated>"


@pytest.mark.parametrize(
    ("trainable", "name"),
    [
        ("registered", "registered"),
        (train, "train"),
        (Model, "Model"),
        (Named(), "chosen"),
        (Anonymous(), "DEFAULT"),
        (odd, "DEFAULT"),
        (lambda config: None, "lambda"),
        (functools.partial(train), "train"),
        (functools.partial(functools.partial(train)), "train"),
        (functools.partial(lambda config, x: None, x=1), "lambda"),
    ],
)
def test_trainable_is_named(trainable: Any, name: str) -> None:
    assert trainable_name(trainable) == name


def test_name_of_something_else_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="function, a Trainable class or a registered name"):
        trainable_name(3)
