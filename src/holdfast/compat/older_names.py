"""Top-level names of earlier generations, and of other tuners: what each stands for today."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any, TypeVar

from holdfast.config import SyncConfig
from holdfast.messages.warn import warn_user
from holdfast.trainable.session import current
from holdfast.trainable.tracebacks import show_briefly

T = TypeVar("T")

_TODAY = {
    "track": "tune.report({...}) instead of track.log(...)",
    "train": "tune itself: train.report(...) is tune.report(...), train.get_checkpoint() is tune.get_checkpoint(), "
    "train.RunConfig is tune.RunConfig; in an older script, from holdfast.compat import train",
    "suggest": "tune.search",
    "get_trial_dir": "tune.get_context().get_trial_dir()",
    "get_trial_id": "tune.get_context().get_trial_id()",
    "get_trial_name": "tune.get_context().get_trial_name()",
    "get_trial_resources": "tune.get_context().get_trial_resources()",
    "is_session_enabled": "tune.get_context().get_trial_id() is not None",
    "create_study": "tune.Tuner(...).fit(); an Optuna study is tune.search.optuna.OptunaSearch(...)",
    "ray": "nothing: trials run on this machine without it; in an older script, from holdfast.compat import ray",
}
"""What to write instead of names that holdfast does not have."""

_WITH_NAMES = ("schedulers", "search", "stopper", "callbacks")
"""Modules whose names are easily looked for at the top."""


def older(name: str) -> Any:
    """What an older top-level name stands for; warns and tells the name of today."""
    if name == "syncConfig":
        warn_user("tune.syncConfig still works, but is now written tune.SyncConfig.", DeprecationWarning)
        return SyncConfig
    return {"durable": durable}[name]


def durable(trainable: T) -> T:
    """Return the trainable as it is: every experiment is durable."""
    warn_user("tune.durable(trainable) is not needed any more: write trainable alone.", DeprecationWarning)
    return trainable


def is_session_enabled() -> bool:
    """Whether this runs inside a trial."""
    warn_user(
        "tune.is_session_enabled() still works, but is now written tune.get_context().get_trial_id() is not None.",
        DeprecationWarning,
    )
    return current() is not None


def unknown(name: str, known: list[str]) -> AttributeError:
    """The error for a name that holdfast does not have: where it is, or what it is called.

    Args:
        name: The name that was asked for.
        known: Those that there are.
    """
    # Without a name Python adds no guess of its own.
    return show_briefly(AttributeError(f"module 'holdfast' has no attribute {name!r}.{_hint(name, known)}", name=None))


def _hint(name: str, known: list[str]) -> str:
    if name in _TODAY:
        return f" Write {_TODAY[name]}."
    for module in _WITH_NAMES:
        if name in import_module(f"holdfast.{module}").__all__:
            return f" It is tune.{module}.{name}."
    close = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
