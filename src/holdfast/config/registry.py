"""Names for trainables and environments, in this process.

Owns: the two tables, and how a trainable gets its name.
Must never: persist anything; an experiment stores the name, and whoever restores it registers it again.
"""

from __future__ import annotations

import functools
import keyword
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import InvalidInputError, InvalidTypeError

_trainables: dict[str, Any] = {}
_environments: dict[str, Callable[..., Any]] = {}


def register_trainable(name: str, trainable: Any, warn: bool = True) -> None:
    """Make ``trainable`` known as ``name``, so that a Tuner can be given the name.

    Args:
        name: Any non-empty string; a later registration replaces an earlier one.
        trainable: Function, other callable, or subclass of Trainable.
        warn: Whether to warn when the name stood for a different trainable.

    Raises:
        InvalidTypeError: ``trainable`` is none of these.

    Example:
        >>> def train(config): ...
        >>> register_trainable("my_model", train)
        >>> get_trainable("my_model") is train
        True
    """
    _check_name("register_trainable", name)
    if isinstance(trainable, type) and getattr(trainable, "_holdfast_trainable", False) is not True:
        raise InvalidTypeError(
            f"register_trainable({name!r}, ...) got the class {trainable.__name__}, which does not inherit from "
            "tune.Trainable. Derive it from tune.Trainable, or register a function."
        )
    if not callable(trainable):
        raise InvalidTypeError(
            f"register_trainable({name!r}, ...) needs a class or a callable as second argument, "
            f"got {trainable!r} of type {type(trainable).__name__}."
        )
    known = _trainables.get(name)
    if warn and known is not None and _origin(known) != _origin(trainable):
        warnings.warn(
            f"The trainable {name!r} was {known!r} and is now {trainable!r}. "
            "Choose another name, or pass warn=False if this is meant.",
            stacklevel=2,
        )
    _trainables[name] = trainable


def get_trainable(name: str) -> Any:
    """Return the trainable registered as ``name``.

    Raises:
        InvalidInputError: Nothing is registered under that name; the message lists what is.
    """
    return _look_up("trainable", name, _trainables, "register_trainable")


def register_env(name: str, env_creator: Callable[..., Any]) -> None:
    """Make a function that creates an environment known as ``name``.

    Raises:
        InvalidTypeError: ``env_creator`` is not callable.
    """
    _check_name("register_env", name)
    if not callable(env_creator):
        raise InvalidTypeError(
            f"register_env({name!r}, ...) needs a callable as second argument, got {env_creator!r}. "
            "Write for example register_env('game', lambda env_config: Game(**env_config))."
        )
    _environments[name] = env_creator


def get_env(name: str) -> Callable[..., Any]:
    """Return the function registered as ``name`` by ``register_env``.

    Raises:
        InvalidInputError: Nothing is registered under that name; the message lists what is.
    """
    creator: Callable[..., Any] = _look_up("environment", name, _environments, "register_env")
    return creator


def trainable_name(trainable: Any) -> str:
    """Return the name that identifies a trainable, also across restores.

    A registered name stands for itself; otherwise the attribute ``_name``, then ``__name__`` ("lambda" for a
    lambda), and for a ``functools.partial`` the name of its function.

    Raises:
        InvalidTypeError: ``trainable`` is neither a name, a class nor a callable.

    Example:
        >>> trainable_name(lambda config: None)
        'lambda'
    """
    if isinstance(trainable, str):
        return trainable
    if not callable(trainable):
        raise InvalidTypeError(
            f"A trainable is a function, a Trainable class or a registered name, got {trainable!r} "
            f"of type {type(trainable).__name__}."
        )
    own = getattr(trainable, "_name", None)
    if isinstance(own, str) and own:
        return own
    if isinstance(trainable, functools.partial):
        return trainable_name(trainable.func)
    name = getattr(trainable, "__name__", "<object>")
    if name == "<lambda>":
        return "lambda"
    return "DEFAULT" if name.startswith("<") else str(name)


def written_as(trainable: Any) -> str:
    """How a script would write this trainable in a call that continues with its experiment; "..." if nobody knows.

    Example:
        >>> def train(config): ...
        >>> written_as(train), written_as("my_model"), written_as(lambda config: None)
        ('train', '"my_model"', '...')
    """
    if isinstance(trainable, str):
        return f'"{trainable}"' if trainable.isprintable() and '"' not in trainable else repr(trainable)
    name = name_as_written(trainable_name(trainable))
    if name == "...":
        return name
    if getattr(trainable, "_holdfast_parameters", None):
        return f"tune.with_parameters({name}, ...)"
    return f"functools.partial({name}, ...)" if isinstance(trainable, functools.partial) else name


def name_as_written(name: str) -> str:
    """The name of a trainable as code, as far as it can stand in code."""
    return name if name.isidentifier() and not keyword.iskeyword(name) and name != "DEFAULT" else "..."


def _check_name(caller: str, name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(f"{caller}() needs a non-empty str as first argument, got {name!r}.")


def _look_up(kind: str, name: str, table: Mapping[str, Any], register: str) -> Any:
    if name in table:
        return table[name]
    known = ", ".join(repr(key) for key in sorted(table)) or "none"
    raise InvalidInputError(
        f"Unknown {kind}: {name!r}. Registered in this process: {known}. "
        f"Call {register}({name!r}, ...) before, in this process."
    )


def _origin(trainable: Any) -> tuple[Any, ...]:
    """Where a trainable was defined: running the same notebook cell again gives the same origin."""
    while isinstance(trainable, functools.partial):
        trainable = trainable.func
    marks = tuple(getattr(trainable, mark, None) for mark in ("__module__", "__qualname__"))
    return marks if marks[1] is not None else (trainable,)
