"""Reading ``stop=`` in all its forms.

Owns: which form becomes which stopper. Must never: judge a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.stopper.base import SnapshotStopper, Stopper
from holdfast.stopper.builtin import CombinedStopper, DictStopper, FunctionStopper, NoopStopper


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
