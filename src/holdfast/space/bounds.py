"""What may be a bound, a step or a list of options, and what to write instead of what may not.

Owns the refusals. Whatever a message tells the user to write is accepted when it is written. Must never draw anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, isclose, isfinite, isinf
from operator import index
from sys import float_info
from typing import Any

from holdfast.errors import InvalidInputError, InvalidTypeError

MAX_SHOWN = 200
"""Characters of a value that a message repeats."""

SMALL = 1e-4
"""A lower bound to suggest in place of 0, as a share of the upper one."""


def number(value: Any, name: str) -> float:
    """``value`` as a float that is not NaN, or a refusal."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        unquoted = " Write it without quotes." if isinstance(value, str) and _is_number(value) else ""
        raise InvalidTypeError(f"{name} must be a number, got {value!r} ({type(value).__name__}).{unquoted}")
    result = float(value)
    if result != result:
        raise InvalidInputError(f"{name} must be a number, got NaN.")
    return result


def finite(value: Any, name: str) -> float:
    """``value`` as a finite float, or a refusal."""
    result = number(value, name)
    if isinf(result):
        raise InvalidInputError(f"{name} must be finite, got {value!r}.")
    return result


def whole(value: Any, name: str) -> int:
    """``value`` as an int, or a refusal."""
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        return index(value)
    result = finite(value, name)
    if not result.is_integer():
        raise InvalidInputError(f"{name} must be a whole number, got {value!r}. Use uniform or quniform for fractions.")
    return int(result)


def check_order(lower: float, upper: float) -> None:
    """Refuse bounds that are the wrong way round."""
    if lower > upper:
        raise InvalidInputError(
            f"lower must not exceed upper, got lower={short(lower)} and upper={short(upper)}. Swap them."
        )


def check_log_bounds(lower: float, upper: float, q: Any = None) -> None:
    """Refuse bounds that have no logarithm; ``q`` is the step if there is one."""
    if 0 < lower <= float_info.max and 0 < upper <= float_info.max:
        return
    name, bound = ("lower", lower) if not 0 < lower <= float_info.max else ("upper", upper)
    if bound > float_info.max:
        hint = "Give an upper bound that is a finite float."
    elif bound == 0 and 0 < upper <= float_info.max:
        hint = f"0 has no logarithm: {_above_zero(lower, upper, q)}."
    elif isinstance(bound, int):
        hint = "Start at 1, or use randint, which takes any bounds."
    else:
        hint = "Pass the value itself, not its logarithm: 1e-4 rather than -4."
    raise InvalidInputError(f"A log-uniform domain needs finite bounds above 0, got {name}={short(bound)}. {hint}")


def check_step(lower: float, upper: float, q: float, call: str) -> None:
    """Refuse finite bounds that are no multiples of ``q``.

    Args:
        lower: The lower bound, or minus infinity.
        upper: The upper bound, or infinity.
        q: The step, above 0.
        call: The function to write such a domain with; "" if there is none.
    """
    for name, bound in (("lower", lower), ("upper", upper)):
        if isinf(bound) or divides(q, bound):
            continue
        if call:
            first, last = _within(lower, upper, q, positive="log" in call)
            example = f"{call}({short(first)}, {short(last)}, {short(q)})"
        else:
            example = f"{name}={short(ceil(bound / q) * q)}"
        raise InvalidInputError(
            f"{name}={short(bound)} is not divisible by q={short(q)}. Bounds are multiples of q: write for example "
            f"{example}."
        )


def divides(q: float, value: float) -> bool:
    """Whether ``value`` is a multiple of ``q``, apart from rounding errors."""
    ratio = value / q
    return isclose(ratio, round(ratio), rel_tol=1e-9, abs_tol=1e-9)


def option_list(values: Any, what: str) -> list[Any]:
    """The options of a ``choice`` or ``grid_search`` as a list.

    Args:
        values: What the user gave.
        what: Whose options they are: the function's name, and perhaps where it is.

    Raises:
        InvalidTypeError: They are no ordered collection.
        InvalidInputError: There are none.
    """
    unordered = isinstance(values, set | frozenset | dict)
    if unordered or not isinstance(values, Iterable):
        raise InvalidTypeError(
            f"{what} expected a list of values, got {shown(values)} ({type(values).__name__}"
            f"{', which has no order of its own' if unordered else ''}). {_listed(values, what.split()[0])}"
        )
    options = list(values)
    if not options:
        raise InvalidInputError(f"{what} got an empty list, so there is nothing to try. List at least one value.")
    return options


def refuse_more(call: str, values: Any, more: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Refuse arguments beside the one list of options."""
    numbers = [each for given in (*more, *named.values()) for each in (given if isinstance(given, list) else [given])]
    options = isinstance(values, list | tuple)
    if options and all(isinstance(each, int | float) and 0 <= each <= 1 for each in numbers):
        every = "every one is tried" if call == "grid_search" else "each is equally likely. Repeat one to weight it"
        raise InvalidTypeError(f"{call} takes the options alone, and {every}: {call}({[*values[:1], *values]!r}).")
    given = [*values, *more] if options else [values, *more]
    raise InvalidTypeError(
        f"{call} takes one list of options, got {1 + len(more) + len(named)} arguments. Write {call}({shown(given)})."
    )


def shown(value: Any) -> str:
    """A value as a message repeats it."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def short(value: float) -> str:
    """A number as one would write it: 1 for 1.0, and 0.9 for 0.8999999999999999."""
    if isinstance(value, int) or not isfinite(value):
        return repr(value)
    value = float(f"{value:.12g}")
    return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _above_zero(lower: float, upper: float, q: Any) -> str:
    """What to write instead of a logarithmic domain that begins at 0."""
    if isinstance(lower, int):
        return f"begin at 1, or use randint(0, {upper})" if upper > 1 else f"use randint(0, {upper})"
    if isinstance(q, int | float) and 0 < q <= upper:
        first, last = _within(lower, upper, q, positive=True)
        return f"write for example qloguniform({short(first)}, {short(last)}, {short(q)})"
    return f"write for example loguniform({short(upper * SMALL)}, {short(upper)}), or use uniform(0, {short(upper)})"


def _within(lower: float, upper: float, q: float, *, positive: bool) -> tuple[float, float]:
    """Bounds near the given ones that are multiples of ``q``, inside of them if there are two."""
    first = max(_ratio(lower, q, ceil), 1 if positive else _ratio(lower, q, ceil))
    last = max(_ratio(upper, q, floor), first + 1)
    return first * q, last * q


def _ratio(bound: float, q: float, rounded: Any) -> int:
    return round(bound / q) if divides(q, bound) else int(rounded(bound / q))


def _listed(values: Any, call: str) -> str:
    if hasattr(type(values), "instead_of_options"):  # a domain, and those are defined above this module
        return str(values.instead_of_options(call))
    if not isinstance(values, Iterable):
        return f"Write {call}([{values!r}])."
    try:
        options = sorted(values)
    except TypeError:
        options = list(values)
    return f"Write {call}({shown(options)})."


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
