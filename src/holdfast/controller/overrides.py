"""Settings that are passed again when an experiment is resumed: new targets, and corrected code.

- *Targets* (``num_samples``, ``time_budget_s``, ``max_concurrent_trials``, ``stop``) and the objective (``metric``,
  ``mode``) may be changed. That is a fact of the experiment, an event: see ``changes``.
- *Code*: stop rules, callbacks, schedulers and searchers are stored with the experiment, including their code if it is
  the script's own. Corrected code is passed again. It replaces the stored object if it has the same type and was
  constructed with the same plain values, because it inherits the state of its predecessor.
- Everything else is fixed when the experiment is created; differences are ignored, with a warning.
"""

from __future__ import annotations

import copy
import datetime
import enum
from collections.abc import Iterator
from dataclasses import fields
from types import FunctionType
from typing import Any, NamedTuple

from holdfast.config import RunConfig, TuneConfig
from holdfast.core import events as ev
from holdfast.errors import InvalidInputError
from holdfast.messages.shortened import shortened
from holdfast.messages.warn import warn_user

CODE = {"search_alg", "scheduler", "trial_name_creator", "trial_dirname_creator", "stop", "callbacks"}
"""Taken if it is the same, but for its code."""

OF_THIS_RUN = {"verbose", "progress_reporter", "engine", "max_output_bytes"}
"""Taken as given: how the experiment is watched and which machine it runs on is not part of it."""

TARGETS = {"num_samples", "time_budget_s", "max_concurrent_trials", "stop"}
"""Taken as a change: what the experiment continues to."""

OBJECTIVE = {"metric", "mode"}
"""Taken as a change: what it optimises."""

POLICIES = {"scheduler", "search_alg"}
"""Taken as a change if nothing but the metric and mode differ that they were made with."""

PLACES = {"name", "storage_path", "storage_filesystem", "local_dir", "sync_config", "if_exists"}
"""Not looked at: they have led here."""

MAX_DEPTH = 6
"""How deep values are compared: objects may refer to each other in circles."""

BEGIN_FROM = (
    "It can start from the results of this one: searcher.add_evaluated_trials(path, metric) for a search_alg that "
    "learns, or BasicVariantGenerator(points_to_evaluate=[...])."
)
"""How to continue when this experiment is not what the user wants any more."""

_PLAIN = (type(None), bool, int, float, str, bytes, datetime.timedelta, enum.Enum)
_SHOWN = (*_PLAIN, dict, list, tuple)


Config = TuneConfig | RunConfig


class Taken(NamedTuple):
    """What was taken of what was given: names of settings whose code is replaced, and (old, new) of those changed."""

    code: set[str]
    changes: dict[str, tuple[Any, Any]]


def take_again(*configs: tuple[Config, Config | None]) -> Taken:
    """Put corrected code into what is stored, and find what is to change; tell the user what is not used.

    Args:
        *configs: What holds by now, and what is given; None if nothing is.

    Raises:
        InvalidInputError: A target is behind what there is already.
    """
    taken, ignored = Taken(set(), {}), []
    for stored, given in configs:
        for name, old, new in given_settings(stored, given) if given is not None else ():
            if name in OF_THIS_RUN or (name in CODE and is_alike(old, new)):
                stored._set(name, new)
                taken.code.add(name)
            elif is_alike(old, new) or (name == "max_concurrent_trials" and not old and not new):
                continue
            elif name in TARGETS | OBJECTIVE or (name in POLICIES and _differs_in_objective(old, new)):
                taken.changes[name] = (old, new)
            else:
                ignored.append(_difference(name, old, new))
    _check_number(*taken.changes.get("num_samples", (1, 1)))
    _check_mode(taken.changes, configs)
    if ignored:
        warn_user(
            f"The experiment keeps its settings: {'; '.join(ignored)}. For other settings start another one, with "
            "a new RunConfig(name=...).",
            UserWarning,
        )
    return taken


