"""The parameters of a request: a bad one is a sentence that names it. Limits keep every answer small."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from holdfast.errors import InvalidInputError

MAX_NAMES = 200
_WHOLE_NUMBER = re.compile(r"-?[0-9]+")  # int() would also take 1_0, and digits of other scripts
TOKEN = "token"
"""May stand in every address."""


class Query:
    """Reads parameters.

    Args:
        given: The parameters as text, by name.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str, default: str | None = None, *, limit: int = 4000) -> str | None:
        """A text; an empty one counts as not given."""
        value = self._given.get(name, "")
        if len(value) > limit:
            raise InvalidInputError(f"{name} has {len(value):,} characters; the limit is {limit:,}.")
        return value or default

    def required(self, name: str) -> str:
        """A text without which there is no answer."""
        value = self.text(name)
        if value is None:
            raise InvalidInputError(f"The parameter {name} is missing.")
        return value

    def number(self, name: str, default: int, *, low: int = 0, high: int) -> int:
        """A whole number between two limits."""
        value = self.text(name, limit=40)
        if value is None:
            return default
        if not _WHOLE_NUMBER.fullmatch(value):
            raise InvalidInputError(f"{name}={value!r} is not a whole number.")
        number = int(value)
        if not low <= number <= high:
            raise InvalidInputError(f"{name}={number} is not between {low} and {high:,}.")
        return number

    def flag(self, name: str) -> bool:
        """Yes or no."""
        value = self.text(name, "0", limit=40)
        assert value is not None
        if value.lower() in ("1", "true", "yes"):
            return True
        if value.lower() in ("0", "false", "no"):
            return False
        raise InvalidInputError(f"{name}={value!r} is neither 1 nor 0.")

    def names(self, name: str, *, limit: int = MAX_NAMES) -> list[str]:
        """Names separated by commas; a comma or a percent sign within a name is percent-encoded once more."""
        value = self.text(name, "", limit=16_000)
        assert value is not None
        found = list(dict.fromkeys(unquote(part) for part in value.split(",") if part))
        if len(found) > limit:
            raise InvalidInputError(f"{name} has {len(found)} names; the limit is {limit}.")
        return found

    def only(self, *known: str) -> Query:
        """The same, if there are no other parameters than these and the token."""
        refuse_unknown("parameter", (name for name in self._given if name != TOKEN), known, "at this address")
        return self

    def rest(self, *without: str) -> dict[str, str]:
        """All other parameters."""
        return {name: value for name, value in self._given.items() if name not in without}


def refuse_unknown(what: str, given: Iterable[str], known: tuple[str, ...], where: str) -> None:
    """Refuse names that nobody knows: whoever misspells one would get another answer than the one asked for.

    Raises:
        InvalidInputError: There is one; the message names it and those that there are.
    """
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            there = f"The {what}s are: {', '.join(known)}." if known else f"There are no {what}s."
            raise InvalidInputError(f"There is no {what} {name[:80]!r} {where}.{meant} {there}")
