"""Keyword arguments that a class or function does not have: refused with the name that was probably meant, or left out.

Owns that refusal for classes whose constructors are written by hand. Must never: know a particular class.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any, Self

from holdfast.errors import InvalidTypeError
from holdfast.messages.warn import warn_user

SHORTEST_START = 3
"""Letters that the beginning of a name needs to be taken for the name."""


class KnownArguments:
    """Base of public classes: an unknown keyword is named, together with the nearest known one.

    The check is in ``__new__``, so that ``__init__`` keeps a signature that editors and ``help()`` can show.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        known = keywords_of(cls.__init__)
        if known is not None:
            for name in kwargs:
                if name not in known:
                    raise InvalidTypeError(cls._refusal(name, known))
        _check_count(cls, len(args))
        if args and cls.__init__ is object.__init__:  # which ignores arguments if there is a ``__new__``
            raise InvalidTypeError(f"{cls.__name__}() takes no arguments, got {args[0]!r}.")
        return super().__new__(cls)

    @classmethod
    def _refusal(cls, name: str, known: Collection[str]) -> str:
        return f"{cls.__name__}() has no argument {name!r}.{suggestion(name, known)}"


def _check_count(cls: type, count: int) -> None:
    """Refuse more arguments without a name than there are, and name the first of those that need one."""
    if cls.__init__ is object.__init__:  # type: ignore[misc]
        return
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
    named = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    takes = [parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    any_number = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    if count > len(takes) and named and not any_number:
        number = f"{len(takes)} argument{'' if len(takes) == 1 else 's'}"
        raise InvalidTypeError(
            f"{cls.__name__}() takes {number} without a name, got {count}. Name the others: {named[0]}=..."
        )


def keywords_of(function: Callable[..., Any]) -> list[str] | None:
    """The names of the keyword arguments that a method takes; None if it takes any."""
    if function is object.__init__:
        return []
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in by_name]


def accepted(function: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that ``function`` takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return kwargs
    names = {parameter.name for parameter in parameters}
    return {key: value for key, value in kwargs.items() if key in names}


def accepted_by_name(
    call: str, made: type, kwargs: dict[str, Any], others: Callable[[], Iterable[type]]
) -> dict[str, Any]:
    """The arguments that a class takes. Those that others of its kind take are left out: one dict can serve all.

    Args:
        call: The user's call, for messages.
        made: The class.
        kwargs: What the user gave.
        others: All classes of its kind; asked only if something is left out.

    Raises:
        InvalidTypeError: One is no argument of any of them, and nearly one of ``made``.
    """
    known = keywords_of(made.__init__)  # type: ignore[misc]
    if known is None:
        return kwargs
    left_out = kwargs.keys() - set(known)
    elsewhere: set[str] = set()
    for other in others() if left_out else ():
        elsewhere.update(inspect.signature(other.__init__).parameters)  # type: ignore[misc]
    for name in sorted(left_out - elsewhere):
        if near := _nearest(name, known):
            raise InvalidTypeError(f"{call} has no argument {name!r}. Did you mean {near!r}?")
        warn_user(f"{call} leaves out {name!r}, which nothing of its kind has.{suggestion(name, known)}")
    return {name: value for name, value in kwargs.items() if name not in left_out}


def suggestion(name: str, known: Collection[str]) -> str:
    """A sentence that names the nearest known name, or all of them if none is near."""
    if near := _nearest(name, known):
        return f" Did you mean {near!r}?"
    return f" It has: {', '.join(known)}." if known else " It has none."


def _nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that was probably meant; one that is the beginning of the other comes first."""
    folded = {each.lower(): each for each in known}
    low = name.lower()
    starts = [
        each
        for each in folded
        if min(len(each), len(low)) >= SHORTEST_START and (each.startswith(low) or low.startswith(each))
    ]
    close = difflib.get_close_matches(low, starts, n=1, cutoff=0.0) or difflib.get_close_matches(low, folded, n=1)
    return folded[close[0]] if close else None