def _check_number(old: int, new: int) -> None:
    if new == -1 or -1 < old <= new:
        return
    was = "no limit" if old == -1 else f"{old}"
    instead = "end it with Ctrl+C, time_budget_s or stop" if old == -1 else "leave it out to keep the number"
    raise InvalidInputError(
        f"num_samples={new} is smaller than what this experiment has: {was}. The number is that of the whole "
        f"experiment, and may only grow: {instead}. For a smaller experiment start another one, with a new "
        f"RunConfig(name=...). {BEGIN_FROM} Nothing was changed."
    )


def _check_mode(changes: dict[str, tuple[Any, Any]], configs: tuple[tuple[Config, Config | None], ...]) -> None:
    """Another metric needs a mode of its own: whether small or large is better was said of the old one."""
    old, new = changes.get("metric", (None, None))
    for stored, given in configs:
        if old is None or not isinstance(stored, TuneConfig) or not isinstance(given, TuneConfig):
            continue
        if stored.mode is not None and given.mode is None:
            raise InvalidInputError(
                f"TuneConfig(metric={new!r}) has no mode. This experiment has mode={stored.mode!r} for {old!r}, and "
                f"that need not hold for {new!r}: give both, TuneConfig(metric={new!r}, mode='min') or mode='max'. "
                "Nothing was changed."
            )


def change_of(taken: Taken, total: int | None, keys: dict[str, str]) -> ev.SettingsChanged | None:
    """The fact that settings were changed; None if they were not.

    Args:
        taken: What was given.
        total: How many trials there will be now, if that is known.
        keys: Of objects among what was given: the keys of their stored values.
    """
    if not taken.changes:
        return None
    new = {name: value for name, (_, value) in taken.changes.items()}
    return ev.SettingsChanged(
        0.0,
        metric=new.get("metric"),
        mode=new.get("mode"),
        num_samples=new.get("num_samples"),
        total=total if "num_samples" in new else None,
        time_budget_s=new.get("time_budget_s"),
        max_concurrent=new.get("max_concurrent_trials"),
        objects=keys,
        retold=bool(keys),
        relearned=bool(new.keys() & (OBJECTIVE | POLICIES)),
        words=tuple(_change_words(name, *pair) for name, pair in taken.changes.items()),
    )


def _change_words(name: str, old: Any, new: Any) -> str:
    if name in POLICIES:
        objectives = (f"{each.metric} ({each.mode})" for each in (old, new))
        return f"{name} {type(new).__name__} {' -> '.join(objectives)}"
    words = f"{name} {_value_words(name, old)} -> {_value_words(name, new)}"
    return f"{words} (for trials that have not ended)" if name == "stop" else words


def _value_words(name: str, value: Any) -> str:
    if value is None or (name == "num_samples" and value == -1) or (name == "max_concurrent_trials" and not value):
        return "none" if name in OBJECTIVE | {"stop"} else "no limit"
    return str(value) if isinstance(value, str) else f"{value:g} s" if name == "time_budget_s" else _shown(value)


def _differs_in_objective(old: Any, new: Any) -> bool:
    """Is that all they differ in?"""
    return hasattr(old, "metric") and hasattr(new, "metric") and is_alike(old, _with_objective_of(old, new))


def _with_objective_of(old: Any, new: Any) -> Any:
    same = copy.copy(new)
    for name in ("_metric", "_mode"):
        if hasattr(old, name) and hasattr(new, name):
            setattr(same, name, getattr(old, name))
    inner, newer = getattr(old, "searcher", None), getattr(new, "searcher", None)
    if inner is not None and newer is not None:
        same.searcher = _with_objective_of(inner, newer)
    return same


def given_settings(stored: Config, given: Config) -> Iterator[tuple[str, Any, Any]]:
    """What was set to something else than its default, and ``num_samples`` if it was set at all.

    Yields:
        Its name, the stored value and the given one.
    """
    usual, said = type(given)(), vars(given).get("_given", ())
    for field in fields(given):
        new = getattr(given, field.name)
        is_given = field.name in said and field.name == "num_samples"
        if field.name not in PLACES and (is_given or not _is_same_plain(new, getattr(usual, field.name))):
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
