"""The user's own searcher, scheduler and stop rule: a run works with copies, and returns their state at the end.

Copies, because the state of a run follows from the journal alone (I5): a second ``fit()`` and a restore must start with
empty objects. Owns which object gets which state, and how an object was before. Must never decide anything, nor be
needed: an experiment can be resumed without these objects.
"""

from __future__ import annotations

import copy
import pickle
import weakref
from collections import deque
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeVar

from holdfast.config import RunConfig, TuneConfig
from holdfast.schedulers import TrialScheduler
from holdfast.search import Searcher
from holdfast.stopper import Stopper

Config = TypeVar("Config", TuneConfig, RunConfig)

KINDS = (Searcher, TrialScheduler, Stopper)
CONTAINERS = (list, dict, set, deque)
_NO_MEMORY = (FunctionType, MethodType, ModuleType, type, str, bytes, dict)
_ABSENT = object()


class _Before(NamedTuple):
    """An object as it was before a run filled it, and what the run left in it."""

    object: weakref.ref[Any]
    pickled: bytes
    left: dict[str, Any]


_before: dict[int, _Before] = {}
"""By the id of the object; removed with it."""


class OwnObjects:
    """What the user passed, to be filled after a run.

    Args:
        tune_config: As it was given; None if it was not.
        run_config: As it was given.
    """

    def __init__(self, tune_config: TuneConfig | None, run_config: RunConfig | None) -> None:
        given = {
            "search_alg": None if tune_config is None else tune_config.search_alg,
            "scheduler": None if tune_config is None else tune_config.scheduler,
            "stop": None if run_config is None else run_config.stop,
        }
        self._given = {name: value for name, value in given.items() if _may_remember(value)}
        self._fresh: dict[str, tuple[Any, bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._given)

    @property
    def notes(self) -> list[str]:
        """What the user should know about objects that an experiment begins with."""
        searcher = self._given.get("search_alg")
        if searcher is None or _how_it_was(searcher) is None:
            return []
        return [f"{type(searcher).__name__} starts with what it has learned in an earlier experiment of this program"]

    def apart(self, config: Config, *, begins: bool) -> Config:
        """The configuration with copies of the user's objects, which stay as they are now.

        Args:
            config: What the user gave.
            begins: Whether an experiment begins. Then a searcher brings what it has learned before; whatever else was
                filled by a run is as it was before that, because its memory is about the trials of that run.
        """
        if not any(hasattr(config, name) for name in self._given):
            return config
        config = copy.copy(config)
        for name, given in self._given.items():
            if hasattr(config, name):
                config._set(name, self._copied(name, given, as_it_is=begins and name == "search_alg"))
        return config

    def _copied(self, name: str, given: Any, *, as_it_is: bool) -> Any:
        import cloudpickle

        try:
            fresh = given if as_it_is else _as_before(given)
            pickled = cloudpickle.dumps(fresh)
            self._fresh[name] = given, pickled
            return pickle.loads(pickled)
        except Exception:
            return given  # it cannot be stored either: whoever tries that says so, and what is to be done

    def fill(self, **remembering: Any) -> None:
        """Let the user's objects hold what those of the run remember, by the name of the setting."""
        for name, given in self._given.items():
            if name not in self._fresh or remembering.get(name) is None:
                continue
            _fill(given, remembering[name], set())
            _note(given, self._fresh[name][1])


def _may_remember(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_may_remember, value))
    return value is not None and not isinstance(value, _NO_MEMORY) and hasattr(value, "__dict__")


def _fill(mine: Any, theirs: Any, seen: set[int]) -> None:
    # By name: a class of a script is another one each time that it is loaded.
    if mine is theirs or id(mine) in seen or type(mine).__qualname__ != type(theirs).__qualname__:
        return
    seen.add(id(mine))
    if isinstance(mine, list | tuple):
        for pair in zip(mine, theirs, strict=False):
            _fill(*pair, seen)
    elif _may_remember(mine):
        attributes = vars(mine)
        filled = {name: _merged(attributes.get(name, _ABSENT), value, seen) for name, value in vars(theirs).items()}
        attributes.clear()
        attributes.update(filled)


def _merged(old: Any, new: Any, seen: set[int]) -> Any:
    """The new value; in the old object if the user may hold that: an inner searcher, a list that a scheduler fills."""
    if isinstance(old, KINDS) and type(old).__qualname__ == type(new).__qualname__:
        _fill(old, new, seen)
        return old
    if type(old) not in CONTAINERS or type(old) is not type(new) or _is_equal(old, new):
        return new
    items = list(old)
    if type(old) is list and len(items) == len(new) and all(isinstance(each, KINDS) for each in items):
        return [_merged(*pair, seen) for pair in zip(items, new, strict=True)]
    old.clear()
    old.extend(new) if isinstance(old, list | deque) else old.update(new)
    return old


def _is_equal(old: Any, new: Any) -> bool:
    try:
        return bool(old == new)
    except Exception:
        return False  # arrays do not say it in one word


# --- how they were


def _note(given: Any, pickled: bytes) -> None:
    if not hasattr(given, "__dict__"):
        return  # a list of stop rules: whoever gives it again gives what is in it now
    key = id(given)
    try:
        reference = weakref.ref(given, lambda _: _before.pop(key, None))
    except TypeError:
        return
    _before[key] = _Before(reference, pickled, dict(vars(given)))


def _how_it_was(given: Any) -> _Before | None:
    found = _before.get(id(given))
    return found if found is not None and found.object() is given else None


def _as_before(given: Any) -> Any:
    """The object without what a run has left in it; with what the user has set since."""
    found = _how_it_was(given)
    if found is None:
        return given
    fresh = pickle.loads(found.pickled)
    for name, value in vars(given).items():
        if found.left.get(name, _ABSENT) is not value:
            vars(fresh)[name] = value
    return fresh
