"""The stoppers that need no statistics (bounds, functions, counts, time, and combinations), and what ``stop=`` means.

Owns: what each remembers, and which form of ``stop=`` becomes which stopper. Must never: read a clock, except for a
TimeoutStopper that no controller drives.
"""

from __future__ import annotations

import datetime
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.stopper.base import ABSENT, SnapshotStopper, Stopper, finite, integer, nested, number

logger = logging.getLogger("holdfast.stopper")


class NoopStopper(Stopper):
    """Stops nothing."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return False

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class DictStopper(Stopper):
    """Stops a trial when any metric reaches its bound.

    Args:
        criteria: Metric and bound; a trial ends when the metric is >= the bound. ``a/b`` is metric b inside a.
    """

    def __init__(self, criteria: Mapping[str, Any]) -> None:
        self.criteria = {key: _bound(key, value) for key, value in criteria.items()}
        self._items = tuple(self.criteria.items())
        self._warned: set[str] = set()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self.check(result, {})

    def check(self, metrics: Mapping[str, Any], extras: Mapping[str, Any]) -> bool:
        """Return whether a bound is reached, without the two parts of a result being merged before.

        Args:
            metrics: What the user reported; searched first.
            extras: What was filled in besides, such as ``training_iteration``.
        """
        for key, bound in self._items:
            value = metrics.get(key, ABSENT)
            if value is ABSENT:
                value = extras.get(key, ABSENT)
            if value is ABSENT and "/" in key:
                value = nested(metrics, key)
                if value is ABSENT:
                    value = nested(extras, key)
            if value is ABSENT:
                self._warn(key, f"is not in the result, which has {_names(metrics, extras)}")
                continue
            try:
                reached = bool(value >= bound)
            except Exception:
                # Metrics are any objects; one that cannot be compared must not end the experiment.
                self._warn(key, f"has the value {value!r}, which cannot be compared with {bound!r}")
                continue
            if reached:
                return True
        return False

    def stop_all(self) -> bool:
        return False

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass

    def _warn(self, key: str, problem: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            logger.warning(
                "The stopping criterion %r %s. As long as that stays so, it will stop no trial.", key, problem
            )


class FunctionStopper(Stopper):
    """Stops a trial when a function says so.

    The function may remember things (a bound method often does), which nobody can see from outside. So this
    stopper offers no state, and is rebuilt from the results on restore.

    Args:
        function: Called as ``function(trial_id, result)``.
    """

    def __init__(self, function: Any) -> None:
        if isinstance(function, type) and issubclass(function, Stopper):
            raise InvalidInputError(
                f"`stop` got the class {function.__name__} itself. Give an instance: {function.__name__}(...)."
            )
        if not callable(function) or isinstance(function, Stopper):
            raise InvalidInputError(
                f"FunctionStopper needs a function (trial_id, result), got {function!r}. "
                "A Stopper object is passed as `stop` directly."
            )
        if hasattr(function, "stop_all"):
            raise InvalidInputError(
                f"{function!r} has a method stop_all, but is not a Stopper subclass, so stop_all would never be "
                "asked. Derive its class from tune.Stopper."
            )
        _check_two_arguments(function)
        self._function = function

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return bool(self._function(trial_id, result))

    def stop_all(self) -> bool:
        return False


class CombinedStopper(Stopper):
    """Stops when any of several stoppers does.

    Example:
        >>> both = CombinedStopper(MaximumIterationStopper(10), TimeoutStopper(3600))
    """

    def __init__(self, *stoppers: Stopper) -> None:
        for stopper in stoppers:
            if not isinstance(stopper, Stopper):
                raise InvalidInputError(
                    f"CombinedStopper takes Stopper objects, got {stopper!r}. Wrap a function as FunctionStopper(fn)."
                )
        self.stoppers = stoppers

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        # Each one sees every result. Stopping at the first "yes" would hide results from those behind it, and
        # what they remember would depend on their place in the list.
        answers = [stopper(trial_id, result) for stopper in self.stoppers]
        return any(answers)

    def stop_all(self) -> bool:
        return any(stopper.stop_all() for stopper in self.stoppers)

    def advance(self, lived_s: float) -> None:
        """Tell the members that count time how many seconds drivers have lived in all."""
        for stopper in self.stoppers:
            advance = getattr(stopper, "advance", None)
            if advance is not None:
                advance(lived_s)

    def rewind(self, trial_id: str, rows: int) -> None:
        """Tell the members that count results that a trial begins again after its first ``rows``."""
        for stopper in self.stoppers:
            rewind = getattr(stopper, "rewind", None)
            if rewind is not None:
                rewind(trial_id, rows)

    def get_state(self) -> dict[str, Any]:
        return {"members": [_state_of(stopper) for stopper in self.stoppers]}

    def set_state(self, state: dict[str, Any]) -> None:
        members = state["members"]
        if len(members) != len(self.stoppers):
            raise InvalidInputError(
                f"The stored state is of {len(members)} combined stoppers, but there are {len(self.stoppers)} now. "
                "Restore with the same stoppers in the same order."
            )
        for stopper, member in zip(self.stoppers, members, strict=True):
            assert isinstance(stopper, SnapshotStopper), "ask can_snapshot() first"
            stopper.set_state(member)


class MaximumIterationStopper(Stopper):
    """Stops each trial after a number of results.

    Args:
        max_iter: Results per trial.
    """

    def __init__(self, max_iter: int) -> None:
        self._max_iter = integer("max_iter", max_iter, 1)
        self._counts: dict[str, int] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        count = self._counts.get(trial_id, 0) + 1
        self._counts[trial_id] = count
        return count >= self._max_iter

    def stop_all(self) -> bool:
        return False

    def rewind(self, trial_id: str, rows: int) -> None:
        """Forget what an abandoned attempt of the trial reported after its first ``rows`` results."""
        self._counts[trial_id] = min(self._counts.get(trial_id, 0), rows)

    def get_state(self) -> dict[str, Any]:
        return {"counts": dict(self._counts)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._counts = dict(state["counts"])


class TimeoutStopper(Stopper):
    """Stops the experiment when its time is used up.

    Only time that a driver lived counts: hours between a crash and the restore do not. The controller hands
    lived time in through ``advance``. Used alone, without a controller, the first ``stop_all`` starts a clock.

    Args:
        timeout: Seconds, or a timedelta.
    """

    def __init__(self, timeout: float | datetime.timedelta) -> None:
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
        budget = finite(seconds)
        if budget is None or isinstance(timeout, bool) or budget < 0:
            raise InvalidInputError(
                f"TimeoutStopper needs seconds >= 0 or a datetime.timedelta, got {timeout!r}. "
                "Write for example TimeoutStopper(3600)."
            )
        self.budget_s: float = budget
        self._spent_s = 0.0
        self._driven = False
        self._clock_start: float | None = None

    @property
    def spent_s(self) -> float:
        """Seconds lived so far."""
        if self._driven or self._clock_start is None:
            return self._spent_s
        return self._spent_s + time.monotonic() - self._clock_start

    def advance(self, lived_s: float) -> None:
        """Learn that drivers have lived ``lived_s`` seconds in all; from then on no clock is read.

        A total and not a difference, so that hearing it twice counts once.
        """
        if not lived_s >= 0:
            raise InvalidInputError(f"TimeoutStopper.advance() needs seconds >= 0, got {lived_s!r}.")
        self._driven = True
        self._spent_s = max(self._spent_s, lived_s)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if not self._driven and self._clock_start is None:
            self._clock_start = time.monotonic()
        return self.spent_s >= self.budget_s

    def get_state(self) -> dict[str, Any]:
        return {"spent_s": self.spent_s}

    def set_state(self, state: dict[str, Any]) -> None:
        self._spent_s = state["spent_s"]
        self._clock_start = None

    def __getstate__(self) -> dict[str, Any]:
        # A reading of the monotonic clock means nothing in another process; the time spent does.
        return {**self.__dict__, "_spent_s": self.spent_s, "_clock_start": None, "_driven": False}


def _bound(key: Any, value: Any) -> Any:
    if not isinstance(key, str) or not key:
        raise InvalidInputError(f"A stopping criterion is named by a metric, got {key!r}.")
    if isinstance(value, Mapping):
        raise InvalidInputError(
            f"Stopping criteria is now flattened by default. The criterion {key!r} is the dict {dict(value)!r}; "
            f'use forward slashes to nest, for example {{"{key}/{next(iter(value), "name")}": ...}}.'
        )
    bound = None if isinstance(value, str | bytes) else number(value)
    if bound is None or bound != bound:
        raise InvalidInputError(
            f"The stopping criterion {key!r} must be a number that ends the trial when reached, got {value!r}."
        )
    return bound


def _names(metrics: Mapping[str, Any], extras: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, {**metrics, **extras}))) or "nothing"


def _check_two_arguments(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind("trial_id", {})
    except TypeError:
        name = getattr(function, "__name__", repr(function))
        raise InvalidInputError(
            f"A function given as `stop` is called with (trial_id, result), but {name} takes {signature}."
        ) from None


def _state_of(stopper: Stopper) -> dict[str, Any]:
    assert isinstance(stopper, SnapshotStopper), "ask can_snapshot() first"
    return stopper.get_state()


def resolve_stopper(stop: Any) -> Stopper:
    """Turn any accepted form of ``stop=`` into one stopper.

    Args:
        stop: None; a dict of metrics and bounds, any of which ends the trial when reached; a function
            ``(trial_id, result) -> bool``; a Stopper; or a list of Stoppers.

    Raises:
        InvalidInputError: ``stop`` is something else, or a criterion makes no sense.

    Example:
        >>> resolve_stopper({"training_iteration": 10})("t1", {"training_iteration": 10})
        True
    """
    if stop is None:
        return NoopStopper()
    if isinstance(stop, Stopper):
        return stop
    if isinstance(stop, Mapping):
        return DictStopper(stop)
    if isinstance(stop, list | tuple):
        for index, member in enumerate(stop):
            if not isinstance(member, Stopper):
                raise InvalidInputError(
                    f"A list given as `stop` must hold Stopper objects only; element {index} is {member!r}. "
                    "Wrap a function as FunctionStopper(fn)."
                )
        return CombinedStopper(*stop)
    if callable(stop):
        return FunctionStopper(stop)
    raise InvalidInputError(
        f"`stop` must be a dict, a function (trial_id, result), a Stopper or a list of Stoppers, got {stop!r} "
        f'of type {type(stop).__name__}. Write for example stop={{"training_iteration": 10}}.'
    )


def can_snapshot(stopper: Stopper) -> bool:
    """Return whether the stopper's memory can be stored; if not, it is rebuilt from the results."""
    if isinstance(stopper, CombinedStopper):
        return all(can_snapshot(member) for member in stopper.stoppers)
    return isinstance(stopper, SnapshotStopper)
