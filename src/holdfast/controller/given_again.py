"""Settings that are given again when an experiment goes on: corrected code in the place of the stored code.

Stop rules, callbacks, schedulers and searchers are stored with the experiment, their code included if it is a script's
own. Whoever has corrected it gives it again. It takes the place of what is stored if it is of the same kind and was
made with the same plain values, because it inherits the memory of the one before. All else was settled when the
experiment began; what differs is not used, and the user is told.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterator
from dataclasses import fields
from types import FunctionType
from typing import Any

from holdfast.config import RunConfig, TuneConfig
from holdfast.trainable.plain import shortened
from holdfast.warn import warn_user

CODE = {"search_alg", "scheduler", "trial_name_creator", "trial_dirname_creator", "stop", "callbacks"}
"""Taken if it is the same, but for its code."""

OF_THIS_RUN = {"verbose", "progress_reporter", "engine"}
"""Taken as given: how the experiment is watched and which machine it runs on is not part of it."""

PLACES = {"name", "storage_path", "storage_filesystem", "local_dir", "sync_config", "if_exists"}
"""Not looked at: they have led here."""

MAX_DEPTH = 6
"""How deep values are compared: objects may refer to each other in circles."""

_PLAIN = (type(None), bool, int, float, str, bytes, datetime.timedelta, enum.Enum)
_SHOWN = (*_PLAIN, dict, list, tuple)


Config = TuneConfig | RunConfig


def take_again(*configs: tuple[Config, Config | None]) -> bool:
    """Put what can be taken of what is given into what is stored; tell the user what is not.

    Args:
        *configs: What is stored, and what is given; None if nothing is.

    Returns:
        Whether something was taken.
    """
    changed, ignored = False, []
    for stored, given in configs:
        for name, old, new in _given(stored, given) if given is not None else ():
            if name in OF_THIS_RUN or (name in CODE and is_alike(old, new)):
                stored._set(name, new)
                changed = True
            elif not is_alike(old, new):
                ignored.append(_difference(name, old, new))
    if ignored:
        warn_user(
            f"The experiment goes on as it was begun: {'; '.join(ignored)}. For other settings start another one, with "
            "a new RunConfig(name=...).",
            UserWarning,
        )
    return changed


def _given(stored: Config, given: Config) -> Iterator[tuple[str, Any, Any]]:
    """What was set to something else than its default: name, stored value, given value."""
    usual = type(given)()
    for field in fields(given):
        new = getattr(given, field.name)
        if field.name not in PLACES and not _is_same_plain(new, getattr(usual, field.name)):
            yield field.name, getattr(stored, field.name), new


def _is_same_plain(one: Any, other: Any) -> bool:
    if isinstance(one, _PLAIN):
        return type(one) is type(other) and bool(one == other)
    return not callable(one) and is_alike(one, other)


def is_alike(old: Any, new: Any, depth: int = MAX_DEPTH) -> bool:
    """Are both of the same kind, and made with the same plain values? Their code may differ."""
    if isinstance(old, _PLAIN) or isinstance(new, _PLAIN):
        return bool(old == new)
    if not depth:
        return True
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(is_alike(*pair, depth - 1) for pair in zip(old, new, strict=True))
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(is_alike(old[key], new[key], depth - 1) for key in old)
    if isinstance(old, FunctionType) and isinstance(new, FunctionType):
        return True
    # By name: a class of a script is another one each time that it is loaded.
    if type(old).__qualname__ != type(new).__qualname__:
        return False
    ours, theirs = getattr(old, "__dict__", {}), getattr(new, "__dict__", {})
    return all(is_alike(ours[name], theirs[name], depth - 1) for name in ours.keys() & theirs.keys())


def _difference(name: str, old: Any, new: Any) -> str:
    if type(old).__qualname__ == type(new).__qualname__ and not isinstance(old, _SHOWN):
        return f"{name}={_shown(old)} with the arguments that it had"
    return f"{name}={_shown(old)}, not {_shown(new)}"


def _shown(value: Any) -> str:
    return shortened(value) if isinstance(value, _SHOWN) else type(value).__name__
