"""What a stopper is, and how stoppers look at results.

Owns: the interface, its optional second half, and the reading of one metric out of a result.
Must never: know a particular stopper.
"""

from __future__ import annotations

import abc
import math
import operator
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from holdfast.config.arguments import KnownArguments
from holdfast.errors import InvalidInputError

ABSENT = object()
"""Stands for a metric that a result does not have, where None would be a value."""


class Stopper(KnownArguments, abc.ABC):
    """Decides from results which trials end, and whether all do.

    A stopper's memory is part of the experiment. One that also has ``get_state() -> dict`` (plain data) and
    ``set_state(dict)`` is stored with the snapshots. Any other is rebuilt on restore by calling it again with
    every result it has seen, in the same order. So a call must depend on its arguments and on earlier calls
    alone, and must have no effect outside the object: no files, no messages, no clock, no random numbers.

    A retry repeats the results after its checkpoint. A stopper that counts results can have a method
    ``rewind(trial_id, rows)``, which is called when an attempt begins with ``rows`` results of that trial
    still standing; those it was given beyond them are void.

    Example:
        >>> class Diverged(Stopper):
        ...     def __call__(self, trial_id, result):
        ...         return result["loss"] > 1e6
        ...
        ...     def stop_all(self):
        ...         return False
    """

    @abc.abstractmethod
    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return whether this trial ends with this result."""

    @abc.abstractmethod
    def stop_all(self) -> bool:
        """Return whether every trial ends and no new one begins; must not change the stopper."""


@runtime_checkable
class SnapshotStopper(Protocol):
    """A stopper whose memory can be stored, so that a restore need not repeat its past."""

    def get_state(self) -> dict[str, Any]:
        """Return the whole memory as plain data: dicts, lists, strings, numbers, booleans, None."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over exactly the memory that ``get_state`` returned."""


def lookup(result: Mapping[str, Any], key: str) -> Any:
    """Return the metric ``key`` of a result, literal or nested, or ABSENT."""
    if key in result:
        return result[key]
    return nested(result, key) if "/" in key else ABSENT


def nested(result: Mapping[str, Any], key: str) -> Any:
    """Find ``a/b/c`` in nested dicts, whose own keys may contain slashes too."""
    cut = key.find("/")
    while cut >= 0:
        inner = result.get(key[:cut])
        if isinstance(inner, Mapping):
            found = lookup(inner, key[cut + 1 :])
            if found is not ABSENT:
                return found
        cut = key.find("/", cut + 1)
    return ABSENT


def number(value: Any) -> float | int | None:
    """The value as a plain number, or None if it is none."""
    if isinstance(value, int):
        return int(value)
    try:
        return float(value)
    except Exception:
        # Arrays and tensors of more than one element raise whatever their library likes.
        return None


def finite(value: Any) -> float | None:
    """The value as a plain finite float, or None: states are stored, so they hold plain data only."""
    if isinstance(value, str | bytes) or value is ABSENT:
        return None
    plain = number(value)
    try:
        return float(plain) if plain is not None and math.isfinite(plain) else None
    except OverflowError:
        return None


def deviation(values: list[float]) -> float:
    """Standard deviation of the values themselves (not an estimate for more of their kind)."""
    try:
        mean = math.fsum(values) / len(values)
        return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    except OverflowError:
        return math.inf


def integer(name: str, value: Any, minimum: int) -> int:
    """Return a stopper's argument as an int of at least ``minimum``, or refuse it."""
    if not isinstance(value, bool):
        try:
            whole = operator.index(value)
        except TypeError:
            whole = minimum - 1
        if whole >= minimum:
            return whole
    raise InvalidInputError(f"{name} must be an integer >= {minimum}, got {value!r}.")
