"""The functions users write search spaces with: ``uniform``, ``choice``, ``grid_search`` and the like.

Owns their signatures and nothing else: each one names a domain of ``domains.py``, which validates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.messages.warn import warn_user
from holdfast.space.bounds import check_log_bounds, number, option_list, refuse_more, whole
from holdfast.space.domains import Categorical, Float, Function, Integer


def uniform(lower: float, upper: float) -> Float:
    """A float in [lower, upper).

    Example:
        >>> uniform(0, 1).sample(random_state=42)
        0.7739560485559633
    """
    return Float(lower, upper).uniform()


def quniform(lower: float, upper: float, q: float) -> Float:
    """A uniform float rounded to a multiple of ``q``; both bounds included, both multiples of ``q``."""
    return Float(lower, upper).uniform().quantized(q)


def loguniform(lower: float, upper: float, base: float | None = None) -> Float:
    """A float whose logarithm is uniform between the bounds, which must be above 0.

    ``base`` never changed the distribution; it is accepted, with a warning, for old code.
    """
    _warn_of_base(base)
    return _log_float(lower, upper).loguniform()


def qloguniform(lower: float, upper: float, q: float, base: float | None = None) -> Float:
    """A log-uniform float rounded to a multiple of ``q``; both bounds included, both multiples of ``q``."""
    _warn_of_base(base)
    return _log_float(lower, upper, q).loguniform().quantized(q)


def randn(mean: float = 0.0, sd: float = 1.0) -> Float:
    """A normally distributed float."""
    return Float(None, None).normal(mean, sd)


def qrandn(mean: float, sd: float, q: float) -> Float:
    """A normally distributed float rounded to a multiple of ``q``."""
    return Float(None, None).normal(mean, sd).quantized(q)


def randint(lower: int, upper: int) -> Integer:
    """A whole number from ``lower`` to ``upper - 1``: the upper bound is left out.

    Example:
        >>> randint(0, 100).sample(random_state=42)
        8
    """
    return Integer(lower, upper).uniform()


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """A multiple of ``q`` within the bounds, each equally likely; upper bound included unless q is 1."""
    return Integer(lower, upper).quantized(q)


def lograndint(lower: int, upper: int, base: float | None = None) -> Integer:
    """A log-uniform float, rounded down: from ``lower`` to ``upper - 1``."""
    _warn_of_base(base)
    return _log_integer(lower, upper).loguniform()


def qlograndint(lower: int, upper: int, q: int, base: float | None = None) -> Integer:
    """A log-uniform multiple of ``q``; upper bound included unless q is 1."""
    _warn_of_base(base)
    return _log_integer(lower, upper).loguniform().quantized(q)


def choice(categories: Iterable[Any], *more: Any, **named: Any) -> Categorical:
    """One of the options, each equally likely. An option may be a space of its own.

    Example:
        >>> optimizer = choice([{"name": "sgd", "momentum": uniform(0, 1)}, {"name": "adam"}])
        >>> optimizer.sample(random_state=1)["name"]
        'sgd'
    """
    if more or named:
        refuse_more("choice", categories, more, named)
    return Categorical(categories).uniform()


def sample_from(func: Callable[..., Any]) -> Function:
    """Whatever ``func`` returns, which may be a value, a domain or a grid.

    Args:
        func: Takes nothing, or the config with the values drawn so far: ``lambda config: 2 * config["x"]``.
            While it runs, ``random`` and ``numpy.random`` are seeded for this very trial, so drawing
            from them is reproducible.
    """
    return Function(func)


def grid_search(values: Iterable[Any], *more: Any, **named: Any) -> dict[str, list[Any]]:
    """Every one of the values is tried, combined with every value of every other grid.

    Example:
        >>> grid_search([1, 2])
        {'grid_search': [1, 2]}
    """
    if more or named:
        refuse_more("grid_search", values, more, named)
    return {"grid_search": option_list(values, "grid_search")}


def _log_float(lower: float, upper: float, q: Any = None) -> Float:
    # Before anything else, so that nobody is told to swap bounds that have no logarithm either way.
    check_log_bounds(number(lower, "lower"), number(upper, "upper"), q)
    return Float(lower, upper)


def _log_integer(lower: int, upper: int) -> Integer:
    check_log_bounds(whole(lower, "lower"), whole(upper, "upper"))
    return Integer(lower, upper)


def _warn_of_base(base: float | None) -> None:
    if base is not None:
        warn_user("The base of a log-uniform domain has no effect on what is drawn; leave it out.", DeprecationWarning)
