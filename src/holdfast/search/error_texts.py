"""What searchers say about a space, a metric or a mode that they cannot use; searchers of users' own say it too.

Owns these texts and the check of points that are tried first. Each text is filled in with ``format``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.errors import InvalidInputError, InvalidTypeError

UNRESOLVED_SEARCH_SPACE = (
    "The `{par}` of {cls} has values in it that are still to be chosen. Give the space to Tuner(param_space=...), or "
    "convert it first: {cls}(space={cls}.convert_search_space({space}))."
)

UNDEFINED_SEARCH_SPACE = (
    "{cls} has no search space to suggest from: it got {space}. Give one to Tuner(param_space=...), or to {cls}(...)."
)

UNDEFINED_METRIC_MODE = (
    "{cls} has been instantiated without a valid `metric` ({metric}) or `mode` ({mode}). Pass both to "
    "TuneConfig(metric=..., mode='min' or 'max'), or to {cls}(...)."
)


def validate_warmstart(
    parameter_names: Sequence[str],
    points_to_evaluate: Sequence[Any] | None,
    evaluated_rewards: Sequence[Any] | None,
    validate_point_name_lengths: bool = True,
) -> None:
    """Refuse points to try first, or their known values, that do not fit the parameters.

    Args:
        parameter_names: All parameters, in order.
        points_to_evaluate: Points: dicts, or lists in the order of the parameters.
        evaluated_rewards: The known value of each point; None if they are not known.
        validate_point_name_lengths: Whether each point must have a value for each parameter.

    Raises:
        TypeError: They are no lists, or a point is neither a dict nor a list.
        ValueError: A point has another number of values, or there is not one reward for each point.
    """
    for name, given in (("points_to_evaluate", points_to_evaluate), ("evaluated_rewards", evaluated_rewards)):
        if given is not None and not isinstance(given, list | tuple):
            raise InvalidTypeError(f"{name} must be a list, got {given!r} ({type(given).__name__}).")
    for index, point in enumerate(points_to_evaluate or ()):
        if not isinstance(point, dict | list | tuple):
            raise InvalidTypeError(
                f"points_to_evaluate[{index}] must be a dict or a list, got {point!r} ({type(point).__name__})."
            )
        if validate_point_name_lengths and len(point) != len(parameter_names):
            raise InvalidInputError(
                f"points_to_evaluate[{index}] has {len(point)} values for {len(parameter_names)} parameters: "
                f"{list(parameter_names)}. Got {point!r}."
            )
    if evaluated_rewards is not None and len(evaluated_rewards) != len(points_to_evaluate or ()):
        raise InvalidInputError(
            f"evaluated_rewards must have one value for each of the {len(points_to_evaluate or ())} "
            f"points_to_evaluate, got {len(evaluated_rewards)}."
        )


def is_nan(value: Any) -> bool:
    """Whether it is the number that equals nothing."""
    try:
        return math.isnan(value)
    except (TypeError, OverflowError):
        return False


def is_nan_or_inf(value: Any) -> bool:
    """Whether it is a number that nothing can be learned from."""
    try:
        return not math.isfinite(value)
    except (TypeError, OverflowError):
        return False
