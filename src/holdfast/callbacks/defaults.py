"""Which callbacks an experiment has: the user's, those of an environment variable, and the loggers that are added."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.callbacks.callback import Callback
from holdfast.errors import InvalidInputError


def callbacks_from_paths(paths: str | Iterable[str]) -> list[Callback]:
    """Instances of the callback classes that an environment variable names.

    Args:
        paths: ``"package.module.Class,package.other.Class"``, or the parts of it.

    Raises:
        InvalidInputError: A class cannot be imported or made without arguments (it is a ``ValueError``).
    """
    if isinstance(paths, str):
        paths = paths.split(",")
    return [_make_callback(path.strip()) for path in paths if path.strip()]


def _make_callback(path: str) -> Callback:
    module, _, name = path.rpartition(".")
    try:
        if not module:
            raise ImportError("no module is named")
        made: Callable[[], Any] = getattr(importlib.import_module(module), name)
        callback = made()
    except Exception as error:
        raise InvalidInputError(
            f"The callback {path!r} in RAY_TUNE_CALLBACKS cannot be used ({type(error).__name__}: {error}). Write "
            "package.module.Class, several of them with commas, each a Callback that needs no arguments; or remove "
            "it with: unset RAY_TUNE_CALLBACKS"
        ) from error
    if not isinstance(callback, Callback):
        raise InvalidInputError(
            f"{path!r} in RAY_TUNE_CALLBACKS makes a {type(callback).__name__}, which is not a Callback. Derive it "
            "from holdfast.Callback, or remove it with: unset RAY_TUNE_CALLBACKS"
        )
    return callback


def default_callbacks(disable_auto_loggers: bool, given: Iterable[Callback] | None) -> list[Callback]:
    """The user's callbacks, then the CSV, JSON and TensorBoard loggers that the user has not given.

    Args:
        disable_auto_loggers: Add none.
        given: The user's callbacks.
    """
    callbacks = list(given or ())
    if disable_auto_loggers:
        return callbacks
    # Here and not above: whoever turns them off does without the time that importing them takes.
    from holdfast.callbacks.csv_logger import CSVLoggerCallback
    from holdfast.callbacks.json_logger import JsonLoggerCallback
    from holdfast.callbacks.tensorboard import TBXLoggerCallback

    for kind in (CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback):
        if not any(isinstance(callback, kind) for callback in callbacks):
            callbacks.append(kind())
    return callbacks
